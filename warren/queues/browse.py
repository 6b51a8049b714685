"""Looking at what waits in a queue, anywhere in it, on disk or in memory, without touching it.

A look goes through the places of a queue in the order in which they would leave it:

    stage -1            what came back, and in a key-shared queue what was set aside, by place
    stage 0, 1 ...      the lanes, each by sequence number: head, middle (on disk), tail

1. Nothing changes: neither order nor counts nor `redelivered`. Index pages that had to be loaded are given up again.
2. A cursor is a stage and the first number of it that has not been looked at. Between two looks messages may come and
   go; none is seen twice unless it came back, and none is missed that stays where it is.
3. Skipping costs a look at each message in memory and at each page of the index, not at each message on disk.
4. What one look reads is bounded by `READ_BYTES_MAX`, or one message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.msgstore.message import Message
from warren.msgstore.queue_index import QueueIndex
from warren.queues.backlog import Backlog
from warren.queues.fetch import Fetch
from warren.queues.lanes import LANE_SHIFT, NUMBER_MASK
from warren.queues.queue import Queue

READ_BYTES_MAX: Final = 8 << 20
RETURNED: Final = -1


class Seen:
    """A waiting message: where it is, and whether it may have been delivered before."""

    def __init__(self, place: int, message: Message, redelivered: bool) -> None:
        self.place = place
        self.message = message
        self.redelivered = redelivered


class Cursor:
    """Where a look goes on: `stage`, the next `number` of it, and how many messages are to be passed over before."""

    def __init__(self, skip: int = 0) -> None:
        self.stage: int = RETURNED
        self.number: i64 = 0
        self.skip: i64 = skip
        self.ended: bool = False

    def next_stage(self, count: int) -> None:
        """Go on with the first number of the next stage; there are `count` lanes."""
        self.stage += 1
        self.number = 0
        if self.stage >= count:
            self.ended = True


# Gets what was seen, in order; fewer than asked for although the cursor has not ended when much had to be read.
Told = Callable[[list[Seen]], None]


def look(queue: Queue, cursor: Cursor, most: int, told: Told) -> None:
    """Tell the next messages, `most` at most, and move the cursor: at once, or when they have been read.

    Nobody else looks with this cursor meanwhile. A queue that is deleted while it is read tells nothing, at the end.
    """
    found: list[Seen] = []
    ready = queue.ready
    lanes = ready.lane_count()
    while not cursor.ended and len(found) < most:
        if cursor.stage == RETURNED:
            _look_at_returned(queue, cursor, most, found)
            continue
        backlog = ready.backlog(cursor.stage)
        head, middle_end = backlog.middle()
        if cursor.number < head:
            _look_at_memory(backlog, cursor, head, most, found)
        elif cursor.number < middle_end:
            if found:
                break  # first tell what is here
            if _look_at_disk(queue, backlog, cursor, middle_end, most, told):
                return
        elif cursor.number < backlog.next_number:
            _look_at_memory(backlog, cursor, backlog.next_number, most, found)
        else:
            cursor.next_stage(lanes)
    told(found)


def _look_at_returned(queue: Queue, cursor: Cursor, most: int, found: list[Seen]) -> None:
    wanted = most - len(found) + int(cursor.skip)
    returned = queue.ready.returned_messages(cursor.number, wanted)
    for place, message in returned:
        cursor.number = place + 1
        if cursor.skip > 0:
            cursor.skip -= 1
        else:
            found.append(Seen(place, message, True))
    if len(returned) < wanted:
        cursor.next_stage(queue.ready.lane_count())


def _look_at_memory(backlog: Backlog, cursor: Cursor, end: i64, most: int, found: list[Seen]) -> None:
    """Go on in the head or the tail, up to `end`."""
    lane_bits: i64 = i64(cursor.stage) << LANE_SHIFT
    number: i64 = cursor.number
    while number < end and len(found) < most:
        message = backlog.find(number)
        if message is not None:
            if cursor.skip > 0:
                cursor.skip -= 1
            else:
                found.append(Seen(int(lane_bits | number), message, number < backlog.delivered_before))
        number += 1
        if message is None and number < end:
            number = backlog.next_resident(number, end)
    cursor.number = number


def _look_at_disk(queue: Queue, backlog: Backlog, cursor: Cursor, end: i64, most: int, told: Told) -> bool:
    """Go on in the middle; True when something is being read, and will be told."""
    index = backlog.index
    assert index is not None
    size: i64 = index.page_entries
    number: i64 = cursor.number
    numbers: list[int] = []
    counted: i64 = 0
    while number < end and counted < most + cursor.skip:
        page_end: i64 = (number // size + 1) * size
        page = index.page(number // size)
        if page is None:
            number = page_end
            continue
        is_whole = number % size == 0 and page_end <= end
        if is_whole and not numbers and cursor.skip >= page.live:
            cursor.skip -= page.live
            number = page_end
            cursor.number = number
            continue
        stop: i64 = page_end if page_end < end else end
        while number < stop and counted < most + cursor.skip:
            if not page.resident or index.lsn_of(number) != 0:
                numbers.append(int(number))
                if page.resident:
                    counted += 1
            number += 1
        if not page.resident:
            counted += page.live
    cursor.number = number
    if not numbers:
        return False
    _DiskLook(queue, backlog, index, numbers, cursor, most, told).begin()
    return True


class _DiskLook(Fetch):
    """Reads messages of the middle of a lane for a look."""

    def __init__(
        self,
        queue: Queue,
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
        """Tell what still waits where it was."""
        cursor = self.cursor
        if self.queue.deleted:
            cursor.ended = True
            self.told([])
            return
        found: list[Seen] = []
        lane_bits: i64 = i64(cursor.stage) << LANE_SHIFT
        backlog = self.backlog
        if self.left:
            cursor.number = self.left[0]
        for number, message in zip(self.numbers, messages, strict=True):
            waiting = message if backlog.is_on_disk(number) else backlog.find(number)
            if waiting is not None:
                if cursor.skip > 0:
                    cursor.skip -= 1
                elif len(found) == self.most:
                    cursor.number = number
                    break
                else:
                    found.append(Seen(int(lane_bits | number), waiting, number < backlog.delivered_before))
        self.told(found)
        backlog.offer_loaded(self.loaded)


# --- taking out -------------------------------------------------------------------------------------------------------


def still_waits(queue: Queue, seen: Seen) -> bool:
    """Tell whether a message that a look has just told, in the same call, still waits where it was."""
    ready = queue.ready
    return not queue.deleted and (ready.maybe_waiting(seen.place) is not None or ready.is_on_disk(seen.place))


def settle_seen(queue: Queue, seen: Seen) -> None:
    """Take a message out and forget it; `still_waits` has said that it is there."""
    ready = queue.ready
    if ready.maybe_take_out(seen.place) is None:
        taken = ready.take_out(seen.place, seen.message.body_bytes)
        assert taken
    ready.settle(seen.message, seen.place)
    queue.took_out()


def sequence_number(seen: Seen) -> int:
    """Return its number in its lane."""
    return seen.place & NUMBER_MASK
