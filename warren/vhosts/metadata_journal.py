"""The journal of the metadata: takes changes that are applied in memory into the message log.

    append -> held: gathered -> release -> the open batch of the log -> durable: `committed_ticket`

1. Tickets count appended changes from 1, in each life of the process; a change is durable when ``committed_ticket`` has
   reached its ticket. A reply that promises durability waits for that.
2. A change goes into the open batch when it is appended. So it is in one frame with everything else that the same call
   of the engine stores. After a crash, for example, the messages and the declaration of a deleted queue are both gone,
   or both there.
3. While the journal is held, all changes gather, since later ones may need earlier ones. Meanwhile no file is removed
   that one of them may have made superfluous. At the release they go into one frame. If they are many, this takes
   several turns, with the batch held open (``message_log``). Only after a bug of ours are they in two frames, in order.
4. A queue that was declared meanwhile may store messages in an earlier frame than its declaration. Clients are not told
   of either before both are durable (`channels.confirms`). A crash in between leaves messages of an unknown queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.batch import BatchWaiter, tell_all
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.own_writes import HOLD, NOTHING
from warren.queues.long_work import Job, LongWork, Steps
from warren.vhosts.metadata import MetadataChange
from warren.vhosts.metadata_lane import MetadataLane

# The steps to encode a change and give it a row.
CHANGE_STEPS: Final = 16


class Journal:
    """Stores changes of metadata. This one stores nothing: it is for a vhost that is being restored or deleted."""

    def __init__(self) -> None:
        self.last_ticket: int = 0

    def append(self, change: MetadataChange) -> int:
        """Record `change`, and return its ticket; 0: there is nothing to wait for."""
        return 0

    def awaits(self, ticket: int, waiter: BatchWaiter) -> bool:
        """Tell whether the change with `ticket` is not durable yet. If so, `waiter` is told when it is."""
        return False


class MetadataJournal(Journal):
    """The journal of a broker. The shell sets ``on_durable`` once; it is called when more changes are durable."""

    def __init__(self, log: MessageLog, work: LongWork) -> None:
        super().__init__()
        self.committed_ticket: int = 0
        self.lane = MetadataLane(log)
        self.on_durable: Callable[[], None] | None = None
        self.log = log
        self._work = work
        self._put_ticket: int = 0  # the ticket of the latest change that is in a batch
        self._batch: _ChangesInBatch | None = None  # the changes in the open batch, or in an earlier one
        self._gathered: deque[MetadataChange] = deque()
        self._holds: int = 0
        self._is_putting: bool = False
        self._waiters: list[tuple[int, BatchWaiter]] = []  # each with the ticket that it waits for

    def append(self, change: MetadataChange) -> int:
        """Record `change`, and return its ticket. The caller settles the turn."""
        if self._holds or self._is_putting:
            self._gathered.append(change)
        else:
            try:
                self._put(change)
            except MemoryError:  # it is applied, and clients may rely on it: store it later
                self.hold()
                self._gathered.append(change)
                self.release()
        self.last_ticket += 1  # only now: nobody must wait for a change that was not taken
        return self.last_ticket

    def awaits(self, ticket: int, waiter: BatchWaiter) -> bool:
        if ticket <= self.committed_ticket:
            return False
        self._waiters.append((ticket, waiter))
        return True

    def hold(self) -> None:
        """Gather appended changes until `release`, which puts them into one frame of the log (3)."""
        self._holds += 1
        self.log.removals.hold()

    def release(self) -> None:
        """Store the gathered changes, once every holder of the journal has released it."""
        self._holds -= 1
        self._put_gathered()

    def _put_gathered(self) -> None:
        if self._holds or self._is_putting:
            return
        if self._gathered:
            self._is_putting = True
            self._work.begin(_Putting(self, len(self._gathered)))
        else:
            self.log.removals.release()

    def put_next(self) -> None:
        """Store the first of the gathered changes. If that fails, it stays the first."""
        self._put(self._gathered[0])
        self._gathered.popleft()

    def gathered_put(self) -> None:
        """Note that all changes that had gathered at the release are stored."""
        self._is_putting = False
        self._put_gathered()

    def _put(self, change: MetadataChange) -> None:
        log = self.log
        number = self.lane.append(change)
        batch = self._batch
        if batch is None or batch.number != log.batch.number:
            batch = _ChangesInBatch(self, log.batch.number)
            log.wait(batch, True)
            self._batch = batch
        self._put_ticket += 1
        batch.ticket = self._put_ticket
        batch.end = number + 1

    def stored(self, batch: _ChangesInBatch) -> None:
        """Note that the changes of a batch, and all earlier ones, are on disk."""
        if batch.ticket > self.committed_ticket:
            self.committed_ticket = batch.ticket
        self.lane.durable = batch.end
        if self.on_durable is not None:
            self.on_durable()
        if self._waiters:
            due = [waiter for ticket, waiter in self._waiters if ticket <= self.committed_ticket]
            self._waiters = [entry for entry in self._waiters if entry[0] > self.committed_ticket]
            tell_all(due, batch.number)


class _ChangesInBatch(BatchWaiter):
    """The batch `number` has the changes up to `ticket`: in the lane, those below `end`."""

    def __init__(self, journal: MetadataJournal, number: i64) -> None:
        self.number: i64 = number
        self.ticket: int = 0
        self.end: int = 0
        self._journal = journal

    def batch_done(self, batch: i64) -> None:
        self._journal.stored(self)


class _Putting(Job):
    """Stores the changes that had gathered when the journal was released, in one frame."""

    def __init__(self, journal: MetadataJournal, count: int) -> None:
        self._journal = journal
        self._left: int = count
        self._holds: bool = False
        self._waits: bool = False  # whether it waits for a batch that it can hold

    def need(self) -> i64:
        return HOLD if self._waits and not self._holds else NOTHING

    def run(self, steps: Steps) -> bool:
        journal = self._journal
        if not self._holds and self._left * CHANGE_STEPS > steps.left:
            if not journal.log.hold_batch():
                self._waits = True
                return False
            self._holds = True
        while self._left:
            if self._holds and steps.left <= 0:
                return False
            steps.left -= CHANGE_STEPS
            journal.put_next()
            self._left -= 1
        if self._holds:
            journal.log.release_batch()
        journal.gathered_put()
        return True

    def failed(self) -> bool:
        """Release the batch, with the changes that are in it; the others go into another one."""
        if self._holds:
            self._holds = False
            self._journal.log.release_batch()
        return True
