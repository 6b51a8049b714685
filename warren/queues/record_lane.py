"""A lane of small records that the broker itself keeps in the log, numbered, in one frame with related changes.

1. A record is a live message of the lane, so checkpoints, compaction, salvage and the tools treat it like any other. It
   is in one frame with everything else that was stored in the same call of the engine.
2. After a restart the lane reads its records and tells `found` of each, then `all_found`.
3. A damaged record is reported, and stays: its owner is unknown, and only an operator gives it up.
4. A closed lane stores nothing. Work that began before, a publish to very many queues for instance, may end later: its
   record would be for a later owner of the name, after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.message import Envelope, Message, build_message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import IndexOwner, QueueIndex
from warren.queues.fetch import Fetch

# How many records are read at a time after a restart.
RESTORE_MAX: Final = 4096

_NOWHERE: Final = Envelope("", "")
_NO_PROPERTIES: Final = b"\x00\x00"
_STORED: Final = build_message(_NOWHERE, _NO_PROPERTIES, b"", 0, True)  # stands for a record that is written


class RecordLane(IndexOwner):
    """Small records in a lane of the log, each by its number. Override `found` and `all_found`."""

    def __init__(self, log: MessageLog, vhost: str, name: str, lane: i64) -> None:
        self.log = log
        self.lane: i64 = lane
        self.index: QueueIndex | None = None  # None: nothing was ever stored
        self.next_number: i64 = 0
        self.is_restoring: bool = False
        self.is_closed: bool = False  # its owner is deleted
        self.lost_count: i64 = 0  # records that were damaged at the start, see (3)
        self._vhost = vhost
        self._name = name
        self._in_batch: dict[int, Message] = {}  # the records in the open batch
        self._restore_end: i64 = 0

    def put(self, number: i64, body: bytes, time_ms: i64) -> None:
        """Store a record under a number, in place of an earlier one, unless the lane is closed.

        If this fails, for lack of memory, the earlier one is still there.
        """
        if self.is_closed:
            return
        index = self.index
        log = self.log
        if index is None:
            index = log.new_index(log.new_queue_id(), self._vhost, self._name, self.lane, False)
            index.owner = self
            self.index = index
        message = build_message(_NOWHERE, _NO_PROPERTIES, body, 0, True)
        message.time_ms = time_ms
        former = self._in_batch.get(int(number), _STORED)
        self._in_batch[int(number)] = message
        try:
            log.batch.replace(index, former, message, number)
        except BaseException:
            if former is _STORED:
                del self._in_batch[int(number)]
            else:
                self._in_batch[int(number)] = former
            raise

    def drop(self, number: i64) -> None:
        """Forget a record; a negative number stands for one that was not stored."""
        index = self.index
        if number >= 0 and index is not None:
            self.log.batch.settle(index, self._in_batch.pop(int(number), _STORED), number)

    def drop_all(self) -> None:
        """Forget all records."""
        index = self.index
        if index is not None:
            for number, message in self._in_batch.items():
                self.log.batch.settle(index, message, number)
            self.log.batch.settle_range(index, index.first_page * index.page_entries, self.next_number)
        self._in_batch.clear()

    def close(self) -> None:
        """Delete the index, for good."""
        if self.index is not None:
            self.log.delete_queue(self.index)
            self.index = None
        self._in_batch.clear()
        self.is_restoring = False
        self.is_closed = True

    def batch_closed(self) -> None:
        """Note the places of the records, which are known now."""
        self._in_batch.clear()

    def restore(self, index: QueueIndex) -> None:
        """Begin to read the records that recovery found. All index pages stay in memory: any record may go next."""
        index.owner = self
        self.index = index
        self.next_number = index.next_number
        self.is_restoring = True
        self._restore_end = index.next_number
        self.unused(range(int(index.first_page * index.page_entries)))
        self._read_from(index.first_page)

    def _read_from(self, page_number: i64) -> None:
        index = self.index
        assert index is not None
        size: i64 = index.page_entries
        numbers: list[int] = []
        while page_number * size < self._restore_end and len(numbers) < RESTORE_MAX:
            number: i64 = page_number * size
            end: i64 = number + size
            if end > self._restore_end:
                end = self._restore_end
            page = range(int(number), int(end))
            if index.page(page_number) is not None:
                numbers.extend(page)
            else:
                self.unused(page)
            page_number += 1
        if numbers:
            _RecordFetch(self.log, index, numbers, self, page_number).begin()
        else:
            self.is_restoring = False
            self.all_found()

    def fetched(self, numbers: list[int], messages: list[Message | None], next_page: i64) -> None:
        """Take over records that were read."""
        index = self.index
        if index is None:
            return  # deleted meanwhile
        for number, message in zip(numbers, messages, strict=True):
            if index.lsn_of_resident(number) == 0:
                self.unused([number])  # from the beginning, or forgotten during the read
                continue
            if message is None:
                self.lost_count += 1
            else:
                self.found(number, message.body(), message.time_ms)
        self._read_from(next_page)

    def found(self, number: i64, body: bytes, time_ms: i64) -> None:
        """Take a record over."""
        raise AssertionError("overridden")

    def unused(self, numbers: Iterable[int]) -> None:
        """Note numbers that no record has."""

    def all_found(self) -> None:
        """Continue: everything was read."""
        raise AssertionError("overridden")

    def check_numbers(self, numbers: list[int]) -> None:
        """Assert that exactly these are stored, or on their way. For tests."""
        index = self.index
        stored = set(self._in_batch)
        if index is not None:
            known = range(int(self.next_number))
            stored |= {number for number in known if index.lsn_of(number) != 0 and not index.is_damaged(number)}
        assert stored == set(numbers)
        assert len(numbers) == len(stored)


class _RecordFetch(Fetch):
    def __init__(
        self, log: MessageLog, index: QueueIndex, numbers: list[int], lane: RecordLane, next_page: i64
    ) -> None:
        super().__init__(log, index, numbers)
        self._lane = lane
        self._next_page: i64 = next_page

    def fetched(self, messages: list[Message | None]) -> None:
        self._lane.fetched(self.numbers, messages, self._next_page)
