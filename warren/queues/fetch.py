"""Messages read from disk by their sequence numbers, out of turn: those that expire behind a live head, held ones.

    asked for -> pages of the index that are absent -> wait until the messages are written -> messages -> told

1. The caller asks for numbers that were stored, and checks whether it still wants a message when it comes.
2. When the caller is told, the index pages of all numbers asked for are resident, except damaged ones: their messages
   are missing.
3. Places are looked up after the pages are here and read at once, so compaction cannot take a segment away in between.
   What changed during a read is looked at again (disk_reads.py (2)).
4. One read is bounded, whatever the size of the messages: `most_bytes`, or one message.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i64_be
from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from warren.msgstore.log.jobs import ReadJob
from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import LENGTH_SHIFT, LSN_MASK, IndexPage, QueueIndex
from warren.msgstore.log.records import DROPPABLE, TIME_BYTES, page_entries, record_length, time_of
from warren.queues.deadlines import Deadlines
from warren.queues.disk_reads import READ_BYTES_MAX, READ_GAP_BYTES, DiskReader, MessagesRead, PagesRead, Ranges

# How many index pages a scan looks at in one go, and how close together times are read in one go. Messages stored in a
# row may have entries spread over many pages.
SCAN_PAGES: Final = 32
SCAN_GAP_BYTES: Final = 1024


@mypyc_attr(allow_interpreted_subclasses=True)  # for tests
class Fetch(DiskReader):
    """One request. Override `fetched`. `most_bytes`: how much may come at a time, 0: all.

    When not all may come, ``numbers`` is only the first of the numbers asked for, and ``left`` the rest. ``loaded`` are
    the numbers of the index pages that were absent before.
    """

    def __init__(self, log: MessageLog, index: QueueIndex, numbers: list[int], most_bytes: i64 = 0) -> None:
        super().__init__(log, index)
        self.numbers = numbers
        self.left: list[int] = []
        self.loaded: list[int] = []
        self._most_bytes: i64 = most_bytes
        self._damaged: list[IndexPage] = []

    def fetched(self, messages: list[Message | None]) -> None:
        """Take the messages that were asked for, in that order; None for one that is gone, or damaged and so lost."""
        raise AssertionError("overridden")

    def fetch_rest(self) -> bool:
        """Ask for the numbers that were left; False when nothing was left."""
        if not self.left:
            return False
        self.numbers = self.left
        self.left = []
        self.begin()
        return True

    def message_damaged(self, number: i64, lsn: i64) -> None:
        """Report a message that cannot be read. Override for a mere look."""
        self.log.damage.report_message(self.index, number, lsn)

    def begin(self) -> None:
        """Ask for the next missing part."""
        index = self.index
        pages: list[IndexPage] = []
        page_numbers: list[int] = []
        asked: set[IndexPage] = set()
        unwritten = False
        for number in self.numbers:
            page = index.page(number // index.page_entries)
            if page is None:
                continue
            if not page.resident:
                if page not in asked and page not in self._damaged:
                    asked.add(page)
                    pages.append(page)
                    page_numbers.append(int(number // index.page_entries))
            elif index.lsn_of(number) >= self.log.written_lsn:
                unwritten = True
        if pages:
            self.log.read_jobs.append(PagesRead(self, pages, page_numbers))
        elif unwritten:
            self.log.call_when_written(self)
        else:
            self._read_messages()

    def batch_closed(self) -> None:
        """Continue: another batch is written."""
        self.begin()

    def pages_read(self, job: PagesRead) -> None:
        self.load_pages(job)
        self.loaded += job.loaded
        self._damaged += job.damaged_pages
        self.begin()

    def _read_messages(self) -> None:
        index = self.index
        found: list[tuple[int, int, int]] = []
        total: i64 = 0
        for at, number in enumerate(self.numbers):
            lsn: i64 = index.lsn_of_resident(number)
            if lsn != 0:
                length: i64 = _length_at(index, number)
                total += length
                if total > self._most_bytes > 0 and found:
                    self.left = self.numbers[at:] + self.left
                    self.numbers = self.numbers[:at]
                    break
                found.append((int(lsn), int(length), number))
        if not found:
            self.fetched([None] * len(self.numbers))
            return
        found.sort()
        job = MessagesRead(self)
        for place, size, number in found:
            job.add(number, place, size)
        job.begin()

    def messages_read(self, job: MessagesRead) -> None:
        index = self.index
        messages: dict[int, Message] = {}
        for at in range(len(job.numbers)):
            number = int(job.numbers[at])
            page = index.page(number // index.page_entries)
            if page is not None and not page.resident:
                self.begin()  # it was given up meanwhile
                return
            if index.lsn_of_resident(number) != 0:
                message = job.maybe_message(at)
                if message is not None:
                    messages[number] = message
                elif job.was_moved(at):
                    self.begin()
                    return
                else:
                    self.message_damaged(number, job.lsns[at])
        if len(job.numbers) < len(self.numbers) and self._is_more_stored(job):
            self.begin()
            return
        self.fetched([messages.get(number) for number in self.numbers])

    def _is_more_stored(self, job: MessagesRead) -> bool:
        """Tell whether a message that was in the open batch when the others were asked for is on disk now."""
        read = {int(job.numbers[at]) for at in range(len(job.numbers))}
        return any(number not in read and self.index.lsn_of_resident(number) != 0 for number in self.numbers)


@mypyc_attr(allow_interpreted_subclasses=True)  # for tests
class TimeScan(DiskReader):
    """Reads the times of all stored messages of an index, or of those that have a time to live of their own.

    After a restart: a few pages at a time and one read under way, so that a long queue is served meanwhile. Messages
    that are stored later are not found; one may be found that is settled meanwhile, and one that is moved meanwhile may
    be found twice. Override `found` and `ended`; also `unreadable` and `page_damaged` if no other code reads there.

    `wanted_flag`: in the low bits of an entry, 0: all. `whole`: `found` gets the records; else only their ends are
    read, where the times are, unchecked. A later read of the message will find it damaged.
    """

    def __init__(self, log: MessageLog, index: QueueIndex, wanted_flag: i64, *, whole: bool) -> None:
        super().__init__(log, index)
        self._wanted_flag: i64 = wanted_flag
        self._whole: bool = whole
        self._end: i64 = index.next_number
        self._page_number: i64 = index.first_page
        self._pages: list[int] = []  # to be looked at once more
        self._again: list[int] = []  # and after those
        self._unwritten: bool = False
        self._retried: set[int] = set()
        # The entries to read before the next pages.
        self._numbers = vec[i64]()
        self._lsns = vec[i64]()
        self._lengths = vec[i64]()
        self._at: i64 = 0

    def found(self, number: i64, time_ms: i64, data: bytes) -> None:
        """Take the time of a message, whose record is `data`."""
        raise AssertionError("overridden")

    def paused(self) -> None:
        """Note that some have been found; more will come."""

    def ended(self) -> None:
        """Continue: everything was read."""
        raise AssertionError("overridden")

    def unreadable(self, number: i64) -> None:
        """Note that the time of a message cannot be read."""

    def page_damaged(self, page: IndexPage) -> None:
        """Do nothing: a later reader of the index page will find the damage."""

    def advance(self) -> None:
        """Ask for the next pages, or for the messages of those that are here."""
        if self.index.deleted:
            return
        while self._at == len(self._numbers):
            self._at = 0
            self._numbers = vec[i64]()
            self._lsns = vec[i64]()
            self._lengths = vec[i64]()
            if not self._look():
                return
            self._sort()
        self._read()

    def _look(self) -> bool:
        """Note the entries of the next pages that must be read; False when that has to wait, or all is done."""
        index = self.index
        absent: list[IndexPage] = []
        numbers: list[int] = []
        looked: i64 = 0
        while looked < SCAN_PAGES:
            page_number: i64 = self._next_page()
            if page_number < 0:
                break
            page = index.page(page_number)
            if page is None:
                continue
            looked += 1
            if page.resident:
                self._note(page_number, page.entries)
            else:
                absent.append(page)
                numbers.append(int(page_number))
        if absent:
            self.log.read_jobs.append(PagesRead(self, absent, numbers))
            return False
        if looked:
            return True
        if not self._again:
            self.ended()
        elif self._unwritten:
            self._unwritten = False
            self.log.call_when_written(self)
        else:
            self._pages = self._again
            self._again = []
            return True
        return False

    def _next_page(self) -> i64:
        """Return the number of the next page to look at, -1 after the last."""
        page_number: i64 = self._page_number
        if page_number * self.index.page_entries < self._end:
            self._page_number = page_number + 1
            return page_number
        return self._pages.pop() if self._pages else -1

    def batch_closed(self) -> None:
        """Continue: messages that were being moved are in their new places."""
        self.advance()

    def pages_read(self, job: PagesRead) -> None:
        """Look at pages that were read. They are not kept."""
        index = self.index
        if index.deleted:
            return
        for read, number, (lsn, _), data in zip(job.pages, job.numbers, job.ranges, job.data, strict=True):
            page = index.page(number)
            if page is None:
                continue
            if page.resident:
                self._note(number, page.entries)
            elif page is not read or page.lsn != lsn:
                self._again.append(number)  # written again meanwhile
            elif self.log.is_page(data, page.length):
                self._note(number, page_entries(data, 0))
            else:
                self.page_damaged(page)
        self.advance()

    def _note(self, page_number: i64, entries: vec[i64]) -> None:
        written_lsn: i64 = self.log.written_lsn
        void_below_lsn: i64 = self.log.void_below_lsn
        number: i64 = page_number * self.index.page_entries
        moving: bool = False
        at: i64 = 0
        while at < len(entries) and number < self._end:
            word0: i64 = entries[at]
            lsn: i64 = word0 & LSN_MASK
            if word0 == 0 or (self._wanted_flag != 0 and word0 & self._wanted_flag == 0):
                pass
            elif lsn >= written_lsn:
                moving = True
            elif word0 & DROPPABLE == 0 or lsn >= void_below_lsn:
                self._numbers = append(self._numbers, number)
                self._lsns = append(self._lsns, lsn)
                self._lengths = append(self._lengths, entries[at + 1] >> LENGTH_SHIFT)
            number += 1
            at += 2
        if moving:
            self._unwritten = True
            self._again.append(int(page_number))

    def _sort(self) -> None:
        """Sort the noted entries by their places in the log, if needed: neighbours are read in one go."""
        order = Deadlines()
        at: i64 = 0
        last: i64 = 0
        ascends = True
        while at < len(self._lsns):
            lsn: i64 = self._lsns[at]
            if lsn < last:
                ascends = False
            last = lsn
            order.add(lsn, at)
            at += 1
        if ascends:
            return
        numbers = vec[i64]()
        lsns = vec[i64]()
        lengths = vec[i64]()
        while len(order) > 0:
            at = order.first_number()
            order.remove_first()
            numbers = append(numbers, self._numbers[at])
            lsns = append(lsns, self._lsns[at])
            lengths = append(lengths, self._lengths[at])
        self._numbers = numbers
        self._lsns = lsns
        self._lengths = lengths

    def _read(self) -> None:
        """Read the next of the noted entries."""
        first: i64 = self._at
        at: i64 = first
        total: i64 = 0
        places = Ranges(self.log, READ_GAP_BYTES if self._whole else SCAN_GAP_BYTES)
        while at < len(self._numbers) and total < READ_BYTES_MAX:
            lsn: i64 = self._lsns[at]
            length: i64 = self._lengths[at]
            if self._whole:
                total += length
            else:
                lsn += length - TIME_BYTES
                length = TIME_BYTES
            if self.log.segments.maybe_find(lsn) is not None:
                places.add(lsn, length)
            else:
                places.add_nothing()
            at += 1
        self._at = at
        self.log.read_jobs.append(_ScanTimes(self, first, at, places))

    def times_read(self, job: _ScanTimes) -> None:
        """Report the times that were read."""
        if self.index.deleted:
            return
        places = job.places
        at: i64 = job.first
        while at < job.end:
            number: i64 = self._numbers[at]
            length: i64 = self._lengths[at]
            start: i64 = places.starts[at - job.first]
            place: i64 = places.places[at - job.first]
            data = job.data[place] if place >= 0 else b""
            if not self._whole and start + TIME_BYTES <= len(data):
                self.found(number, read_i64_be(data, start), b"")
            elif self._whole and record_length(data, start) == length:
                record = data[start : start + length]
                self.found(number, time_of(record, 0), record)
            elif not self._looks_again(number // self.index.page_entries):
                self.unreadable(number)
            at += 1
        self.paused()
        self.advance()

    def _looks_again(self, page_number: i64) -> bool:
        """Retry a page, once: a message was not where its entry said."""
        if int(page_number) in self._retried:
            return int(page_number) in self._again
        self._retried.add(int(page_number))
        self._again.append(int(page_number))
        return True


class _ScanTimes(ReadJob):
    """The places of the scan's noted entries from `first` to `end`."""

    def __init__(self, scan: TimeScan, first: i64, end: i64, places: Ranges) -> None:
        places.close()
        super().__init__(places.ranges)
        self.scan = scan
        self.first: i64 = first
        self.end: i64 = end
        self.places = places

    def subject(self) -> tuple[str, str]:
        return self.scan.index.vhost, self.scan.index.name

    def finished(self) -> None:
        self.scan.times_read(self)


def _length_at(index: QueueIndex, number: i64) -> i64:
    """Return the length of a stored message's record; its page is resident."""
    page = index.page(number // index.page_entries)
    assert page is not None
    return page.entries[2 * (number % index.page_entries) + 1] >> LENGTH_SHIFT
