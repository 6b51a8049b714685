"""Index pages that their queue has let go of while they were on disk only: read back to release what they refer to.

    add -> pages, in order -> read, a few at a time -> references of their entries, and of the page: released

1. What a page refers to counts in the segments until it is released, and so does its PAGE record.
2. A checkpoint has those that are left, and a start goes on with them.
3. A page that is damaged releases nothing but itself: its segments keep what nobody needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warren.msgstore.log.jobs import WholeRecordsRead
from warren.msgstore.log.queue_index import IndexPage, QueueIndex
from warren.msgstore.log.records import page_entries

if TYPE_CHECKING:
    from warren.msgstore.log.message_log import MessageLog

DOOMED_PER_JOB: Final = 64


class DoomedPages:
    """The doomed pages of all queues."""

    def __init__(self, log: MessageLog) -> None:
        self.pages: list[tuple[int, int, bool]] = []  # LSN, length, transient: those that are still to be released
        self._log = log
        self._reading: bool = False

    def add(self, index: QueueIndex, page: IndexPage) -> None:
        """Release what an absent page refers to, in a while: it has to be read for that."""
        assert not page.resident and page.lsn != 0
        self.pages.append((int(page.lsn), int(page.length), bool(index.transient)))
        page.lsn = 0
        self._read()

    def restore(self, pages: list[tuple[int, int, bool]]) -> None:
        """Go on with those of a checkpoint."""
        self.pages = pages
        self._read()

    def _read(self) -> None:
        if not self._reading and self.pages:
            self._reading = True
            self._log.read_jobs.append(_DoomedRead(self, self.pages[:DOOMED_PER_JOB]))

    def were_read(self, job: _DoomedRead) -> None:
        """Release what the pages that were read refer to, and go on with the next few."""
        self._reading = False
        del self.pages[: len(job.pages)]
        log = self._log
        for (lsn, length, transient), data in zip(job.pages, job.data, strict=True):
            if log.is_page(data, length):
                log.reclamation.release(page_entries(data, 0), log.void_below_lsn)
            log.segments.release(lsn, length, transient)
        self._read()


class _DoomedRead(WholeRecordsRead):
    """Reads the first few."""

    def __init__(self, doomed: DoomedPages, pages: list[tuple[int, int, bool]]) -> None:
        super().__init__([(lsn, length) for lsn, length, _ in pages])
        self.doomed = doomed
        self.pages = pages

    def finished(self) -> None:
        self.doomed.were_read(self)
