"""Virtual hosts, their limits and tracing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import msgspec

from warren.channels.broker import Broker
from warren.mgmt_plugin.http.server import Response
from warren.mgmt_plugin.listing import QUERY, Described, answer_list
from warren.mgmt_plugin.metrics.statistics import (
    CHANNEL_STATS,
    CONNECTION_FIELDS,
    LENGTHS,
    RANGE_QUERY,
    Ranges,
    Statistics,
)
from warren.mgmt_plugin.names import node_name, the_vhost, visible_vhosts
from warren.mgmt_plugin.resources.users import LimitBody, tags_of
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, created, not_found
from warren.queues.counters import MessageCounts
from warren.vhosts.metadata import PermissionPut, VhostDelete, VhostLimitsDelete, VhostLimitsPut, VhostPut
from warren.vhosts.virtual_host import VirtualHost


class VhostBody(msgspec.Struct):
    """The settings of a vhost; those that are left out stay unchanged."""

    description: str | None = None
    tags: Any = None
    default_queue_type: str | None = None
    tracing: bool | None = None
    protected_from_deletion: bool | None = None
    metadata: Any = None


_ADMIN: Final = Access.ADMINISTRATOR
_LIST_QUERY: Final = (*QUERY, *RANGE_QUERY)
_V: Final = "/api/vhosts/{vhost}"
_L: Final = "/api/vhost-limits/{vhost}/{limit}"


class VhostHandlers(Handlers):
    """Handlers of vhosts and their limits."""

    def __init__(self, broker: Broker, statistics: Statistics, settle: Callable[[], None]) -> None:
        self._broker = broker
        self._statistics = statistics
        self._settle = settle

    def describe_vhost(
        self, vhost: VirtualHost, ranges: Ranges, counts: Mapping[str, MessageCounts] | None = None
    ) -> Described:
        """Return a vhost."""
        record = vhost.record
        queue_type = record.default_queue_type or "undefined"
        metadata = {"description": record.description, "tags": list(record.tags)}
        if record.default_queue_type:
            metadata["default_queue_type"] = record.default_queue_type
        described: Described = {
            "name": vhost.name,
            "description": record.description,
            "tags": list(record.tags),
            "default_queue_type": queue_type,
            "protected_from_deletion": record.protected_from_deletion,
            "metadata": metadata,
            "tracing": vhost.tracing,
            "cluster_state": {node_name(self._broker): "running"},
        }
        totals = self._broker.totals(vhost.name) if counts is None else counts[vhost.name]
        shown = self._statistics.of_vhost(vhost.name, vhost.lengths()[:3], totals)
        shown.add(described, LENGTHS, ranges.lengths)
        shown.add(described, CONNECTION_FIELDS, ranges.data)
        stats = shown.message_stats(CHANNEL_STATS, ranges.messages)
        if stats:
            described["message_stats"] = stats
        return described

    async def list_vhosts(self, call: Call) -> Response:
        vhosts = list(visible_vhosts(call))
        ranges = Ranges.of(call.query, len(vhosts))
        counts = self._broker.sums().by_vhost
        return await answer_list(
            call,
            vhosts,
            lambda vhost: self.describe_vhost(vhost, ranges, counts),
            {"name": lambda vhost: vhost.name, "tracing": lambda vhost: vhost.tracing},
        )

    async def show_vhost(self, call: Call) -> Described:
        return self.describe_vhost(the_vhost(call), Ranges.of(call.query))

    async def put_vhost(self, call: Call) -> Response:
        body = await call.body(VhostBody)
        name = call.params["vhost"]
        broker = self._broker
        there = broker.vhosts.get(name)
        before = VhostPut(name) if there is None else there.record
        metadata = body.metadata if isinstance(body.metadata, dict) else {}
        description = metadata.get("description") if body.description is None else body.description
        tags = metadata.get("tags") if body.tags is None else body.tags
        queue_type = metadata.get("default_queue_type") if body.default_queue_type is None else body.default_queue_type
        if queue_type == "undefined":
            queue_type = ""
        protected = body.protected_from_deletion
        if not isinstance(description, str | None) or not isinstance(queue_type, str | None):
            raise bad_request("description and default_queue_type must be strings")
        await call.administer(
            VhostPut(
                name,
                before.description if description is None else description,
                before.tags if tags is None else tags_of(tags),
                before.default_queue_type if queue_type is None else queue_type,
                before.protected_from_deletion if protected is None else protected,
            )
        )
        if there is None:
            # As RabbitMQ does: the user that creates a vhost may use it.
            await call.administer(PermissionPut(call.operator.name, name, ".*", ".*", ".*"))
        if body.tracing is not None:
            broker.trace(name, body.tracing)
            self._settle()
        return created(new=there is None)

    async def delete_vhost(self, call: Call) -> None:
        await call.administer(VhostDelete(the_vhost(call).name))

    async def protect_vhost(self, call: Call) -> None:
        await self._set_protected(call, True)

    async def unprotect_vhost(self, call: Call) -> None:
        await self._set_protected(call, False)

    async def _set_protected(self, call: Call, protected: bool) -> None:
        record = the_vhost(call).record
        await call.administer(
            VhostPut(record.name, record.description, record.tags, record.default_queue_type, protected)
        )

    async def start_vhost(self, call: Call) -> None:
        the_vhost(call)
        if call.params["node"] != node_name(self._broker):
            raise not_found()

    # --- limits -------------------------------------------------------------------------------------------------------

    async def list_limits(self, call: Call) -> list[Described]:
        return [{"vhost": vhost.name, "value": vhost.limits} for vhost in visible_vhosts(call) if vhost.limits]

    async def put_limit(self, call: Call) -> None:
        body = await call.body(LimitBody)
        vhost = the_vhost(call)
        limits: dict[str, Any] = dict(vhost.limits)
        limits[call.params["limit"]] = body.value
        await call.administer(VhostLimitsPut(vhost.name, json.dumps(limits)), validates=True)

    async def delete_limit(self, call: Call) -> None:
        vhost = the_vhost(call)
        limits = dict(vhost.limits)
        if limits.pop(call.params["limit"], None) is None:
            raise not_found()
        await call.administer(
            VhostLimitsPut(vhost.name, json.dumps(limits)) if limits else VhostLimitsDelete(vhost.name)
        )

    ROUTES: ClassVar = (
        Route("GET", "/api/vhosts", Access.USER, list_vhosts, "Vhosts", query=_LIST_QUERY),
        Route("GET", _V, Access.VHOST_VISIBLE, show_vhost, "A vhost", query=RANGE_QUERY),
        Route("PUT", _V, _ADMIN, put_vhost, "Create or change a vhost", VhostBody, makes_vhost=True),
        Route("DELETE", _V, _ADMIN, delete_vhost, "Delete a vhost with everything in it"),
        Route("POST", f"{_V}/deletion/protection", _ADMIN, protect_vhost, "Protect a vhost from deletion"),
        Route("DELETE", f"{_V}/deletion/protection", _ADMIN, unprotect_vhost, "Allow that a vhost is deleted"),
        Route("POST", f"{_V}/start/{{node}}", _ADMIN, start_vhost, "Start a vhost, which always runs"),
        Route("GET", "/api/vhost-limits", Access.USER, list_limits, "Limits of vhosts"),
        Route("GET", "/api/vhost-limits/{vhost}", Access.VHOST_VISIBLE, list_limits, "Limits of a vhost"),
        Route("PUT", _L, _ADMIN, put_limit, "Set a limit of a vhost", LimitBody),
        Route("DELETE", _L, _ADMIN, delete_limit, "Remove a limit of a vhost"),
    )
