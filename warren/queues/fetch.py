"""Messages read from disk by their sequence numbers, out of turn: what expires behind a live head, what was held.

    asked for -> pages of the index that are absent -> wait until the messages are written -> messages -> told

1. The caller asks for numbers that were stored; whether one is still wanted when it comes is the caller's to look.
2. When it is told, the index pages of all numbers asked for are resident: they can be settled.
3. Places are looked up after the pages are here and read at once, so compaction cannot take a segment away in between.
"""

from __future__ import annotations

from mypy_extensions import i64

from warren.msgstore.jobs import ReadJob
from warren.msgstore.message import Message
from warren.msgstore.message_log import MessageLog
from warren.msgstore.queue_index import LENGTH_SHIFT, LSN_MASK, IndexOwner, IndexPage, QueueIndex
from warren.msgstore.records import page_entries, time_of


class Fetch(IndexOwner):
    """One request. Override `fetched`."""

    def __init__(self, log: MessageLog, index: QueueIndex, numbers: list[int]) -> None:
        self.log = log
        self.index = index
        self.numbers = numbers

    def fetched(self, messages: list[Message | None]) -> None:
        """Take what was asked for, in that order; None for what is gone, or damaged and so lost."""
        raise AssertionError("overridden")

    def begin(self) -> None:
        """Ask for what is missing next."""
        index = self.index
        pages: list[IndexPage] = []
        unwritten = False
        for number in self.numbers:
            page = index.page(number // index.page_entries)
            if page is None:
                continue
            if not page.resident:
                if page not in pages:
                    pages.append(page)
            elif index.lsn_of(number) >= self.log.written_lsn:
                unwritten = True
        if pages:
            self.log.read_jobs.append(_PagesRead(self, pages))
        elif unwritten:
            self.log.call_when_written(self)
        else:
            self._read_messages()

    def batch_closed(self) -> None:
        """Another batch is written."""
        self.begin()

    def pages_read(self, job: _PagesRead) -> None:
        """The pages are here."""
        index = self.index
        log = self.log
        for page, data in zip(job.pages, job.data, strict=True):
            if page.resident or page.lsn == 0 or index.deleted:
                continue  # somebody else was here meanwhile
            if log.is_page(data, page.length):
                index.page_loaded(page, page_entries(data, 0), log.void_below_lsn)
            else:
                index.damaged_count += page.live
                log.report_damage(index, -1, page.lsn)
                index.lose_page(page)
        self.begin()

    def _read_messages(self) -> None:
        index = self.index
        ranges: list[tuple[int, int]] = []
        wanted: list[int] = []
        for number in self.numbers:
            page = index.page(number // index.page_entries)
            lsn: i64 = index.lsn_of(number)
            if page is None or lsn == 0:
                continue
            length = page.entries[2 * (number % index.page_entries) + 1] >> LENGTH_SHIFT
            ranges.append((int(lsn), int(length)))
            wanted.append(number)
        if ranges:
            self.log.read_jobs.append(_MessagesRead(self, wanted, ranges))
        else:
            self.fetched([None] * len(self.numbers))

    def messages_read(self, job: _MessagesRead) -> None:
        """The messages are here."""
        index = self.index
        log = self.log
        found: dict[int, Message] = {}
        for number, (lsn, length), data in zip(job.wanted, job.ranges, job.data, strict=True):
            if index.lsn_of_resident(number) == 0:
                continue
            message = log.maybe_message(index, number, data, 0, length)
            if message is None:
                index.damaged_count += 1
                log.report_damage(index, number, lsn)
            else:
                found[number] = message
        self.fetched([found.get(number) for number in self.numbers])


class _PagesRead(ReadJob):
    def __init__(self, fetch: Fetch, pages: list[IndexPage]) -> None:
        super().__init__([(int(page.lsn), int(page.length)) for page in pages])
        self.fetch = fetch
        self.pages = pages

    def finished(self) -> None:
        self.fetch.pages_read(self)


class _MessagesRead(ReadJob):
    def __init__(self, fetch: Fetch, wanted: list[int], ranges: list[tuple[int, int]]) -> None:
        super().__init__(ranges)
        self.fetch = fetch
        self.wanted = wanted

    def finished(self) -> None:
        self.fetch.messages_read(self)


class TimeScan:
    """Reads the times of all stored messages of an index, or of those that have a time to live of their own.

    After a restart: a page at a time and one read under way, so that a long queue is served meanwhile. Messages that
    are stored later are not met. Override `found` and `ended`.
    """

    def __init__(self, log: MessageLog, index: QueueIndex, wanted_flag: i64) -> None:
        self.log = log
        self.index = index
        self._wanted_flag: i64 = wanted_flag  # in the low bits of an entry, 0: all
        self._page_number: i64 = index.first_page
        self._end: i64 = index.next_number

    def found(self, number: i64, time_ms: i64, data: bytes) -> None:
        """Take the time of a message, whose record is `data`."""
        raise AssertionError("overridden")

    def ended(self) -> None:
        """Everything was read."""
        raise AssertionError("overridden")

    def go_on(self) -> None:
        """Ask for the next page, or for the messages of it."""
        index = self.index
        if index.deleted:
            return
        size: i64 = index.page_entries
        while self._page_number * size < self._end:
            page = index.page(self._page_number)
            if page is None:
                self._page_number += 1
                continue
            if not page.resident:
                self.log.read_jobs.append(_ScanPage(self, page))
                return
            first: i64 = self._page_number * size
            self._page_number += 1
            if self._read(first, page):
                return
        self.ended()

    def page_read(self, job: _ScanPage) -> None:
        """A page is here. It is looked at and not kept."""
        page = job.page
        if page.resident or page.lsn == 0 or self.index.deleted or not self.log.is_page(job.data[0], page.length):
            # Somebody else loaded it, settled it, or will report that it is damaged.
            if not page.resident:
                self._page_number += 1
            self.go_on()
            return
        seen = IndexPage()
        seen.entries = page_entries(job.data[0], 0)
        first: i64 = self._page_number * self.index.page_entries
        self._page_number += 1
        if not self._read(first, seen):
            self.go_on()

    def _read(self, first: i64, page: IndexPage) -> bool:
        log = self.log
        ranges: list[tuple[int, int]] = []
        numbers: list[int] = []
        at: i64 = 0
        while at < len(page.entries):
            word0: i64 = page.entries[at]
            lsn: i64 = word0 & LSN_MASK
            number: i64 = first + at // 2
            is_wanted: bool = self._wanted_flag == 0 or word0 & self._wanted_flag != 0
            if word0 != 0 and lsn < log.written_lsn and number < self._end and is_wanted:
                ranges.append((int(lsn), int(page.entries[at + 1] >> LENGTH_SHIFT)))
                numbers.append(int(number))
            at += 2
        if not ranges:
            return False
        log.read_jobs.append(_ScanMessages(self, numbers, ranges))
        return True

    def messages_read(self, job: _ScanMessages) -> None:
        """The messages of a page are here."""
        if self.index.deleted:
            return
        for number, (_, length), data in zip(job.numbers, job.ranges, job.data, strict=True):
            if len(data) == length:
                self.found(number, time_of(data, 0), data)
        self.go_on()


class _ScanPage(ReadJob):
    def __init__(self, scan: TimeScan, page: IndexPage) -> None:
        super().__init__([(int(page.lsn), int(page.length))])
        self.scan = scan
        self.page = page

    def finished(self) -> None:
        self.scan.page_read(self)


class _ScanMessages(ReadJob):
    def __init__(self, scan: TimeScan, numbers: list[int], ranges: list[tuple[int, int]]) -> None:
        super().__init__(ranges)
        self.scan = scan
        self.numbers = numbers

    def finished(self) -> None:
        self.scan.messages_read(self)
