"""Transfers: messages moved or copied from a queue to another one, or to an exchange, in the background.

1. Taking a message out of its queue and giving it to the others happens in one frame of the log: after a crash a
   durable message is in exactly one place. Copying leaves the source as it was. Parked messages that are on disk only
   are read once more to be dropped: after a crash in between a message is in both places.
2. A transfer takes the messages that wait when it begins, or those of them that its order names, with the queue in
   which they were seen: one that is declared again has others in their places. It runs in pieces; clients have their
   turns in between. A message that no queue takes, because it is unroutable or refused, stays in the source. So does an
   expired one that waits to be dropped. A refusal ends the transfer. A transfer waits while publishers have to wait.
3. Each piece, and each message in it, is published with the permissions that the user has then: to read the queue, to
   write to the exchange, and of a topic exchange the topic permission for the routing key. If the user was deleted, or
   no longer has these permissions, the transfer fails and gives the reason.
4. The number of running transfers is bounded, in total and for each user. After a transfer has ended the broker keeps a
   summary of it for `KEPT_S`; `KEPT_MAX` of all users, `KEPT_OF_USER_MAX` of one. All are forgotten when the broker
   stops.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Final
from urllib.parse import quote

import msgspec
import trio

from warren.amqp.errors import AmqpError, ChannelException
from warren.amqp.properties import headers_of
from warren.engine_view.browsing import LANE_SHIFT, NUMBER_MASK, Cursor, Message, Seen
from warren.engine_view.engine_view import EngineView
from warren.engine_view.held import PARKED, HeldMessage
from warren.engine_view.offsets import CLAIMS, STREAM
from warren.engine_view.permissions import READ, WRITE, Permissions, Rights
from warren.engine_view.refs import QueueRef
from warren.mgmt_plugin.http.server import HttpError, Response
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.names import exchange_name, the_shared_queue, the_vhost, visible_vhost_names
from warren.mgmt_plugin.resources.browsing import Filter
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, not_found
from warren.mgmt_plugin.terms import table_to_json
from warren.server.shares import Quota
from warren.server.supervision import Supervision

PIECE_MESSAGES: Final = 100
# Of messages of average size: a piece is searched and published in one turn.
PIECE_BYTES: Final = 8 << 20
# Copies that queues get from a piece, if each message goes to as many as earlier ones.
PIECE_COPIES: Final = 10_000
RUNNING_QUOTA: Final = Quota(total=32, of_user=8)
KEPT_MAX: Final = 100
KEPT_OF_USER_MAX: Final = 25
KEPT_S: Final = 24 * 3600.0
COUNT_MAX: Final = (1 << 62) - 1
MESSAGES_MAX: Final = 500
RATE_MAX: Final = 1_000_000
NAME_BYTES_MAX: Final = 255
HEADER_BYTES_MAX: Final = 1024
BODY_BYTES_MAX: Final = 4096
ERROR_CHARACTERS_MAX: Final = 1000
RUNNING: Final = "running"
DONE: Final = "done"
STOPPED: Final = "stopped"
FAILED: Final = "failed"


class Target(msgspec.Struct, forbid_unknown_fields=True):
    """Where to transfer to: a queue; an exchange, with a routing key or each message's own; where each died first."""

    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    origin: bool = False


class Passes(msgspec.Struct, forbid_unknown_fields=True):
    """The filter for messages; an empty field fits anything."""

    routing_key: str = ""
    header: str = ""
    body: str = ""


class Place(msgspec.Struct, forbid_unknown_fields=True):
    """A message of a queue, as browsing tells it; `lane`: of a queue with priorities."""

    sequence_number: int
    lane: int = 0


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """The order of a transfer, with its target. `rate`: the most messages per second that are looked at.

    `messages`: only these, of which some may have left the queue. `queue_id`: of the queue in which they were seen.
    """

    destination: Target
    mode: str = "move"
    state: str = "ready"
    count: int | None = None
    rate: int | None = None
    filter: Passes = msgspec.field(default_factory=Passes)
    messages: list[Place] | None = None
    queue_id: str | None = None


@dataclass(frozen=True, slots=True)
class Destination:
    """The name of an exchange, None: where each message died first; and a routing key, None: each message's own."""

    exchange: str | None
    routing_key: str | None
    described: Described


@dataclass(slots=True)
class Transfer:
    """One transfer that has not ended. `places`: of the only messages that are wanted; of parked ones their numbers."""

    id: str
    vhost: str
    name: str  # of the queue
    queue: QueueRef
    destination: Destination
    moves: bool
    filter: Filter
    parked: bool
    limit: int
    rate: int | None
    total: int
    user: str
    started_at_ms: int
    places: list[int] | None = None
    scanned: int = 0
    transferred: int = 0
    unroutable: int = 0
    copies: int = 0  # that queues have got
    state: str = RUNNING
    error: str = ""
    ended_at_ms: int | None = None
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def describe(self) -> Described:
        """Return the state of the transfer."""
        return {
            "id": self.id,
            "vhost": self.vhost,
            "queue": self.name,
            "mode": "move" if self.moves else "copy",
            "from": "parked" if self.parked else "ready",
            "destination": self.destination.described,
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
        """End the transfer; transferred messages stay transferred."""
        self._scope.cancel()

    async def run(self, view: EngineView) -> None:
        """Transfer until nothing is left, the limit is reached, it fails or is stopped."""
        try:
            with self._scope:
                await (self._run_parked(view) if self.parked else self._run(view))
        except Exception:
            self._fail("internal error: the transfer cannot continue")
            raise
        finally:
            if self.state == RUNNING:
                self.state = STOPPED if self._scope.cancelled_caught else DONE
            self.ended_at_ms = int(time.time() * 1000)

    async def _run(self, view: EngineView) -> None:
        cursor = Cursor()
        while self.places is None and not cursor.ended and self._is_wanted():
            await self._look(view, cursor, self._piece(view))
        for place in self.places or ():
            if not self._is_wanted():
                break
            # It came back, or it is still in the backlog.
            for in_backlog in (False, True):
                await self._look(view, view.browsing.cursor_at(place, in_backlog=in_backlog), 1, place)
        self._note_deletion(view)

    async def _look(self, view: EngineView, cursor: Cursor, most: int, only: int | None = None) -> None:
        """Look at the next messages and take them, or the one at the place `only`."""
        done = trio.Event()

        def told(seen: list[Seen]) -> None:
            # In the engine's call: these messages are still where they were seen, and the permissions are current.
            rights = self._maybe_rights(view)
            for each in seen:
                if rights is not None and self._is_wanted() and only in (None, each.place):
                    self._take(view, each, rights)
            done.set()

        async with self._paced(view):
            view.browsing.look(self.queue, cursor, most, told)
            await done.wait()

    async def _run_parked(self, view: EngineView) -> None:
        held, queue = view.held, self.queue
        number, end = 0, held.end_number(queue, PARKED)
        places = self.places
        while number < end and not view.queues.is_gone(queue) and self._is_wanted():
            piece = self._piece(view)
            if places is None:
                numbers, number = held.numbers_from(queue, PARKED, number, piece)
            else:
                numbers, places = places[:piece], places[piece:]
                number = 0 if places else end
            done = trio.Event()

            def told(listed: list[HeldMessage], done: trio.Event = done) -> None:
                # In the engine's call, as above.
                rights = self._maybe_rights(view)
                taken: list[int] = []
                for each in listed:
                    if rights is not None and self._is_wanted() and self._take_parked(view, each, rights):
                        taken.append(each.number)
                if taken:
                    held.drop(queue, PARKED, taken, lambda count: done.set())
                else:
                    done.set()

            async with self._paced(view):
                held.list_numbered(queue, PARKED, numbers, told)
                await done.wait()
        self._note_deletion(view)

    def _piece(self, view: EngineView) -> int:
        """Return how many messages are looked at in one turn: fewer if they are large, or the rate is low."""
        count, size = view.queues.ready(self.queue)
        if self.parked:
            row = view.held.row(self.queue, PARKED)
            count, size = row.messages, row.bytes
        fitting = PIECE_BYTES * max(1, count) // max(1, size)
        if self.copies:
            fitting = min(fitting, PIECE_COPIES * self.transferred // self.copies)
        most = PIECE_MESSAGES if self.scanned else 1  # after the first it is known how many queues get one
        return max(1, min(most, fitting, most if self.rate is None else self.rate))

    @asynccontextmanager
    async def _paced(self, view: EngineView) -> AsyncIterator[None]:
        """Wait after a piece for everything that publishers wait for, and as long as the rate demands."""
        began_s = trio.current_time()
        scanned = self.scanned
        yield
        while view.publishers_wait():
            await trio.sleep(0.01)  # the disk is behind, or there is an alarm: publishers wait as well
        if self.rate is not None:
            await trio.sleep_until(began_s + (self.scanned - scanned) / self.rate)
        await trio.lowlevel.checkpoint()

    def _note_deletion(self, view: EngineView) -> None:
        if view.queues.is_gone(self.queue):
            self._fail("the queue was deleted")

    def _fail(self, reason: str) -> None:
        self.state, self.error = FAILED, reason[:ERROR_CHARACTERS_MAX]

    def _is_wanted(self) -> bool:
        return self.state == RUNNING and self.scanned < self.total and self.transferred < self.limit

    def _maybe_rights(self, view: EngineView) -> Rights | None:
        """Return what the user may do now, if it is enough; else the transfer fails."""
        if view.queues.maybe(self.vhost, self.name) is not self.queue:
            self._fail("the queue was deleted")  # or another vhost of this name is there
            return None
        try:
            return rights_for(view.permissions, self.user, self.vhost, self.name, self.destination)
        except AmqpError as error:
            self._fail(error.explanation)
            return None

    def _take(self, view: EngineView, seen: Seen, rights: Rights) -> None:
        self.scanned += 1
        if view.browsing.is_expired(self.queue, seen.message):
            return  # the lifetime of a copy would start again
        if self.moves and not view.browsing.waits(self.queue, seen):
            return  # an earlier message of this transfer has pushed it out
        if self._publish(view, seen.message, rights) and self.moves:
            view.browsing.take(self.queue, seen)

    def _take_parked(self, view: EngineView, held: HeldMessage, rights: Rights) -> bool:
        """Tell whether the message can be dropped: the others have it."""
        self.scanned += 1
        return self._publish(view, held.message, rights) and self.moves

    def _publish(self, view: EngineView, message: Message, rights: Rights) -> bool:
        """Give the others a message that passes the filter; tell whether they have it."""
        if not self.filter.accepts(message):
            return False
        taken, refused = 0, False
        target = self._target(view, message)
        if target is not None:
            try:
                taken, refused = view.browsing.publish_copy(self.vhost, message, *target, rights)
            except ChannelException as error:
                self._fail(error.explanation)
                return False
        if refused:
            self._fail("a destination refuses more messages")
        elif taken == 0:
            self.unroutable += 1
        else:
            self.transferred += 1
            self.copies += taken
        return taken > 0 and not refused

    def _target(self, view: EngineView, message: Message) -> tuple[str, str] | None:
        """Return the exchange and the routing key for `message`; None when it has no origin to go to."""
        destination = self.destination
        if destination.exchange is not None:
            key = destination.routing_key
            return destination.exchange, message.envelope.routing_key if key is None else key
        origin = origin_of(message)
        if origin is None or origin[0] == self.name or view.queues.maybe(self.vhost, origin[0]) is None:
            return None
        return "", origin[0]


def rights_for(permissions: Permissions, user: str, vhost: str, queue: str, destination: Destination) -> Rights:
    """Return what the user may do now: read the queue, and write to the destination, as far as it is known before.

    Raises:
        ChannelException: 403, the user is gone, or may not do that.
    """
    rights = permissions.rights_now(user, vhost)
    rights.authorize(READ, "queue", queue)
    rights.authorize(WRITE, "exchange", destination.exchange or "")
    return rights


def origin_of(message: Message) -> tuple[str, str] | None:
    """Return the queue in which a dead letter died first, and its routing key then; None: not a dead letter."""
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


@dataclass(frozen=True, slots=True)
class Ended:
    """The summary of a transfer that has ended; `ended_s` on the clock of the transfers."""

    id: str
    vhost: str
    queue: str
    user: str
    described: Described
    ended_s: float


class Transfers:
    """The transfers of this process. `clock` counts seconds."""

    def __init__(self, view: EngineView, clock: Callable[[], float] = time.monotonic) -> None:
        self._view = view
        self._running: dict[str, Transfer] = {}
        self._ended: OrderedDict[str, Ended] = OrderedDict()  # the one that ended first is the first
        self._last = 0
        self._clock = clock

    def maybe_refusal(self, user: str) -> str:
        """Return why `user` cannot begin another one now; "" when that is possible."""
        mine = sum(each.user == user for each in self._running.values())
        return RUNNING_QUOTA.maybe_refusal("running transfers", self._view.permissions, user, mine, len(self._running))

    def begin(self, transfer: Transfer, tasks: Supervision, nursery: trio.Nursery) -> None:
        """Remember and start a transfer."""
        self._running[transfer.id] = transfer
        nursery.start_soon(tasks.once, "transfer", self.carry_out, transfer)

    async def carry_out(self, transfer: Transfer) -> None:
        """Run a transfer to its end, and keep a summary of it."""
        try:
            await transfer.run(self._view)
        finally:
            self._running.pop(transfer.id, None)
            self._keep(transfer)

    def _keep(self, transfer: Transfer) -> None:
        self._ended[transfer.id] = Ended(
            transfer.id,
            transfer.vhost,
            transfer.name,
            transfer.user,
            transfer.describe(),
            self._clock(),
        )
        mine = [each.id for each in self._ended.values() if each.user == transfer.user]
        if len(mine) > KEPT_OF_USER_MAX:
            del self._ended[mine[0]]
        if len(self._ended) > KEPT_MAX:
            self._ended.popitem(last=False)
        self._forget_old()

    def _forget_old(self) -> None:
        oldest_s = self._clock() - KEPT_S
        while self._ended and next(iter(self._ended.values())).ended_s <= oldest_s:
            self._ended.popitem(last=False)

    def next_id(self) -> str:
        """Return the name of the next transfer."""
        self._last += 1
        return str(self._last)

    def of(self, vhosts: list[str]) -> list[Described]:
        """Return the transfers in these vhosts, the one that was begun last first."""
        self._forget_old()
        found = [each.describe() for each in self._running.values() if each.vhost in vhosts]
        found += [each.described for each in self._ended.values() if each.vhost in vhosts]
        return sorted(found, key=lambda described: int(described["id"]), reverse=True)

    def maybe_find(self, vhost: str, identifier: str) -> Transfer | Ended | None:
        """Return a running transfer, or the summary of one that has ended."""
        self._forget_old()
        running = self._running.get(identifier)
        if running is not None:
            return running if running.vhost == vhost else None
        ended = self._ended.get(identifier)
        return ended if ended is not None and ended.vhost == vhost else None

    def end(self, transfer: Transfer | Ended) -> None:
        """Stop a running transfer, forget one that has ended."""
        if isinstance(transfer, Transfer):
            transfer.stop()
        else:
            self._ended.pop(transfer.id, None)


# --- handlers ---------------------------------------------------------------------------------------------------------


def _fits(text: str, most_bytes: int, what: str) -> str:
    """Return `text`, which a transfer keeps.

    Raises:
        HttpError: 400, it is too long.
    """
    if len(text.encode("utf-8", "replace")) > most_bytes:
        raise bad_request(f"{what} must be a string of at most {most_bytes} bytes")
    return text


def _destination(call: Call, view: EngineView, order: Order) -> Destination:
    """Return the target of an order, if it is possible.

    Raises:
        HttpError: 400, 404.
    """
    vhost = the_vhost(call)
    wanted = order.destination
    if wanted.origin:
        return Destination(None, None, {"origin": True})
    if wanted.queue is not None:
        name = _fits(wanted.queue, NAME_BYTES_MAX, "queue")
        if view.queues.maybe(vhost, name) is None:
            raise not_found(f"no queue '{name}' in vhost '{vhost}'")
        if name == call.params["queue"] and order.mode == "move":
            raise bad_request("a queue's messages cannot be moved into the same queue")
        return Destination("", name, {"queue": name})
    if wanted.exchange is not None:
        exchange = view.exchanges.maybe(vhost, exchange_name(_fits(wanted.exchange, NAME_BYTES_MAX, "exchange")))
        if exchange is None:
            raise not_found(f"no exchange '{wanted.exchange}' in vhost '{vhost}'")
        name = view.exchanges.name(exchange)
        if view.exchanges.declaration(exchange).internal:
            raise bad_request(f"cannot publish to internal exchange '{name}'")
        key = wanted.routing_key
        if key is not None:
            _fits(key, NAME_BYTES_MAX, "routing_key")
        return Destination(name, key, {"exchange": wanted.exchange, "routing_key": key})
    raise bad_request('destination must be {"queue": …}, {"exchange": …, "routing_key": …} or {"origin": true}')


def _filter(passes: Passes) -> Filter:
    return Filter(
        _fits(passes.routing_key, NAME_BYTES_MAX, "routing_key"),
        _fits(passes.header, HEADER_BYTES_MAX, "header"),
        _fits(passes.body, BODY_BYTES_MAX, "body").encode("utf-8", "surrogatepass"),
    )


def _places(order: Order, lanes: int) -> list[int] | None:
    """Return the places of the messages that an order names, in the order of the queue.

    Raises:
        HttpError: 400, there are too many, or no message can be there.
    """
    if order.messages is None:
        return None
    if not 1 <= len(order.messages) <= MESSAGES_MAX:
        raise bad_request(f"messages must be a list of 1 to {MESSAGES_MAX}")
    for each in order.messages:
        if not (0 <= each.sequence_number <= NUMBER_MASK and 0 <= each.lane < lanes):
            raise bad_request(f"messages: there is no place {each.sequence_number} in lane {each.lane} of this queue")
    return sorted({each.lane << LANE_SHIFT | each.sequence_number for each in order.messages})


def _check_queue(view: EngineView, queue: QueueRef, order: Order) -> None:
    """Make sure that an order is for the queue that its user has looked at: another one has other messages there.

    Raises:
        HttpError: 400, it names messages without their queue. 409, it is another queue.
    """
    if order.queue_id is None:
        if order.messages is not None:
            raise bad_request("messages: queue_id is missing; take it from the list of messages")
    elif order.queue_id != view.browsing.identity(queue):
        text = "the queue was declared again, or the broker was restarted: list its messages again"
        raise HttpError(409, "another_queue", text)


def _check_bounds(order: Order) -> None:
    for name, value, most in (("count", order.count, COUNT_MAX), ("rate", order.rate, RATE_MAX)):
        if value is not None and not 1 <= value <= most:
            raise bad_request(f"{name} must be a number from 1 to {most}")


_T: Final = "/api/warren/transfers"
_SEE: Final = Access.VHOST_VISIBLE


class TransferHandlers(Handlers):
    """Handlers of transfers. They run in `nursery`, looked after by `tasks`."""

    def __init__(self, view: EngineView, transfers: Transfers, tasks: Supervision, nursery: trio.Nursery) -> None:
        self._view = view
        self._transfers = transfers
        self._tasks = tasks
        self._nursery = nursery

    async def begin_transfer(self, call: Call) -> Response:
        order = await call.body(Order)
        view = self._view
        queue = the_shared_queue(call, view)
        kind = view.offsets.kind(queue)
        _check_queue(view, queue, order)
        if order.mode not in ("move", "copy"):
            raise bad_request("mode must be move or copy")
        if order.mode == "move" and kind == STREAM:
            raise bad_request("a stream keeps its messages: they can be copied, not moved")
        if order.mode == "move" and kind == CLAIMS:
            raise bad_request("claimed messages can be copied or released, not moved")
        if order.state not in ("ready", "parked"):
            raise bad_request("state must be ready or parked")
        _check_bounds(order)
        destination = _destination(call, view, order)
        user, vhost, name = call.operator.name, call.params["vhost"], call.params["queue"]
        rights = rights_for(call.operator.access, user, vhost, name, destination)
        if destination.exchange is not None and destination.routing_key is not None:
            view.browsing.check_publish(vhost, destination.exchange, destination.routing_key, rights)
        passes = _filter(order.filter)
        is_parked = order.state == "parked"
        places = _places(order, 1 if is_parked else view.browsing.lane_count(queue))
        total = view.held.row(queue, PARKED).messages if is_parked else view.queues.ready(queue)[0]
        if places is not None:
            total = len(places)
        transfers = self._transfers
        refusal = transfers.maybe_refusal(user)
        if refusal:
            raise HttpError(429, "too_many", refusal)
        transfer = Transfer(
            transfers.next_id(),
            vhost,
            name,
            queue,
            destination,
            order.mode == "move",
            passes,
            is_parked,
            total if order.count is None else order.count,
            order.rate,
            total,
            user,
            int(time.time() * 1000),
            places,
        )
        transfers.begin(transfer, self._tasks, self._nursery)
        place = f"/api/warren/transfers/{quote(vhost, safe='')}/{transfer.id}"
        return Response(201, msgspec.json.encode(transfer.describe()), headers=(("Location", place),))

    async def list_transfers(self, call: Call) -> list[Described]:
        return self._transfers.of(visible_vhost_names(call))

    def _the_transfer(self, call: Call) -> Transfer | Ended:
        found = self._transfers.maybe_find(call.params["vhost"], call.params["id"])
        if found is None:
            raise not_found()
        return found

    async def show_transfer(self, call: Call) -> Described:
        found = self._the_transfer(call)
        return found.describe() if isinstance(found, Transfer) else found.described

    async def end_transfer(self, call: Call) -> None:
        transfer = self._the_transfer(call)
        call.authorize(READ, "queue", transfer.name if isinstance(transfer, Transfer) else transfer.queue)
        self._transfers.end(transfer)

    ROUTES: ClassVar = (
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
        Route(
            "DELETE", f"{_T}/{{vhost}}/{{id}}", Access.VHOST, end_transfer, "Stop a transfer, or forget an ended one"
        ),
    )
