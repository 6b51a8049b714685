"""A node's knowledge of the record, and of its own changes that may still come into force.

A compare-and-swap that was not answered may have been carried out, or may still be: a request waits in a socket or in
etcd's pipeline, and a linearizable read that shows the old revision does not cancel it. Only another revision does.

1. `possible` holds every record that etcd may have, now or later, because of requests of this node: the known one, and
   the proposals at its revision.
2. A greater revision settles all proposals at smaller ones. Smaller revisions, late news, change nothing.
3. One proposal is under way at a time.
4. Nothing is known before the first read. An earlier life of this process may have led up to the epoch of that read
   (`first_epoch`), but no later epoch.
"""

from __future__ import annotations

from warren.cluster.events import Swap
from warren.cluster.record import Record, Versioned

NO_REVISION = 0


class RecordView:
    """The record as this node knows it."""

    def __init__(self) -> None:
        self.known: Versioned | None = None
        self.is_read = False  # since anything made a read necessary
        self.is_gone = False  # it was there, and a later read has not found it
        self.first_epoch: int | None = None  # 0: the first read found no record
        self._open: list[Record] = []
        self._number = 0
        self._under_way: Swap | None = None

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

    def propose(self, record: Record) -> Swap:
        """Return the compare-and-swap that puts `record` in the place of the known one."""
        assert self._under_way is None
        self._number += 1
        if record not in self._open:
            self._open.append(record)
        revision = NO_REVISION if self.known is None else self.known.revision
        self._under_way = Swap(self._number, revision, record)
        return self._under_way

    def read(self, found: Versioned | None) -> bool:
        """Note the result of a read; return whether it is news."""
        self.is_read = True
        self.is_gone = found is None and self.known is not None
        if self.first_epoch is None:
            self.first_epoch = 0 if found is None else found.record.epoch
        return found is not None and self.learn(found)

    def learn(self, found: Versioned) -> bool:
        """Note a record from the watch; return whether it is news."""
        if self.first_epoch is None or (self.known is not None and found.revision <= self.known.revision):
            return False
        self.known = found
        self._open.clear()
        return True

    def done(self, number: int, revision: int) -> bool:
        """Take a success; return whether it is news."""
        swap = self._answered(number)
        return swap is not None and self.learn(Versioned(revision, swap.record))

    def refused(self, number: int) -> None:
        """Handle a refusal: the record has another revision, and must be read."""
        self._answered(number)
        self.is_read = False

    def unknown(self, number: int) -> None:
        """Handle a missing answer: the proposal stays possible, whatever is read."""
        self._answered(number)
        self.is_read = False

    def _answered(self, number: int) -> Swap | None:
        swap = self._under_way
        if swap is None or swap.number != number:
            return None
        self._under_way = None
        return swap
