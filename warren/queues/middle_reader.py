"""Reads the middle of a backlog in order and ahead of the consumers, a piece at a time, one read under way.

Such a read may take long (disk_reads.py (2)). After a purge, and when nothing of the middle is left, it is void.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.msgstore.log.message import MESSAGE_OVERHEAD_BYTES
from warren.msgstore.log.queue_index import LENGTH_SHIFT, LSN_MASK, IndexPage, QueueIndex
from warren.queues.disk_reads import DiskReader, MessagesRead, PagesRead
from warren.queues.message_run import PLACES_PER_MESSAGE, SPARSE_MIN

if TYPE_CHECKING:
    from warren.queues.backlog import Backlog

LOAD_MESSAGES_MAX: Final = 2048
LOAD_BYTES_MAX: Final = 1 << 20
SHORT_LOAD_BYTES_MAX: Final = 32 << 10
LOAD_PAGES_MAX: Final = 8
# Settled messages between two unsettled ones take places in the head; a larger gap waits until the head is empty.
HEAD_GAP_MAX: Final = 4096


class MiddleReader(DiskReader):
    """Reads the middle of `backlog`, whose messages are in `index`."""

    def __init__(self, backlog: Backlog, index: QueueIndex) -> None:
        super().__init__(backlog.log, index)
        self.backlog = backlog
        self.is_reading: bool = False
        self.reading_to: i64 = 0
        self._waits_for_disk: bool = False

    def needed_to(self) -> i64:
        """Return the number up to which index pages are needed for the read under way."""
        return self.reading_to if self.is_reading else 0

    def void(self) -> None:
        """Ignore the outcome of the read under way: its messages no longer wait."""
        self.generation += 1
        self.is_reading = False

    def batch_closed(self) -> None:
        """Continue: messages that a read needs are written."""
        self._waits_for_disk = False
        self.backlog.batch_closed()

    def advance(self) -> None:
        """Ask for the next piece of the middle: its index pages if they are absent, else its messages."""
        assert not self.is_reading
        index = self.index
        middle = self.backlog.middle
        size: i64 = index.page_entries
        number: i64 = middle.start
        while number < middle.end:
            page = index.page(number // size)
            if page is None:
                number = (number // size + 1) * size
                continue
            if not page.resident:
                middle.start = number
                self._read_pages(number // size)
                return
            if self._read_messages(number):
                return
            # The rest of this page is settled.
            number = (number // size + 1) * size
        raise AssertionError("the middle has messages that the index does not know")

    def _read_pages(self, page_number: i64) -> None:
        index = self.index
        pages: list[IndexPage] = []
        numbers: list[int] = []
        size: i64 = index.page_entries
        while len(pages) < LOAD_PAGES_MAX and page_number * size < self.backlog.middle.end:
            page = index.page(page_number)
            if page is not None:
                if page.resident:
                    break
                pages.append(page)
                numbers.append(int(page_number))
            page_number += 1
        self.log.read_jobs.append(PagesRead(self, pages, numbers))
        self.is_reading = True
        self.reading_to = page_number * size

    def pages_read(self, job: PagesRead) -> None:
        self.is_reading = False
        self.load_pages(job)
        lost = sum([int(page.live) for page in job.damaged_pages])
        middle = self.backlog.middle
        middle.count -= lost
        if middle.count:
            self.advance()
        if lost:
            self.backlog.on_loaded(lost, sum([int(page.body_bytes) for page in job.damaged_pages]))

    def _read_messages(self, number: i64) -> bool:
        """Ask for messages from `number` on; False when its page has no more of them."""
        index = self.index
        middle = self.backlog.middle
        head = self.backlog.head
        base: i64 = head.first if head.count else number  # where the head will begin
        if head.count and (
            number - head.end() > HEAD_GAP_MAX or number - base > SPARSE_MIN // 2 + PLACES_PER_MESSAGE * head.count
        ):
            return True  # later, when the head is empty
        log = self.log
        most_bytes: i64 = LOAD_BYTES_MAX if log.resident_bytes < log.memory_bytes else SHORT_LOAD_BYTES_MAX
        size: i64 = index.page_entries
        written_lsn: i64 = log.written_lsn
        job = MessagesRead(self)
        total: i64 = 0
        count: i64 = 0
        previous: i64 = number
        while number < middle.end and total < most_bytes and count < LOAD_MESSAGES_MAX:
            page = index.page(number // size)
            if page is None or not page.resident:
                break
            offset: i64 = 2 * (number % size)
            if offset >= len(page.entries):
                number = (number // size + 1) * size
                continue
            word0: i64 = page.entries[offset]
            if word0 == 0 or middle.has_taken(number):
                number += 1
                continue
            lsn: i64 = word0 & LSN_MASK
            if lsn >= written_lsn or number - previous > HEAD_GAP_MAX:
                break
            if number - base > SPARSE_MIN // 2 + PLACES_PER_MESSAGE * (head.count + count):
                break
            length: i64 = page.entries[offset + 1] >> LENGTH_SHIFT
            job.add(number, lsn, length)
            total += length
            count += 1
            previous = number
            number += 1
        if count == 0:
            if number < middle.end and index.lsn_of_resident(number) >= written_lsn:
                if not self._waits_for_disk:
                    self._waits_for_disk = True
                    log.call_when_written(self)
                return True
            return False
        job.reserved_bytes = total + count * MESSAGE_OVERHEAD_BYTES
        job.begin()
        self.is_reading = True
        self.reading_to = previous + 1
        return True

    def messages_read(self, job: MessagesRead) -> None:
        """Append messages that were read to the head."""
        log = self.log
        self.is_reading = False
        index = self.index
        middle = self.backlog.middle
        head = self.backlog.head
        lost: i64 = 0
        lost_bytes: i64 = 0
        at: i64 = 0
        count: i64 = len(job.numbers)
        gone: i64 = 0
        try:
            while at < count:
                number: i64 = job.numbers[at]
                if index.lsn_of_resident(number) == 0 or middle.has_taken(number):
                    # Taken out of turn meanwhile.
                    gone += 1
                    at += 1
                    continue
                message = job.maybe_message(at)
                if message is not None:
                    head.append(message, number)
                    log.resident_bytes += message.memory_bytes
                elif job.was_moved(at):
                    break
                else:
                    lost += 1
                    lost_bytes += index.body_bytes_of(number)
                    log.damage.report_message(index, number, job.lsns[at])
                at += 1
        except BaseException:
            self._taken_to(job, at, gone)
            self.backlog.on_loaded(int(lost), int(lost_bytes))
            raise
        self._taken_to(job, at, gone)
        if middle.count and head.count == 0:
            self.advance()
        self.backlog.on_loaded(int(lost), int(lost_bytes))

    def _taken_to(self, job: MessagesRead, at: i64, gone: i64) -> None:
        """Note that the first `at` messages of a read are no longer in the middle; `gone` of them were not before."""
        if at < len(job.numbers):
            self.reading_to = job.numbers[at]  # read again from here on
        middle = self.backlog.middle
        middle.start = self.reading_to
        middle.count -= at - gone
