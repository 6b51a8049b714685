"""Looks at the messages that wait in a queue, anywhere in it, on disk or in memory, without changing it.

A look goes through the places of a queue, lane by lane. In each lane the order is that of delivery, except for messages
that were delivered out of turn and came back (``queues.selective``):

    returned messages, and in a key-shared queue those set aside, by place
    the backlog, by sequence number: of a stream the sealed part; head, middle (on disk), tail

1. Nothing changes: neither order nor counts nor `redelivered`. Index pages that had to be loaded are given up again. A
   damaged message counts as waiting until a reader takes it out and finds the damage.
2. A cursor is a lane, a part of it, and the first number in that part that has not been looked at. Between two looks
   messages may come and go. A message is seen twice only if it came back, and one that stays where it is is not missed.
   A message that is set aside meanwhile has left the backlog, and may be missed.
3. Skipping costs a look at each message in memory and at each page of the index, not at each message on disk: only in
   the page where skipping ends are messages read.
4. One look reads at most `READ_BYTES_MAX`, or one message, and passes over at most `PASSED_MAX`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import IndexPage, QueueIndex
from warren.queues.backlog import Backlog
from warren.queues.base_queue import BaseQueue
from warren.queues.fetch import Fetch
from warren.queues.lanes import LANE_SHIFT, NUMBER_MASK
from warren.queues.queue import Queue

READ_BYTES_MAX: Final = 8 << 20
# How many messages in memory, or pages of an index, one look passes over.
PASSED_MAX: Final = 4096


class Seen:
    """A waiting message: where it is, and whether it may have been delivered before."""

    def __init__(self, place: int, message: Message, redelivered: bool) -> None:
        self.place = place
        self.message = message
        self.redelivered = redelivered


class Cursor:
    """Where a look continues: a lane, the next `number` in it, and how many messages must be skipped first.

    `in_backlog`: the returned messages have been looked at.
    """

    def __init__(self, skip: int = 0) -> None:
        self.lane: i64 = 0
        self.in_backlog: bool = False
        self.number: i64 = 0
        self.skip: i64 = skip
        self.ended: bool = False

    def next_lane(self, count: int) -> None:
        """Continue with the next lane; there are `count`."""
        self.lane += 1
        self.in_backlog = False
        self.number = 0
        if self.lane >= count:
            self.ended = True


# Gets the messages that were seen, in order. They may be fewer than asked for before the cursor has ended, when there
# was much to read or to skip.
Told = Callable[[list[Seen]], None]


def look(queue: BaseQueue, cursor: Cursor, most: int, told: Told) -> None:
    """Report the next messages, `most` at most, and move the cursor: immediately, or when they have been read.

    A cursor must not be used for two looks at once. A queue that is deleted during the read tells nothing, at the end.
    """
    found: list[Seen] = []
    ready = queue.ready
    lanes = ready.lane_count
    passes: i64 = PASSED_MAX
    while not cursor.ended and len(found) < most and passes > 0:
        if not cursor.in_backlog:
            passes -= _look_at_returned(queue, cursor, passes, most, found)
            continue
        backlog = ready.backlog(cursor.lane)
        sealed_end = backlog.sealed_end()
        if cursor.number < sealed_end:
            if found:
                break  # first tell the messages found here
            cursor.number, cursor.skip = backlog.skip_sealed(cursor.number, cursor.skip)
            if cursor.number < sealed_end:
                backlog.look_sealed(cursor.number, int(cursor.skip) + most, _SealedTold(queue, cursor, told).seen)
                return
            continue
        head, middle_end = backlog.on_disk()
        if cursor.number < head:
            passes -= _look_at_memory(backlog, cursor, head, passes, most, found)
        elif cursor.number < middle_end:
            if cursor.skip > 0:
                passes -= _skip_on_disk(backlog, cursor, middle_end, passes)
                if passes <= 0:
                    break
            if cursor.number < middle_end:
                if found:
                    break  # first tell the messages found here
                if _look_at_disk(queue, backlog, cursor, most, told):
                    return
        elif cursor.number < backlog.next_number:
            passes -= _look_at_memory(backlog, cursor, backlog.next_number, passes, most, found)
        else:
            cursor.next_lane(lanes)
    told(found)


class _SealedTold:
    """Tells the messages that a look sees in the sealed part of a stream."""

    def __init__(self, queue: BaseQueue, cursor: Cursor, told: Told) -> None:
        self._queue = queue
        self._cursor = cursor
        self._told = told

    def seen(self, messages: list[tuple[int, Message]], following: int) -> None:
        cursor = self._cursor
        if self._queue.deleted:
            cursor.ended = True
            self._told([])
            return
        skipped = min(int(cursor.skip), len(messages))
        cursor.skip -= skipped
        cursor.number = following
        self._told([Seen(number, message, False) for number, message in messages[skipped:]])


def _look_at_returned(queue: BaseQueue, cursor: Cursor, passes: i64, most: int, found: list[Seen]) -> i64:
    """Continue in the returned messages of a lane; return how many were looked at."""
    wanted: i64 = most - len(found) + cursor.skip
    if wanted > passes:
        wanted = passes
    lane_bits: i64 = cursor.lane << LANE_SHIFT
    returned = queue.ready.returned.between(lane_bits | cursor.number, lane_bits + NUMBER_MASK, int(wanted))
    for place, message in returned:
        cursor.number = (place & NUMBER_MASK) + 1
        if cursor.skip > 0:
            cursor.skip -= 1
        else:
            found.append(Seen(place, message, queue.ready.returned.may_have_been_delivered(place)))
    if len(returned) < wanted:
        cursor.in_backlog = True
        cursor.number = 0
    return len(returned)


def _look_at_memory(backlog: Backlog, cursor: Cursor, end: i64, passes: i64, most: int, found: list[Seen]) -> i64:
    """Continue in the head or the tail, up to `end`; return how many numbers were looked at."""
    lane_bits: i64 = cursor.lane << LANE_SHIFT
    number: i64 = cursor.number
    passed: i64 = 0
    while number < end and passed < passes and len(found) < most:
        message = backlog.find(number)
        if message is not None:
            if cursor.skip > 0:
                cursor.skip -= 1
            else:
                found.append(_seen(backlog, lane_bits, number, message))
        passed += 1
        number += 1
        if message is None and number < end:
            number = _next_resident(backlog, number, end)
    cursor.number = number
    return passed


def _next_resident(backlog: Backlog, number: i64, end: i64) -> i64:
    """Return the next number that may be in memory, `end` when it would not be before `end`."""
    head = backlog.head
    if head.count and number < head.first:
        number = head.first
    elif (head.count == 0 or number >= head.end()) and number < backlog.tail_from():
        number = backlog.tail_from()
    return number if number < end else end


def _seen(backlog: Backlog, lane_bits: i64, number: i64, message: Message) -> Seen:
    return Seen(int(lane_bits | number), message, number < backlog.delivered_before or message.attempts > 0)


def _skip_on_disk(backlog: Backlog, cursor: Cursor, end: i64, passes: i64) -> i64:
    """Skip whole pages of the middle, and single entries of pages in memory; return how many were looked at."""
    index = backlog.index
    assert index is not None
    size: i64 = index.page_entries
    number: i64 = cursor.number
    passed: i64 = 0
    while number < end and cursor.skip > 0 and passed < passes:
        passed += 1
        page_end: i64 = (number // size + 1) * size
        page = index.page(number // size)
        is_whole = number % size == 0 and page_end <= end and not backlog.middle.has_taken_of(number // size)
        if page is None:
            number = page_end
        elif is_whole and cursor.skip >= page.live:
            cursor.skip -= page.live
            number = page_end
        elif page.resident:
            stop: i64 = page_end if page_end < end else end
            while number < stop and cursor.skip > 0:
                if backlog.middle.has(number):
                    cursor.skip -= 1
                number += 1
        else:
            break
    cursor.number = number if number < end else end  # no page is there from the last of the middle on
    return passed


def _look_at_disk(queue: BaseQueue, backlog: Backlog, cursor: Cursor, most: int, told: Told) -> bool:
    """Continue in the middle; True when a read is under way, and will be told."""
    index = backlog.index
    assert index is not None
    numbers, cursor.number = backlog.middle.numbers_from(cursor.number, most)
    if not numbers:
        return False
    _DiskLook(queue, backlog, index, numbers, cursor, most, told).begin()
    return True


class _DiskLook(Fetch):
    """Reads messages of the middle of a lane for a look."""

    def __init__(
        self,
        queue: BaseQueue,
        backlog: Backlog,
        index: QueueIndex,
        numbers: list[int],
        cursor: Cursor,
        most: int,
        told: Told,
    ) -> None:
        super().__init__(backlog.log, index, numbers, READ_BYTES_MAX)
        self.queue = queue
        self.backlog = backlog
        self.cursor = cursor
        self.most = most
        self.told = told

    def fetched(self, messages: list[Message | None]) -> None:
        """Report the messages that still wait where they were."""
        cursor = self.cursor
        if self.queue.deleted:
            cursor.ended = True
            self.told([])
            return
        found: list[Seen] = []
        lane_bits: i64 = cursor.lane << LANE_SHIFT
        backlog = self.backlog
        if self.left:
            cursor.number = self.left[0]
        for number, message in zip(self.numbers, messages, strict=True):
            waiting = message if backlog.middle.may_have(number) else backlog.find(number)
            if waiting is not None:
                if cursor.skip > 0:
                    cursor.skip -= 1
                elif len(found) == self.most:
                    cursor.number = number
                    break
                else:
                    found.append(_seen(backlog, lane_bits, number, waiting))
        self.told(found)
        backlog.offer_loaded(self.loaded)

    def page_damaged(self, page: IndexPage) -> None:
        """Do nothing: the backlog counts its lost messages when it reads the page itself."""

    def message_damaged(self, number: i64, lsn: i64) -> None:
        """Do nothing, for the same reason."""


# --- taking out -------------------------------------------------------------------------------------------------------


def still_waits(queue: BaseQueue, seen: Seen) -> bool:
    """Tell whether a message that a look has told in this call still waits where it was."""
    ready = queue.ready
    return not queue.deleted and (ready.maybe_waiting(seen.place) is not None or ready.is_on_disk(seen.place))


def settle_seen(queue: BaseQueue, seen: Seen) -> None:
    """Take a message out and forget it; `still_waits` has said that it is there."""
    ready = queue.ready
    if ready.maybe_take_out(seen.place) is None:
        taken = ready.take_out(seen.place, seen.message.body_bytes)
        assert taken
    ready.settle(seen.message, seen.place)
    if isinstance(queue, Queue):
        queue.look_again()
