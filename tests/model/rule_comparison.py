"""A broker beside its model (`small_rules`), where queues have rules: what both do, and whether it is the same.

Five clients with a channel each are connected: two plain, one confirming, two transactional. Compared is what everybody
was sent, flags, headers and deaths included; confirms; what waits, in order; what is out and what is held. Where the
order of what happens at once is not said, the model tries all of them, up to a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import combinations, islice, permutations
from random import Random
from typing import Any, Final

from engine_harness import Client, Received, body_of
from simulation.small_store import Shape

from warren.amqp import methods as m
from warren.amqp.field_table import Table, decode_table
from warren.amqp.properties import headers_of, priority_of
from warren.msgstore.log.message import Message as StoredMessage
from warren.queues.base_queue import BaseQueue
from warren.queues.held_messages import HeldMessage
from warren.queues.lanes import DELAYED, PARKED, UNDELIVERED

from .restarting_broker import RestartingBroker
from .small_rules import NEVER, Channel, Consumer, Entry, Queue, World

CONFIRMING: Final = 1
TRANSACTIONAL: Final = (2, 3)
CLIENTS: Final = 5
START_MS: Final = 1_700_000_000_000
ORDERS_MAX: Final = 720
UNSURE_MAX: Final = 6
LONG: Final = 40
# A turn does all that is asked for: else it would matter how many letters are placed before the next message dies.
MANY_STEPS: Final = 1 << 40


class Replies:
    """The answers to a command, apart from deliveries: by client, in order."""

    def __init__(self) -> None:
        self.deliveries: list[tuple[int, Received]] = []
        self.methods: dict[int, list[Any]] = {}
        self.cancelled: list[tuple[int, str]] = []
        self.confirms: list[tuple[int, bool, bool]] = []  # tag, multiple, refused


class UndecidedError(Exception):
    """So much has happened at once that the model cannot tell whether the broker is right: the run ends here."""


class Comparison:
    """A broker and its model under one seed."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.trace: list[str] = []
        self.is_short = self.dice.random() < 0.3  # of memory
        # A message that a queue drops for its age or the queue's length may have to be read first if it becomes a dead
        # letter; later messages overtake it. Where memory is short a run has either such rules or dead lettering.
        self.dead_letters = not self.is_short or self.dice.random() < 0.4
        self.drops = not self.is_short or not self.dead_letters
        memory_bytes = 0 if self.is_short else 128 << 20
        shape = Shape(1 << 17, self.dice.choice((4, 16, 64)), self.dice.choice((1 << 14, 1 << 30)))
        self.broker = RestartingBroker(shape, START_MS, memory_bytes, MANY_STEPS)
        self.world = World(START_MS, pages_out=self.is_short)
        self.has_started_again = False  # then what was held is read when it is due
        self.latest_ms = START_MS  # the clock was there before
        self.clients: list[Client] = []
        self.published = 0  # on the confirming channel
        self.expected: dict[int, bool] = {}  # its publishes that are not confirmed yet, and whether they are refused
        self._connect_all()

    def _note(self, *what: object) -> None:
        self.trace.append(f"{self.world.now_ms - START_MS}: " + " ".join(str(each) for each in what))

    # --- clients ----------------------------------------------------------------------------------------------------

    def _connect_all(self) -> None:
        self.clients = [self.broker.client() for _ in range(CLIENTS)]
        for number in range(CLIENTS):
            self._open(number)

    def _open(self, number: int) -> None:
        client = self.clients[number]
        client.open(1)
        self.world.channels[number] = Channel(number, number in TRANSACTIONAL)
        if number == CONFIRMING:
            client.call(1, m.ConfirmSelect(False))
            self.published = 0
            self.expected = {}
        elif number in TRANSACTIONAL:
            client.call(1, m.TxSelect())

    # --- comparing --------------------------------------------------------------------------------------------------

    def _collect(self) -> Replies:
        replies = Replies()
        for number, client in enumerate(self.clients):
            for each in client.take():
                method = each.method
                if isinstance(method, m.BasicDeliver):
                    replies.deliveries.append((number, each))
                elif isinstance(method, m.BasicCancel):
                    replies.cancelled.append((number, method.consumer_tag))
                elif isinstance(method, m.BasicAck | m.BasicNack):
                    assert number == CONFIRMING
                    refused = isinstance(method, m.BasicNack)
                    replies.confirms.append((method.delivery_tag, method.multiple, refused))
                else:
                    replies.methods.setdefault(number, []).append(each if each.content else method)
        return replies

    def _step(
        self, number: int, data: bytes, replies: list[Any] | None = None, cancelled: Sequence[Consumer] = ()
    ) -> None:
        """Feed `data`, whose meaning the model knows already, and compare."""
        self.clients[number].feed(data)
        self._compare(self._collect(), {number: replies} if replies else {}, cancelled)

    def _compare(
        self,
        received: Replies,
        replies: dict[int, list[Any]] | None = None,
        cancelled: Sequence[Consumer] = (),
        *,
        thorough: bool = False,
    ) -> None:
        """Compare all with the model, which learns each message's consumer; `thorough`: also in long queues."""
        self.world.hand_out()
        assert received.methods == (replies or {})
        assert sorted(received.cancelled) == sorted((each.client, each.tag) for each in cancelled)
        self._compare_deliveries(received.deliveries)
        self._compare_handed()
        self._compare_queues(thorough=thorough)
        for tag, multiple, refused in received.confirms:
            for each in [each for each in self.expected if each == tag or (multiple and each < tag)]:
                # A later ack for many does not cover refused publishes, although it includes their numbers.
                assert self.expected.pop(each) == refused, f"publish {each} refused: {not refused}"
        assert not self.expected, "a publish is not confirmed"

    def _compare_deliveries(self, deliveries: list[tuple[int, Received]]) -> None:
        order: dict[str, int] = {}  # how far the messages of each consumer have come in what was handed out
        handed = {name: list(queue.handed) for name, queue in self.world.queues.items()}
        for number, each in deliveries:
            channel = self.world.channels[number]
            consumer = channel.consumers[each.method.consumer_tag]
            queue = self.world.queues[consumer.queue]
            assert consumer in queue.served(), "it is not its turn"
            found = [entry for entry in queue.handed if entry.message.body == body_of(each)]
            found = [entry for entry in found if self._is_as(entry, each)] or found
            assert found, f"{body_of(each)!r} goes out of {queue.name}, and should not"
            entry = found[0]
            self._compare_message(entry, each)
            at = handed[queue.name].index(entry)
            assert at > order.get(consumer.tag, -1), "messages out of order"
            order[consumer.tag] = at
            self.world.took(consumer, entry)
            assert each.method.delivery_tag == channel.tags
            assert consumer.no_ack or not consumer.prefetch or consumer.outstanding <= consumer.prefetch

    def _compare_handed(self) -> None:
        for queue in self.world.queues.values():
            assert not queue.handed, f"{[entry.message.body for entry in queue.handed]} of {queue.name} do not go out"

    def _is_as(self, entry: Entry, received: Received) -> bool:
        try:
            self._compare_message(entry, received)
        except AssertionError:
            return False
        return True

    def _compare_message(self, entry: Entry, received: Received) -> None:
        message = entry.message
        method, content = received.method, received.content
        assert content is not None
        assert content.body == message.body
        assert (method.exchange, method.routing_key) == (message.exchange, message.key)
        if not entry.doubtful:
            assert method.redelivered == entry.redelivered, f"redelivered: {not entry.redelivered}"
        properties = content.properties
        assert (properties.delivery_mode == 2) == message.persistent
        assert (properties.priority or 0) == message.priority
        assert properties.expiration == (None if message.expiration_ms is None else str(message.expiration_ms))
        headers = decode_table(properties.headers) if properties.headers is not None else {}
        timeless, expected = _timeless(headers, self.latest_ms // 1000), _headers(entry)
        assert timeless == expected, f"headers are {timeless}, and should be {expected}"

    def _compare_queues(self, *, thorough: bool) -> None:
        broker = self.broker
        names = sorted(broker.vhost.queues)
        assert names == sorted(self.world.queues), f"there are {names}, and should be {sorted(self.world.queues)}"
        for name, queue in self.world.queues.items():
            real = broker.queue(name)
            assert real.ready_count == len(queue.ready), f"{name}: {real.ready_count} ready, not {len(queue.ready)}"
            assert real.ready_bytes == queue.size()
            assert real.unacked_count == len(queue.out), f"{name}: {real.unacked_count} out, not {len(queue.out)}"
            assert real.unacked_bytes == sum(len(each.entry.message.body) for each in queue.out)
            self._compare_held(queue, real)
            if thorough:
                self._compare_out(queue)
            if len(queue.ready) > LONG and not thorough and self.dice.random() < 0.9:
                continue
            resident = sorted(real.ready.in_memory(), key=lambda each: -min(_priority(each), queue.rules.levels))
            counts = Counter(entry.message.body for entry in queue.ready)
            # Copies of one message are told apart by their deaths.
            several = {body for body, count in counts.items() if count > 1 or thorough}
            here = [(each.body(), _history(each) if each.body() in several else None) for each in resident]
            waiting = [
                (entry.message.body, _expected_history(entry) if entry.message.body in several else None)
                for entry in queue.ready
            ]
            right = here == waiting if len(here) == len(waiting) else _is_part(here, waiting)
            assert right, f"{name}: another order"
        broker.check()

    @staticmethod
    def _compare_held(queue: Queue, real: BaseQueue) -> None:
        for lane, held in ((DELAYED, queue.held), (PARKED, queue.parked), (UNDELIVERED, queue.undelivered)):
            real_lane = real.held(lane)
            count = 0 if real_lane is None else real_lane.count
            assert count == len(held), f"{queue.name}: {count} in lane {lane}, not {len(held)}"

    def _orders_held(self) -> dict[tuple[str, str], list[bytes]]:
        """Return what queues hold in which lane, in its order; lanes that are still read after a start are left out."""
        found: dict[tuple[str, str], list[bytes]] = {}
        for name, queue in self.broker.vhost.queues.items():
            for lane, code in (("held", DELAYED), ("undelivered", UNDELIVERED)):
                real = queue.held(code)
                if real is not None and not real.scanning:
                    listed: list[HeldMessage] = []
                    real.list_earliest(int(real.count), listed.extend)
                    self.broker.settle()
                    found[name, lane] = [each.message.body() for each in listed]
        return found

    def _compare_orders_held(self, held: dict[tuple[str, str], list[bytes]]) -> None:
        """Compare in which order what is held will go: of what has the same time it matters when it came."""
        for (name, lane), bodies in held.items():
            entries = sorted(getattr(self.world.queues[name], lane), key=lambda each: each.until_ms)
            assert bodies == [entry.message.body for entry in entries], f"{name}: another order of what is {lane}"

    def _compare_out(self, queue: Queue) -> None:
        """Compare the places to which unanswered messages would return: of several consumers each sees only its own."""
        out: list[tuple[tuple[int, int], int, int, int]] = []
        for number, channel in self.world.channels.items():
            ledger = self.clients[number].connection.channels[1].ledger
            for tag, delivery in channel.unacked.items():
                if delivery.queue is queue:
                    out.append((delivery.entry.place, int(ledger.outstanding(tag).sequence_number), number, tag))
        places: dict[int, int] = {}  # by level
        for place, real, number, tag in sorted(out):
            assert real > places.get(place[0], -1), f"{queue.name}: delivery {tag} to {number} has another place"
            places[place[0]] = real

    # --- time -------------------------------------------------------------------------------------------------------

    def _now(self, now_ms: int) -> None:
        """Make the broker and the model do what is due at a moment."""
        self.world.now_ms = now_ms
        self.latest_ms = max(self.latest_ms, now_ms)
        self.broker.broker.keep_time(now_ms)
        self.broker.settle()
        while self.broker.broker.timers.next_ms() <= now_ms:  # messages that a start has read meanwhile
            self.broker.broker.keep_time(now_ms)
            self.broker.settle()
        received = self._collect()
        unsure = self._unsure()
        if len(self.world.due()) < 2 and not unsure:
            self.world.moment(self.world.due())
            self._compare(received)
            return
        before, errors = self.world, []
        held = self._orders_held()
        for alone, order, hasty, prompt in islice(self._orders(unsure), ORDERS_MAX):
            self.world = deepcopy(before)
            try:
                self.world.leave_alone(alone)
                self.world.moment(order, hasty=hasty, prompt=prompt)
                self._compare(received, thorough=True)
                self._compare_orders_held(held)
            except AssertionError as error:
                errors.append(f"{order}: {error}")
            else:
                return
        if len(unsure) == UNSURE_MAX:
            raise UndecidedError  # there may be more of them, and not all orders were tried
        raise AssertionError("\n".join(["wrong in any order:", *errors[:24]]))

    def _unsure(self) -> list[tuple[str, tuple[int, int]]]:
        """Return which returned messages expire now whose neighbours may go before or after them."""
        found: list[tuple[str, tuple[int, int]]] = []
        for queue in self.world.queues.values():
            expired = [entry for entry in queue.ready if queue.aged_ms(entry) <= self.world.now_ms]
            if len(expired) > 1 and queue.rules.dead_letter_exchange is not None:
                found += [(queue.name, entry.place) for entry in expired if entry.returned]
        return found[:UNSURE_MAX]

    def _orders(self, unsure: list[tuple[str, tuple[int, int]]]) -> Iterator[tuple[Any, Any, bool, bool]]:
        """Yield what may go alone, an order of all that is due then, and whether consumers get messages in between.

        They do when what is due next has to be read from disk first. So does the end of a queue that nobody uses: it is
        deleted, although held messages were due before it.
        """
        before = self.world
        for count in range(len(unsure) + 1):
            for alone in combinations(unsure, count):
                world = deepcopy(before) if alone else before
                world.leave_alone(alone)
                for order in permutations(world.due()):
                    yield alone, order, False, False
                    if self.is_short or self.has_started_again:
                        yield alone, order, True, False
                        yield alone, order, False, True

    def _tick(self) -> None:
        """Do what is due now, as the shell does at once."""
        if self.broker.broker.timers.next_ms() <= self.world.now_ms:
            self._now(self.world.now_ms)
        late = self.world.due()
        assert not late, f"nothing is planned for what is due: {late}"


def _headers(entry: Entry) -> Table:
    """Return the headers that a delivery has to have."""
    message = entry.message
    headers: Table = {}
    if message.delay_ms is not None:
        headers["x-delay"] = -message.delay_ms
    if entry.returns:
        headers["x-acquired-count"] = entry.returns
    if entry.failures:
        headers["x-delivery-count"] = entry.failures
    deaths: list[Table] = []
    for death in message.deaths:
        table: Table = {"count": death.count, "reason": death.reason, "queue": death.queue}
        table |= {"exchange": death.exchange, "routing-keys": [death.key]}
        if death.expiration_ms is not None:
            table["original-expiration"] = str(death.expiration_ms)
        deaths.append(table)
    if deaths:
        headers["x-death"] = deaths
    for when, where in (("first", message.first), ("last", message.last)):
        if where is not None:
            for what, value in zip(("reason", "queue", "exchange"), where, strict=True):
                headers[f"x-{when}-death-{what}"] = value
    return headers


def _timeless(headers: Table, now_s: int) -> Table:
    """Take the times out of x-death."""
    deaths = headers.get("x-death", [])
    assert isinstance(deaths, list)
    for death in deaths:
        assert isinstance(death, dict)
        assert START_MS // 1000 - 60 < death.pop("time") <= now_s
    return headers


def _priority(message: StoredMessage) -> int:
    return int(priority_of(message.header_payload(), 0))


def _history(message: StoredMessage) -> tuple[int, Any]:
    """Return a message's expiration and deaths."""
    headers = headers_of(message.header_payload())
    deaths = _timeless(decode_table(headers), NEVER).get("x-death", []) if headers else []
    return int(message.expiration_ms), deaths


def _expected_history(entry: Entry) -> tuple[int, Any]:
    expiration_ms = entry.message.expiration_ms
    return -1 if expiration_ms is None else expiration_ms, _headers(entry).get("x-death", [])


def _is_part(some: list[Any], of: list[Any]) -> bool:
    rest = iter(of)
    return all(any(each == other for other in rest) for each in some)
