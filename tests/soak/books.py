"""The promises to clients and the messages they got during a soak, in memory that does not grow with its length.

`Books` is told every step in the order in which one thread took them, and judges at once; `end_period` judges missing
messages when all queues are empty, and forgets finished ones. It does not know brokers, sockets or clocks.

1. A message has a number, and a *place* for each queue that it was routed to. A place outlives a move between queues: a
   dead letter, or a message moved by a transaction, a shovel or a delay, keeps its place.
2. A place is

       due          confirmed, and not settled: it has to arrive
       held         delivered to a client that is still connected, and not answered
       settled      acked, and a later request of the same channel was answered: it must not come again
       doubtful     an ack was sent, and its effect is unknown: it may come or not

3. A kill makes settled places doubtful, unless something sent later was confirmed as stored: there is one log, which
   then has both. A clean stop makes no place doubtful.
4. A message arrives as new once for each queue, in the order of its publisher where the queue keeps it.
5. A message that went to several queues is in all of them or in none. If it was seen before a kill and never confirmed,
   it may be lost everywhere: only deliveries in the present life count.
6. A number that is not in the books was never sent, or was settled in an earlier period: both are wrong.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

BODY_BYTES_MAX = 1 << 20
# A delay counts from the beginning of the turn in which its message was read: as much earlier as the broker was stopped
# within that turn, by us (1 s) or by a busy machine.
EARLY_S = 2.0
_BLOCK = random.Random(0).randbytes(BODY_BYTES_MAX + (64 << 10))


class Rule(StrEnum):
    """Rules that a broker can break."""

    LOST = "lost"
    UNKNOWN = "never sent, or settled long ago"
    ALTERED = "altered"
    DOUBLED = "there twice"
    RETURNED = "came back after it was settled"
    DISORDERED = "out of order"
    TORN = "in some of its queues only"
    EARLY = "delivered before its time"
    REFUSED = "refused"
    GAP = "an offset passed over"
    CHANGED = "an offset that stands for another message"
    CLOSED = "a connection closed by the broker"
    FAILED = "a request that failed"
    KEPT = "space or objects that do not come back"
    GROWING = "growing without end"


@dataclass(frozen=True)
class Violation:
    """A rule and the case in which it was broken."""

    rule: Rule
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


@dataclass(frozen=True)
class Promise:
    """The promises for the messages of one flow.

    `ordered`: the queues that keep the order of a publisher for each consumer; `serial`: those that keep it for all
    consumers together. `exact`: there is never a second copy, not even after a restart. `repeated`: the publisher sends
    everything several times, and the broker drops the repetitions. `durable`: it outlives the broker. `lasting`: it
    waits for more than a period, until somebody wants it.
    """

    name: str
    ordered: frozenset[str] = frozenset()
    serial: frozenset[str] = frozenset()
    passing: bool = False
    exact: bool = True
    repeated: bool = False
    durable: bool = True
    lasting: bool = False


class _Entry:
    """A message in a place."""

    __slots__ = (
        "acked",
        "body_bytes",
        "confirmed_in",
        "doubtful",
        "due_s",
        "held",
        "last_life",
        "life",
        "number",
        "order",
        "place",
        "promise",
        "seen",
        "settled_at",
    )

    def __init__(
        self, promise: Promise, place: str, number: int, body_bytes: int, order: str, due_s: float, life: int
    ) -> None:
        self.promise = promise
        self.place = place
        self.number = number
        self.body_bytes = body_bytes
        self.order = order
        self.due_s = due_s
        self.life = life  # in which it was sent
        self.confirmed_in = -1  # the life in which it was first confirmed
        self.seen: dict[str, int] = {}  # by queue, in which life it came as new
        self.last_life = -1  # in which it was delivered
        self.held = ""  # the client that has it
        self.acked = False
        self.settled_at = -1  # how many had been sent when it was settled
        self.doubtful = False

    def __str__(self) -> str:
        return f"message {self.number} of {self.promise.name} in {self.place}"


class Books:
    """All that is under way. `violations` are kept up to a number, `violation_count` counts all."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.violation_count = 0
        self.counts: Counter[str] = Counter()
        self.life = 0
        self._sent = 0
        self._stored = 0  # the last message of which it is known that it is on disk
        self._entries: dict[tuple[int, str], _Entry] = {}
        self._due: dict[_Entry, None] = {}
        self._held: dict[str, dict[_Entry, None]] = {}
        self._answered: dict[str, list[_Entry]] = {}
        self._last: dict[tuple[str, str, str], int] = {}

    # --- publishers -------------------------------------------------------------------------------------------------

    def sent(
        self, promise: Promise, places: Iterable[str], body_bytes: int, order: str = "", due_s: float = 0.0
    ) -> int:
        """Note a message that is about to be sent; return its number.

        `order`: messages with the same text here keep their order. `due_s`: it must not come before.
        """
        self._sent += 1
        for place in places:
            entry = _Entry(promise, place, self._sent, body_bytes, order, due_s, self.life)
            self._entries[self._sent, place] = entry
        self.counts["sent"] += 1
        return self._sent

    def confirmed(self, number: int, places: Iterable[str]) -> None:
        """Note that the broker confirmed it."""
        self.counts["confirmed"] += 1
        for place in places:
            entry = self._entries.get((number, place))
            if entry is None:
                continue  # it came and was settled before its confirm was read, and a period ended
            if entry.promise.durable and not entry.promise.repeated:
                self._stored = max(self._stored, number)
            if entry.confirmed_in < 0:
                entry.confirmed_in = self.life
                if not entry.doubtful and entry.settled_at < 0:
                    self._due[entry] = None

    def refused(self, number: int, why: str) -> None:
        """Note that it was nacked, which no queue here has a reason for."""
        self.violated(Rule.REFUSED, f"message {number}: {why}")

    # --- consumers --------------------------------------------------------------------------------------------------

    def delivered(
        self, client: str, queue: str, place: str, number: int, body: bytes, now_s: float, *, redelivered: bool
    ) -> None:
        """Judge a delivery to `client`, which holds it from now on."""
        entry = self._recognise(place, number, body, f"delivered to {client} from {queue}")
        if entry is None:
            return
        self.counts["delivered"] += 1
        self._check_once(entry, client, queue, redelivered)
        if now_s < entry.due_s - EARLY_S:
            self.violated(Rule.EARLY, f"{entry}, by {entry.due_s - now_s:.3f} s")
        if not redelivered:
            entry.seen[queue] = self.life
            self._check_order(entry, client, queue)
        else:
            entry.seen.setdefault(queue, self.life)
        entry.last_life = self.life
        entry.held = client
        self._held.setdefault(client, {})[entry] = None

    def _check_once(self, entry: _Entry, client: str, queue: str, redelivered: bool) -> None:
        if not entry.promise.exact and self.life > entry.life:
            return
        if entry.held:
            self.violated(Rule.DOUBLED, f"{entry}, delivered to {client} while {entry.held} has it")
        elif entry.acked and not self._may_come_again(entry):
            self.violated(Rule.RETURNED, f"{entry}, delivered to {client} from {queue}")
        elif not redelivered and queue in entry.seen and not self._may_come_again(entry):
            self.violated(Rule.DOUBLED, f"{entry}, came to {client} as new a second time from {queue}")

    def _may_come_again(self, entry: _Entry) -> bool:
        """Tell whether a crash may have lost it with its key, so that the repetition is taken."""
        if not entry.promise.repeated or 0 <= entry.confirmed_in < self.life:
            return False
        return all(life < self.life for life in entry.seen.values())

    def _check_order(self, entry: _Entry, client: str, queue: str) -> None:
        if queue in entry.promise.serial:
            key = (queue, "", entry.order)
        elif queue in entry.promise.ordered:
            key = (queue, client, entry.order)
        else:
            return
        last = self._last.get(key, 0)
        if entry.number <= last:
            self.violated(Rule.DISORDERED, f"{entry}, to {client} from {queue}, came after {last}")
        self._last[key] = entry.number

    def released(self, number: int, place: str) -> None:
        """Note that a client is about to give it back, to reject it, or to pass it on."""
        entry = self._entries.get((number, place))
        if entry is not None:
            self._let_go(entry)

    def acked(self, number: int, place: str) -> None:
        """Note that the client that has it is about to ack it."""
        entry = self._entries.get((number, place))
        if entry is None or not entry.held:
            return
        client = entry.held
        self._let_go(entry)
        entry.acked = True
        self._answered.setdefault(client, []).append(entry)
        self.counts["acked"] += 1

    def processed(self, client: str, count: int) -> None:
        """Note that requests after the first `count` unsettled acks of a client were answered."""
        answered = self._answered.get(client, [])
        for entry in answered[:count]:
            self._settle(entry)
        del answered[:count]

    def unsettled(self, client: str) -> int:
        """Return how many acks of a client may not be processed yet."""
        return len(self._answered.get(client, ()))

    def taken(self, place: str, number: int, body: bytes) -> None:
        """Note a read by a reader that reads everything once: the reader of a stream, or of a drain."""
        entry = self._recognise(place, number, body, "read")
        if entry is None:
            return
        self.counts["read"] += 1
        if entry.acked and entry.promise.exact:
            self.violated(Rule.DOUBLED, f"{entry}, read a second time")
        entry.acked = True
        self._settle(entry)

    def gone(self, client: str) -> None:
        """Note that the connection of a client is over, ended by either side."""
        for entry in self._held.pop(client, {}):
            entry.held = ""
        for entry in self._answered.pop(client, []):
            self._doubt(entry)

    # --- the broker -------------------------------------------------------------------------------------------------

    def restarted(self, *, clean: bool) -> None:
        """Note that all connections are over, and that the broker is about to be started again."""
        for client in {*self._held, *self._answered}:
            self.gone(client)
        self.life += 1
        for entry in self._entries.values():
            is_certain = entry.settled_at >= 0 and (clean or entry.settled_at < self._stored)
            if (entry.settled_at >= 0 and not is_certain) or not entry.promise.durable:
                self._doubt(entry)
            if entry.promise.passing and not clean:
                # It was seen before its move was on disk, perhaps: then it is moved again, and comes as new.
                entry.seen.clear()

    # --- the end of a period ----------------------------------------------------------------------------------------

    def due_count(self) -> int:
        """Return how much has still to come of what does not wait for longer."""
        return sum(not entry.promise.lasting for entry in self._due)

    def end_period(self, *, lasting: bool) -> None:
        """Judge what is missing; all queues are empty, those of lasting messages only if `lasting` says so."""
        whole: dict[int, list[_Entry]] = {}
        for entry in list(self._entries.values()):
            if entry.promise.lasting and not lasting:
                continue
            if entry in self._due:
                self.violated(Rule.LOST, f"{entry}, confirmed")
            whole.setdefault(entry.number, []).append(entry)
        for entries in whole.values():
            self._check_whole(entries)
            for entry in entries:
                # Whatever is still in doubt may come back after a kill: it stays in the books until it cannot.
                if entry.settled_at < 0 or entry.settled_at < self._stored:
                    self._due.pop(entry, None)
                    del self._entries[entry.number, entry.place]
        self._last.clear()

    def _check_whole(self, entries: list[_Entry]) -> None:
        there = [entry for entry in entries if entry.last_life == self.life]
        missing = [entry for entry in entries if entry.last_life < 0 and not entry.doubtful]
        if there and missing and there[0].confirmed_in < 0:
            self.violated(Rule.TORN, f"{there[0]}, but not in {', '.join(entry.place for entry in missing)}")

    def size(self) -> int:
        """Return how much is in the books."""
        return len(self._entries)

    # --- inside -----------------------------------------------------------------------------------------------------

    def violated(self, rule: Rule, text: str) -> None:
        """Note that a rule was broken."""
        self.violation_count += 1
        if len(self.violations) < 100:
            self.violations.append(Violation(rule, text))

    def _recognise(self, place: str, number: int, body: bytes, what: str) -> _Entry | None:
        entry = self._entries.get((number, place))
        if entry is None:
            self.violated(Rule.UNKNOWN, f"message {number} in {place}, {what}: {body[:40]!r}")
        elif body != body_of(number, entry.body_bytes):
            self.violated(Rule.ALTERED, f"{entry}, {what}: {len(body)} bytes, {body[:40]!r}")
        return entry

    def _let_go(self, entry: _Entry) -> None:
        if entry.held:
            self._held[entry.held].pop(entry, None)
            entry.held = ""

    def _settle(self, entry: _Entry) -> None:
        entry.settled_at = self._sent
        self._due.pop(entry, None)

    def _doubt(self, entry: _Entry) -> None:
        entry.acked = False
        entry.settled_at = -1
        entry.doubtful = True
        self._due.pop(entry, None)


def body_of(number: int, body_bytes: int) -> bytes:
    """Return the body of a message: its number, then bytes that depend on it."""
    start = number * 7919 % (len(_BLOCK) - BODY_BYTES_MAX)
    return b"%d;" % number + _BLOCK[start : start + body_bytes]


def maybe_number(body: bytes) -> int | None:
    """Return the number that a body begins with, None for one that is not ours."""
    digits, semicolon, _ = body[:21].partition(b";")
    return int(digits) if semicolon and digits.isdigit() else None


class Offsets:
    """The message at each of the latest offsets of a stream; it is the same for all readers, and for ever."""

    def __init__(self, books: Books, stream: str, kept: int = 20_000) -> None:
        self.end = 0  # after the last one that the sequential reader has seen
        self._books = books
        self._stream = stream
        self._kept = kept
        self._numbers: dict[int, int] = {}

    def read_next(self, offset: int, number: int) -> None:
        """Note a message of a reader that does not skip messages."""
        if offset != self.end:
            self._books.violated(Rule.GAP, f"{self._stream}: {offset} came where {self.end} was due")
        self.end = offset + 1
        self.read(offset, number)

    def read(self, offset: int, number: int) -> bool:
        """Note a message of a reader that may begin anywhere; return whether it was read for the first time."""
        known = self._numbers.get(offset)
        if known is not None and known != number:
            self._books.violated(Rule.CHANGED, f"{self._stream}: {offset} was message {known}, and now {number}")
        self._numbers.setdefault(offset, number)
        while len(self._numbers) > self._kept:
            del self._numbers[next(iter(self._numbers))]
        return known is None

    def oldest(self) -> int:
        """Return the oldest offset that is remembered, or the end."""
        return next(iter(self._numbers), self.end)
