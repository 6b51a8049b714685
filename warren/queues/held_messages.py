"""Messages that are held until their time: delayed ones, those that wait for another try, and parked ones.

A lane of a queue or exchange besides its backlog, with an index of its own in the log. Stored messages leave memory
except for their deadlines (16 bytes each), so that millions can be held for years.

1. A held message is neither ready nor unacked; `count` is their number.
2. The record of a held message carries the time until which it is held. After a restart the deadlines are read from
   the records, a few pages at a time; until that is done the earliest may come late, never early.
3. When its time has come a message is given to `released`, in the order of the times, one piece under way at a time.
   It is settled here in the same turn, so that it is in exactly one place after a crash. A message that stays by
   `decide` keeps its record and gets another time: the record has an earlier one, so after a restart it may come early.
4. A parked message has the time `PARKED_UNTIL`: it waits until an operator takes it.
5. A number that leaves in any other way leaves its deadline there. A caller that takes numbers checks which are still
   held. Stale deadlines in front are removed at once, for a list of the earliest looks at them first. The others are
   removed when most deadlines are stale: a parked message has no time at which they would go.
6. While messages are taken from disk index pages are not given up, nor while rows for full pages wait in the batch:
   settled and stored messages find their pages in memory (queue_index.py (2)).
7. Released messages wait for the disk, and for space on it (``msgstore.log.own_writes``): a million messages that are
   due at once must not become the open batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.own_writes import WRITES
from warren.msgstore.log.queue_index import BODY_MASK, IndexOwner, IndexPage, QueueIndex
from warren.queues.deadlines import Deadlines
from warren.queues.due_pages import DuePages
from warren.queues.fetch import Fetch, TimeScan
from warren.queues.timers import NEVER

PARKED_UNTIL: Final = 1 << 61
# How many messages are taken at once, and how many bytes from disk. A new lane begins with these and the next figures.
TAKEN_MAX: Final = 512
TAKEN_MAX_BYTES: Final = 1 << 20
# How many stored messages stay in memory because they may be due soon, and how many bytes.
KEPT_MAX: Final = 16384
KEPT_MAX_BYTES: Final = 8 << 20
# How many messages that are only in memory are stored at once when memory is short.
PAGED_OUT_MAX: Final = 4096
# Index pages that may be in memory because messages of them were taken.
LOADED_PAGES_MAX: Final = 4096
# From this number on messages are numbered by their times (``queues.due_pages``).
SORTED_FROM: Final = 65536
# How many numbers are looked at in one go, for those that are held.
LOOKED_AT_MAX: Final = 4096
# This many stale deadlines are never worth looking for.
STALE_MIN: Final = 1024

# The fate of a message that is taken.
RELEASED: Final = 0
DROPPED: Final = 1
DEAD_LETTERED: Final = 2
# Passed to `decide`, and returned by it.
DUE: Final = 3  # its time has come, and is no longer noted
STAYS: Final = 4


class HeldMessage:
    """A held message as an operator sees it. `until_ms`: since the epoch, `PARKED_UNTIL` for a parked one."""

    def __init__(self, number: int, message: Message) -> None:
        self.number = number
        self.message = message
        self.until_ms = int(message.time_ms)
        self.exchange = message.envelope.exchange
        self.routing_key = message.envelope.routing_key
        self.body_bytes = int(message.body_bytes)
        self.persistent = message.persistent


@mypyc_attr(allow_interpreted_subclasses=True)  # tests have a lane without an owner
class HeldMessages(IndexOwner):
    """One lane of held messages. Override `released` and `changed`, and `dead_lettered` where needed."""

    def __init__(self, log: MessageLog) -> None:
        self.log = log
        self.taken_max: i64 = TAKEN_MAX
        self.taken_max_bytes: i64 = TAKEN_MAX_BYTES
        self.kept_max: i64 = KEPT_MAX
        self.paged_out_max: i64 = PAGED_OUT_MAX
        self.loaded_pages_max: i64 = LOADED_PAGES_MAX
        self.sorted_from: i64 = SORTED_FROM
        self.index: QueueIndex | None = None
        self.count: i64 = 0
        self.body_bytes: i64 = 0
        self.scanning: bool = False  # not all deadlines are known yet after a restart
        self.delivered_before: i64 = 0  # older messages may have been ready, and delivered, before the last restart
        self._deadlines = Deadlines()
        self._tidy_above: i64 = 0  # with fewer deadlines it is not worth looking for stale ones again
        self._pages = DuePages(log.page_entries)
        self._in_memory: dict[int, Message] = {}
        self._unstored: dict[int, None] = {}  # those of them that are only in memory; without an index all are
        self._kept: list[int] = []  # the others, and some that have gone
        self._kept_bytes: i64 = 0
        self._resident_bytes: i64 = 0  # of all in memory
        self._loaded: list[int] = []  # numbers of pages that came back for messages that were taken
        self._storing: bool = False  # rows for pages that may be full are in the open batch
        self._fetches: i64 = 0
        self._waits: bool = False  # for the log to write the released messages
        self._sweep_left: i64 = 0  # how many deadlines are still to be taken for a request for all
        self._sweep_purpose: i64 = RELEASED
        self._sweeps_scan: bool = False  # and those that the scan finds, too
        self._lost: i64 = 0  # damaged messages whose entries are still there

    def released(self, message: Message) -> None:
        """Take a message whose time has come, or that is released early."""
        raise AssertionError("overridden")

    def decide(self, number: int, message: Message, purpose: i64) -> i64:
        """Return the fate of a message that is about to be taken: `purpose`, or `STAYS`, see `stay_until`."""
        return RELEASED if purpose == DUE else purpose

    def stay_until(self, number: int, until_ms: i64) -> None:
        """Hold a message that was `DUE` until another time."""
        self._deadlines.add(until_ms, number)

    def may_dead_letter(self) -> bool:
        """Tell whether there is an exchange for dead letters."""
        return False

    def dead_lettered(self, message: Message) -> None:
        """Dead-letter a message."""
        raise AssertionError("overridden")

    def changed(self) -> None:
        """Look at `first_ms` again: messages were read from disk, or asked for."""
        raise AssertionError("overridden")

    def first_ms(self) -> i64:
        """Return when the earliest is due; `NEVER` when the lane is empty, or the disk has to be waited for."""
        if self._fetches or self._waits or self._deadlines.is_empty():
            return NEVER
        time_ms: i64 = self._deadlines.first_ms()
        return NEVER if time_ms >= PARKED_UNTIL else time_ms

    # --- in -------------------------------------------------------------------------------------------------------

    def hold(self, message: Message, until_ms: i64, stored: bool) -> int:
        """Hold `message` and return its number; `stored`: the index is there, and it goes into the log.

        All other holders of the message hold it until the same time: the time is in the message.
        """
        index = self.index
        first_page: i64 = 0
        if index is not None:
            first_page = index.first_page
        number: i64 = self._pages.take(until_ms, self.log.now_ms, first_page, stored and self.count >= self.sorted_from)
        boxed = int(number)
        message.time_ms = until_ms
        self.count += 1
        self.body_bytes += message.body_bytes
        self._deadlines.add(until_ms, number)
        self._in_memory[boxed] = message
        cost: i64 = message.memory_bytes
        self.log.resident_bytes += cost
        self._resident_bytes += cost
        if stored:
            assert index is not None
            self.log.batch.add(index, message, number)
            self._kept.append(boxed)
            self._kept_bytes += cost
        elif index is not None:
            self._unstored[boxed] = None
        return boxed

    def begin_storing(self, index: QueueIndex) -> None:
        """Take the index that the messages are stored in."""
        self.index = index
        index.owner = self
        self._unstored = dict.fromkeys(self._in_memory)

    def restore(self, index: QueueIndex, *, clean: bool = True) -> None:
        """Take over the messages that recovery found; after an unclean stop some may have been released before."""
        self.begin_storing(index)
        self.delivered_before = index.delivered_below if clean else index.next_number
        size: i64 = index.page_entries
        # The page of the next number may be absent: later messages in this page were not stored.
        self._pages.next_number = (index.next_number + size - 1) // size * size
        self.count = index.live_count
        self.body_bytes = index.live_body_bytes
        page_number: i64 = index.first_page
        while page_number * size < self._pages.next_number:
            index.unload_candidates.append(int(page_number))
            page_number += 1
        self._unload()
        self.scanning = True
        _DeadlineScan(self, index).go_on()

    def close(self) -> None:
        """Release everything: the owner is deleted."""
        if self.index is not None:
            self.log.delete_queue(self.index)
            self.index = None
        self._forget_all()

    def clear(self) -> int:
        """Settle everything, and return how many messages that were."""
        count = int(self.count)
        index = self.index
        if index is not None:
            log = self.log
            for number, message in self._in_memory.items():
                if message.row >= 0 and index.lsn_of_resident(number) == 0:
                    log.batch.cancel(index, message, number)
            log.batch.settle_range(index, index.first_page * index.page_entries, self._pages.next_number)
        self._forget_all()
        self.changed()
        return count

    def _forget_all(self) -> None:
        reclamation = self.log.reclamation
        reclamation.add_named(self._in_memory, self._resident_bytes)
        reclamation.add_named(self._unstored, 0)
        self._in_memory = {}
        self._unstored = {}
        self._kept = []
        self._kept_bytes = 0
        self._resident_bytes = 0
        self._loaded = []
        self._deadlines.clear()
        self._sweep_left = 0
        self._sweeps_scan = False
        self._lost = 0
        self.count = 0
        self.body_bytes = 0

    # --- to disk --------------------------------------------------------------------------------------------------

    def batch_closed(self) -> None:
        """Let stored messages leave memory."""
        if self.index is None:
            return
        self._storing = False
        log = self.log
        kept: i64 = len(self._in_memory) - len(self._unstored)
        if (
            kept > self.kept_max
            or self._kept_bytes > KEPT_MAX_BYTES
            or log.under_pressure
            or log.resident_bytes > log.memory_bytes
        ):
            self._give_up(entered=True)
        elif len(self._kept) > 2 * kept + self.kept_max:
            self._kept = [number for number in self._kept if number in self._in_memory]
        self._unload()

    def delivered_below(self) -> int:
        return int(self.delivered_before)

    def in_memory_count(self) -> int:
        """Return how many messages are in memory."""
        return len(self._in_memory)

    def needs_index(self) -> bool:
        """Tell whether `page_out` could store something if there were an index."""
        return self.index is None and self.log.under_pressure and len(self._in_memory) > 0

    def page_out(self) -> None:
        """Give up stored messages, as memory is short; with an index have some of the others stored."""
        index = self.index
        if index is None:
            return
        self._give_up(entered=False)
        self._unload()
        if not self.log.under_pressure or not self._unstored:
            return
        absent: list[int] = []
        present: list[int] = []
        for number in self._unstored:
            page = index.page(number // index.page_entries)
            if page is None or page.resident:
                present.append(number)
            else:
                absent.append(number)
            if len(present) + len(absent) >= self.paged_out_max:
                break
        self._store(present)
        if absent and not self._fetches:
            self._fetches += 1
            _PageOut(self, index, absent).begin()

    def _store(self, numbers: list[int]) -> None:
        """Have messages stored that are only in memory; their pages are resident, or do not exist yet."""
        index = self.index
        assert index is not None
        for number in numbers:
            if self.log.room_to_page() <= 0:
                return  # the rest is stored in another turn
            message = self._in_memory.get(number)
            if message is not None and number in self._unstored:
                del self._unstored[number]
                self.log.batch.add(index, message, number)
                self._kept.append(number)
                self._kept_bytes += message.memory_bytes
                self._storing = True

    def pages_here(self, fetch: Fetch) -> None:
        """Store messages that are only in memory: their pages were read."""
        if self.index is not None and self.log.under_pressure:
            self._store(fetch.numbers)
        self.fetch_ended(fetch)

    def _give_up(self, *, entered: bool) -> None:
        """Give up the memory of stored messages. `entered`: all rows have entries, a batch was closed just now."""
        if entered and not self._unstored:
            self.log.resident_bytes -= self._kept_bytes
            self._resident_bytes = 0
            self._in_memory = {}
            self._kept = []
            self._kept_bytes = 0
            self._offer_pages()
            return
        left: list[int] = []
        for number in self._kept:
            message = self._in_memory.get(number)
            if message is None:
                continue
            if message.row >= 0:
                left.append(number)  # it is in the open batch, for us or for another queue
            else:
                self._forget(number, message)
        self._kept = left
        self._offer_pages()

    def _forget(self, number: int, message: Message) -> None:
        del self._in_memory[number]
        cost: i64 = message.memory_bytes
        self.log.resident_bytes -= cost
        self._resident_bytes -= cost
        if number in self._unstored:
            del self._unstored[number]
        else:
            self._kept_bytes -= cost

    def _offer_pages(self) -> None:
        """Offer the pages that get no more messages to be given up."""
        index = self.index
        assert index is not None
        index.unload_candidates += self._pages.closed
        self._pages.closed = []

    def _note_loaded(self, page_numbers: list[int]) -> None:
        index = self.index
        assert index is not None
        loaded = self._loaded
        loaded += page_numbers
        if len(loaded) > self.loaded_pages_max:
            half = len(loaded) // 2
            index.unload_candidates += loaded[:half]
            del loaded[:half]

    def _unload(self) -> None:
        index = self.index
        assert index is not None
        if self._fetches or self._storing or not index.unload_candidates:
            return
        opened = self._pages.open
        # Compaction offers the pages that it has looked at.
        index.unload_candidates = [number for number in index.unload_candidates if number not in opened]
        index.unload(index.first_page, self._pages.next_number // index.page_entries)

    # --- out ------------------------------------------------------------------------------------------------------

    def release_due(self, now_ms: i64) -> None:
        """Release some due messages: at once when they are in memory, else when they have been read."""
        deadlines = self._deadlines
        if self.first_ms() > now_ms:
            return
        own = self.log.own
        if not own.may(WRITES):
            self._waits = True
            own.call_when_open(_Waiter(self))
            return
        most: i64 = self.taken_max
        purpose: i64 = DUE
        if self._sweep_left:
            purpose = self._sweep_purpose
            if self._sweep_left < most:
                most = self._sweep_left
        numbers: list[int] = []
        room: i64 = own.room()
        while len(numbers) < most and not deadlines.is_empty() and deadlines.first_ms() <= now_ms and room > 0:
            number = int(deadlines.first_number())
            numbers.append(number)
            deadlines.remove_first()
            message = self._in_memory.get(number)
            if message is not None:
                room -= message.memory_bytes
        if self._sweep_left:
            self._sweep_left -= len(numbers)
        own.begin()
        try:
            self.take(numbers, purpose)
        finally:
            own.end()

    def written(self) -> None:
        """Continue: there is room in the batch."""
        self._waits = False
        self.changed()

    def take(self, numbers: list[int], purpose: i64, told: Callable[[int], None] | None = None) -> None:
        """Release, drop or dead-letter messages whatever their time, in this order.

        `told` gets how many of them were held, when all is done: at once, or after they have been read.

        Raises:
            ValueError: they cannot be dead-lettered; nothing is taken.
        """
        self._check_purpose(purpose)
        index = self.index
        missing = False
        if index is not None:
            for number in numbers:
                if self._is_missing(index, number):
                    missing = True
                    break
        if missing and index is not None:
            self._fetches += 1
            _Taking(self, index, numbers, purpose, told).begin()
            return
        count = 0
        in_memory = self._in_memory
        for number in numbers:
            message = in_memory.pop(number, None)
            if message is not None:
                self._let_go(number, message, purpose, True)
                count += 1
        self._forget_stale()
        if told is not None:
            told(count)

    def take_all(self, purpose: i64) -> None:
        """Release or dead-letter everything that is held now, a piece at a time, in the order of the times.

        Messages that are not taken before the process ends stay held. To drop everything see `clear`.

        Raises:
            ValueError: they cannot be dead-lettered; nothing is taken.
        """
        self._check_purpose(purpose)
        deadlines = self._deadlines
        if len(deadlines) > 0:
            ahead_ms: i64 = deadlines.latest_ms() - self.log.now_ms
            if ahead_ms > 0:
                deadlines.bring_forward(ahead_ms)
        self._sweep_left = len(deadlines)
        self._sweep_purpose = purpose
        self._sweeps_scan = self.scanning
        self.changed()

    def _check_purpose(self, purpose: i64) -> None:
        if purpose == DEAD_LETTERED and not self.may_dead_letter():
            raise ValueError("there is no dead letter exchange")

    def _is_missing(self, index: QueueIndex, number: i64) -> bool:
        """Tell whether the disk has to be read first: for the message, or for the page of its entry."""
        page = index.page(number // index.page_entries)
        if page is None:
            return False
        if not page.resident:
            return True
        return index.lsn_of(number) != 0 and int(number) not in self._in_memory

    def _let_go(self, number: int, message: Message, purpose: i64, was_in_memory: bool) -> None:
        purpose = self.decide(number, message, purpose)
        if purpose == STAYS:
            if was_in_memory:
                self._in_memory[number] = message
            return
        index = self.index
        cost: i64 = message.memory_bytes
        if was_in_memory:
            self.log.resident_bytes -= cost
            self._resident_bytes -= cost
        if index is not None:
            if number in self._unstored:
                del self._unstored[number]
            else:
                if was_in_memory:
                    self._kept_bytes -= cost
                self.log.batch.settle(index, message, number)
        self.count -= 1
        self.body_bytes -= message.body_bytes
        if purpose == DROPPED:
            return
        if was_in_memory and (message.row >= 0 or not message.sole):
            # The other queues that it went to, or the open batch, still have it with its time in it.
            message = message.copy()
        message.time_ms = 0
        if number < self.delivered_before:
            message.attempts = 1
        if purpose == RELEASED:
            self.released(message)
        else:
            self.dead_lettered(message)

    def taken(self, fetch: _Taking, messages: list[Message | None]) -> None:
        """Let the messages go that were read to be taken, or the first of them."""
        index = self.index
        own = self.log.own
        if fetch.purpose != DROPPED and not own.may(WRITES):
            own.call_when_open(_Fetched(fetch, messages))  # an alarm has come during the read
            return
        if index is not None:
            own.begin()
            try:
                self._let_go_of_fetched(index, fetch, messages)
            finally:
                own.end()
            self._forget_stale()
            if fetch.left and not own.may(WRITES):
                own.call_when_open(_Rest(fetch))
                return
            if fetch.goes_on():
                return
        self.fetch_ended(fetch)
        if fetch.told is not None:
            fetch.told(int(fetch.count))

    def _let_go_of_fetched(self, index: QueueIndex, fetch: _Taking, messages: list[Message | None]) -> None:
        for number, fetched in zip(fetch.numbers, messages, strict=True):
            message = self._in_memory.pop(number, None)
            was_in_memory = message is not None
            if message is None and index.lsn_of_resident(number) != 0:
                message = fetched
                if message is None:
                    self._lose(index, number)
            if message is not None:
                self._let_go(number, message, fetch.purpose, was_in_memory)
                fetch.count += 1

    def _forget_stale(self) -> None:
        """Forget deadlines of messages that have left before their time, see (5)."""
        if self._sweep_left:
            return  # they are counted
        deadlines = self._deadlines
        while not deadlines.is_empty() and not self._may_hold(deadlines.first_number()):
            deadlines.remove_first()
        count: i64 = len(deadlines)
        if count <= 2 * self.count + STALE_MIN or count <= self._tidy_above:
            return
        held = Deadlines()
        while not deadlines.is_empty():
            number: i64 = deadlines.first_number()
            if self._may_hold(number):
                held.add(deadlines.first_ms(), number)
            deadlines.remove_first()
        self._deadlines = held
        self._tidy_above = 2 * len(held)  # some pages are not in memory: their messages are unknown

    def fetch_ended(self, fetch: Fetch) -> None:
        """Note that pages need not be kept for this read any longer."""
        self._fetches -= 1
        if self.index is not None:
            self._note_loaded(fetch.loaded)
            self._unload()
            self.changed()

    def _lose(self, index: QueueIndex, number: i64) -> None:
        """Count a stored message that is damaged. Its entry stays: evidence is not tidied away."""
        page = index.page(number // index.page_entries)
        assert page is not None
        self._lost += 1
        self.count -= 1
        self.body_bytes -= page.entries[2 * (number % index.page_entries) + 1] & BODY_MASK

    def given_up(self, count: i64, body_bytes: i64) -> None:
        self._lost -= count

    def page_damaged(self, page: IndexPage) -> None:
        """Count the messages of a damaged index page that are not also in memory: they are lost."""
        index = self.index
        if index is None:
            return
        self.log.report_damage(index, -1, page.lsn)
        number: i64 = (index.first_page + index.pages.index(page)) * index.page_entries
        end: i64 = number + index.page_entries
        self.count -= page.live
        self.body_bytes -= page.body_bytes
        index.lose_page(page)
        while number < end:
            message = self._in_memory.get(int(number))
            if message is not None and int(number) not in self._unstored:
                self.count += 1
                self.body_bytes += message.body_bytes
                index.note_ack(number)
                self.log.batch.add(index, message, number)
            number += 1

    # --- after a restart --------------------------------------------------------------------------------------------

    def known(self, number: i64, time_ms: i64) -> None:
        """Note a deadline that was read from disk; look into one that makes no sense at once."""
        if self._sweeps_scan:
            time_ms = self.log.now_ms
            self._sweep_left += 1
        elif not 0 < time_ms <= PARKED_UNTIL:
            time_ms = self.log.now_ms
        self._deadlines.add(time_ms, number)

    def scanned(self) -> None:
        """Note that all deadlines are known again."""
        self.scanning = False
        self._sweeps_scan = False
        self.changed()

    # --- for operators --------------------------------------------------------------------------------------------

    def list_earliest(self, most: int, told: Callable[[list[HeldMessage]], None]) -> None:
        """Tell the `most` earliest held messages, in order: at once, or after they have been read.

        While `scanning` there may be earlier ones that are not known yet.
        """
        self.list_numbered(self._earliest_numbers(most), told)

    def _earliest_numbers(self, most: int) -> list[int]:
        asked = most
        while True:
            listed = self._deadlines.earliest(asked)
            numbers = list(dict.fromkeys([number for _, number in listed if self._may_hold(number)]))
            if len(numbers) >= most or len(listed) < asked:
                return numbers[:most]
            asked *= 2

    def end_number(self) -> int:
        """Return a number that is above all that are held now."""
        return int(self._pages.next_number)

    def numbers_from(self, first: i64, most: int) -> tuple[list[int], int]:
        """Return at most `most` numbers that may be held, from `first` on in order, and the number to continue at.

        Nothing is read, and at most `LOOKED_AT_MAX` numbers are looked at: the list may be empty. Parked messages come
        in the order in which they were parked.
        """
        numbers: list[int] = []
        number: i64 = first
        if self.index is not None and number < self.index.first_page * self.index.page_entries:
            number = self.index.first_page * self.index.page_entries
        end: i64 = number + LOOKED_AT_MAX
        if end > self._pages.next_number:
            end = self._pages.next_number
        while number < end and len(numbers) < most:
            if self._may_hold(number):
                numbers.append(int(number))
            number += 1
        return numbers, int(number)

    def list_numbered(self, numbers: list[int], told: Callable[[list[HeldMessage]], None]) -> None:
        """Tell those of the messages with these numbers that are still held: at once, or after they have been read."""
        index = self.index
        if index is None:
            told([HeldMessage(number, self._in_memory[number]) for number in numbers if number in self._in_memory])
            return
        self._fetches += 1
        _Listing(self, index, numbers, told).begin()

    def _may_hold(self, number: i64) -> bool:
        """Tell whether a message may be held, according to the pages in memory."""
        if int(number) in self._in_memory:
            return True
        index = self.index
        page = None if index is None else index.page(number // index.page_entries)
        return index is not None and page is not None and (not page.resident or index.lsn_of(number) != 0)

    def listed(self, fetch: _Listing, messages: list[Message | None]) -> None:
        """Tell the messages that were read for a list, or read the rest first."""
        for number, fetched in zip(fetch.numbers, messages, strict=True):
            message = self._in_memory.get(number, fetched)
            if message is not None:
                fetch.found.append(HeldMessage(number, message))
        if not fetch.goes_on():
            self.fetch_ended(fetch)
            fetch.told(fetch.found)

    def check_invariants(self) -> None:
        """Assert that counts agree. For tests, while nothing is in the open batch."""
        index = self.index
        if index is None:
            assert self.count == len(self._in_memory)
            return
        assert self.count == int(index.live_count) + len(self._unstored) - self._lost
        assert self._kept_bytes >= 0
        kept = [number for number in self._in_memory if number not in self._unstored]
        assert set(kept) <= set(self._kept)
        cost = sum(int(self._in_memory[number].memory_bytes) for number in kept)
        assert self._kept_bytes == cost
        cost = sum(int(message.memory_bytes) for message in self._in_memory.values())
        assert self._resident_bytes == cost


class _HeldFetch(Fetch):
    """Reads messages of `held`, which counts lost ones."""

    def __init__(self, held: HeldMessages, index: QueueIndex, numbers: list[int]) -> None:
        super().__init__(held.log, index, numbers, held.taken_max_bytes)
        self.held = held

    def page_damaged(self, page: IndexPage) -> None:
        self.held.page_damaged(page)


class _Taking(_HeldFetch):
    """Reads messages to be taken; ``count``: how many of them were still held."""

    def __init__(
        self,
        held: HeldMessages,
        index: QueueIndex,
        numbers: list[int],
        purpose: i64,
        told: Callable[[int], None] | None,
    ) -> None:
        super().__init__(held, index, numbers)
        self.purpose: i64 = purpose
        room: i64 = held.log.own.room()
        if purpose != DROPPED and room < self._most_bytes:
            self._most_bytes = room if room > 0 else 1  # one message at least is read
        self.told = told
        self.count: i64 = 0

    def fetched(self, messages: list[Message | None]) -> None:
        self.held.taken(self, messages)


class _Listing(_HeldFetch):
    """Reads messages for a list."""

    def __init__(
        self, held: HeldMessages, index: QueueIndex, numbers: list[int], told: Callable[[list[HeldMessage]], None]
    ) -> None:
        super().__init__(held, index, numbers)
        self.told = told
        self.found: list[HeldMessage] = []

    def fetched(self, messages: list[Message | None]) -> None:
        self.held.listed(self, messages)


class _PageOut(_HeldFetch):
    """Reads the index pages for the entries of messages that are paged out."""

    def fetched(self, messages: list[Message | None]) -> None:
        self.held.pages_here(self)


class _Fetched(IndexOwner):
    """Has messages that were read for `fetch` taken."""

    def __init__(self, fetch: _Taking, messages: list[Message | None]) -> None:
        self._fetch = fetch
        self._messages = messages

    def batch_closed(self) -> None:
        self._fetch.fetched(self._messages)


class _Rest(IndexOwner):
    """Has `fetch` read and take the rest."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def batch_closed(self) -> None:
        self._fetch.goes_on()


class _Waiter(IndexOwner):
    """Tells `held` when something may be written."""

    def __init__(self, held: HeldMessages) -> None:
        self._held = held

    def batch_closed(self) -> None:
        self._held.written()


class _DeadlineScan(TimeScan):
    def __init__(self, held: HeldMessages, index: QueueIndex) -> None:
        super().__init__(held.log, index, 0, whole=False)
        self._held = held

    def found(self, number: i64, time_ms: i64, data: bytes) -> None:
        self._held.known(number, time_ms)

    def unreadable(self, number: i64) -> None:
        self._held.known(number, 0)

    def page_damaged(self, page: IndexPage) -> None:
        self._held.page_damaged(page)

    def paused(self) -> None:
        self._held.changed()

    def ended(self) -> None:
        self._held.scanned()
