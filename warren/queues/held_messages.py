"""Messages that are held until their time: delayed ones, those that wait for another try, and parked ones.

A lane of a queue or exchange beside its backlog, with an index of its own in the log. What is stored leaves memory but
for its deadline (16 bytes), so that millions can be held for years.

1. A held message is neither ready nor unacked; `count` says how many there are.
2. The record of a held message carries the time until which it is held. After a restart the deadlines are read from
   the records, a page at a time; until that is done the earliest may come late, never early.
3. When its time has come a message is given to `release`, in the order of the times, one fetch under way at a time. It
   is settled here in the same turn, so that it is in exactly one place after a crash.
4. A parked message has the time `PARKED_UNTIL`: it waits for somebody to release it.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.msgstore.message import Message
from warren.msgstore.message_log import MESSAGE_OVERHEAD_BYTES, MessageLog
from warren.msgstore.queue_index import IndexOwner, QueueIndex
from warren.queues.agenda import NEVER
from warren.queues.deadlines import Deadlines
from warren.queues.fetch import Fetch, TimeScan

PARKED_UNTIL: Final = 1 << 61
# How many are released in one go, and how many stored ones stay in memory because they may be due soon.
RELEASE_MAX: Final = 512
KEPT_MAX: Final = 16384
# Index pages that may be in memory because messages of them were fetched.
FETCHED_PAGES_MAX: Final = 4096


class HeldMessages(IndexOwner):
    """One lane of held messages. Override `released` and `changed`."""

    def __init__(self, log: MessageLog) -> None:
        self.log = log
        self.index: QueueIndex | None = None
        self.count: i64 = 0
        self.body_bytes: i64 = 0
        self.next_number: i64 = 0
        self._deadlines = Deadlines()
        self._in_memory: dict[int, Message] = {}
        self._unstored: list[int] = []  # of those, which may have been stored since
        self._candidates_to: i64 = 0  # pages below were offered for unloading
        self._fetched_pages: i64 = 0
        self._fetching: bool = False
        self._scanning: bool = False

    def released(self, message: Message) -> None:
        """Take a message whose time has come."""
        raise AssertionError("overridden")

    def changed(self) -> None:
        """Something has come from disk: look at `first_ms` again."""
        raise AssertionError("overridden")

    def first_ms(self) -> i64:
        """Return when the earliest is due; `NEVER` when none is, or when that has to wait for the disk."""
        if self._fetching or len(self._deadlines) == 0:
            return NEVER
        time_ms: i64 = self._deadlines.first_ms()
        return NEVER if time_ms >= PARKED_UNTIL else time_ms

    def hold(self, message: Message, until_ms: i64, stored: bool) -> None:
        """Hold `message`; `stored`: the index is there, and it goes into the log."""
        number: i64 = self.next_number
        self.next_number = number + 1
        message.time_ms = until_ms
        self.count += 1
        self.body_bytes += message.body_bytes
        self._deadlines.add(until_ms, number)
        self._in_memory[int(number)] = message
        self.log.resident_bytes += message.body_bytes + MESSAGE_OVERHEAD_BYTES
        if stored:
            index = self.index
            assert index is not None
            self.log.add(index, message, number)
            self._unstored.append(int(number))

    def begin_storing(self, index: QueueIndex) -> None:
        """Take the index that the messages are stored in."""
        self.index = index
        index.owner = self

    def restore(self, index: QueueIndex) -> None:
        """Take over what recovery found."""
        self.begin_storing(index)
        self.next_number = index.next_number
        self.count = index.live_count
        self.body_bytes = index.live_body_bytes
        self._candidates_to = index.first_page
        self._offer_pages()
        self._scanning = True
        _DeadlineScan(self.log, index, self).go_on()

    def close(self) -> None:
        """The owner is deleted: let go of everything."""
        if self.index is not None:
            self.log.delete_queue(self.index)
            self.index = None
        self._forget_memory()
        self._deadlines.clear()
        self.count = 0
        self.body_bytes = 0

    def clear(self) -> int:
        """Settle everything, and return how much that was."""
        count = int(self.count)
        index = self.index
        if index is not None:
            for number, message in self._in_memory.items():
                self.log.settle(index, message, number)
            self.log.settle_range(index, index.first_page * index.page_entries, self.next_number)
        self._forget_memory()
        self._deadlines.clear()
        self.count = 0
        self.body_bytes = 0
        return count

    def _forget_memory(self) -> None:
        for message in self._in_memory.values():
            self.log.resident_bytes -= message.body_bytes + MESSAGE_OVERHEAD_BYTES
        self._in_memory = {}
        self._unstored = []

    # --- to disk --------------------------------------------------------------------------------------------------

    def batch_closed(self) -> None:
        """What was stored may leave memory, and full pages of the index too."""
        index = self.index
        if index is None:
            return
        unstored = self._unstored
        if unstored and (len(self._in_memory) > KEPT_MAX or self.log.under_pressure):
            self._unstored = []
            for number in unstored:
                message = self._in_memory.get(number)
                if message is not None and index.lsn_of_resident(number) != 0:
                    self._leave_memory(number, message)
        elif len(unstored) > 2 * KEPT_MAX:
            self._unstored = [number for number in unstored if number in self._in_memory]
        if self.count:
            self._offer_pages()

    def delivered_below(self) -> int:
        return 0

    def page_out(self) -> None:
        """Memory is short: have what is only in memory stored. The index is there."""
        index = self.index
        assert index is not None
        for number, message in self._in_memory.items():
            if message.row < 0 and not self._is_stored(number):
                self.log.add(index, message, number)
                self._unstored.append(number)

    def _leave_memory(self, number: int, message: Message) -> None:
        del self._in_memory[number]
        self.log.resident_bytes -= message.body_bytes + MESSAGE_OVERHEAD_BYTES

    def _offer_pages(self) -> None:
        index = self.index
        assert index is not None
        end_page: i64 = self.next_number // index.page_entries
        first_page: i64 = index.first_page
        page_number: i64 = self._candidates_to if self._candidates_to > first_page else first_page
        if self._fetched_pages > FETCHED_PAGES_MAX and not self._fetching:
            self._fetched_pages = 0
            page_number = first_page
            index.unload_candidates = []
        while page_number < end_page:
            index.unload_candidates.append(int(page_number))
            page_number += 1
        self._candidates_to = end_page
        if not self._fetching:
            index.unload(first_page, end_page)

    # --- out ------------------------------------------------------------------------------------------------------

    def release_due(self, now_ms: i64) -> None:
        """Release what is due, at once when it is in memory, else when it has been read."""
        deadlines = self._deadlines
        while not self._fetching and len(deadlines) > 0 and deadlines.first_ms() <= now_ms:
            numbers: list[int] = []
            while len(numbers) < RELEASE_MAX and len(deadlines) > 0 and deadlines.first_ms() <= now_ms:
                numbers.append(int(deadlines.first_number()))
                deadlines.remove_first()
            self.release(numbers)

    def release(self, numbers: list[int], *, drop: bool = False) -> None:
        """Release messages whatever their time, in this order, or `drop` them; what is not held any more is skipped."""
        missing = [number for number in numbers if self._is_missing(number)]
        if missing:
            index = self.index
            assert index is not None
            self._fetching = True
            self._fetched_pages += len(missing)
            _HeldFetch(self.log, index, missing, self, numbers, drop).begin()
            return
        for number in numbers:
            message = self._in_memory.get(number)
            if message is not None:
                self._let_go(number, message, drop)

    def _is_missing(self, number: i64) -> bool:
        """Tell whether the disk has to be read first: for the message, or for the page of its entry."""
        index = self.index
        if index is None:
            return False
        page = index.page(number // index.page_entries)
        if page is None:
            return False
        if not page.resident:
            return True
        return index.lsn_of(number) != 0 and int(number) not in self._in_memory

    def _is_stored(self, number: i64) -> bool:
        index = self.index
        if index is None:
            return False
        page = index.page(number // index.page_entries)
        return page is not None and (not page.resident or index.lsn_of(number) != 0)

    def _let_go(self, number: int, message: Message, drop: bool) -> None:
        if number in self._in_memory:
            self._leave_memory(number, message)
        index = self.index
        if index is not None:
            self.log.settle(index, message, number)
        self.count -= 1
        self.body_bytes -= message.body_bytes
        if not drop:
            self.released(message)

    def fetched(self, numbers: list[int], missing: list[int], messages: list[Message | None], drop: bool) -> None:
        """What was due has been read."""
        self._fetching = False
        index = self.index
        if index is None:
            return
        found: dict[int, Message | None] = dict(zip(missing, messages, strict=True))
        for number in numbers:
            message = self._in_memory.get(number)
            if message is None and index.lsn_of_resident(number) != 0:
                message = found.get(number)
                if message is None:
                    self.count -= 1  # damaged
            if message is not None:
                self._let_go(number, message, drop)
        self.changed()

    def scanned(self) -> None:
        """All deadlines are known again."""
        self._scanning = False
        self.changed()

    def known(self, number: i64, time_ms: i64) -> None:
        """A deadline was read from disk."""
        self._deadlines.add(time_ms, number)
        self.changed()

    # --- for operators --------------------------------------------------------------------------------------------

    def earliest(self, most: int) -> list[tuple[int, int]]:
        """Return (time in ms, number) of the earliest held messages, in order."""
        listed = self._deadlines.earliest(most)
        return [(time_ms, number) for time_ms, number in listed if number in self._in_memory or self._is_stored(number)]

    def check_invariants(self) -> None:
        """Assert that counts agree. For tests."""
        index = self.index
        stored = int(index.live_count) if index is not None else 0
        unstored = sum(1 for number in self._in_memory if not self._is_stored(number))
        assert self.count <= stored + unstored


class _DeadlineScan(TimeScan):
    def __init__(self, log: MessageLog, index: QueueIndex, held: HeldMessages) -> None:
        super().__init__(log, index, 0)
        self._held = held

    def found(self, number: i64, time_ms: i64, data: bytes) -> None:
        self._held.known(number, time_ms)

    def ended(self) -> None:
        self._held.scanned()


class _HeldFetch(Fetch):
    def __init__(
        self,
        log: MessageLog,
        index: QueueIndex,
        missing: list[int],
        held: HeldMessages,
        numbers: list[int],
        drop: bool,
    ) -> None:
        super().__init__(log, index, missing)
        self._held = held
        self._all = numbers
        self._drop: bool = drop

    def fetched(self, messages: list[Message | None]) -> None:
        self._held.fetched(self._all, self.numbers, messages, self._drop)
