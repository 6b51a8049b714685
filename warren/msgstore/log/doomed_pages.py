"""Index pages that their queue has released while they were on disk only: read back to release their references.

    add -> pages, in order -> read, a few at a time -> references of their entries, and of the page: released

1. The references of a page count in the segments until they are released, and so does its PAGE record.
2. A checkpoint has the remaining pages, and a start continues with them.
3. A damaged page releases only itself: its segments keep records that nothing needs.
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
        """Release the references of an absent page, in a while: it must be read for that."""
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
        """Release the references of the pages that were read, and continue with the next few."""
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
