"""Index pages that their queue has released while they were on disk only: read back to release their references.

    add -> pages, in order -> read, a few at a time -> references of their entries, and of the page: released

1. The references of a page count in the segments until they are released, and so does its PAGE record.
2. A checkpoint has the remaining pages, and a start continues with them.
3. A damaged page releases only itself: its segments keep records that nothing needs.
4. Pages whose read fails for long are left (`leave`): the others do not wait for their read.
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
        self.left: list[tuple[int, int, bool]] = []  # likewise, with reads that fail
        self.reading: DoomedRead | None = None  # the read of the first pages
        self._log = log

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
        if self.reading is None and self.pages:
            self.reading = DoomedRead(self, self.pages[:DOOMED_PER_JOB])
            self._log.read_jobs.append(self.reading)

    def leave(self) -> None:
        """Continue with other pages: the read under way fails, see (4)."""
        job = self.reading
        assert job is not None
        self._take_out(job)
        self.left += job.pages
        self._read()

    def _take_out(self, job: DoomedRead) -> None:
        self.reading = None
        del self.pages[: len(job.pages)]

    def were_read(self, job: DoomedRead) -> None:
        """Release the references of the pages that were read, and continue with the next few."""
        if job is self.reading:
            self._take_out(job)
        else:
            self.left = [page for page in self.left if page not in job.pages]
        log = self._log
        for (lsn, length, transient), data in zip(job.pages, job.data, strict=True):
            if log.is_page(data, length):
                log.reclamation.release(page_entries(data, 0), log.void_below_lsn)
            log.segments.release(lsn, length, transient)
        self._read()


class DoomedRead(WholeRecordsRead):
    """Reads the first few."""

    def __init__(self, doomed: DoomedPages, pages: list[tuple[int, int, bool]]) -> None:
        super().__init__([(lsn, length) for lsn, length, _ in pages])
        self.doomed = doomed
        self.pages = pages

    def finished(self) -> None:
        self.doomed.were_read(self)
