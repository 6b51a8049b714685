"""Streams: where in time their offsets are, and how far their consumer groups have come."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec
import trio
from msgspec.structs import asdict

from warren.amqp.codec import NAME_MAX_BYTES
from warren.engine_view.engine_view import EngineView
from warren.engine_view.offsets import STREAM
from warren.engine_view.permissions import READ
from warren.engine_view.refs import GroupRef, QueueRef
from warren.engine_view.streams import AT_FIRST, AT_LAST, AT_NEXT, AT_OFFSET, OFFSET_MAX, PlacedGroup, Start, at_time
from warren.mgmt_plugin.http.json_pieces import Rows
from warren.mgmt_plugin.http.server import Response
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.names import the_shared_queue, visible_vhost_names
from warren.mgmt_plugin.resources.ranges import Known, check_path, life_of, the_restored_vhost
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, created, not_found
from warren.queues.arguments import age_ms

_NAMED: Final = {"first": AT_FIRST, "last": AT_LAST, "next": AT_NEXT}


class Position(msgspec.Struct, forbid_unknown_fields=True):
    """A place in a stream: `offset` is a number, ``first``, ``last``, ``next`` or an age (``1h``); or `time_ms`.

    `life`: of a group that has come to an offset, the life of the broker that has written the last message below it.
    """

    offset: Any = None
    time_ms: int | None = None
    life: str | None = None


_G: Final = "/api/warren/stream-groups"
_S: Final = "/api/warren/streams/{vhost}/{queue}"
_SEE: Final = Access.VHOST_VISIBLE
_USE: Final = Access.VHOST


class StreamHandlers(Handlers):
    """Handlers for the relation of streams and their readers."""

    def __init__(self, view: EngineView) -> None:
        self._view = view
        self._streams = view.streams

    def _the_stream(self, call: Call) -> QueueRef:
        queue = the_shared_queue(call, self._view)
        call.authorize(READ, "queue", call.params["queue"])
        if self._view.offsets.kind(queue) != STREAM:
            raise bad_request(f"queue '{call.params['queue']}' is not a stream")
        return queue

    def _the_group(self, call: Call, stream: QueueRef) -> GroupRef:
        group = self._streams.maybe_group(stream, call.params["group"])
        if group is None:
            raise not_found()
        return group

    def _describe(self, of: PlacedGroup) -> Described:
        return asdict(self._streams.group(of))

    def _start_of(self, position: Position) -> Start:
        offset, time_ms = position.offset, position.time_ms
        if (offset is None) == (time_ms is None):
            raise bad_request("either offset or time_ms is required")
        if time_ms is not None:
            return at_time(time_ms)
        if isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset <= OFFSET_MAX:
            return Start(AT_OFFSET, offset)
        if isinstance(offset, str):
            if offset in _NAMED:
                return Start(_NAMED[offset], 0)
            age = age_ms(offset)
            if age > 0:
                return at_time(self._streams.now_ms() - age)
        raise bad_request("offset must be a number, first, last, next or an age such as 1h")

    async def _offset_at(self, stream: QueueRef, start: Start) -> int:
        found: list[int] = []
        done = trio.Event()

        def told(offset: int) -> None:
            found.append(offset)
            done.set()

        self._streams.find(stream, start, told)
        while not done.is_set() and not self._view.queues.is_gone(stream):
            with trio.move_on_after(0.1):
                await done.wait()
        if not found or self._view.queues.is_gone(stream):
            raise not_found()
        return found[0]

    async def list_groups(self, call: Call) -> Rows:
        streams: list[QueueRef] = []
        for vhost in visible_vhost_names(call):
            streams += self._streams.in_vhost(vhost)
        found = [(stream, group) for stream in streams for group in self._streams.groups(stream)]
        return Rows(found, self._describe, self._streams.is_group_gone)

    async def list_groups_of(self, call: Call) -> Rows:
        stream = self._the_stream(call)
        return Rows([(stream, group) for group in self._streams.groups(stream)], self._describe)

    async def show_group(self, call: Call) -> Described:
        stream = self._the_stream(call)
        return self._describe((stream, self._the_group(call, stream)))

    async def reset_group(self, call: Call) -> Response:
        position = await call.body(Position)
        stream = self._the_stream(call)
        name = call.params["group"]
        if not 0 < len(name.encode("utf-8", "replace")) <= NAME_MAX_BYTES:
            raise bad_request(f"the name of a group has 1 to {NAME_MAX_BYTES} bytes")
        offset = await self._offset_at(stream, self._start_of(position))
        if position.life is not None:
            the_restored_vhost(call, self._view)
            known = position.offset if isinstance(position.offset, int) else offset
            check_path(self._view, stream, Known(life_of(position.life)), known)
        new = self._streams.maybe_group(stream, name) is None
        self._streams.reset(stream, name, offset)
        return created(new=new)

    async def forget_group(self, call: Call) -> None:
        stream = self._the_stream(call)
        if not self._streams.maybe_forget(stream, self._the_group(call, stream)):
            raise bad_request("a group with consumers cannot be forgotten")

    async def find_offset(self, call: Call) -> Described:
        position = await call.body(Position)
        stream = self._the_stream(call)
        return {"offset": await self._offset_at(stream, self._start_of(position))}

    ROUTES: ClassVar = (
        Route("GET", _G, Access.USER, list_groups, "Consumer groups of all streams"),
        Route("GET", f"{_G}/{{vhost}}", _SEE, list_groups, "Consumer groups of the streams of a vhost"),
        Route("GET", f"{_S}/groups", _USE, list_groups_of, "Consumer groups of a stream"),
        Route("GET", f"{_S}/groups/{{group}}", _USE, show_group, "A consumer group"),
        Route("PUT", f"{_S}/groups/{{group}}", _USE, reset_group, "Reset the offset of a group", Position),
        Route("DELETE", f"{_S}/groups/{{group}}", _USE, forget_group, "Forget a group without consumers"),
        Route(
            "POST", f"{_S}/offset", Access.CLIENT, find_offset, "The offset that a time or a name stands for", Position
        ),
    )
