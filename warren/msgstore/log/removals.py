"""Files of streams that go, or are replaced: not before it is committed what made them superfluous.

    add -> the open batch is closed -> committed -> reader: removed, durably -> finished
           (soon, and synced)

1. Why a file is superfluous (a deletion, a policy, the messages that came) is in the open batch, or before. After a
   crash that takes that back the file is needed. So it stays until all is committed that the log has by the end of that
   batch; when everything is committed and nothing open, it goes at once.
2. Changes of the metadata that the journal still gathers are in no batch. While it does, files stay (`hold`).
3. A checkpoint is written when the removals that follow from what it knows are finished. So a start that finds files of
   a deleted stream finds its end among the frames, too, and removes what a crash has left of them (`take_sealed`). But
   for a chunk that was being written when its stream was deleted: nothing waits for that, as it may wait for space.
4. Removals are carried out in their order. Reads that were asked for before one of them still find the file.
5. One is with the reader at a time, of `FILES_AT_ONCE` files at most: however many go, a read waits for one of them.
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
        """Have `removal` carried out once what it follows from is committed."""
        log = self._log
        if not self._is_held and not log.batch.is_begun and log.durable_lsn >= log.next_lsn:
            self._go(removal)
            return
        self._of_batch.append(removal)
        log.force()

    def drop(self, stream_id: int, segments: list[int]) -> None:
        """Have segment files of a stream removed, `segments` are their first offsets."""
        for at in range(0, len(segments), FILES_AT_ONCE):
            self.add(DropJob(stream_id, segments[at : at + FILES_AT_ONCE]))

    def hold(self) -> None:
        """Something else that removals may follow from is not in the open batch yet."""
        self._is_held = True

    def release(self) -> None:
        """It is."""
        self._is_held = False
        if self._of_batch:
            self._log.force()

    def batch_closed(self) -> None:
        """Have removals of this batch wait until the log is committed up to here: it has their cause."""
        if self._of_batch and not self._is_held:
            lsn = int(self._log.next_lsn)
            for removal in self._of_batch:
                self._waiting.append((lsn, removal))
            self._of_batch = []
            self.log_is_durable()

    def log_is_durable(self) -> None:
        """Have carried out what follows from what is committed by now."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= self._log.durable_lsn:
            self._go(waiting.popleft()[1])

    def _go(self, removal: Removal) -> None:
        self._under_way.append(removal)
        if len(self._under_way) == 1:
            self._go_on()

    def _go_on(self) -> None:
        """Have the reader carry out the next one that is still wanted."""
        under_way = self._under_way
        while under_way:
            removal = under_way[0]
            if removal.goes():
                removal.removals = self
                self._log.read_jobs.append(removal)
                return
            under_way.popleft()

    def finished(self) -> None:
        """The reader has carried one out."""
        self._under_way.popleft()
        self._go_on()
        if not self._under_way:
            self._log.checkpoints.log_is_durable()

    def are_under_way(self) -> bool:
        """Tell whether there are some with the reader, or about to be."""
        return len(self._under_way) > 0

    def take_sealed(self, tables: dict[int, SealedTable]) -> None:
        """Take over what recovery found in files of streams; what of that is of deleted ones is removed."""
        log = self._log
        log.sealed = tables
        for stream_id in sorted(log.deleted_queues):
            table = tables.pop(stream_id, None)
            if table is not None:
                self.drop(stream_id, [int(segment.first) for segment in table.segments])
        log.deleted_queues = set()
