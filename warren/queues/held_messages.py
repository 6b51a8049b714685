"""Messages that are held until their time: delayed ones, those that wait for another try, and parked ones.

A lane of a queue or exchange besides its backlog, with an index of its own in the log. Stored messages leave memory
except for their deadlines (16 bytes each), so that millions can be held for years.

1. A held message is neither ready nor unacked; `count` is their number.
2. The record of a held message carries the time until which it is held. After a restart the deadlines are read from
   the records, a few pages at a time; until that is done the earliest may come late, never early.
3. When its time has come a message is given to `released`, in the order of the times, one piece under way at a time.
   It is settled here in the same turn, so that it is in exactly one place after a crash. A message that stays by
   `decide` keeps its record and gets another time: the record has an earlier one, so after a restart it may come early.
   It is settled after its release: one whose release fails stays, and is tried again.
4. A parked message has the time `PARKED_UNTIL`: it waits until an operator takes it.
5. ``queues.held_memory`` has the messages in memory and knows the index pages; ``queues.held_times`` has the deadlines.
6. Released messages wait for the disk, and for space on it (``msgstore.log.own_writes``): a million messages that are
   due at once must not become the open batch. They wait for the next turn when this one has had its share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.own_writes import WRITES, OwnWrites
from warren.msgstore.log.queue_index import BODY_MASK, IndexOwner, IndexPage, QueueIndex
from warren.queues.fetch import Fetch, TimeScan
from warren.queues.held_memory import HeldMemory
from warren.queues.held_times import HeldTimes
from warren.queues.timers import NEVER

PARKED_UNTIL: Final = 1 << 61
# How many messages are taken at once, and how many bytes from disk. A new lane begins with these.
TAKEN_MAX: Final = 512
TAKEN_MAX_BYTES: Final = 1 << 20
# From this number on messages are numbered by their times (``queues.due_pages``).
SORTED_FROM: Final = 65536
# How many numbers are looked at in one go, for those that are held.
LOOKED_AT_MAX: Final = 4096
# A message whose routing takes too many steps is tried again after this time: the bindings may be others.
UNROUTED_RETRY_MS: Final = 60_000
# The fate of a message that is taken.
RELEASED: Final = 0
DROPPED: Final = 1
DEAD_LETTERED: Final = 2
# Passed to `decide`, and returned by it.
DUE: Final = 3  # its time has come, and is no longer noted
STAYS: Final = 4
WAITS: Final = 5  # it goes to very many queues, and the batch cannot be held open for it: again after this batch


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
        self.sorted_from: i64 = SORTED_FROM
        self.index: QueueIndex | None = None
        self.count: i64 = 0
        self.body_bytes: i64 = 0
        self.scanning: bool = False  # not all deadlines are known yet after a restart
        self.delivered_before: i64 = 0  # older messages may have been ready, and delivered, before the last restart
        self.memory = HeldMemory(log)
        self.times = HeldTimes(self.memory)
        self.is_spreading: bool = False  # the last one is on its way to very many queues: others must not overtake it
        self._waits: bool = False  # for the log to write the released messages, or for the next turn
        self._lost: i64 = 0  # damaged messages whose entries are still there

    def released(self, message: Message) -> None:
        """Take a message whose time has come, or that is released early."""
        raise AssertionError("overridden")

    def decide(self, number: int, message: Message, purpose: i64) -> i64:
        """Return the fate of a message that is about to be taken: `purpose`, or `STAYS` if its time was noted again.

        After `WAITS` it is asked about again, before the others.
        """
        return RELEASED if purpose == DUE else purpose

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
        if self.memory.reads or self._waits:
            return NEVER
        time_ms: i64 = self.times.first_ms()
        return NEVER if time_ms >= PARKED_UNTIL else time_ms

    # --- in -------------------------------------------------------------------------------------------------------

    def hold(self, message: Message, until_ms: i64, stored: bool) -> int:
        """Hold `message` and return its number; `stored`: the index is there, and it goes into the log.

        All other holders of the message hold it until the same time: the time is in the message.
        """
        index = self.index
        first_page: i64 = 0 if index is None else index.first_page
        sorts = stored and self.count >= self.sorted_from
        number = int(self.memory.pages.take(until_ms, self.log.now_ms, first_page, sorts))
        message.time_ms = until_ms
        self.count += 1
        self.body_bytes += message.body_bytes
        self.times.add(until_ms, number)
        self.memory.add(number, message, stored)
        return number

    def begin_storing(self, index: QueueIndex) -> None:
        """Take the index that the messages are stored in."""
        self.index = index
        index.owner = self
        self.memory.begin_storing(index)

    def restore(self, index: QueueIndex, *, clean: bool = True) -> None:
        """Take over the messages that recovery found; after an unclean stop some may have been released before."""
        self.begin_storing(index)
        self.delivered_before = index.delivered_below if clean else index.next_number
        size: i64 = index.page_entries
        # The page of the next number may be absent: later messages in this page were not stored.
        end: i64 = (index.next_number + size - 1) // size * size
        self.memory.pages.next_number = end
        self.count = index.live_count
        self.body_bytes = index.live_body_bytes
        page_number: i64 = index.first_page
        while page_number * size < end:
            index.unload_candidates.append(int(page_number))
            page_number += 1
        self.memory.unload()
        self.scanning = True
        _DeadlineScan(self, index).advance()

    def close(self) -> None:
        """Release everything: the owner is deleted."""
        if self.index is not None:
            self.log.delete_queue(self.index)
            self.index = None
            self.memory.index = None
        self._forget_all()

    def clear(self) -> int:
        """Settle everything, and return how many messages that were."""
        count = int(self.count)
        index = self.index
        if index is not None:
            log = self.log
            for number, message in self.memory.messages.items():
                if message.row >= 0 and index.lsn_of_resident(number) == 0:
                    log.batch.cancel(index, message, number)
            log.batch.settle_range(index, self.memory.first_number(), self.end_number())
        self._forget_all()
        self.changed()
        return count

    def _forget_all(self) -> None:
        self.memory.clear()
        self.times.clear()
        self._lost = 0
        self.count = 0
        self.body_bytes = 0

    # --- to disk --------------------------------------------------------------------------------------------------

    def batch_closed(self) -> None:
        """Release stored messages from memory."""
        if self.index is not None:
            self.memory.batch_closed()

    def delivered_below(self) -> int:
        return int(self.delivered_before)

    def in_memory_count(self) -> int:
        """Return how many messages are in memory."""
        return len(self.memory.messages)

    def needs_index(self) -> bool:
        """Tell whether `page_out` could store something if there were an index."""
        return self.index is None and self.log.under_pressure and len(self.memory.messages) > 0

    def page_out(self) -> None:
        """Give up stored messages, as memory is short; with an index have some of the others stored."""
        index = self.index
        if index is None:
            return
        absent = self.memory.page_out()
        if absent and not self.memory.reads:
            self.memory.reads += 1
            _PageOut(self, index, absent).begin()

    def pages_here(self, fetch: Fetch) -> None:
        """Store messages that are only in memory: their pages were read."""
        if self.index is not None and self.log.under_pressure:
            self.memory.store(fetch.numbers)
        self.fetch_ended(fetch)

    # --- out ------------------------------------------------------------------------------------------------------

    def release_due(self, now_ms: i64) -> i64:
        """Release some due messages: at once when they are in memory, else when they have been read.

        Returns how much work that was, as timers count it.
        """
        if self.first_ms() > now_ms:
            return 0
        own = self.log.own
        if not own.may(WRITES):
            self._waits = True
            own.call_when_open(_Waiter(self))
            return 0
        times = self.times
        purpose: i64 = times.sweep_purpose if times.sweep_left else i64(DUE)
        numbers = times.take_due(now_ms, self.taken_max, own.room())
        before: i64 = own.given
        own.begin()
        try:
            self.take(numbers, purpose)
        finally:
            own.end()
        return len(numbers) + own.given - before

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
        self.take_more(numbers, purpose, told, 0)

    def take_more(self, numbers: list[int], purpose: i64, told: Callable[[int], None] | None, count: i64) -> None:
        """Take messages; `count` others of the same request have been taken."""
        index = self.index
        memory = self.memory
        if index is not None and memory.lacks(numbers):
            self.memory.reads += 1
            taking = _Taking(self, index, numbers, purpose, told)
            taking.count = count
            taking.begin()
            return
        own = self.log.own
        for at, number in enumerate(numbers):
            if purpose != DROPPED and (self.is_spreading or not own.may_give()):
                self._waits = True
                own.call_when_open(_TakingRest(self, numbers[at:], purpose, told, count))
                return
            message = memory.messages.pop(number, None)
            if message is not None:
                try:
                    gone = self._let_go(number, message, purpose, True)
                except BaseException:
                    if told is None:
                        self.times.put_off(numbers[at:], self.log.now_ms, is_sweep=purpose != DUE)
                    raise
                if not gone:
                    self._waits = True
                    rest = _TakingRest(self, numbers[at:], purpose, told, count)
                    self.log.call_when_written(_AfterBatch(own, rest))
                    return
                count += 1
        self.times.forget_stale(self.count)
        if told is not None:
            told(int(count))

    def take_all(self, purpose: i64) -> None:
        """Release or dead-letter everything that is held now, a piece at a time, in the order of the times.

        Messages that are not taken before the process ends stay held. To drop everything see `clear`.

        Raises:
            ValueError: they cannot be dead-lettered; nothing is taken.
        """
        self._check_purpose(purpose)
        self.times.sweep(purpose, self.log.now_ms, is_scanning=self.scanning)
        self.changed()

    def _check_purpose(self, purpose: i64) -> None:
        if purpose == DEAD_LETTERED and not self.may_dead_letter():
            raise ValueError("there is no dead letter exchange")

    def _let_go(self, number: int, message: Message, purpose: i64, was_in_memory: bool) -> bool:
        """Release a message, as is decided; False: that has to wait."""
        try:
            purpose = self.decide(number, message, purpose)
        except BaseException:
            if was_in_memory:
                self.memory.messages[number] = message
            raise
        if purpose in (STAYS, WAITS):
            if was_in_memory:
                self.memory.messages[number] = message
            return purpose == STAYS
        if purpose != DROPPED:
            # The other queues that it went to, or the open batch, still have one in memory with its time in it.
            is_shared = was_in_memory and (message.row >= 0 or not message.sole)
            given = message.copy() if is_shared else message
            until_ms: i64 = message.time_ms
            given.time_ms = 0
            if number < self.delivered_before:
                given.attempts = 1
            try:
                if purpose == RELEASED:
                    self.released(given)
                else:
                    self.dead_lettered(given)
            except BaseException:
                given.time_ms = until_ms
                if was_in_memory:
                    self.memory.messages[number] = message
                raise
        index = self.index
        is_stored = not was_in_memory or self.memory.left(number, message)
        if is_stored and index is not None:
            self.log.batch.settle(index, message, number)
        self.count -= 1
        self.body_bytes -= message.body_bytes
        return True

    def taken(self, fetch: _Taking, messages: list[Message | None]) -> None:
        """Release the messages that were read to be taken, or the first of them."""
        index = self.index
        own = self.log.own
        if fetch.purpose != DROPPED and (self.is_spreading or not (own.may(WRITES) and own.may_give())):
            own.call_when_open(_Fetched(fetch, messages))  # an alarm has come during the read, or others had the turn
            return
        if index is not None:
            waits = True
            own.begin()
            try:
                waits = not self._let_go_of_fetched(index, fetch, messages)
            except BaseException:
                self.fetch_ended(fetch)
                if fetch.told is not None:
                    fetch.told(int(fetch.count))
                raise
            finally:
                own.end()
            self.times.forget_stale(self.count)
            if waits:
                self.log.call_when_written(_AfterBatch(own, _Rest(fetch)))
                return
            if fetch.left and (self.is_spreading or not (own.may(WRITES) and own.may_give())):
                own.call_when_open(_Rest(fetch))
                return
            if fetch.fetch_rest():
                return
        self.fetch_ended(fetch)
        if fetch.told is not None:
            fetch.told(int(fetch.count))

    def _let_go_of_fetched(self, index: QueueIndex, fetch: _Taking, messages: list[Message | None]) -> bool:
        own = self.log.own
        for at, number in enumerate(fetch.numbers):
            if fetch.purpose != DROPPED and (self.is_spreading or not own.may_give()):
                fetch.left = fetch.numbers[at:] + fetch.left  # to be read again in another turn
                return True
            fetched = messages[at]
            message = self.memory.messages.pop(number, None)
            was_in_memory = message is not None
            if message is None and index.lsn_of_resident(number) != 0:
                message = fetched
                if message is None:
                    self._lose(index, number)
            if message is not None:
                try:
                    gone = self._let_go(number, message, fetch.purpose, was_in_memory)
                except BaseException:
                    if fetch.told is None:
                        rest = fetch.numbers[at:] + fetch.left
                        self.times.put_off(rest, self.log.now_ms, is_sweep=fetch.purpose != DUE)
                    raise
                if not gone:
                    fetch.left = fetch.numbers[at:] + fetch.left
                    return False
                fetch.count += 1
        return True

    def fetch_ended(self, fetch: Fetch) -> None:
        """Note that pages need not be kept for this read any longer."""
        self.memory.reads -= 1
        if self.index is not None:
            self.memory.loaded(fetch.loaded)
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
        self.log.damage.report_message(index, -1, page.lsn)
        number: i64 = (index.first_page + index.pages.index(page)) * index.page_entries
        end: i64 = number + index.page_entries
        self.count -= page.live
        self.body_bytes -= page.body_bytes
        index.lose_page(page)
        while number < end:
            message = self.memory.messages.get(int(number))
            if message is not None and int(number) not in self.memory.unstored:
                self.count += 1
                self.body_bytes += message.body_bytes
                index.note_ack(number)
                self.log.batch.add(index, message, number)
            number += 1

    # --- after a restart --------------------------------------------------------------------------------------------

    def known(self, number: i64, time_ms: i64) -> None:
        """Note a deadline that was read from disk; look into one that makes no sense at once."""
        makes_sense = 0 < time_ms <= PARKED_UNTIL
        self.times.found(time_ms if makes_sense else self.log.now_ms, number, self.log.now_ms)

    def scanned(self) -> None:
        """Note that all deadlines are known again."""
        self.scanning = False
        self.times.scanned()
        self.changed()

    # --- for operators --------------------------------------------------------------------------------------------

    def list_earliest(self, most: int, told: Callable[[list[HeldMessage]], None]) -> None:
        """Report the `most` earliest held messages, in order: immediately, or after they have been read.

        While `scanning` there may be earlier ones that are not known yet.
        """
        self.list_numbered(self.times.earliest(most), told)

    def end_number(self) -> int:
        """Return a number that is above all that are held now."""
        return int(self.memory.pages.next_number)

    def numbers_from(self, first: i64, most: int) -> tuple[list[int], int]:
        """Return at most `most` numbers that may be held, from `first` on in order, and the number to continue at.

        Nothing is read, and at most `LOOKED_AT_MAX` numbers are looked at: the list may be empty. Parked messages come
        in the order in which they were parked.
        """
        numbers: list[int] = []
        memory = self.memory
        number: i64 = max(first, memory.first_number())
        end: i64 = min(number + LOOKED_AT_MAX, memory.pages.next_number)
        while number < end and len(numbers) < most:
            if memory.may_hold(number):
                numbers.append(int(number))
            number += 1
        return numbers, int(number)

    def list_numbered(self, numbers: list[int], told: Callable[[list[HeldMessage]], None]) -> None:
        """Report those messages with these numbers that are still held: immediately, or after they have been read."""
        index = self.index
        if index is None:
            here = self.memory.messages
            told([HeldMessage(number, here[number]) for number in numbers if number in here])
            return
        self.memory.reads += 1
        _Listing(self, index, numbers, told).begin()

    def listed(self, fetch: _Listing, messages: list[Message | None]) -> None:
        """Report the messages that were read for a list, or read the rest first."""
        for number, fetched in zip(fetch.numbers, messages, strict=True):
            message = self.memory.messages.get(number, fetched)
            if message is not None:
                fetch.found.append(HeldMessage(number, message))
        if not fetch.fetch_rest():
            self.fetch_ended(fetch)
            fetch.told(fetch.found)

    def check_invariants(self) -> None:
        """Assert that counts agree. For tests, while nothing is in the open batch."""
        memory = self.memory
        memory.check_invariants()
        index = self.index
        if index is None:
            assert self.count == len(memory.messages)
        else:
            assert self.count == int(index.live_count) + len(memory.unstored) - self._lost


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
        self._fetch.fetch_rest()


class _AfterBatch(IndexOwner):
    """Has `waiter` called in a turn after the open batch was closed."""

    def __init__(self, own: OwnWrites, waiter: IndexOwner) -> None:
        self._own = own
        self._waiter = waiter

    def batch_closed(self) -> None:
        self._own.call_when_open(self._waiter)


class _TakingRest(IndexOwner):
    """Has `held` take messages in another turn; `count` others were taken."""

    def __init__(
        self,
        held: HeldMessages,
        numbers: list[int],
        purpose: i64,
        told: Callable[[int], None] | None,
        count: i64,
    ) -> None:
        self._held = held
        self._numbers = numbers
        self._purpose: i64 = purpose
        self._told = told
        self._count: i64 = count

    def batch_closed(self) -> None:
        held = self._held
        held.written()
        own = held.log.own
        own.begin()
        try:
            held.take_more(self._numbers, self._purpose, self._told, self._count)
        finally:
            own.end()


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
