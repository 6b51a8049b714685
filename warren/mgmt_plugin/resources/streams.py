"""Streams: where in time their offsets are, and how far their consumer groups have come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

import msgspec
import trio

from warren.amqp.codec import NAME_MAX_BYTES
from warren.channels.access import READ
from warren.mgmt_plugin.http.json_pieces import Rows
from warren.mgmt_plugin.http.server import Response
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.names import the_shared_queue, visible_vhosts
from warren.mgmt_plugin.resources.ranges import Known, check_path, life_of, the_restored_vhost
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, created, not_found
from warren.msgstore.log.message_log import MessageLog
from warren.queues.arguments import age_ms
from warren.streams.consumer import AT_FIRST, AT_LAST, AT_NEXT, AT_OFFSET, OFFSET_MAX, Start, at_time
from warren.streams.groups import Group
from warren.streams.stream import Stream

_NAMED: Final = {"first": AT_FIRST, "last": AT_LAST, "next": AT_NEXT}


class Position(msgspec.Struct):
    """A place in a stream: `offset` is a number, ``first``, ``last``, ``next`` or an age (``1h``); or `time_ms`.

    `life`: of a group that has come to an offset, the life of the broker that has written the last message below it.
    """

    offset: Any = None
    time_ms: int | None = None
    life: str | None = None


def _the_stream(call: Call) -> Stream:
    queue = the_shared_queue(call)
    call.authorize(READ, "queue", queue.name)
    if not isinstance(queue, Stream):
        raise bad_request(f"queue '{queue.name}' is not a stream")
    return queue


def _the_group(call: Call, stream: Stream) -> Group:
    for group in stream.consumer_groups():
        if group.name == call.params["group"]:
            return group
    raise not_found()


def _describe(stream: Stream, group: Group) -> Described:
    serving = stream.need_groups()
    active = serving.active_of(group)
    committed = int(group.committed)
    following = stream.next_offset()
    return {
        "vhost": stream.vhost_name,
        "queue": stream.name,
        "name": group.name,
        "committed_offset": committed if committed >= 0 else None,
        "lag": max(0, following - max(committed, stream.first_offset())) if committed >= 0 else None,
        "committed_at": int(group.committed_ms) or None,
        "consumers": len(serving.consumers_of(group)),
        "active_consumer_tag": None if active is None else active.tag,
    }


_G: Final = "/api/warren/stream-groups"
_S: Final = "/api/warren/streams/{vhost}/{queue}"
_SEE: Final = Access.VHOST_VISIBLE
_USE: Final = Access.VHOST


class StreamHandlers(Handlers):
    """Handlers for the relation of streams and their readers. `log` tells the time."""

    def __init__(self, log: MessageLog, settle: Callable[[], None]) -> None:
        self._log = log
        self._settle = settle

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
                return at_time(int(self._log.now_ms) - age)
        raise bad_request("offset must be a number, first, last, next or an age such as 1h")

    async def _offset_at(self, stream: Stream, start: Start) -> int:
        found: list[int] = []
        done = trio.Event()

        def told(offset: int) -> None:
            found.append(offset)
            done.set()

        stream.find(start, told)
        self._settle()
        while not done.is_set() and not stream.deleted:
            with trio.move_on_after(0.1):
                await done.wait()
        if not found or stream.deleted:
            raise not_found()
        return found[0]

    async def list_groups(self, call: Call) -> Rows:
        streams: list[Stream] = []
        for vhost in visible_vhosts(call):
            of_vhost = [queue for queue in vhost.queues.values() if isinstance(queue, Stream)]
            streams += sorted(of_vhost, key=lambda stream: stream.name)
        found = [(stream, group) for stream in streams for group in stream.consumer_groups()]
        return Rows(found, lambda each: _describe(*each), lambda each: each[0].deleted)

    async def list_groups_of(self, call: Call) -> Rows:
        stream = _the_stream(call)
        return Rows(stream.consumer_groups(), lambda group: _describe(stream, group))

    async def show_group(self, call: Call) -> Described:
        stream = _the_stream(call)
        return _describe(stream, _the_group(call, stream))

    async def reset_group(self, call: Call) -> Response:
        position = await call.body(Position)
        stream = _the_stream(call)
        name = call.params["group"]
        if not 0 < len(name.encode("utf-8", "replace")) <= NAME_MAX_BYTES:
            raise bad_request(f"the name of a group has 1 to {NAME_MAX_BYTES} bytes")
        offset = await self._offset_at(stream, self._start_of(position))
        if position.life is not None:
            the_restored_vhost(call)
            known = position.offset if isinstance(position.offset, int) else offset
            check_path(stream, Known(life_of(position.life)), known)
        new = all(group.name != name for group in stream.consumer_groups())
        stream.need_groups().reset(name, offset)
        self._settle()
        return created(new=new)

    async def forget_group(self, call: Call) -> None:
        stream = _the_stream(call)
        group = _the_group(call, stream)
        if stream.need_groups().consumers_of(group):
            raise bad_request("a group with consumers cannot be forgotten")
        stream.need_groups().forget(group)
        self._settle()

    async def find_offset(self, call: Call) -> Described:
        position = await call.body(Position)
        stream = _the_stream(call)
        return {"offset": await self._offset_at(stream, self._start_of(position))}

    ROUTES: ClassVar = (
        Route("GET", _G, Access.USER, list_groups, "Consumer groups of all streams"),
        Route("GET", f"{_G}/{{vhost}}", _SEE, list_groups, "Consumer groups of the streams of a vhost"),
        Route("GET", f"{_S}/groups", _USE, list_groups_of, "Consumer groups of a stream"),
        Route("GET", f"{_S}/groups/{{group}}", _USE, show_group, "A consumer group"),
        Route("PUT", f"{_S}/groups/{{group}}", _USE, reset_group, "Have a group go on from somewhere else", Position),
        Route("DELETE", f"{_S}/groups/{{group}}", _USE, forget_group, "Forget a group without consumers"),
        Route(
            "POST", f"{_S}/offset", Access.CLIENT, find_offset, "The offset that a time or a name stands for", Position
        ),
    )
