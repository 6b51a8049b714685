"""Looking into queues without side effects: messages that wait, that are held, or that are not yet acknowledged.

A body is never joined: it is searched frame by frame, and the text of a shown part is made when it is sent.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import trio
from msgspec.structs import asdict

from warren.amqp.properties import decode_properties
from warren.engine_view.browsing import LANE_SHIFT, NUMBER_MASK, Cursor, Message, Seen
from warren.engine_view.engine_view import EngineView
from warren.engine_view.held import DELAYED, HELD_LANES, HeldMessage
from warren.engine_view.permissions import READ
from warren.engine_view.refs import QueueRef
from warren.mgmt_plugin.http.numbers import integer
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import HttpError
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.metrics.statistics import Statistics
from warren.mgmt_plugin.names import the_queue, the_shared_queue
from warren.mgmt_plugin.resources.messages import encode_payload
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request
from warren.mgmt_plugin.terms import properties_to_json, table_to_json

STATES: Final[dict[str, int | None]] = {"ready": None, "unacked": None, **HELD_LANES}
COUNT_MAX: Final = 500
LOOK_MESSAGES: Final = 100
# How far a request looks for messages that pass its filter, and how deep into what is held.
SCANNED_MAX: Final = 200_000
HELD_MAX: Final = 20_000
SCAN_S: Final = 20.0
TRUNCATE_BYTES: Final = 4096
SHOWN_BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages are wanted: a part of the routing key, a header with a value, a part of the body."""

    routing_key: str = ""
    header: str = ""
    body: bytes = b""

    def accepts(self, message: Message) -> bool:
        """Tell whether `message` is wanted."""
        if self.routing_key and self.routing_key not in message.envelope.routing_key:
            return False
        if self.header and not self._has_header(message):
            return False
        return not self.body or any(self.search(message))

    def accepts_head(self, message: Message) -> bool:
        """Tell whether `message` is wanted as far as its body is not looked at."""
        return Filter(self.routing_key, self.header).accepts(message)

    def search(self, message: Message) -> Iterator[bool]:
        """Look through the body part by part; return for each whether the text was found in it, or ends in it."""
        before = b""
        for part in message.body_parts(message.body_bytes):
            some = before + part
            yield self.body in some
            before = some[max(0, len(some) - len(self.body) + 1) :]

    def _has_header(self, message: Message) -> bool:
        name, equals, wanted = self.header.partition("=")
        payload = message.header_payload()
        headers = decode_properties(payload, 0, len(payload)).headers
        value = table_to_json(headers).get(name, _MISSING) if headers is not None else _MISSING
        if value is _MISSING:
            return False
        shown = ("true" if value else "false") if isinstance(value, bool) else str(value)
        return not equals or shown == wanted

    @property
    def is_open(self) -> bool:
        """Whether everything passes."""
        return not (self.routing_key or self.header or self.body)


_MISSING: Final = object()


async def looks(view: EngineView, queue: QueueRef, cursor: Cursor) -> AsyncIterator[list[Seen]]:
    """Yield the waiting messages of `queue` in pieces, until the end of the queue as it is then."""
    while not cursor.ended and not view.queues.is_gone(queue):
        done = trio.Event()
        found: list[list[Seen]] = []

        def told(seen: list[Seen], found: list[list[Seen]] = found, done: trio.Event = done) -> None:
            found.append(seen)
            done.set()

        view.browsing.look(queue, cursor, LOOK_MESSAGES, told)
        await done.wait()
        yield found[0]


async def describe_message(message: Message, truncate: int) -> Described:
    """Return a message with at most `truncate` bytes of its body, which is read where it lies."""
    payload = message.header_payload()
    size = int(message.body_bytes)
    text, encoding = await encode_payload(message.body_parts(truncate), whole=size <= truncate)
    return {
        "exchange": message.envelope.exchange,
        "routing_key": message.envelope.routing_key,
        "properties": properties_to_json(decode_properties(payload, 0, len(payload))),
        "persistent": message.persistent,
        "payload": text,
        "payload_encoding": encoding,
        "payload_bytes": size,
        "truncated": size > truncate,
    }


@dataclass(frozen=True, slots=True)
class Wanted:
    """The request of a page. `scan_from`: how many waiting messages are skipped before the filter looks at any."""

    state: str
    offset: int
    scan_from: int
    count: int
    truncate: int
    filter: Filter

    @classmethod
    def of(cls, query: dict[str, str]) -> Wanted:
        """Read it from a query string.

        Raises:
            HttpError: 400.
        """
        state = query.get("state", "ready")
        if state not in STATES:
            raise bad_request(f"state must be one of {', '.join(STATES)}")
        passes = Filter(query.get("routing_key", ""), query.get("header", ""), query.get("body", "").encode())
        scan_from = _number(query, "scan_from", 0, 0, 1 << 62)
        if scan_from and (state != "ready" or passes.is_open):
            raise bad_request("scan_from needs state=ready and a filter")
        return cls(
            state,
            _number(query, "offset", 0, 0, 1 << 62),
            scan_from,
            _number(query, "count", 50, 1, COUNT_MAX),
            _number(query, "truncate", TRUNCATE_BYTES, 0, SHOWN_BYTES_MAX),
            passes,
        )


def _number(query: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    try:
        value = integer(query.get(name, str(default)))
    except ValueError:
        value = -1
    if not least <= value <= most:
        raise bad_request(f"{name} must be a number from {least} to {most}")
    return value


class _Page:
    """The messages found so far; the next `skip` that pass the filter are skipped."""

    def __init__(self, call: Call, queue_id: str, wanted: Wanted, skip: int) -> None:
        self._queue_id = queue_id
        self._hold = call.request.hold
        self._wanted = wanted
        self._skip = skip
        self._bytes = 0
        self.items: list[Described] = []
        self.scanned = 0
        self.more = False
        self._began_s = time.monotonic()

    def is_over(self) -> bool:
        """Tell whether nothing more is looked at."""
        return (
            self.more
            or self._bytes >= SHOWN_BYTES_MAX
            or self.scanned >= SCANNED_MAX
            or time.monotonic() - self._began_s > SCAN_S
        )

    async def add(self, message: Message, more: Described) -> None:
        """Look at one message."""
        self.scanned += 1
        wanted = self._wanted
        await give_way()
        if not await self._is_wanted(message):
            return
        if self._skip > 0:
            self._skip -= 1
            return
        if len(self.items) == wanted.count:
            self.more = True
            return
        described = await describe_message(message, wanted.truncate)
        position = wanted.offset + len(self.items)
        self.items.append({"position": position, **more, **described})
        shown_bytes = min(int(message.body_bytes), wanted.truncate)
        self._hold(shown_bytes)
        self._bytes += shown_bytes

    async def _is_wanted(self, message: Message) -> bool:
        passes = self._wanted.filter
        if not passes.body or not passes.accepts_head(message):
            return passes.accepts_head(message)
        for found in passes.search(message):
            if found:
                return True
            await give_way()
        return False

    def answer(self, total: int, *, complete: bool) -> Described:
        """Return the answer."""
        return {
            "queue_id": self._queue_id,
            "state": self._wanted.state,
            "offset": self._wanted.offset,
            "count": len(self.items),
            "scanned": self.scanned,
            # The message that showed that there are more is looked at again.
            "scan_to": self._wanted.scan_from + self.scanned - self.more,
            "total": total,
            "more": self.more or not complete,
            "items": self.items,
        }


async def held_messages(view: EngineView, queue: QueueRef, lane: int, most: int) -> list[HeldMessage]:
    """Return the earliest messages that are held in a lane of `queue`."""
    done = trio.Event()
    found: list[HeldMessage] = []

    def told(listed: list[HeldMessage]) -> None:
        found.extend(listed)
        done.set()

    view.held.list_earliest(queue, lane, most, told)
    await done.wait()
    return found


def _published(message: Message) -> Described:
    """Return when a message that is not held was published, if the broker has kept that: for its time to live."""
    return {"published_at_ms": int(message.time_ms)} if message.time_ms > 0 else {}


def lane_of(call: Call) -> int:
    """Return the lane that the path names.

    Raises:
        HttpError: 404.
    """
    lane = STATES.get(call.params["lane"])
    if lane is None:
        raise HttpError(404, "not_found", "held messages are delayed, parked or undelivered")
    return lane


class BrowsingHandlers(Handlers):
    """Handlers of looking into queues."""

    def __init__(self, view: EngineView, statistics: Statistics) -> None:
        self._view = view
        self._statistics = statistics

    async def browse(self, call: Call) -> Described:
        queue = the_shared_queue(call, self._view)
        wanted = Wanted.of(call.query)
        call.authorize(READ, "queue", call.params["queue"])
        if wanted.state == "ready":
            return await self._browse_ready(call, queue, wanted)
        if wanted.state == "unacked":
            return await self._browse_unacked(call, queue, wanted)
        return await self._browse_held(call, queue, wanted)

    async def _browse_ready(self, call: Call, queue: QueueRef, wanted: Wanted) -> Described:
        unfiltered = wanted.filter.is_open
        first = wanted.offset if unfiltered else wanted.scan_from
        cursor = Cursor(first)
        queues = self._view.queues
        in_order = self._view.browsing.is_in_order(queue)
        page = _Page(call, self._view.browsing.identity(queue), wanted, 0 if unfiltered else wanted.offset)
        async for seen in looks(self._view, queue, cursor):
            for each in seen:
                place: Described = {"sequence_number": each.place & NUMBER_MASK, "lane": each.place >> LANE_SHIFT}
                position, shown = first + page.scanned, len(page.items)
                await page.add(each.message, {**place, "redelivered": each.redelivered, **_published(each.message)})
                if in_order and len(page.items) > shown and "published_at_ms" not in page.items[-1]:
                    came_before = queues.published(queue) - queues.ready(queue)[0] + position
                    arrived_ms = self._statistics.maybe_arrived_ms(queue, came_before)
                    page.items[-1] |= {} if arrived_ms is None else {"arrived_by_ms": arrived_ms}
                await give_way()
                if page.is_over():
                    break
            if page.is_over():
                break
        return page.answer(queues.ready(queue)[0], complete=cursor.ended)

    async def _browse_held(self, call: Call, queue: QueueRef, wanted: Wanted) -> Described:
        lane = STATES[wanted.state]
        assert lane is not None
        page = _Page(call, self._view.browsing.identity(queue), wanted, wanted.offset)
        most = HELD_MAX if not wanted.filter.is_open else wanted.offset + wanted.count + 1
        most = min(most, self._view.held.row(queue, lane).messages)
        if most > HELD_MAX:
            raise bad_request(f"held messages can be looked at up to number {HELD_MAX}; use a filter")
        listed = await held_messages(self._view, queue, lane, most)
        for each in listed:
            more: Described = {"sequence_number": each.number, "redelivered": each.message.attempts > 0}
            if lane == DELAYED:
                more["due_at_ms"] = each.until_ms
            await page.add(each.message, more)
            await give_way()
            if page.is_over():
                break
        count = self._view.held.row(queue, lane).messages
        return page.answer(count, complete=len(listed) < most or len(listed) >= count)

    async def _browse_unacked(self, call: Call, queue: QueueRef, wanted: Wanted) -> Described:
        page = _Page(call, self._view.browsing.identity(queue), wanted, wanted.offset)
        complete = True
        for found in self._view.browsing.unacked(queue):
            await give_way()
            if found is None:
                continue
            message, holder = found
            await page.add(message, asdict(holder) | _published(message))
            if page.is_over():
                complete = False
                break
        return page.answer(self._view.queues.lengths([queue])[0][1], complete=complete)

    # --- what is held -------------------------------------------------------------------------------------------------

    async def show_held(self, call: Call) -> Described:
        queue = the_queue(call, self._view)
        return {name: asdict(self._view.held.row(queue, lane)) for name, lane in HELD_LANES.items()}

    ROUTES: ClassVar = (
        Route(
            "GET",
            "/api/warren/queues/{vhost}/{queue}/messages",
            Access.VHOST,
            browse,
            "Browse the messages of a queue without changing it",
            query=("state", "offset", "count", "scan_from", "routing_key", "header", "body", "truncate"),
        ),
        Route(
            "GET",
            "/api/warren/queues/{vhost}/{queue}/held",
            Access.VHOST_VISIBLE,
            show_held,
            "Number of messages that a queue holds back",
        ),
    )
