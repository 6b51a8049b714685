"""The broker as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from warren import __version__
from warren.engine_view.counters import CHANNEL_STATS, LENGTHS
from warren.engine_view.engine_view import EngineView
from warren.engine_view.exchanges import EXCHANGE_TYPE_NAMES
from warren.engine_view.totals import chunks
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.metrics.statistics import CHURN, RANGE_QUERY, Ranges, Statistics
from warren.mgmt_plugin.names import visible_connections, visible_vhost_names
from warren.mgmt_plugin.resources.vhosts import lengths_in
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request
from warren.server.held_links import told_by
from warren.server.management import Listening
from warren.server.protocols import LISTENERS
from warren.server.settings import WITH_TLS

# The version whose API this is: tools look at it before they ask for anything.
RABBITMQ_VERSION: Final = "3.13.7"
PRODUCT: Final = "Warren"


def exchange_types() -> list[Described]:
    """Return all exchange types."""
    return [
        {"name": name, "description": f"exchange type {name}", "enabled": True, "internal_purpose": ""}
        for name in EXCHANGE_TYPE_NAMES
    ]


# What RabbitMQ calls them.
SHOWN: Final = {"prometheus": "http/prometheus"} | {name: kind.shown for name, kind in LISTENERS.items()}


def listener_rows(node: str, listening: Sequence[Listening]) -> list[Described]:
    """Return the ports that are open."""
    return [
        {
            "node": node,
            "protocol": SHOWN.get(each.protocol, each.protocol),
            "ip_address": each.host,
            "port": each.port,
            "tls": each.protocol in WITH_TLS,
            "socket_opts": {"backlog": 4096, "nodelay": True},
        }
        for each in listening
    ]


def context_rows(node: str, listening: Sequence[Listening]) -> list[Described]:
    """Return the ports of HTTP, as RabbitMQ lists them."""
    return [
        {
            "description": "Prometheus metrics" if each.protocol == "prometheus" else "Management",
            "path": "/",
            "ip": each.host,
            "port": str(each.port),
            "ssl_opts": [],
            "node": node,
        }
        for each in listening
        if each.protocol in ("http", "https", "prometheus")
    ]


def cluster_of(status: Described) -> Described:
    """Return the cluster in short, from the answer of ``/api/cluster/status``."""
    return {
        "name": status.get("cluster"),
        "leader": status["node"],
        "nodes": [row["node"] for row in status["members"]],
        "running": [row["node"] for row in status["members"] if row["running"]],
        "in_sync": status["in_sync"],
        "min_in_sync": status["min_in_sync"],
    }


FEATURES: Final = (
    ("classic_queue_type_delivery_support", "Queues of several types"),
    ("direct_exchange_routing_v2", "Fast routing in direct exchanges"),
    ("quorum_queue", "Support queues of type `quorum`"),
    ("user_limits", "Configure connection and channel limits for a user"),
    ("virtual_host_metadata", "Virtual host metadata (description, tags, etc)"),
)


_USER: Final = Access.USER


class OverviewHandlers(Handlers):
    """Handlers of the broker as a whole. `listening`: the ports that are open; `cluster`: see `Management`."""

    def __init__(
        self,
        view: EngineView,
        statistics: Statistics,
        listening: Sequence[Listening],
        cluster: Callable[[], Described] | None,
    ) -> None:
        self._view = view
        self._statistics = statistics
        self._listening = listening
        self._cluster = cluster

    async def show_overview(self, call: Call) -> Described:
        view = self._view
        ranges = Ranges.of(call.query)
        vhosts = visible_vhost_names(call)
        totals_of = [await lengths_in(view, vhost) for vhost in vhosts]
        connections = visible_connections(call, view)
        messages, ready, unacked, consumers = (sum(each[at] for each in totals_of) for at in range(4))
        lengths = (messages, ready, unacked)
        described: Described = {
            "management_version": RABBITMQ_VERSION,
            "rabbitmq_version": RABBITMQ_VERSION,
            "product_name": PRODUCT,
            "product_version": __version__,
            "erlang_version": "",
            "erlang_full_version": "",
            "release_series_support_status": "supported",
            "rates_mode": "basic",
            "sample_retention_policies": {"global": [600, 3600, 28800, 86400], "basic": [600], "detailed": [600]},
            "exchange_types": exchange_types(),
            "cluster_name": view.cluster_name(),
            "cluster_tags": [],
            "node_tags": [],
            "default_queue_type": "classic",
            "disable_stats": False,
            "enable_queue_totals": False,
            "is_op_policy_updating_enabled": True,
            "statistics_db_event_queue": 0,
            "node": view.node_name(),
            "object_totals": {
                "channels": len(view.connections.channels_of(connections)),
                "connections": len(connections),
                "consumers": consumers,
                "exchanges": sum(view.exchanges.count(vhost) for vhost in vhosts),
                "queues": sum(view.queues.count(vhost) for vhost in vhosts),
            },
        }
        statistics = self._statistics
        shown = statistics.of_broker(lengths) if call.operator.is_monitor else statistics.of_vhosts(vhosts, lengths)
        totals: Described = {}
        shown.add(totals, LENGTHS, ranges.lengths)
        described["queue_totals"] = totals
        described["messages_delayed"] = await self._delayed_in(vhosts)
        described["message_stats"] = shown.message_stats(CHANNEL_STATS, ranges.messages)
        churn: Described = {}
        statistics.of_broker(lengths).add(churn, CHURN, ranges.messages)
        described["churn_rates"] = churn
        if self._cluster is not None:
            described["cluster"] = cluster_of(self._cluster())
        if mark := told_by(view.parameters):
            described["links_held"] = mark.document()
        if call.operator.is_monitor:
            described["listeners"] = listener_rows(view.node_name(), self._listening)
            described["contexts"] = context_rows(view.node_name(), self._listening)
        return described

    async def _delayed_in(self, vhosts: Sequence[str]) -> int:
        """Return the number of messages that wait in delayed message exchanges."""
        count = 0
        for vhost in vhosts:
            for some in chunks(self._view.exchanges.delaying(vhost)):
                count += self._view.exchanges.delayed(vhost, some)
                await give_way()
        return count

    async def show_version(self, call: Call) -> str:
        return RABBITMQ_VERSION

    async def list_extensions(self, call: Call) -> list[Described]:
        return [{"javascript": "dispatcher.js"}]

    async def show_auth(self, call: Call) -> Described:
        return {"oauth_enabled": False, "enable_uaa": False, "uaa_client_id": "", "uaa_location": ""}

    async def list_feature_flags(self, call: Call) -> list[Described]:
        return [
            {
                "name": name,
                "desc": description,
                "doc_url": "",
                "state": "enabled",
                "stability": "required",
                "provided_by": "warren",
            }
            for name, description in FEATURES
        ]

    async def enable_feature_flag(self, call: Call) -> None:
        if call.params["flag"] not in dict(FEATURES):
            raise bad_request("unsupported")

    async def list_nothing(self, call: Call) -> list[Described]:
        return []

    async def rebalance(self, call: Call) -> None:
        return None

    ROUTES: ClassVar = (
        Route("GET", "/api/overview", _USER, show_overview, "The broker as a whole", query=RANGE_QUERY),
        Route("GET", "/api/version", _USER, show_version, "The version of RabbitMQ whose API this is"),
        Route("GET", "/api/extensions", _USER, list_extensions, "Extensions of the web UI"),
        Route("GET", "/api/auth", Access.PUBLIC, show_auth, "Login methods of the web UI"),
        Route("GET", "/api/feature-flags", _USER, list_feature_flags, "Feature flags"),
        Route(
            "PUT",
            "/api/feature-flags/{flag}/enable",
            Access.ADMINISTRATOR,
            enable_feature_flag,
            "Enable a feature flag",
        ),
        Route("GET", "/api/deprecated-features", _USER, list_nothing, "Deprecated features"),
        Route("GET", "/api/deprecated-features/used", _USER, list_nothing, "Deprecated features that are in use"),
        Route("POST", "/api/rebalance/queues", Access.ADMINISTRATOR, rebalance, "Rebalance the leaders of queues"),
    )
