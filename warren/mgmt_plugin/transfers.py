"""Transfers: messages moved or copied from a queue to another one, or to an exchange, in the background.

1. Taking a message out of its queue and giving it to the others happens in one frame of the log: after a crash a
   durable message is in exactly one place. Copying leaves the source as it was. Parked messages that are on disk only
   are read once more to be dropped: after a crash in between one is in both places.
2. A transfer looks at what waits when it begins, and goes on in pieces; clients have their turns in between. What
   nobody takes, because it is unroutable or refused, stays where it is, and so does what has expired and waits to be
   dropped; a refusal ends the transfer.
3. Whoever begins one needs to read the queue and to write to the exchange. It goes on when the user has gone, and is
   forgotten when the broker stops. `KEPT_MAX` that have ended are remembered.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import msgspec
import trio

from warren.amqp.properties import headers_of
from warren.channels.access import READ, WRITE
from warren.exchanges.exchange import Exchange
from warren.mgmt_plugin.browsing import Filter
from warren.mgmt_plugin.http import HttpError, Response
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.names import exchange_name, the_queue, the_vhost, visible_vhosts
from warren.mgmt_plugin.routes import Access, Call, Route, bad_request, convert, not_found
from warren.mgmt_plugin.terms import table_to_json
from warren.msgstore.message import Message
from warren.queues.browse import Cursor, Seen, look, settle_seen, still_waits
from warren.queues.claims import ClaimQueue
from warren.queues.held_messages import DROPPED, HeldMessage, HeldMessages
from warren.queues.lanes import PARKED
from warren.queues.queue import Queue
from warren.queues.stream import Stream
from warren.queues.virtual_host import VirtualHost
from warren.server.management import Management

PIECE_MESSAGES: Final = 100
KEPT_MAX: Final = 100
RUNNING: Final = "running"
DONE: Final = "done"
STOPPED: Final = "stopped"
FAILED: Final = "failed"


class Order(msgspec.Struct):
    """What to transfer, and where to. `rate`: at most so many messages per second are looked at."""

    destination: dict[str, Any]
    mode: str = "move"
    state: str = "ready"
    count: int | None = None
    rate: int | None = None
    filter: dict[str, str] = {}


@dataclass(slots=True)
class Transfer:
    """One transfer. `exchange` None: each message goes where it came from before it was dead-lettered."""

    id: str
    vhost: VirtualHost
    queue: Queue
    exchange: Exchange | None
    routing_key: str | None
    destination: dict[str, Any]
    moves: bool
    filter: Filter
    parked: bool
    limit: int
    rate: int | None
    total: int
    user: str
    started_at_ms: int
    scanned: int = 0
    transferred: int = 0
    unroutable: int = 0
    state: str = RUNNING
    error: str = ""
    ended_at_ms: int | None = None
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def describe(self) -> Described:
        """Return what is known of it."""
        return {
            "id": self.id,
            "vhost": self.vhost.name,
            "queue": self.queue.name,
            "mode": "move" if self.moves else "copy",
            "from": "parked" if self.parked else "ready",
            "destination": self.destination,
            "state": self.state,
            "rate": self.rate,
            "total": self.total,
            "scanned": self.scanned,
            "transferred": self.transferred,
            "unroutable": self.unroutable,
            "error": self.error or None,
            "user": self.user,
            "started_at": self.started_at_ms,
            "ended_at": self.ended_at_ms,
        }

    def stop(self) -> None:
        """End it; what is transferred stays transferred."""
        self._scope.cancel()

    async def run(self, management: Management) -> None:
        """Transfer until nothing is left, the limit is reached, or it is stopped."""
        with self._scope:
            await (self._run_parked(management) if self.parked else self._run(management))
        if self.state == RUNNING:
            self.state = STOPPED if self._scope.cancelled_caught else DONE
        self.ended_at_ms = int(time.time() * 1000)

    async def _run(self, management: Management) -> None:
        cursor = Cursor()
        while not cursor.ended and self._goes_on():
            done = trio.Event()

            def told(seen: list[Seen], done: trio.Event = done) -> None:
                # In the engine's call: what is here now is still where it was seen.
                for each in seen:
                    if self._goes_on():
                        self._take(each)
                done.set()

            async with self._paced(management):
                look(self.queue, cursor, self._piece, told)
                management.settle()
                await done.wait()
        self._note_deletion()

    async def _run_parked(self, management: Management) -> None:
        held = self.queue.held(PARKED)
        numbers = [] if held is None else held.earliest_numbers(self.total)
        for start in range(0, len(numbers), self._piece):
            if held is None or self.queue.deleted or not self._goes_on():
                break
            done = trio.Event()

            def told(listed: list[HeldMessage], held: HeldMessages = held, done: trio.Event = done) -> None:
                # In the engine's call, as above.
                taken = [each.number for each in listed if self._goes_on() and self._take_parked(each)]
                if taken:
                    held.take(taken, DROPPED, lambda count: done.set())
                else:
                    done.set()

            async with self._paced(management):
                held.list_numbered(numbers[start : start + self._piece], told)
                management.settle()
                await done.wait()
        self._note_deletion()

    @property
    def _piece(self) -> int:
        return PIECE_MESSAGES if self.rate is None else min(PIECE_MESSAGES, self.rate)

    @asynccontextmanager
    async def _paced(self, management: Management) -> AsyncIterator[None]:
        """Wait behind a piece for the disk, and as long as the rate asks for."""
        began_s = trio.current_time()
        scanned = self.scanned
        yield
        while management.broker.log.is_congested():
            await trio.sleep(0.01)  # the disk is behind: publishers wait as well
        if self.rate is not None:
            await trio.sleep_until(began_s + (self.scanned - scanned) / self.rate)
        await trio.lowlevel.checkpoint()

    def _note_deletion(self) -> None:
        if self.queue.deleted:
            self.state, self.error = FAILED, "the queue was deleted"

    def _goes_on(self) -> bool:
        return self.state == RUNNING and self.scanned < self.total and self.transferred < self.limit

    def _take(self, seen: Seen) -> None:
        self.scanned += 1
        keeper = self.queue.keeper
        if keeper is not None and keeper.is_expired(seen.message):
            return  # a copy would live anew
        if self.moves and not still_waits(self.queue, seen):
            return  # what went before it has pushed it out
        if self._publish(seen.message) and self.moves and still_waits(self.queue, seen):
            settle_seen(self.queue, seen)

    def _take_parked(self, held: HeldMessage) -> bool:
        """Tell whether it is to be dropped: the others have it."""
        self.scanned += 1
        return self._publish(held.message) and self.moves

    def _publish(self, message: Message) -> bool:
        """Give the others a message that passes the filter; tell whether they have it."""
        if not self.filter.accepts(message):
            return False
        found = self._target(message)
        taken, refused = (0, False) if found is None else self.vhost.publish_copy(message, *found)
        if refused:
            self.state, self.error = FAILED, "a destination refuses more messages"
        elif taken == 0:
            self.unroutable += 1
        else:
            self.transferred += 1
        return taken > 0 and not refused

    def _target(self, message: Message) -> tuple[Exchange, str] | None:
        if self.exchange is not None:
            key = message.envelope.routing_key if self.routing_key is None else self.routing_key
            return self.exchange, key
        origin = origin_of(message)
        if origin is None:
            return None
        name, key = origin
        if name == self.queue.name:
            return None
        queue = self.vhost.queues.get(name)
        return None if queue is None else (self.vhost.exchanges[""], name)


def origin_of(message: Message) -> tuple[str, str] | None:
    """Return the queue in which a dead letter died first, and its routing key then; None when it is none."""
    encoded = headers_of(message.header_payload())
    if not encoded:
        return None
    headers = table_to_json(encoded)
    queue = headers.get("x-first-death-queue")
    deaths = headers.get("x-death")
    key = message.envelope.routing_key
    if isinstance(deaths, list) and deaths and isinstance(deaths[-1], dict):
        first = deaths[-1]
        queue = queue if isinstance(queue, str) else first.get("queue")
        keys = first.get("routing-keys")
        if isinstance(keys, list) and keys and isinstance(keys[0], str):
            key = keys[0]
    return (queue, key) if isinstance(queue, str) else None


class Transfers:
    """The transfers of this process."""

    def __init__(self) -> None:
        self._transfers: OrderedDict[str, Transfer] = OrderedDict()
        self._last = 0

    def begin(self, transfer: Transfer, management: Management, nursery: trio.Nursery) -> None:
        """Remember and start a transfer."""
        self._transfers[transfer.id] = transfer
        ended = [each.id for each in self._transfers.values() if each.state != RUNNING]
        for old in ended[: max(0, len(ended) - KEPT_MAX)]:
            del self._transfers[old]
        nursery.start_soon(transfer.run, management)

    def next_id(self) -> str:
        self._last += 1
        return str(self._last)

    def of(self, vhosts: list[str]) -> list[Transfer]:
        """Return the transfers in these vhosts, the newest first."""
        return [each for each in reversed(self._transfers.values()) if each.vhost.name in vhosts]

    def maybe_find(self, vhost: str, identifier: str) -> Transfer | None:
        found = self._transfers.get(identifier)
        return found if found is not None and found.vhost.name == vhost else None

    def end(self, transfer: Transfer) -> None:
        """Stop a running transfer, forget one that has ended."""
        if transfer.state == RUNNING:
            transfer.stop()
        else:
            self._transfers.pop(transfer.id, None)


# --- handlers ---------------------------------------------------------------------------------------------------------


def _destination(call: Call, queue: Queue, order: Order) -> tuple[Exchange | None, str | None]:
    """Return exchange and routing key; authorize writing there.

    Raises:
        HttpError: 400, 404. ChannelException: 403.
    """
    vhost = the_vhost(call)
    wanted = order.destination
    if wanted.get("origin") is True:
        call.authorize(WRITE, "exchange", "")
        return None, None
    if isinstance(wanted.get("queue"), str):
        name = wanted["queue"]
        if name not in vhost.queues:
            raise not_found(f"no queue '{name}' in vhost '{vhost.name}'")
        if name == queue.name and order.mode == "move":
            raise bad_request("a queue's messages cannot be moved into the same queue")
        call.authorize(WRITE, "exchange", "")
        return vhost.exchanges[""], name
    if isinstance(wanted.get("exchange"), str):
        exchange = vhost.exchanges.get(exchange_name(wanted["exchange"]))
        if exchange is None:
            raise not_found(f"no exchange '{wanted['exchange']}' in vhost '{vhost.name}'")
        if exchange.internal:
            raise HttpError(400, "bad_request", f"cannot publish to internal exchange '{exchange.name}'")
        call.authorize(WRITE, "exchange", exchange.name)
        key = wanted.get("routing_key")
        if not isinstance(key, str | None) or (key is not None and len(key.encode("utf-8", "replace")) > 255):
            raise bad_request("routing_key must be a text of at most 255 bytes")
        return exchange, key
    raise bad_request('destination must be {"queue": …}, {"exchange": …, "routing_key": …} or {"origin": true}')


async def begin_transfer(call: Call) -> Response:
    order = await call.body(Order)
    queue = the_queue(call)
    if order.mode not in ("move", "copy"):
        raise bad_request("mode must be move or copy")
    if order.mode == "move" and isinstance(queue, Stream):
        raise bad_request("a stream keeps its messages: they can be copied, not moved")
    if order.mode == "move" and isinstance(queue, ClaimQueue):
        raise bad_request("what a drain has claimed can be copied, or released, not moved")
    if order.state not in ("ready", "parked"):
        raise bad_request("state must be ready or parked")
    if order.count is not None and order.count < 1:
        raise bad_request("count must be at least 1")
    if order.rate is not None and order.rate < 1:
        raise bad_request("rate must be at least 1")
    call.authorize(READ, "queue", queue.name)
    exchange, key = _destination(call, queue, order)
    passes = convert({name: value for name, value in order.filter.items() if value}, dict[str, str])
    held = queue.held(PARKED)
    total = int(queue.ready_count)
    if order.state == "parked":
        total = 0 if held is None else int(held.count)
    transfers = call.services.transfers
    transfer = Transfer(
        transfers.next_id(),
        the_vhost(call),
        queue,
        exchange,
        key,
        order.destination,
        order.mode == "move",
        Filter(passes.get("routing_key", ""), passes.get("header", ""), passes.get("body", "").encode()),
        order.state == "parked",
        total if order.count is None else order.count,
        order.rate,
        total,
        call.operator.name,
        int(time.time() * 1000),
    )
    transfers.begin(transfer, call.management, call.services.nursery)
    place = f"/api/warren/transfers/{quote(call.params['vhost'], safe='')}/{transfer.id}"
    return Response(201, msgspec.json.encode(transfer.describe()), headers=(("Location", place),))


async def list_transfers(call: Call) -> list[Described]:
    names = [vhost.name for vhost in visible_vhosts(call)]
    return [each.describe() for each in call.services.transfers.of(names)]


def _the_transfer(call: Call) -> Transfer:
    found = call.services.transfers.maybe_find(call.params["vhost"], call.params["id"])
    if found is None:
        raise not_found()
    return found


async def show_transfer(call: Call) -> Described:
    return _the_transfer(call).describe()


async def end_transfer(call: Call) -> None:
    transfer = _the_transfer(call)
    call.authorize(READ, "queue", transfer.queue.name)
    call.services.transfers.end(transfer)


_T: Final = "/api/warren/transfers"
_SEE: Final = Access.VHOST_VISIBLE
ROUTES: Final = (
    Route(
        "POST",
        "/api/warren/queues/{vhost}/{queue}/transfers",
        Access.VHOST,
        begin_transfer,
        "Move or copy messages of a queue",
        Order,
    ),
    Route("GET", _T, Access.USER, list_transfers, "Transfers in all vhosts"),
    Route("GET", f"{_T}/{{vhost}}", _SEE, list_transfers, "Transfers in a vhost"),
    Route("GET", f"{_T}/{{vhost}}/{{id}}", _SEE, show_transfer, "A transfer"),
    Route("DELETE", f"{_T}/{{vhost}}/{{id}}", Access.VHOST, end_transfer, "Stop a transfer, or forget an ended one"),
)
