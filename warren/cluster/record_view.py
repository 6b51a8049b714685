"""A node's knowledge of the record, and of its own changes that may still come into force.

A compare-and-swap without an answer may have been carried out, or may still be: the request may wait in a socket or in
etcd's pipeline. A linearizable read that shows the old revision does not cancel it. Only another revision does.

1. `possible` holds every record that etcd may have, now or later, because of requests of this node: the known one, and
   the proposals at its revision.
2. A greater revision settles all proposals at smaller ones. Late news, with a smaller revision, changes nothing.
3. One proposal is under way at a time.
4. Nothing is known before the first read. An earlier life of this node may have led up to the epoch of that read
   (`first_epoch`), but no later epoch.
5. One read is under way at a time. No read begins while a proposal is under way: the answer to the proposal says more.
   A request that fails, or whose answer does not help (6), is repeated after `retry_s`.
6. A refused proposal shows that the key has another revision than the known one. A read follows. If it finds no later
   revision and not the known one, the key was removed or etcd has older data. Then nothing can be proposed, and the
   record is read every `retry_s`, until a read finds the known revision or a later one.

No I/O and no clock: times are arguments, in seconds.
"""

from __future__ import annotations

from warren.cluster.events import Read, Swap
from warren.cluster.record import Record, Versioned

NO_REVISION = 0


class RecordView:
    """The record as this node knows it."""

    def __init__(self, now_s: float, retry_s: float) -> None:
        self.known: Versioned | None = None
        self.is_read = False  # whether it was read since the last reason to read it
        self.is_gone = False  # it was there before, and the last read has not found it
        self.is_refuted = False  # the key has another revision than the known one
        self.first_epoch: int | None = None  # 0: the first read found no record
        self.read_s = now_s  # when a read was answered last
        self.ask_at_s = now_s  # nothing is sent to etcd before
        self._retry_s = retry_s
        self._is_reading = False
        self._open: list[Record] = []
        self._number = 0
        self._under_way: Swap | None = None

    @property
    def record(self) -> Record | None:
        """The known record."""
        return None if self.known is None else self.known.record

    @property
    def revision(self) -> int:
        """The revision of the known record."""
        return NO_REVISION if self.known is None else self.known.revision

    @property
    def is_swapping(self) -> bool:
        """Whether a proposal waits for its answer."""
        return self._under_way is not None

    @property
    def unsettled(self) -> list[Record]:
        """Proposals that may still come into force."""
        return self._open

    @property
    def possible(self) -> list[Record]:
        """Every record that may be in force."""
        return [*([] if self.known is None else [self.known.record]), *self._open]

    def may_propose(self, now_s: float) -> bool:
        """Tell whether a proposal can be made now."""
        return self.is_read and not self.is_refuted and not self.is_swapping and now_s >= self.ask_at_s

    def propose(self, record: Record) -> Swap:
        """Return the compare-and-swap that puts `record` in the place of the known one."""
        assert self._under_way is None
        self._number += 1
        if record not in self._open:
            self._open.append(record)
        self._under_way = Swap(self._number, self.revision, record)
        return self._under_way

    def maybe_read(self, now_s: float) -> Read | None:
        """Return a read if one is due; it counts as under way from now on."""
        is_wanted = (not self.is_read or self.is_refuted) and not self.is_swapping
        if not is_wanted or self._is_reading or now_s < self.ask_at_s:
            return None
        self._is_reading = True
        return Read()

    def read_failed(self, now_s: float) -> None:
        """Note that a read was not answered."""
        self._is_reading = False
        self.ask_at_s = now_s + self._retry_s

    def read(self, found: Versioned | None, now_s: float) -> bool:
        """Note the result of a read; return whether it is news."""
        self._is_reading = False
        self.is_read = True
        self.read_s = now_s
        self.is_gone = found is None and self.known is not None
        if self.first_epoch is None:
            self.first_epoch = 0 if found is None else found.record.epoch
        is_news = found is not None and self.learn(found)
        if self.is_refuted:
            self.is_refuted = (NO_REVISION if found is None else found.revision) != self.revision
            self.ask_at_s = now_s + self._retry_s
        return is_news

    def learn(self, found: Versioned) -> bool:
        """Note a record from the watch; return whether it is news."""
        if self.first_epoch is None or (self.known is not None and found.revision <= self.known.revision):
            return False
        self.known = found
        self.is_refuted = False
        self._open.clear()
        return True

    def done(self, number: int, revision: int) -> bool:
        """Take a success; return whether it is news."""
        swap = self._answered(number)
        return swap is not None and self.learn(Versioned(revision, swap.record))

    def refused(self, number: int) -> None:
        """Handle a refusal: the record has another revision, and must be read."""
        swap = self._answered(number)
        if swap is not None and swap.revision == self.revision:
            self.is_refuted = True
        self.is_read = False

    def unknown(self, number: int, now_s: float) -> None:
        """Handle a missing answer: the proposal stays possible, whatever is read."""
        self._answered(number)
        self.is_read = False
        self.ask_at_s = now_s + self._retry_s

    def _answered(self, number: int) -> Swap | None:
        swap = self._under_way
        if swap is None or swap.number != number:
            return None
        self._under_way = None
        return swap
