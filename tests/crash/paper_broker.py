"""A broker on paper for testing the checker: it keeps a list of steps as its log, and a crash cuts the list.

Every step (a publish to its queues, a transaction, an ack, the end of a queue) is one entry; a crash keeps a prefix
that holds at least what was answered; a clean stop keeps all. Each `Fault` breaks one promise the way a real broker
might. Random clients drive it and tell a `History`, as the load does with a real broker.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum, auto

from .history import History, Message, Place, Sighting, Transaction

QUEUES = ("a", "b", "c", "unread", "fleeting")
TRANSIENT_QUEUES = ("fleeting",)
_CONSUMED = ("a", "b")


class Fault(Enum):
    """Faults of a paper broker."""

    NONE = auto()
    CONFIRMS_TOO_EARLY = auto()
    COMMITS_TOO_EARLY = auto()
    SPLITS_FAN_OUTS = auto()
    SPLITS_TRANSACTIONS = auto()
    FORGETS_ACKS = auto()
    FORGETS_DELETED_QUEUES = auto()
    FORGETS_PURGES = auto()
    KEEPS_TRANSIENT = auto()
    KEEPS_UNCOMMITTED = auto()
    REVERSES_A_QUEUE = auto()
    MOVES_REQUEUED_TO_THE_END = auto()
    STORES_TWICE = auto()
    CHANGES_A_BYTE = auto()
    CHANGES_A_PROPERTY = auto()
    MIXES_UP_QUEUES = auto()
    REVIVES_WHAT_WAS_MISSING = auto()
    FORGETS_DELIVERIES = auto()
    FLAGS_EVERYTHING = auto()
    REDELIVERS_UNFLAGGED = auto()


_Step = Callable[["PaperBroker"], None]


class PaperBroker:
    """Queues, a log, and clients at random."""

    def __init__(self, chooser: random.Random, fault: Fault) -> None:
        self.history = History(TRANSIENT_QUEUES)
        self.queues: dict[str, list[Place]] = {queue: [] for queue in QUEUES}
        self._chooser = chooser
        self._fault = fault
        self._start_state = self._copy()
        self._log: list[_Step] = []
        self._promised = 0
        self._answers: list[tuple[int, Callable[[], None]]] = []
        self._out: set[Place] = set()  # with a consumer
        self._unacked: list[Place] = []  # those of them that no open transaction has acked
        self._flagged: set[Place] = set()
        self._lost: list[Place] = []

    def _copy(self) -> dict[str, list[Place]]:
        return {queue: list(places) for queue, places in self.queues.items()}

    def _do(self, step: _Step, answer: Callable[[], None], *, early: bool = False) -> None:
        step(self)
        self._log.append(step)
        # The answer may go out when this number of entries of the log is on disk.
        self._answers.append((0 if early else len(self._log), answer))

    def _sync(self, entries: int) -> None:
        """Put the first `entries` on disk, and give the answers that waited for them."""
        self._promised = max(self._promised, entries)
        due = [answer for needed, answer in self._answers if needed <= entries]
        self._answers = [(needed, answer) for needed, answer in self._answers if needed > entries]
        for answer in due:
            answer()

    # --- what clients do --------------------------------------------------------------------------------------------

    def work(self, steps: int) -> None:
        """Do random things; the disk follows now and then."""
        for queue in _CONSUMED:
            self.history.consume(queue)
        for _ in range(steps):
            self._chooser.choice(
                [self._publish, self._publish, self._transact, self._deliver, self._ack, self._sync_some]
            )()
            if self._chooser.random() < 0.05:
                self._chooser.choice([self._delete, self._purge])()

    def _sync_some(self) -> None:
        self._sync(self._chooser.randint(0, len(self._log)))

    def _new_message(self, transaction: Transaction | None = None) -> Message:
        queues = self._chooser.sample(QUEUES, self._chooser.choice([1, 1, 3]))
        persistent = self._chooser.random() < 0.8
        body_bytes = self._chooser.randint(0, 30)
        publisher = self._chooser.choice("xy") if transaction is None else "tx"
        return self.history.publish(
            publisher, "e", "k", queues, body_bytes, persistent=persistent, transaction=transaction
        )

    def _publish(self) -> None:
        message = self._new_message()
        places = list(message.places.values())
        if self._fault is Fault.SPLITS_FAN_OUTS:
            for place in places[:-1]:
                self._do(_putting([place]), _nothing)
            places = places[-1:]
        early = self._fault is Fault.CONFIRMS_TOO_EARLY
        self._do(_putting(places), lambda: self.history.confirmed(message), early=early)

    def _transact(self) -> None:
        transaction = self.history.begin()
        messages = [self._new_message(transaction) for _ in range(self._chooser.randint(0, 3))]
        acked = []
        if self._unacked and self._chooser.random() < 0.8:
            acked.append(self._unacked.pop(self._chooser.randrange(len(self._unacked))))
            self.history.ack_in(transaction, acked[0])
        places = [place for message in messages for place in message.places.values()]
        end = self._chooser.random()
        if end < 0.2:
            if end < 0.1:
                self.history.roll_back(transaction)
                self._unacked += acked
            if self._fault is Fault.KEEPS_UNCOMMITTED:
                self._do(_putting(places), _nothing)
            return
        self.history.commit(transaction)
        if self._fault is Fault.SPLITS_TRANSACTIONS:
            for message in messages:
                self._do(_putting(message.places.values()), _nothing)
            places = []
        early = self._fault is Fault.COMMITS_TOO_EARLY
        gone = [] if self._fault is Fault.FORGETS_ACKS else acked
        self._do(_applying(places, gone), lambda: self.history.committed(transaction), early=early)

    def _deliver(self) -> None:
        queue = self._chooser.choice(_CONSUMED)
        waiting = [place for place in self.queues[queue] if place not in self._out]
        if waiting:
            place = waiting[0]
            redelivered = place in self._flagged and self._fault is not Fault.REDELIVERS_UNFLAGGED
            self.history.delivered(self._sighting(place, redelivered), f"of {queue}")
            self._flagged.add(place)
            if self._chooser.random() < 0.8:
                # The others are requeued at once.
                self._out.add(place)
                self._unacked.append(place)

    def _ack(self) -> None:
        if not self._unacked:
            return
        place = self._unacked.pop(self._chooser.randrange(len(self._unacked)))
        self.history.acked(place)
        step = _nothing_at_all if self._fault is Fault.FORGETS_ACKS else _applying([], [place])
        self._do(step, lambda: self.history.processed([place]))

    def _delete(self) -> None:
        self._sync(len(self._log))
        self.history.delete("c")
        step = _nothing_at_all if self._fault is Fault.FORGETS_DELETED_QUEUES else _emptying("c")
        self._do(step, lambda: self.history.deleted("c"))
        self._sync(len(self._log))
        self.history.declared("c")

    def _purge(self) -> None:
        self._sync(len(self._log))
        self.history.purge("unread")
        step = _nothing_at_all if self._fault is Fault.FORGETS_PURGES else _emptying("unread")
        self._do(step, lambda: self.history.purged("unread"))
        self._sync(len(self._log))

    # --- its end and its start --------------------------------------------------------------------------------------

    def restart(self, *, clean: bool) -> None:
        """Stop or crash, start, and let the history judge; then some of what is there is acked."""
        if clean:
            self._sync(len(self._log))
        durable = self._chooser.randint(self._promised, len(self._log))
        before = self._copy()
        self.queues = {queue: list(places) for queue, places in self._start_state.items()}
        for step in self._log[:durable]:
            step(self)
        for queue in QUEUES:
            kept = self._fault is Fault.KEEPS_TRANSIENT
            self.queues[queue] = [
                place
                for place in self.queues[queue]
                if kept or (place.message.persistent and queue not in TRANSIENT_QUEUES)
            ]
        self._break_something()
        found = {
            queue: [replace(self._sighting(place, self._is_flagged(place, clean)), queue=queue) for place in places]
            for queue, places in self._shown().items()
        }
        self.history.restarted(found, clean=clean)
        if self.history.violations:
            return
        self._lost += [place for queue in QUEUES for place in before[queue] if place not in self.queues[queue]]
        self._flagged = {place for places in self.queues.values() for place in places}
        self._unacked = []
        self._out.clear()
        self._log = []
        self._promised = 0
        self._answers = []
        self._start_state = self._copy()
        transaction = self.history.begin()
        for places in self.queues.values():
            for place in [place for place in places if self._chooser.random() < 0.7]:
                self.history.ack_in(transaction, place)
                places.remove(place)
        self.history.commit(transaction)
        self.history.committed(transaction)
        if self._fault is not Fault.FORGETS_ACKS:
            self._start_state = self._copy()

    def _is_flagged(self, place: Place, clean: bool) -> bool:
        if self._fault is Fault.FORGETS_DELIVERIES:
            return False
        return self._fault is Fault.FLAGS_EVERYTHING or not clean or place in self._flagged

    def _break_something(self) -> None:
        queue = self._chooser.choice(QUEUES[:-1])
        places = self.queues[queue]
        if self._fault is Fault.REVERSES_A_QUEUE:
            places.reverse()
        elif self._fault is Fault.MOVES_REQUEUED_TO_THE_END:
            places.sort(key=lambda place: place in self._flagged)
        elif self._fault is Fault.REVIVES_WHAT_WAS_MISSING and self._lost:
            place = self._chooser.choice(self._lost)
            if place.message.persistent and place not in self.queues[place.queue]:
                self.queues[place.queue].insert(0, place)

    def _shown(self) -> dict[str, list[Place]]:
        """Return what a look at the queues gives."""
        shown = self._copy()
        if self._fault is Fault.STORES_TWICE:
            shown["a"] = [place for place in shown["a"] for _ in range(2)]
        elif self._fault is Fault.MIXES_UP_QUEUES:
            shown["a"], shown["b"] = shown["b"], shown["a"]
        return shown

    def _sighting(self, place: Place, redelivered: bool) -> Sighting:
        sighting = place.message.sighting(place.queue, redelivered=redelivered)
        if self._fault is Fault.CHANGES_A_BYTE and sighting.body:
            return replace(sighting, body=sighting.body[:-1] + bytes([sighting.body[-1] ^ 1]))
        if self._fault is Fault.CHANGES_A_PROPERTY:
            return replace(sighting, header=sighting.header.replace(b"text/", b"test/"))
        return sighting


def _nothing() -> None:
    return


def _nothing_at_all(broker: PaperBroker) -> None:
    return


def _putting(places: Iterable[Place]) -> _Step:
    return _applying(list(places), [])


def _applying(put: list[Place], gone: list[Place]) -> _Step:
    def step(broker: PaperBroker) -> None:
        for place in put:
            broker.queues[place.queue].append(place)
        for place in gone:
            if place in broker.queues[place.queue]:
                broker.queues[place.queue].remove(place)

    return step


def _emptying(queue: str) -> _Step:
    def step(broker: PaperBroker) -> None:
        broker.queues[queue].clear()

    return step
