"""The broker as a whole, the node it runs on, and whether it is well."""

from __future__ import annotations

import os
import resource
import shutil
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from warren import __version__
from warren.amqp.methods import FRAME_OVERHEAD_BYTES
from warren.exchanges.registry import EXCHANGE_TYPES
from warren.mgmt_plugin.connections import channels_of
from warren.mgmt_plugin.http import HttpError
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.names import node_name, visible_connections, visible_vhosts
from warren.mgmt_plugin.routes import Access, Call, Route, bad_request, not_found
from warren.mgmt_plugin.statistics import CHANNEL_STATS, CHURN, LENGTHS, NODE_FIELDS, RANGE_QUERY, Ranges
from warren.server.management import Listening, Management
from warren.server.process_memory import resident_bytes

# The version whose API this is: tools look at it before they ask for anything.
RABBITMQ_VERSION: Final = "3.13.7"
PRODUCT: Final = "Warren"
MECHANISMS: Final = ("PLAIN", "AMQPLAIN", "EXTERNAL")
# What the protocols of listeners are called in health checks.
PROTOCOLS: Final = {
    "amqp": {"amqp", "amqp091", "amqp0-9-1", "amqp10"} - {"amqp10"},
    "amqps": {"amqps", "amqp/ssl", "amqp091/ssl"},
    "http": {"http", "management", "mgmt", "rabbitmq_management"},
    "https": {"https", "https/management"},
    "prometheus": {"prometheus", "http/prometheus", "rabbitmq_prometheus"},
}
SECONDS_OF: Final = {"days": 86400, "weeks": 7 * 86400, "months": 30 * 86400, "years": 365 * 86400}
assert FRAME_OVERHEAD_BYTES == 8


# --- overview ---------------------------------------------------------------------------------------------------------


def exchange_types() -> list[Described]:
    """Return the exchange types there are."""
    return [
        {"name": name, "description": f"exchange type {name}", "enabled": True, "internal_purpose": ""}
        for name in sorted(EXCHANGE_TYPES)
    ]


def listener_rows(management: Management) -> list[Described]:
    """Return the ports that are open."""
    node = node_name(management.broker)
    return [
        {
            "node": node,
            "protocol": {"amqps": "amqp/ssl", "prometheus": "http/prometheus"}.get(each.protocol, each.protocol),
            "ip_address": each.host,
            "port": each.port,
            "tls": each.protocol in ("amqps", "https"),
            "socket_opts": {"backlog": 4096, "nodelay": True},
        }
        for each in management.listening
    ]


def context_rows(management: Management) -> list[Described]:
    """Return the ports of HTTP, as RabbitMQ lists them."""
    return [
        {
            "description": "Prometheus metrics" if each.protocol == "prometheus" else "Management",
            "path": "/",
            "ip": each.host,
            "port": str(each.port),
            "ssl_opts": [],
            "node": node_name(management.broker),
        }
        for each in management.listening
        if each.protocol in ("http", "https", "prometheus")
    ]


async def show_overview(call: Call) -> Described:
    broker = call.management.broker
    ranges = Ranges.of(call.query)
    vhosts = list(visible_vhosts(call))
    connections = visible_connections(call)
    totals_of = [vhost.lengths() for vhost in vhosts]
    ready, unacked, consumers = (sum(each[at] for each in totals_of) for at in range(3))
    lengths = (ready + unacked, ready, unacked)
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
        "cluster_name": broker.cluster_name(),
        "cluster_tags": [],
        "node_tags": [],
        "default_queue_type": "classic",
        "disable_stats": False,
        "enable_queue_totals": False,
        "is_op_policy_updating_enabled": True,
        "statistics_db_event_queue": 0,
        "node": node_name(broker),
        "object_totals": {
            "channels": len(channels_of(connections)),
            "connections": len(connections),
            "consumers": consumers,
            "exchanges": sum(len(vhost.exchanges) for vhost in vhosts),
            "queues": sum(len(vhost.queues) for vhost in vhosts),
        },
    }
    statistics = call.services.statistics
    shown = statistics.of_broker(lengths) if call.operator.is_monitor else statistics.of_vhosts(vhosts, lengths)
    totals: Described = {}
    shown.add(totals, LENGTHS, ranges.lengths)
    described["queue_totals"] = totals
    described["message_stats"] = shown.message_stats(CHANNEL_STATS, ranges.messages)
    churn: Described = {}
    statistics.of_broker(lengths).add(churn, CHURN, ranges.messages)
    described["churn_rates"] = churn
    if call.operator.is_monitor:
        described["listeners"] = listener_rows(call.management)
        described["contexts"] = context_rows(call.management)
    return described


async def show_version(call: Call) -> str:
    return RABBITMQ_VERSION


async def list_extensions(call: Call) -> list[Described]:
    return [{"javascript": "dispatcher.js"}]


async def show_auth(call: Call) -> Described:
    return {"oauth_enabled": False, "enable_uaa": False, "uaa_client_id": "", "uaa_location": ""}


# --- node -------------------------------------------------------------------------------------------------------------


def open_descriptors() -> int:
    """Return how many file descriptors are open."""
    return len(os.listdir("/proc/self/fd"))


def node_row(management: Management) -> tuple[int, ...]:
    """Return `statistics.NODE_FIELDS` now."""
    return (
        resident_bytes(),
        open_descriptors(),
        management.reactor.connection_count(),
        shutil.disk_usage(management.settings.data_dir).free,
        len(management.broker.connections),
    )


def describe_node(call: Call) -> Described:
    """Return the node."""
    management = call.management
    broker = management.broker
    settings = management.settings
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    messages = management.messages
    churn: Described = {}
    call.services.statistics.of_broker((0, 0, 0)).add(churn, CHURN)
    described: Described = churn | {
        "name": node_name(broker),
        "type": "disc",
        "running": True,
        "being_drained": False,
        "uptime": int(time.time() * 1000) - management.started_ms,
        "os_pid": str(os.getpid()),
        "fd_total": descriptors,
        "sockets_total": descriptors,
        "mem_limit": management.memory_limit_bytes,
        "mem_alarm": broker.has_alarm("memory"),
        "mem_calculation_strategy": "rss",
        "disk_free_limit": settings.store.disk_free_min_bytes,
        "disk_free_alarm": broker.has_alarm("disk"),
        "proc_total": settings.limits.connections_max,
        "processors": os.cpu_count() or 1,
        "run_queue": 0,
        "rates_mode": "basic",
        "net_ticktime": 60,
        "partitions": [],
        "enabled_plugins": ["warren_management", "warren_prometheus"],
        "exchange_types": exchange_types(),
        "auth_mechanisms": [{"name": name, "description": name, "enabled": True} for name in MECHANISMS],
        "applications": [{"name": "warren", "description": PRODUCT, "version": __version__}],
        "contexts": context_rows(management),
        "log_files": ["<stderr>"],
        "config_files": sorted(_config_files(settings.origins)),
        "db_dir": str(settings.data_dir.absolute()),
        "cluster_links": [],
        "metrics_gc_queue_length": {},
        "msg_store_write_count": messages.batches,
        "msg_store_read_count": messages.reads,
        "io_write_bytes": messages.written_bytes,
        "io_sync_count": messages.syncs,
        "queue_index_write_count": messages.checkpoints,
    }
    call.services.statistics.of_node().add(described, NODE_FIELDS, Ranges.of(call.query).node)
    return described


def _config_files(origins: Any) -> set[str]:
    return {origin.removeprefix("file ") for origin in origins.values() if origin.startswith("file ")}


async def list_nodes(call: Call) -> list[Described]:
    return [describe_node(call)]


def _the_node(call: Call) -> None:
    if call.params["node"] != node_name(call.management.broker):
        raise not_found()


async def show_node(call: Call) -> Described:
    _the_node(call)
    return describe_node(call)


async def show_memory(call: Call) -> Described:
    _the_node(call)
    used = resident_bytes()
    breakdown = _memory_breakdown(call.management)
    other = max(0, used - sum(breakdown.values()))
    total = {"rss": used, "allocated": used, "erlang": 0}
    return {"memory": {**breakdown, "other_system": other, "strategy": "rss", "total": total}}


async def show_relative_memory(call: Call) -> Described:
    _the_node(call)
    used = resident_bytes()
    breakdown = _memory_breakdown(call.management)
    breakdown["other_system"] = max(0, used - sum(breakdown.values()))
    return {"memory": {**{name: round(100 * value / used) for name, value in breakdown.items()}, "total": 100}}


def _memory_breakdown(management: Management) -> dict[str, int]:
    """Return what is known to take memory, in bytes, under RabbitMQ's names; the rest is the program."""
    broker = management.broker
    waiting = sum(int(connection.outbox.waiting_bytes()) for connection in broker.connections.values())
    return {
        "connection_readers": int(broker.shared.inbound_bytes),
        "connection_writers": waiting,
    }


async def show_environment(call: Call) -> Described:
    settings = call.management.settings
    from warren.server.settings import shown_values

    return {key: {"value": value, "origin": origin} for key, value, origin in shown_values(settings)}


# --- health checks ----------------------------------------------------------------------------------------------------


def _failed(reason: str, **more: Any) -> HttpError:
    return CheckFailed({"status": "failed", "reason": reason, **more})


class CheckFailed(HttpError):
    """A health check that did not pass: the body is what the check found."""

    def __init__(self, document: Described) -> None:
        super().__init__(503, "failed", document["reason"])
        self.document = document


_OK: Final = {"status": "ok"}


async def check_alarms(call: Call) -> Described:
    broker = call.management.broker
    resources = [name for name in ("memory", "disk") if broker.has_alarm(name)]
    if resources:
        node = node_name(broker)
        rows = [{"node": node, "resource": name} for name in resources]
        raise _failed("There are alarms in effect in the cluster", alarms=rows)
    return dict(_OK)


async def check_running(call: Call) -> Described:
    health = call.management.health()
    if not health.ok:
        raise _failed(health.reason)
    return dict(_OK)


async def check_port(call: Call) -> Described:
    try:
        port = int(call.params["port"])
    except ValueError:
        raise bad_request("the port must be a number") from None
    ports = sorted({each.port for each in call.management.listening})
    if port not in ports:
        raise _failed("No active listener", missing=port, ports=ports)
    return {"status": "ok", "port": port}


async def check_protocol(call: Call) -> Described:
    wanted = [each.strip().lower() for each in call.params["protocol"].split(",")]
    active = {each.protocol for each in call.management.listening}
    known: set[str] = set().union(*(PROTOCOLS[protocol] for protocol in active))
    missing = [each for each in wanted if each not in known]
    if missing:
        raise _failed("No active listener", missing=missing, protocols=sorted(active))
    return {"status": "ok", "protocol": call.params["protocol"]}


async def check_certificates(call: Call) -> Described:
    unit = call.params["unit"]
    try:
        within_s = int(call.params["within"]) * SECONDS_OF[unit]
    except (ValueError, KeyError):
        raise bad_request(f"Invalid expiration unit. Use one of {', '.join(SECONDS_OF)}") from None
    certificate = call.management.settings.tls.certificate
    if call.management.tls is None or certificate is None:
        return dict(_OK)
    ends_s = certificate_end_s(certificate)
    if ends_s - time.time() < within_s:
        when = datetime.fromtimestamp(ends_s, UTC).isoformat()
        raise _failed("Certificates expiring", expired=[{"certfile": str(certificate), "certfile_expires_on": when}])
    return dict(_OK)


def certificate_end_s(path: Path) -> float:
    """Return when the first certificate of a PEM file expires, in seconds since the epoch."""
    # The decoder of ssl for files, which it has for its own tests, is the only one of the standard library.
    decoded: dict[str, Any] = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]
    return ssl.cert_time_to_seconds(decoded["notAfter"])


async def check_quorum_critical(call: Call) -> Described:
    return {"status": "ok", "reason": "single node cluster"}


async def check_nothing(call: Call) -> Described:
    return dict(_OK)


async def check_connection_limit(call: Call) -> Described:
    limit = call.management.settings.limits.connections_max
    current = call.management.broker.open_connections
    if current >= limit:
        raise _failed("the connection limit of the node is reached", current=current, limit=limit)
    return {"status": "ok", "current": current, "limit": limit}


async def check_store(call: Call) -> Described:
    return await check_running(call)


async def list_attempts(call: Call) -> list[Described]:
    _the_node(call)
    churn = call.management.broker.churn
    doorkeeper = call.services.doorkeeper
    rows: list[tuple[str, int, int]] = [
        ("http", doorkeeper.succeeded, doorkeeper.failed),
        ("amqp091", churn.logins_accepted, churn.logins_refused),
    ]
    return [
        {
            "protocol": protocol,
            "auth_attempts": succeeded + failed,
            "auth_attempts_succeeded": succeeded,
            "auth_attempts_failed": failed,
        }
        for protocol, succeeded, failed in rows
    ]


async def list_feature_flags(call: Call) -> list[Described]:
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


FEATURES: Final = (
    ("classic_queue_type_delivery_support", "Queues of several types"),
    ("direct_exchange_routing_v2", "Fast routing in direct exchanges"),
    ("quorum_queue", "Support queues of type `quorum`"),
    ("user_limits", "Configure connection and channel limits for a user"),
    ("virtual_host_metadata", "Virtual host metadata (description, tags, etc)"),
)


async def show_health(call: Call) -> Any:
    health = call.management.health()
    if health.ok:
        return {"status": "ok", "confirm": health.confirm}
    raise _failed(health.reason, confirm=health.confirm)


async def list_nothing(call: Call) -> list[Described]:
    return []


async def rebalance(call: Call) -> None:
    return None


def _checks() -> list[Route]:
    checks: dict[str, tuple[Callable[[Call], Any], str]] = {
        "alarms": (check_alarms, "No alarm is in effect"),
        "local-alarms": (check_alarms, "No alarm is in effect on this node"),
        "certificate-expiration/{within}/{unit}": (check_certificates, "No certificate ends within that time"),
        "port-listener/{port}": (check_port, "Something listens on that port"),
        "protocol-listener/{protocol}": (check_protocol, "Something listens for these protocols"),
        "virtual-hosts": (check_running, "All vhosts are running"),
        "node-is-quorum-critical": (check_quorum_critical, "No queue would lose its majority"),
        "node-is-mirror-sync-critical": (check_quorum_critical, "No mirror would be lost"),
        "is-in-service": (check_running, "The node is not in maintenance"),
        "ready-to-serve-clients": (check_running, "The node serves clients"),
        "below-node-connection-limit": (check_connection_limit, "There may be more connections"),
        "metadata-store/initialized": (check_store, "The metadata store works"),
        "metadata-store/initialized/with-data": (check_store, "The metadata store works and is not empty"),
        "reached-target-cluster-size": (check_nothing, "The cluster is complete"),
        "quorum-queues-without-elected-leaders/all-vhosts": (check_nothing, "All queues have leaders"),
        "quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}": (check_nothing, "Those with such names"),
        "quorum-queues-without-elected-leaders/vhost/{vhost}": (check_nothing, "All queues of a vhost have leaders"),
        "quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{pattern}": (
            check_nothing,
            "Those with such names",
        ),
    }
    return [
        Route("GET", f"/api/health/checks/{path}", Access.USER, handler, f"Check: {summary}")
        for path, (handler, summary) in checks.items()
    ]


def is_listening(management: Management, protocol: str) -> Listening | None:
    """Return the first port with this protocol."""
    return next((each for each in management.listening if each.protocol == protocol), None)


_N: Final = "/api/nodes/{node}"
_USER: Final = Access.USER
_MONITOR: Final = Access.MONITORING
ROUTES: Final = (
    Route("GET", "/api/overview", _USER, show_overview, "The broker as a whole", query=RANGE_QUERY),
    Route("GET", "/api/version", _USER, show_version, "The version of RabbitMQ whose API this is"),
    Route("GET", "/api/extensions", _USER, list_extensions, "Extensions of the web UI"),
    Route("GET", "/api/auth", Access.PUBLIC, show_auth, "How one can log in"),
    Route("GET", "/api/nodes", _MONITOR, list_nodes, "The nodes", query=RANGE_QUERY),
    Route("GET", _N, _MONITOR, show_node, "A node", query=RANGE_QUERY),
    Route("GET", f"{_N}/memory", _MONITOR, show_memory, "What takes the memory of a node"),
    Route("GET", f"{_N}/memory/relative", _MONITOR, show_relative_memory, "The same in per cent"),
    Route("GET", "/api/config/effective", Access.ADMINISTRATOR, show_environment, "All settings, and their origin"),
    Route("GET", "/api/feature-flags", _USER, list_feature_flags, "Feature flags"),
    Route("GET", "/api/deprecated-features", _USER, list_nothing, "Deprecated features"),
    Route("GET", "/api/deprecated-features/used", _USER, list_nothing, "Deprecated features that are in use"),
    Route("GET", "/api/auth/attempts/{node}", _MONITOR, list_attempts, "Logins, accepted and refused"),
    Route("POST", "/api/rebalance/queues", Access.ADMINISTRATOR, rebalance, "Rebalance the leaders of queues"),
    Route("GET", "/api/healthchecks/node", _USER, check_nothing, "Deprecated, always well"),
    Route("GET", "/api/healthchecks/node/{node}", _USER, check_nothing, "Deprecated, always well"),
    Route("GET", "/health", Access.PUBLIC, show_health, "Whether the broker can do its work"),
    *_checks(),
)
