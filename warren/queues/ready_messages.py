"""The messages of a queue that wait for a consumer: their order, their places in the log, and how they are taken out.

1. Each message has a place, ascending in publish order within a lane (``queues.lanes``). The backlogs of the lanes hold
   the never-delivered messages; ``_returned`` holds requeued ones. In each lane the numbers of requeued messages are
   smaller, except where messages were taken out of turn before they came back (``queues.selective``).
2. Messages leave in the order of their places, so a requeued message has its old place again.
3. The backlog tells whether the next message is in memory.
4. In a key-shared queue ``_returned`` also has the messages set aside for their key (``queues.shared_keys``).

This module knows neither consumers nor rules.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.properties import priority_of
from warren.msgstore.log.message import HEADER_AT, Message
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.backlog import Backlog, nobody_waits
from warren.queues.lanes import LANE_SHIFT, NUMBER_MASK
from warren.queues.returned_messages import ReturnedMessages

if TYPE_CHECKING:
    from warren.msgstore.log.message_log import MessageLog

_NO_LANES: Final[list[int]] = []
PLACE_MAX: Final = (1 << 62) - 1


class ReadyMessages:
    """The messages that wait in a queue. ``store_id`` is its name in the log, 0 until it is needed."""

    def __init__(
        self,
        log: MessageLog,
        vhost_name: str,
        queue_name: str,
        durable: bool,
        store_id: int,
        backlog: Backlog,
    ) -> None:
        self.count: i64 = 0
        self.body_bytes: i64 = 0
        # Those that are not ready before they are committed (`queues.commit_gate`), and their bodies.
        self.uncommitted_count: i64 = 0
        self.uncommitted_bytes: i64 = 0
        self.next_place: i64 = 0  # of the message that `take_next`, `maybe_take_oldest` or `take_head` returned last
        self.next_redelivered: bool = False  # whether that may have been delivered before
        self.store_id = store_id
        self.in_log: bool = False  # the log has had messages of ours: `settle` may find some
        self._log = log
        self._vhost_name = vhost_name
        self._queue_name = queue_name
        self._durable = durable
        self._index: QueueIndex | None = None
        self._on_loaded: Callable[[int, int], None] = nobody_waits
        self._backlog = backlog
        # Of a priority queue, the highest level, `_backlog`, first.
        self._lanes: list[Backlog] | None = None
        self._unused: Backlog | None = None  # stands for each lane that has never had a message
        self._used = _NO_LANES  # the other lanes, in order
        self._lane: i64 = 0  # the lanes before this one are empty
        self._returned: ReturnedMessages | None = None  # None: nothing came back yet
        self._takes_ahead: bool = False  # a message was taken out of turn for a delivery

    # --- lanes ----------------------------------------------------------------------------------------------------

    def make_lanes(self, count: int) -> None:
        """Make `count` lanes of an empty queue. All but the first are made when they are used."""
        self._unused = Backlog(self._log, self._on_loaded)
        lanes = [self._unused] * count
        lanes[0] = self._backlog
        self._lanes = lanes
        self._used = [0]
        self._lane = len(lanes)

    def _lane_in_use(self, lanes: list[Backlog], lane: i64) -> Backlog:
        """Return the backlog of a lane that gets a message."""
        backlog = lanes[lane]
        if backlog is self._unused:
            backlog = Backlog(self._log, self._on_loaded)
            lanes[lane] = backlog
            insort(self._used, int(lane))
        return backlog

    def call_when_loaded(self, on_loaded: Callable[[int, int], None]) -> None:
        """Have `on_loaded` told when messages were read from disk, and how many were lost. `make_lanes` comes later."""
        self._on_loaded = on_loaded
        self._backlog.on_loaded = on_loaded

    def return_to(self, returned: ReturnedMessages) -> None:
        """Use `returned` for messages that come back to an empty queue."""
        self._returned = returned

    def lane_count(self) -> int:
        """Return how many lanes there are."""
        lanes = self._lanes
        return 1 if lanes is None else len(lanes)

    def lane_of(self, message: Message) -> i64:
        """Return the lane of a message that comes: that of its priority."""
        lanes = self._lanes
        if lanes is None:
            return 0
        lane: i64 = i64(len(lanes)) - 1 - priority_of(message.header_frame(), HEADER_AT)
        return lane if lane > 0 else i64(0)

    def backlog(self, lane: i64) -> Backlog:
        """Return the never-delivered messages of a lane."""
        lanes = self._lanes
        return self._backlog if lanes is None else lanes[lane]

    def _backlogs(self) -> list[Backlog]:
        lanes = self._lanes
        return [self._backlog] if lanes is None else [lanes[lane] for lane in self._used]

    def _first_lane(self) -> i64:
        """Return the first lane with a message; the number of lanes when all are empty."""
        lanes = self._lanes
        assert lanes is not None
        lane: i64 = self._lane
        count: i64 = len(lanes)
        while lane < count and lanes[lane].is_empty():
            lane += 1
        self._lane = lane
        return lane

    # --- in -------------------------------------------------------------------------------------------------------

    def append(self, message: Message, lane: i64) -> i64:
        """Put `message` at the end of its lane; return its place."""
        self.count += 1
        self.body_bytes += message.body_bytes
        lanes = self._lanes
        if lanes is None:
            return self._backlog.append(message)
        if lane < self._lane:
            self._lane = lane
        return lane << LANE_SHIFT | self._lane_in_use(lanes, lane).append(message)

    def skip(self, lane: i64) -> i64:
        """Return the place of a message that comes and goes at once. Its lane is empty."""
        lanes = self._lanes
        if lanes is None:
            return self._backlog.skip_number()
        return lane << LANE_SHIFT | self._lane_in_use(lanes, lane).skip_number()

    def pass_place(self, lane: i64) -> i64:
        """Return the place of a message that goes at once, whatever else waits in its lane."""
        lanes = self._lanes
        if lanes is None:
            return self._backlog.pass_number()
        return lane << LANE_SHIFT | self._lane_in_use(lanes, lane).pass_number()

    def place_after(self, lane: i64, ahead: i64) -> i64:
        """Return the place that a lane gives out after the next `ahead` ones."""
        lanes = self._lanes
        if lanes is None:
            return self._backlog.next_number + ahead
        return lane << LANE_SHIFT | (self._lane_in_use(lanes, lane).next_number + ahead)

    def put_back(self, message: Message, place: i64) -> None:
        """Put `message` back where it was, to wait again."""
        self.count += 1
        self.body_bytes += message.body_bytes
        returned = self._returned
        if returned is None:
            returned = ReturnedMessages()
            self._returned = returned
        returned.put(message, place)

    def lost(self, count: int, body_bytes: int) -> None:
        """Subtract messages that were counted and are damaged on disk."""
        self.count -= count
        self.body_bytes -= body_bytes

    # --- in the log -----------------------------------------------------------------------------------------------

    def store(self, message: Message, place: i64) -> None:
        """Have the log keep `message`, which waits or waited at `place`."""
        if place > NUMBER_MASK:
            self._log.batch.add(self._lane_index(place >> LANE_SHIFT), message, place & NUMBER_MASK)
            return
        index = self._index
        if index is None:
            index = self._begin_storing()
        self._log.batch.add(index, message, place)

    def settle(self, message: Message, place: i64) -> None:
        """Have the log forget the message at `place`."""
        lanes = self._lanes
        index = self._index if lanes is None else lanes[place >> LANE_SHIFT].index
        if index is not None:
            self._log.batch.settle(index, message, place & NUMBER_MASK)
            if self._takes_ahead:
                self.backlog(place >> LANE_SHIFT).middle.settled(place & NUMBER_MASK)

    def replace(self, message: Message, place: i64) -> None:
        """Have the log forget the message at `place`; another one waits for the answer in its stead."""
        index = self.index_of(place >> LANE_SHIFT)
        if index is not None:
            self._log.batch.settle(index, message, place & NUMBER_MASK)

    def is_stored(self, place: i64) -> bool:
        """Tell whether the log has the message at `place`, in a batch that is closed."""
        index = self.index_of(place >> LANE_SHIFT)
        return index is not None and index.lsn_of(place & NUMBER_MASK) != 0

    def index_of(self, lane: i64) -> QueueIndex | None:
        """Return the index of a lane; None while nothing of it is stored."""
        lanes = self._lanes
        return self._index if lanes is None else lanes[lane].index

    def _begin_storing(self) -> QueueIndex:
        if self.store_id == 0:
            self.store_id = self._log.new_queue_id()
        index = self._log.new_index(self.store_id, self._vhost_name, self._queue_name, 0, not self._durable)
        self.in_log = True
        self._index = index
        self._backlog.begin_storing(index)
        return index

    def new_lane_index(self, lane: i64) -> QueueIndex:
        """Begin to store the messages of another lane."""
        return self._log.new_index(
            self._log.new_queue_id(), self._vhost_name, self._queue_name, lane, not self._durable
        )

    def _lane_index(self, lane: i64) -> QueueIndex:
        lanes = self._lanes
        assert lanes is not None
        backlog = lanes[lane]
        index = backlog.index
        if index is None:
            index = self.new_lane_index(lane)
            self.in_log = True
            backlog.begin_storing(index)
        return index

    def restore(self, index: QueueIndex, clean: bool) -> None:
        """Take over the messages that recovery found; after an unclean stop any of them may have been delivered."""
        lane: i64 = index.lane
        lanes = self._lanes
        backlog = self._backlog
        self.in_log = True
        if lane == 0:
            self._index = index
        if lanes is not None:
            backlog = self._lane_in_use(lanes, lane)
            if lane < self._lane:
                self._lane = lane
        backlog.restore(index)
        self.count += index.live_count
        self.body_bytes += index.live_body_bytes
        # A message that was delivered and not stored has left no trace: the next messages get such numbers again.
        known = clean and index.delivered_below < index.next_number
        backlog.delivered_before = index.delivered_below if known else index.next_number

    def page_out(self) -> None:
        """Have waiting messages stored and forgotten, transient or not."""
        if not self.count:
            return
        lanes = self._lanes
        if lanes is None:
            if self._index is None:
                self._begin_storing()
            self._backlog.batch_closed()
            return
        for lane, backlog in enumerate(lanes):
            if not backlog.is_empty():
                if lane == 0 and self._index is None:
                    self._begin_storing()
                self._lane_index(lane)
                backlog.batch_closed()

    # --- out, in turn ---------------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Tell whether the next message is in memory or does not exist."""
        if self.count == 0:
            return True
        lanes = self._lanes
        if lanes is None:
            return self._is_returned_first() or self._backlog.is_ready()
        return self._is_returned_first() or lanes[self._first_lane()].is_ready()

    def _is_returned_first(self) -> bool:
        """Tell whether a returned message is before the backlog."""
        returned = self._returned
        if returned is None or returned.count() == 0:
            return False
        place: i64 = returned.first_place()
        lanes = self._lanes
        if lanes is None:
            return place < self._backlog.oldest_number()
        lane: i64 = self._first_lane()
        return place >> LANE_SHIFT < lane or (
            place >> LANE_SHIFT == lane and place & NUMBER_MASK < lanes[lane].oldest_number()
        )

    def take_next(self) -> Message:
        """Take the next message out; `is_ready` has said that it is in memory. `next_place` is where it was."""
        returned = self._returned
        lanes = self._lanes
        if returned is not None and self._is_returned_first():
            return self.take_returned(returned, returned.first_place())
        if lanes is None:
            backlog = self._backlog
            message = backlog.pop()
            self.next_place = backlog.popped_number
            self.next_redelivered = self.next_place < backlog.delivered_before
        else:
            lane: i64 = self._first_lane()
            backlog = lanes[lane]
            message = backlog.pop()
            self.next_place = lane << LANE_SHIFT | backlog.popped_number
            self.next_redelivered = backlog.popped_number < backlog.delivered_before
        if message.attempts > 0:
            self.next_redelivered = True
        self.count -= 1
        self.body_bytes -= message.body_bytes
        return message

    def maybe_take_oldest(self) -> Message | None:
        """Take the oldest message out, for any consumer; None when it is on disk. `next_place` is where it was."""
        return self.take_next() if self.is_ready() else None

    # --- out, out of turn -----------------------------------------------------------------------------------------

    def waiting_lanes(self) -> list[int]:
        """Return the arguments for `maybe_head`: lanes with messages, and -1 for messages returned or set aside."""
        found: list[int] = []
        if self.maybe_head(-1) is not None:
            found.append(-1)
        lanes = self._lanes
        if lanes is None:
            if not self._backlog.is_empty():
                found.append(0)
            return found
        lane = int(self._first_lane())
        while lane < len(lanes):
            if not lanes[lane].is_empty():
                found.append(lane)
            lane += 1
        return found

    def maybe_head(self, lane: i64) -> Message | None:
        """Return the first message of a lane; None when the lane is empty, or the message has to be read from disk."""
        if lane < 0:
            returned = self._returned
            return returned.first() if returned is not None and returned.count() > 0 else None
        backlog = self.backlog(lane)
        return backlog.oldest() if backlog.is_ready() else None

    def take_head(self, lane: i64) -> Message:
        """Take out the message that `maybe_head` has returned; place and flag as after `take_next`."""
        if lane < 0:
            returned = self._returned
            assert returned is not None
            return self.take_returned(returned, returned.first_place())
        backlog = self.backlog(lane)
        message = backlog.pop()
        self.next_place = lane << LANE_SHIFT | backlog.popped_number
        self.next_redelivered = backlog.popped_number < backlog.delivered_before or message.attempts > 0
        self.count -= 1
        self.body_bytes -= message.body_bytes
        return message

    def take_returned(self, returned: ReturnedMessages, place: i64) -> Message:
        """Take out the message that is in `returned`, ours, at `place`; place and flag as after `take_next`."""
        message = returned.maybe_take(place)
        assert message is not None
        self.next_place = place
        self.next_redelivered = returned.took_redelivered
        self.count -= 1
        self.body_bytes -= message.body_bytes
        return message

    def is_on_disk(self, place: i64) -> bool:
        """Tell whether a message at `place` waits on disk only, as far as that is known in memory."""
        backlog = self.backlog(place >> LANE_SHIFT)
        return backlog.find(place & NUMBER_MASK) is None and backlog.middle.may_have(place & NUMBER_MASK)

    def maybe_waiting(self, place: i64) -> Message | None:
        """Return the message at `place` if it waits in memory, wherever it stands."""
        message = self.backlog(place >> LANE_SHIFT).find(place & NUMBER_MASK)
        if message is not None:
            return message
        returned = self._returned
        return None if returned is None else returned.maybe_at(place)

    def waits_at(self, place: i64) -> bool:
        """Tell whether a message may wait at `place`, except for returned ones: see `returned_places`."""
        backlog = self.backlog(place >> LANE_SHIFT)
        number: i64 = place & NUMBER_MASK
        return backlog.find(number) is not None or backlog.middle.may_have(number)

    def returned_places(self) -> set[int]:
        """Return the places of all returned messages."""
        return set(self.returned_places_now())

    def returned_places_now(self) -> list[int]:
        """Return them as a list, in no order."""
        returned = self._returned
        return [] if returned is None else returned.places()

    def may_have_been_delivered(self, place: i64) -> bool:
        """Tell whether the message that came back to `place`, or was set aside there, may have been delivered."""
        returned = self._returned
        return returned is None or returned.may_have_been_delivered(place)

    def returned_count(self) -> i64:
        """Return the number of returned messages."""
        returned = self._returned
        return 0 if returned is None else returned.count()

    def count_in_memory(self, memory_bytes: int) -> None:
        """Count additional memory of a reader that only looks; negative: it no longer has it."""
        self._log.resident_bytes += memory_bytes

    def maybe_take_out(self, place: i64) -> Message | None:
        """Take a message out that waits in memory, wherever it stands; None when it does not."""
        backlog = self.backlog(place >> LANE_SHIFT)
        message = backlog.find(place & NUMBER_MASK)
        if message is not None:
            backlog.remove(place & NUMBER_MASK)
        elif self._returned is not None:
            message = self._returned.maybe_take(place)
        if message is not None:
            self.count -= 1
            self.body_bytes -= message.body_bytes
        return message

    def take_out(self, place: i64, body_bytes: i64) -> bool:
        """Take a fetched message out; False when it no longer waits. Its index page is resident."""
        returned = self._returned
        was_aside = returned is not None and returned.take_read(place)
        if not was_aside and not self.backlog(place >> LANE_SHIFT).remove(place & NUMBER_MASK):
            return False
        self.count -= 1
        self.body_bytes -= body_bytes
        return True

    def maybe_returned(self, place: i64) -> Message | None:
        """Return the message at `place` if it came back, and waits."""
        returned = self._returned
        return None if returned is None else returned.maybe_at(place)

    def take_ahead(self, message: Message, place: i64) -> bool:
        """Take `message`, which waits at `place`, out of turn for a delivery; False when it does not wait there.

        `next_redelivered` is as after `take_next`. For a message on disk only the index page is resident.
        """
        returned = self._returned
        if returned is not None and returned.maybe_take(place) is not None:
            self.next_redelivered = True
        else:
            backlog = self.backlog(place >> LANE_SHIFT)
            number: i64 = place & NUMBER_MASK
            if not backlog.take(number):
                return False
            self._takes_ahead = True
            self.next_redelivered = number < backlog.delivered_before or message.attempts > 0
        self.count -= 1
        self.body_bytes -= message.body_bytes
        return True

    def thin_out(self) -> None:
        """Free the places between messages that wait far apart, as those do that no consumer takes."""
        for lane in [0] if self._lanes is None else self._used:
            backlog = self.backlog(lane)
            if not backlog.thin_out():
                if lane == 0 and self._index is None:
                    self._begin_storing()
                elif lane > 0:
                    self._lane_index(lane)
                backlog.batch_closed()

    # --- all of them ----------------------------------------------------------------------------------------------

    def purge(self) -> None:
        """Drop all waiting messages."""
        if self.in_log and self._returned is not None:
            self._returned.settle_all(self._log.reclamation, self.settle)
        for backlog in self._backlogs():
            backlog.clear()
        self._forget()

    def purge_places(self, lane: i64, count: i64) -> None:
        """Settle the messages at the next `count` places of a lane, and give these places to nobody. It is empty."""
        backlog = self.backlog(lane)
        index = self.index_of(lane)
        first: i64 = backlog.next_number
        if index is not None:
            self._log.batch.settle_waiting(index, first, first + count)
        backlog.next_number = first + count

    def close(self) -> None:
        """Release everything: the queue is deleted. The log forgets its messages with the queue."""
        self._index = None
        self.in_log = False
        for backlog in self._backlogs():
            backlog.close()
        if self._unused is not None:
            self._unused.close()
        self._on_loaded = nobody_waits
        self._forget()
        self._returned = None

    def _forget(self) -> None:
        if self._returned is not None:
            self._returned.let_go(self._log.reclamation)
        self.count = 0
        self.body_bytes = 0

    def returned_messages(self, first: i64, last: i64, most: int) -> list[tuple[int, Message]]:
        """Return the first messages returned or set aside from place `first` to `last`, with places, in order."""
        returned = self._returned
        return [] if returned is None else returned.between(first, last, most)

    def paged_out_count(self) -> int:
        """Return how many are on disk only."""
        return sum([int(backlog.middle.count) + backlog.sealed_count() for backlog in self._backlogs()])

    def paged_out_bytes(self) -> int:
        """Return the bodies of those that are on disk only."""
        if not self.paged_out_count():
            return 0
        # A compacted stream may have messages in memory that no longer count.
        return max(int(self.body_bytes) - self._bodies_in_memory(), 0)

    def _bodies_in_memory(self) -> int:
        returned = self._returned
        returned_bytes: i64 = 0 if returned is None else returned.body_bytes
        return int(returned_bytes) + sum([backlog.body_bytes() for backlog in self._backlogs()])

    def persistent(self) -> tuple[int, int]:
        """Return how many messages a restart keeps, ready or unacked, and their bodies: those that are stored."""
        count: i64 = 0
        body_bytes: i64 = 0
        lane: i64 = 0
        while lane < self.lane_count():
            index = self.index_of(lane)
            if index is not None:
                count += index.live_count - index.droppable_count
                body_bytes += index.live_body_bytes
            lane += 1
        return int(count), int(body_bytes)

    def memory_bytes(self) -> int:
        """Return roughly how many bytes the messages in memory take; returned ones are not counted."""
        return sum([backlog.memory_bytes() for backlog in self._backlogs()])

    def in_memory(self) -> list[Message]:
        """Return those that are in memory, in order. For tests and small listings only."""
        returned = self._returned
        listed: list[tuple[int, Message]] = []
        if returned is not None:
            listed += returned.between(0, PLACE_MAX, int(returned.count()))
        for lane in [0] if self._lanes is None else self._used:
            listed += [(lane << LANE_SHIFT | number, message) for number, message in self.backlog(lane).residents()]
        return [message for _, message in sorted(listed, key=_by_place)]

    def check_invariants(self) -> None:
        """Assert (1) of the module header, and the counts. For tests."""
        resident = self.in_memory()
        backlogs = self._backlogs()
        for backlog in backlogs:
            backlog.check_invariants()
        middle = sum(int(backlog.middle.count) + backlog.sealed_count() for backlog in backlogs)
        assert self.count == len(resident) + middle
        assert self._bodies_in_memory() == sum(int(message.body_bytes) for message in resident)
        if middle == 0:
            assert self.body_bytes == sum(int(message.body_bytes) for message in resident)
        returned = self._returned
        if returned is not None:
            returned.check_invariants()
            for place in returned.places():
                assert place & NUMBER_MASK < self.backlog(place >> LANE_SHIFT).delivered_below()


def _by_place(entry: tuple[int, Message]) -> int:
    return entry[0]
