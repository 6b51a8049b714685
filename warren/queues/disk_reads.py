"""Reads of index pages and messages from the log, which everything that reads messages back is made of.

    MiddleReader    the middle of a backlog, in order and ahead of its consumers (``queues.middle_reader``)
    Fetch           messages by their numbers (``queues.fetch``)
    TimeScan        the times of all messages of an index (``queues.fetch``)

1. Places that lie close together are read in one go, at most about `READ_BYTES_MAX`, and not across segments. A large
   record is read alone.
2. A read may take long (jobs.py (1)). An index page counts only if it was not loaded, changed or written again
   meanwhile, a message only where the index still points at it: when compaction has moved it, its old place is gone.
   A reader that no longer wants what it asked for begins another generation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from warren.msgstore.log.jobs import LARGE_RECORD_BYTES, RecordsRead, WholeRecordsRead
from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import IndexOwner, IndexPage, QueueIndex
from warren.msgstore.log.records import page_entries

# Records lying this close are read in one go, and at most this much.
READ_GAP_BYTES: Final = 4096
READ_BYTES_MAX: Final = 1 << 20


class Ranges:
    """Places in the log, close ones merged. Entry n is in range ``places[n]``, at ``starts[n]``; -1: in no range.

    The last range is missing in ``ranges`` until `close`.
    """

    def __init__(self, log: MessageLog, gap_bytes: i64, *, parts_large: bool = False) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.alone: list[int] = []  # ranges that are one large record, when these must be parted from the others
        self._parts_large: bool = parts_large
        self.places = vec[i64]()
        self.starts = vec[i64]()
        self._log = log
        self._gap_bytes: i64 = gap_bytes
        self._start: i64 = 0
        self._end: i64 = 0
        self._segment_end: i64 = 0

    def add(self, lsn: i64, length: i64) -> None:
        """Add `length` bytes at `lsn`."""
        start: i64 = self._start
        end: i64 = self._end
        if (
            start <= lsn <= end + self._gap_bytes
            and lsn < self._segment_end
            and lsn - start < READ_BYTES_MAX
            and not (self._parts_large and length >= LARGE_RECORD_BYTES)
        ):
            if lsn + length > end:
                self._end = lsn + length
        else:
            self.close()
            segment = self._log.segments.find(lsn)
            self._segment_end = segment.base_lsn + segment.capacity
            self._start = lsn
            self._end = lsn + length
            if self._parts_large and length >= LARGE_RECORD_BYTES:
                self.alone.append(len(self.ranges))
                self._segment_end = 0
        self.places = append(self.places, len(self.ranges))
        self.starts = append(self.starts, lsn - self._start)

    def add_nothing(self) -> None:
        """Count an entry without a place."""
        self.places = append(self.places, -1)
        self.starts = append(self.starts, 0)

    def close(self) -> None:
        """Note the last range; nothing may be added afterwards."""
        if self._end:
            self.ranges.append((int(self._start), int(self._end - self._start)))


@mypyc_attr(allow_interpreted_subclasses=True)  # for tests
class DiskReader(IndexOwner):
    """Reads messages of an index. Override `pages_read` and `messages_read`."""

    def __init__(self, log: MessageLog, index: QueueIndex) -> None:
        self.log = log
        self.index = index
        self.generation: i64 = 0  # reads of an earlier one are void

    def page_damaged(self, page: IndexPage) -> None:
        """Report an index page that cannot be read, and so none of its messages can. Override to count them."""
        index = self.index
        self.log.damage.report_message(index, -1, page.lsn)
        index.lose_page(page)

    def load_pages(self, job: PagesRead) -> None:
        """Load index pages that were read; note in `job` which of them were absent until now, and which are damaged."""
        index = self.index
        log = self.log
        for page, number, (lsn, _), data in zip(job.pages, job.numbers, job.ranges, job.data, strict=True):
            if page.resident or page.lsn != lsn or index.deleted:
                continue  # it was changed meanwhile
            if log.is_page(data, page.length):
                index.page_loaded(page, page_entries(data, 0), log.void_below_lsn)
                job.loaded.append(number)
            else:
                job.damaged_pages.append(page)
                self.page_damaged(page)

    def pages_read(self, job: PagesRead) -> None:
        """Take index pages that were read."""
        raise AssertionError("overridden")

    def messages_read(self, job: MessagesRead) -> None:
        """Take messages that were read."""
        raise AssertionError("overridden")


class PagesRead(WholeRecordsRead):
    """Index pages on their way back into memory, with their numbers. `load_pages` fills the other two lists."""

    def __init__(self, reader: DiskReader, pages: list[IndexPage], numbers: list[int]) -> None:
        super().__init__([(int(page.lsn), int(page.length)) for page in pages])
        self.reader = reader
        self.pages = pages
        self.numbers = numbers
        self.loaded: list[int] = []
        self.damaged_pages: list[IndexPage] = []
        self._generation: i64 = reader.generation

    def subject(self) -> tuple[str, str]:
        return self.reader.index.vhost, self.reader.index.name

    def finished(self) -> None:
        if self._generation == self.reader.generation:
            self.reader.pages_read(self)


class MessagesRead(RecordsRead):
    """Messages on their way back into memory: number, LSN and length of each, in the order in which they were added.

    ``reserved_bytes`` are taken from the memory of all queues until the messages are here.
    """

    def __init__(self, reader: DiskReader) -> None:
        places = Ranges(reader.log, READ_GAP_BYTES, parts_large=True)
        super().__init__(places.ranges, places.alone, reader.log.checksum)
        self.reader = reader
        self.numbers = vec[i64]()
        self.lsns = vec[i64]()
        self.lengths = vec[i64]()
        self.reserved_bytes: i64 = 0
        self._places = places
        self._generation: i64 = reader.generation

    def add(self, number: i64, lsn: i64, length: i64) -> None:
        """Read the message with `number`, too."""
        self.numbers = append(self.numbers, number)
        self.lsns = append(self.lsns, lsn)
        self.lengths = append(self.lengths, length)
        self._places.add(lsn, length)

    def begin(self) -> None:
        """Queue the read of all of them."""
        log = self.reader.log
        self._places.close()
        log.read_jobs.append(self)
        log.resident_bytes += self.reserved_bytes

    def maybe_message(self, at: i64) -> Message | None:
        """Return the message of entry `at`; None when it is damaged, or compaction has moved it: see `was_moved`."""
        reader = self.reader
        number: i64 = self.numbers[at]
        place: i64 = self._places.places[at]
        if self.large and place in self.large:
            return reader.log.maybe_large_message(reader.index, number, self.large[place])
        start: i64 = self._places.starts[at]
        return reader.log.maybe_message(
            reader.index, number, self.data[place], start, self.lengths[at], self.is_checked
        )

    def was_moved(self, at: i64) -> bool:
        """Tell whether the message of entry `at` is no longer where it was when the read began."""
        return self.reader.index.lsn_of_resident(self.numbers[at]) != self.lsns[at]

    def damaged(self, checksum: Callable[[bytes, int], int]) -> list[int]:
        found: list[int] = []
        for at in range(len(self.numbers)):
            if self.is_damaged(int(self._places.places[at]), int(self._places.starts[at]), int(self.lengths[at])):
                found.append(int(self.lsns[at]))
        return found

    def subject(self) -> tuple[str, str]:
        return self.reader.index.vhost, self.reader.index.name

    def finished(self) -> None:
        reader = self.reader
        reader.log.resident_bytes -= self.reserved_bytes
        if self._generation == reader.generation:
            reader.messages_read(self)
