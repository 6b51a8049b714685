"""Which of the held messages of a lane are in memory, which of those are stored, and which index pages are needed.

    without an index    all messages are in memory only
    with one            `unstored` ones are in memory only; the others are on disk, and in memory if they came lately

1. A stored message leaves memory when a batch has been closed and too many are here, or when memory is short.
2. While messages are taken from disk index pages are not given up, nor while rows for full pages wait in the batch:
   settled and stored messages find their pages in memory (queue_index.py (2)).
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.due_pages import DuePages

# How many stored messages stay in memory because they may be due soon, and how many bytes. A new lane begins with this
# and the next figures.
KEPT_MAX: Final = 16384
KEPT_MAX_BYTES: Final = 8 << 20
# How many messages that are only in memory are stored at once when memory is short.
PAGED_OUT_MAX: Final = 4096
# Index pages that may be in memory because messages of them were taken.
LOADED_PAGES_MAX: Final = 4096


class HeldMemory:
    """The held messages that are in memory, by number. ``pages`` gives the numbers."""

    def __init__(self, log: MessageLog) -> None:
        self.log = log
        self.kept_max: i64 = KEPT_MAX
        self.paged_out_max: i64 = PAGED_OUT_MAX
        self.loaded_pages_max: i64 = LOADED_PAGES_MAX
        self.index: QueueIndex | None = None
        self.pages = DuePages(log.page_entries)
        self.messages: dict[int, Message] = {}
        self.unstored: dict[int, None] = {}
        self._kept: list[int] = []  # the others, and some that have gone
        self._kept_bytes: i64 = 0
        self._resident_bytes: i64 = 0  # of all in memory
        self._loaded: list[int] = []  # numbers of pages that came back for messages that were taken
        self.reads: i64 = 0  # from disk, which are under way
        self._is_storing: bool = False  # rows for pages that may be full are in the open batch

    def begin_storing(self, index: QueueIndex) -> None:
        """Take the index that the messages are stored in."""
        self.index = index
        self.unstored = dict.fromkeys(self.messages)

    def add(self, number: int, message: Message, stored: bool) -> None:
        """Keep a message that is held from now on; store it too, if `stored` says so."""
        index = self.index
        self.messages[number] = message
        cost: i64 = message.memory_bytes
        self.log.resident_bytes += cost
        self._resident_bytes += cost
        if stored:
            assert index is not None
            self._store(index, number, message)
        elif index is not None:
            self.unstored[number] = None

    def _store(self, index: QueueIndex, number: int, message: Message) -> None:
        self.log.batch.add(index, message, number)
        self._kept.append(number)
        self._kept_bytes += message.memory_bytes

    def left(self, number: int, message: Message) -> bool:
        """Count a message that was taken out of ``messages``; tell whether the log has it."""
        cost: i64 = message.memory_bytes
        self.log.resident_bytes -= cost
        self._resident_bytes -= cost
        if self.index is None:
            return False
        if number in self.unstored:
            del self.unstored[number]
            return False
        self._kept_bytes -= cost
        return True

    def clear(self) -> None:
        """Forget everything; it is taken apart later."""
        reclamation = self.log.reclamation
        reclamation.add_named(self.messages, self._resident_bytes)
        reclamation.add_named(self.unstored, 0)
        self.messages = {}
        self.unstored = {}
        self._kept = []
        self._kept_bytes = 0
        self._resident_bytes = 0
        self._loaded = []

    # --- where a message is ---------------------------------------------------------------------------------------

    def lacks(self, numbers: list[int]) -> bool:
        """Tell whether the disk has to be read for some of them: for the message, or for the page of its entry."""
        index = self.index
        if index is None:
            return False
        for number in numbers:
            page = index.page(number // index.page_entries)
            if page is not None and (not page.resident or (index.lsn_of(number) != 0 and number not in self.messages)):
                return True
        return False

    def may_hold(self, number: i64) -> bool:
        """Tell whether a message may be held, according to the pages in memory."""
        if int(number) in self.messages:
            return True
        index = self.index
        page = None if index is None else index.page(number // index.page_entries)
        return index is not None and page is not None and (not page.resident or index.lsn_of(number) != 0)

    def first_number(self) -> i64:
        """Return a number below which no message is held."""
        index = self.index
        return 0 if index is None else index.first_page * index.page_entries

    # --- to disk --------------------------------------------------------------------------------------------------

    def batch_closed(self) -> None:
        """Release stored messages from memory, if they are too many, and pages unless some are being read."""
        self._is_storing = False
        log = self.log
        kept: i64 = len(self.messages) - len(self.unstored)
        if (
            kept > self.kept_max
            or self._kept_bytes > KEPT_MAX_BYTES
            or log.under_pressure
            or log.resident_bytes > log.memory_bytes
        ):
            self._give_up(entered=True)
        elif len(self._kept) > 2 * kept + self.kept_max:
            self._kept = [number for number in self._kept if number in self.messages]
        self.unload()

    def page_out(self) -> list[int]:
        """Give up stored messages, as memory is short, and store others; return the numbers whose pages are absent."""
        index = self.index
        assert index is not None
        self._give_up(entered=False)
        self.unload()
        absent: list[int] = []
        present: list[int] = []
        if not self.log.under_pressure:
            return absent
        for number in self.unstored:
            if len(present) + len(absent) >= self.paged_out_max:
                break
            page = index.page(number // index.page_entries)
            if page is None or page.resident:
                present.append(number)
            else:
                absent.append(number)
        self.store(present)
        return absent

    def store(self, numbers: list[int]) -> None:
        """Store messages that are only in memory; their pages are resident, or do not exist yet."""
        index = self.index
        assert index is not None
        for number in numbers:
            if self.log.room_to_page() <= 0:
                return  # the rest is stored in another turn
            message = self.messages.get(number)
            if message is not None and number in self.unstored:
                del self.unstored[number]
                self._store(index, number, message)
                self._is_storing = True

    def _give_up(self, *, entered: bool) -> None:
        """Give up the memory of stored messages. `entered`: all rows have entries, a batch was closed just now."""
        if entered and not self.unstored:
            self.log.resident_bytes -= self._kept_bytes
            self._resident_bytes = 0
            self.messages = {}
            self._kept = []
            self._kept_bytes = 0
        left: list[int] = []
        for number in self._kept:
            message = self.messages.get(number)
            if message is None:
                continue
            if message.row >= 0:
                left.append(number)  # it is in the open batch, for us or for another queue
            else:
                del self.messages[number]
                self.left(number, message)
        self._kept = left
        index = self.index
        assert index is not None
        # The pages that get no more messages.
        index.unload_candidates += self.pages.closed
        self.pages.closed = []

    def loaded(self, page_numbers: list[int]) -> None:
        """Note pages that were read; they stay for a while, since other messages of them may be taken."""
        index = self.index
        assert index is not None
        loaded = self._loaded
        loaded += page_numbers
        if len(loaded) > self.loaded_pages_max:
            half = len(loaded) // 2
            index.unload_candidates += loaded[:half]
            del loaded[:half]
        self.unload()

    def unload(self) -> None:
        """Give up index pages, see (2)."""
        index = self.index
        assert index is not None
        if self.reads or self._is_storing or not index.unload_candidates:
            return
        opened = self.pages.open
        # Compaction offers the pages that it has looked at.
        index.unload_candidates = [number for number in index.unload_candidates if number not in opened]
        index.unload(index.first_page, self.pages.next_number // index.page_entries)

    def check_invariants(self) -> None:
        """Assert that the sums agree. For tests."""
        kept = [number for number in self.messages if number not in self.unstored]
        assert set(kept) <= set(self._kept) or self.index is None
        if self.index is not None:
            assert self._kept_bytes == sum(int(self.messages[number].memory_bytes) for number in kept)
        assert self._resident_bytes == sum(int(message.memory_bytes) for message in self.messages.values())
