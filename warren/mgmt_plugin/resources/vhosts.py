"""Virtual hosts, their limits and tracing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from warren.engine_view.counters import CHANNEL_STATS, CONNECTION_FIELDS, LENGTHS
from warren.engine_view.engine_view import EngineView
from warren.engine_view.vhosts import VhostLengths, VhostRow
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import Response
from warren.mgmt_plugin.listing import QUERY, Described, answer_list
from warren.mgmt_plugin.metrics.statistics import RANGE_QUERY, Ranges, Statistics
from warren.mgmt_plugin.names import visible_vhost_names
from warren.mgmt_plugin.resources.users import LimitBody, tags_of
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, created, not_found
from warren.queues.counters import MessageCounts
from warren.vhosts.metadata import PermissionPut, VhostDelete, VhostLimitsDelete, VhostLimitsPut, VhostPut


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


async def lengths_in(view: EngineView, vhost: str) -> VhostLengths:
    """Return how many messages, ready ones, unacked ones and consumers a vhost has. Looks at every queue, in pieces."""
    messages = ready = unacked = consumers = 0
    for piece in view.vhosts.length_pieces(vhost):
        messages += piece[0]
        ready += piece[1]
        unacked += piece[2]
        consumers += piece[3]
        await give_way()
    return messages, ready, unacked, consumers


class VhostHandlers(Handlers):
    """Handlers of vhosts and their limits."""

    def __init__(self, view: EngineView, statistics: Statistics) -> None:
        self._view = view
        self._statistics = statistics

    def the_vhost(self, call: Call) -> VhostRow:
        """Return the vhost of the path.

        Raises:
            HttpError: 404.
        """
        row = self._view.vhosts.maybe_row(call.params["vhost"])
        if row is None:
            raise not_found()
        return row

    def describe_vhost(
        self,
        row: VhostRow,
        ranges: Ranges,
        lengths: VhostLengths,
        counts: Mapping[str, MessageCounts] | None = None,
    ) -> Described:
        """Return a vhost; `lengths` as `lengths_in` returns them."""
        record = row.record
        queue_type = record.default_queue_type or "undefined"
        metadata = {"description": record.description, "tags": list(record.tags)}
        if record.default_queue_type:
            metadata["default_queue_type"] = record.default_queue_type
        described: Described = {
            "name": record.name,
            "description": record.description,
            "tags": list(record.tags),
            "default_queue_type": queue_type,
            "protected_from_deletion": record.protected_from_deletion,
            "metadata": metadata,
            "tracing": row.tracing,
            "cluster_state": {self._view.node_name(): "running"},
        }
        totals = self._view.counts(record.name) if counts is None else counts[record.name]
        shown = self._statistics.of_vhost(record.name, lengths[:3], totals)
        shown.add(described, LENGTHS, ranges.lengths)
        shown.add(described, CONNECTION_FIELDS, ranges.data)
        stats = shown.message_stats(CHANNEL_STATS, ranges.messages)
        if stats:
            described["message_stats"] = stats
        return described

    async def list_vhosts(self, call: Call) -> Response:
        vhosts = self._view.vhosts
        names = visible_vhost_names(call)
        ranges = Ranges.of(call.query, len(names))
        lengths = {name: await lengths_in(self._view, name) for name in names}
        counts = self._view.counts_by_vhost()
        return await answer_list(
            call,
            names,
            lambda name: self.describe_vhost(vhosts.row(name), ranges, lengths[name], counts),
            {"name": lambda name: name, "tracing": lambda name: vhosts.row(name).tracing},
            lambda name: name not in vhosts,
        )

    async def show_vhost(self, call: Call) -> Described:
        ranges = Ranges.of(call.query)
        lengths = await lengths_in(self._view, self.the_vhost(call).record.name)
        return self.describe_vhost(self.the_vhost(call), ranges, lengths)

    async def put_vhost(self, call: Call) -> Response:
        body = await call.body(VhostBody)
        name = call.params["vhost"]
        there = self._view.vhosts.maybe_row(name)
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
            self._view.trace(name, on=body.tracing)
        return created(new=there is None)

    async def delete_vhost(self, call: Call) -> None:
        await call.administer(VhostDelete(self.the_vhost(call).record.name))

    async def protect_vhost(self, call: Call) -> None:
        await self._set_protected(call, True)

    async def unprotect_vhost(self, call: Call) -> None:
        await self._set_protected(call, False)

    async def _set_protected(self, call: Call, protected: bool) -> None:
        record = self.the_vhost(call).record
        await call.administer(
            VhostPut(record.name, record.description, record.tags, record.default_queue_type, protected)
        )

    async def start_vhost(self, call: Call) -> None:
        self.the_vhost(call)
        if call.params["node"] != self._view.node_name():
            raise not_found()

    # --- limits -------------------------------------------------------------------------------------------------------

    async def list_limits(self, call: Call) -> list[Described]:
        return [
            {"vhost": row.record.name, "value": row.limits}
            for row in self._view.vhosts.rows(visible_vhost_names(call))
            if row.limits
        ]

    async def put_limit(self, call: Call) -> None:
        body = await call.body(LimitBody)
        vhost = self.the_vhost(call)
        limits: dict[str, Any] = dict(vhost.limits)
        limits[call.params["limit"]] = body.value
        await call.administer(VhostLimitsPut(vhost.record.name, json.dumps(limits)), validates=True)

    async def delete_limit(self, call: Call) -> None:
        vhost = self.the_vhost(call)
        limits = dict(vhost.limits)
        if limits.pop(call.params["limit"], None) is None:
            raise not_found()
        await call.administer(
            VhostLimitsPut(vhost.record.name, json.dumps(limits)) if limits else VhostLimitsDelete(vhost.record.name)
        )

    ROUTES: ClassVar = (
        Route("GET", "/api/vhosts", Access.USER, list_vhosts, "Vhosts", query=_LIST_QUERY),
        Route("GET", _V, Access.VHOST_VISIBLE, show_vhost, "A vhost", query=RANGE_QUERY),
        Route("PUT", _V, _ADMIN, put_vhost, "Create or change a vhost", VhostBody, makes_vhost=True),
        Route("DELETE", _V, _ADMIN, delete_vhost, "Delete a vhost with everything in it"),
        Route("POST", f"{_V}/deletion/protection", _ADMIN, protect_vhost, "Protect a vhost from deletion"),
        Route("DELETE", f"{_V}/deletion/protection", _ADMIN, unprotect_vhost, "Allow deletion of a vhost"),
        Route("POST", f"{_V}/start/{{node}}", _ADMIN, start_vhost, "Start a vhost, which always runs"),
        Route("GET", "/api/vhost-limits", Access.USER, list_limits, "Limits of vhosts"),
        Route("GET", "/api/vhost-limits/{vhost}", Access.VHOST_VISIBLE, list_limits, "Limits of a vhost"),
        Route("PUT", _L, _ADMIN, put_limit, "Set a limit of a vhost", LimitBody),
        Route("DELETE", _L, _ADMIN, delete_limit, "Remove a limit of a vhost"),
    )
