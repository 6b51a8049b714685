"""Removal or replacement of streams' files, once the cause of that is committed.

    add -> the open batch is closed -> committed -> reader: removed, durably -> finished
           (soon, and synced)

1. The cause (a deletion, a policy, newer messages) is in the open batch, or earlier. If a crash takes the cause back,
   the file is needed. So the file stays until everything is committed that the log has by the end of that batch. If
   everything is committed already and nothing open, it is removed at once.
2. Changes of the metadata that the journal still gathers are not in a batch yet. Until then, files stay (`hold`).
3. A checkpoint is written when the removals are finished whose causes it contains. So a start that finds files of a
   deleted stream also finds its end among the frames, and removes the files that a crash has left (`take_sealed`). The
   exception is a chunk that was being written when its stream was deleted: nothing waits for it, as it may wait for
   space.
4. Removals are carried out in their order. Reads that were asked for before one of them still find the file.
5. The reader has one removal at a time, of `FILES_AT_ONCE` files at most, so a read waits for one of them at most.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from warren.msgstore.log.jobs import DropJob, Removal
from warren.msgstore.log.sealed_table import SealedTable

if TYPE_CHECKING:
    from warren.msgstore.log.message_log import MessageLog

FILES_AT_ONCE: Final = 16


class Removals:
    """The removals of one log that are not finished."""

    def __init__(self, log: MessageLog) -> None:
        self._log = log
        self._of_batch: list[Removal] = []  # those that follow from the open batch
        self._waiting: deque[tuple[int, Removal]] = deque()  # until all before the LSN is committed
        self._under_way: deque[Removal] = deque()  # the first is with the reader, the others come next
        self._is_held: bool = False

    def add(self, removal: Removal) -> None:
        """Schedule `removal` for when its cause is committed."""
        log = self._log
        if not self._is_held and not log.batch.is_begun and log.durable_lsn >= log.next_lsn:
            self._go(removal)
            return
        self._of_batch.append(removal)
        log.force()

    def drop(self, stream_id: int, segments: list[int]) -> None:
        """Remove segment files of a stream, `segments` are their first offsets."""
        for at in range(0, len(segments), FILES_AT_ONCE):
            self.add(DropJob(stream_id, segments[at : at + FILES_AT_ONCE]))

    def hold(self) -> None:
        """Hold removals: something else that they may follow from is not in the open batch yet."""
        self._is_held = True

    def release(self) -> None:
        """Release held removals: what they follow from is in the batch."""
        self._is_held = False
        if self._of_batch:
            self._log.force()

    def batch_closed(self) -> None:
        """Queue removals of this batch until the log is committed up to here: it has their cause."""
        if self._of_batch and not self._is_held:
            lsn = int(self._log.next_lsn)
            for removal in self._of_batch:
                self._waiting.append((lsn, removal))
            self._of_batch = []
            self.log_is_durable()

    def log_is_durable(self) -> None:
        """Carry out the removals whose causes are committed by now."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= self._log.durable_lsn:
            self._go(waiting.popleft()[1])

    def _go(self, removal: Removal) -> None:
        self._under_way.append(removal)
        if len(self._under_way) == 1:
            self._go_on()

    def _go_on(self) -> None:
        """Give the reader the next one that is still wanted."""
        under_way = self._under_way
        while under_way:
            removal = under_way[0]
            if removal.goes():
                removal.removals = self
                self._log.read_jobs.append(removal)
                return
            under_way.popleft()

    def finished(self) -> None:
        """Start the next one: the reader has carried one out."""
        self._under_way.popleft()
        self._go_on()
        if not self._under_way:
            self._log.checkpoints.log_is_durable()

    def are_under_way(self) -> bool:
        """Tell whether there are some with the reader, or about to be."""
        return len(self._under_way) > 0

    def take_sealed(self, tables: dict[int, SealedTable]) -> None:
        """Take over the files of streams that recovery found; those of deleted streams are removed."""
        sealed = self._log.sealed
        sealed.recovered = tables
        for stream_id in sorted(sealed.deleted):
            table = tables.pop(stream_id, None)
            if table is not None:
                self.drop(stream_id, [int(segment.first) for segment in table.segments])
        sealed.deleted = set()
