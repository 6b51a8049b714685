"""The messages of a queue that wait for a consumer: their order, their places in the log, and how they are taken out.

1. Each message has a place, ascending in publish order within a lane (``queues.lanes``). The backlogs of the lanes hold
   the never-delivered messages; ``returned`` holds requeued ones. In each lane the numbers of requeued messages are
   smaller, except where messages were taken out of turn before they came back (``queues.selective``).
2. Messages leave in the order of their places, so a requeued message has its old place again.
3. The backlog tells whether the next message is in memory.
4. In a key-shared queue ``returned`` also has the messages set aside for their key (``queues.shared_keys``).

This module knows neither consumers nor rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.backlog import Backlog
from warren.queues.lane_indexes import LaneIndexes
from warren.queues.lanes import LANE_SHIFT, NUMBER_MASK
from warren.queues.priority_lanes import PriorityLanes
from warren.queues.returned_messages import ReturnedMessages

if TYPE_CHECKING:
    from warren.msgstore.log.message_log import MessageLog

# Stands for the returned messages of a queue to which nothing has come back yet.
_NOTHING_RETURNED: Final = ReturnedMessages()
PLACE_MAX: Final = (1 << 62) - 1


class ReadyMessages:
    """The messages that wait in a queue. `indexes` are those of its lanes."""

    def __init__(self, log: MessageLog, indexes: LaneIndexes, backlog: Backlog) -> None:
        self.count: i64 = 0
        self.body_bytes: i64 = 0
        # Those that are not ready before they are committed (`queues.commit_gate`), and their bodies.
        self.uncommitted_count: i64 = 0
        self.uncommitted_bytes: i64 = 0
        self.next_place: i64 = 0  # of the message that `take_next` or `take_head` returned last
        self.next_redelivered: bool = False  # whether that may have been delivered before
        self.in_log: bool = False  # the log has had messages of ours, or one was taken out of turn: `settle` finds some
        self.indexes = indexes
        self.lane_count = 1
        self.returned: ReturnedMessages = _NOTHING_RETURNED
        self._returns: bool = False  # it is another one
        self._log = log
        self._index: QueueIndex | None = None
        self._backlog = backlog
        self._lanes: PriorityLanes | None = None  # of a priority queue; `_backlog` is the first
        self._takes_ahead: bool = False  # a message was taken out of turn, and counts as such until it is settled

    # --- lanes ----------------------------------------------------------------------------------------------------

    def make_lanes(self, count: int) -> None:
        """Make this a priority queue; it is empty, and its backlog has its listener."""
        self._lanes = PriorityLanes(self._backlog, count)
        self.lane_count = count

    def return_to(self, returned: ReturnedMessages) -> None:
        """Use `returned` for messages that come back to an empty queue."""
        self.returned = returned
        self._returns = True

    def lane_of(self, message: Message) -> i64:
        """Return the lane of a message that comes: that of its priority."""
        lanes = self._lanes
        return 0 if lanes is None else lanes.of(message)

    def backlog(self, lane: i64) -> Backlog:
        """Return the never-delivered messages of a lane."""
        lanes = self._lanes
        return self._backlog if lanes is None else lanes.backlog(lane)

    def _used_lanes(self) -> list[int]:
        lanes = self._lanes
        return [0] if lanes is None else lanes.used

    def _backlogs(self) -> list[Backlog]:
        return [self.backlog(lane) for lane in self._used_lanes()]

    # --- in -------------------------------------------------------------------------------------------------------

    def append(self, message: Message, lane: i64) -> i64:
        """Put `message` at the end of its lane; return its place."""
        lanes = self._lanes
        place: i64
        if lanes is None:
            place = self._backlog.append(message)
        else:
            place = lane << LANE_SHIFT | lanes.filled(lane).append(message)
        self.count += 1
        self.body_bytes += message.body_bytes
        return place

    def skip(self, lane: i64) -> i64:
        """Return the place of a message that comes and goes at once. Its lane is empty."""
        lanes = self._lanes
        if lanes is None:
            return self._backlog.skip_number()
        return lane << LANE_SHIFT | lanes.in_use(lane).skip_number()

    def pass_place(self, lane: i64) -> i64:
        """Return the place of a message that goes at once, whatever else waits in its lane."""
        lanes = self._lanes
        if lanes is None:
            return self._backlog.pass_number()
        return lane << LANE_SHIFT | lanes.in_use(lane).pass_number()

    def place_after(self, lane: i64, ahead: i64) -> i64:
        """Return the place that a lane gives out after the next `ahead` ones."""
        lanes = self._lanes
        if lanes is None:
            return self._backlog.next_number + ahead
        return lane << LANE_SHIFT | (lanes.in_use(lane).next_number + ahead)

    def put_back(self, message: Message, place: i64, is_unanswered: bool = True) -> None:
        """Put `message` back where it was, to wait again. `is_unanswered`: it was delivered, and not settled."""
        if not self._returns:
            self.return_to(ReturnedMessages())
        self.returned.put(message, place, is_unanswered)
        self.count += 1
        self.body_bytes += message.body_bytes

    def lost(self, count: int, body_bytes: int) -> None:
        """Subtract messages that were counted and are damaged on disk."""
        self.count -= count
        self.body_bytes -= body_bytes

    # --- in the log -----------------------------------------------------------------------------------------------

    def store(self, message: Message, place: i64) -> None:
        """Store `message`, which waits or waited at `place`, in the log."""
        index = self._index
        if index is None or place > NUMBER_MASK:
            index = self._need_index(place >> LANE_SHIFT)
        self._log.batch.add(index, message, place & NUMBER_MASK)

    def settle(self, message: Message, place: i64) -> None:
        """Settle the message at `place` in the log."""
        lanes = self._lanes
        index = self._index if lanes is None else lanes.backlog(place >> LANE_SHIFT).index
        if index is not None:
            self._log.batch.settle(index, message, place & NUMBER_MASK)
        if self._takes_ahead:
            self.backlog(place >> LANE_SHIFT).middle.settled(place & NUMBER_MASK)

    def index_of(self, lane: i64) -> QueueIndex | None:
        """Return the index of a lane; None while nothing of it is stored."""
        return self.backlog(lane).index

    def _need_index(self, lane: i64) -> QueueIndex:
        """Return the index of a lane; make it if needed."""
        backlog = self.backlog(lane)
        index = backlog.index
        if index is None:
            index = self.indexes.make(lane)
            self.in_log = True
            if lane == 0:
                self._index = index
            backlog.begin_storing(index)
        return index

    def restore(self, index: QueueIndex, clean: bool) -> None:
        """Take over the messages that recovery found; after an unclean stop any of them may have been delivered."""
        lane: i64 = index.lane
        lanes = self._lanes
        self.in_log = True
        if lane == 0:
            self._index = index
        backlog = self._backlog if lanes is None else lanes.filled(lane)
        backlog.restore(index)
        self.count += index.live_count
        self.body_bytes += index.live_body_bytes
        # A message that was delivered and not stored has left no trace: the next messages get such numbers again.
        known = clean and index.delivered_below < index.next_number
        backlog.delivered_before = index.delivered_below if known else index.next_number

    def page_out(self) -> None:
        """Store waiting messages and drop them from memory, transient or not."""
        for lane in self._used_lanes():
            backlog = self.backlog(lane)
            if not backlog.is_empty():
                self._need_index(lane)
                backlog.batch_closed()

    # --- out, in turn ---------------------------------------------------------------------------------------------

    def ready_or_fetch(self) -> bool:
        """Tell whether the next message is in memory or does not exist."""
        if self.count == 0:
            return True
        if self._returns and self._is_returned_first():
            return True
        lanes = self._lanes
        return self._backlog.ready_or_fetch() if lanes is None else lanes.backlog(lanes.first()).ready_or_fetch()

    def _is_returned_first(self) -> bool:
        """Tell whether a returned message is before the backlog."""
        if self.returned.count() == 0:
            return False
        place: i64 = self.returned.first_place()
        lanes = self._lanes
        if lanes is None:
            return place < self._backlog.oldest_number()
        lane: i64 = lanes.first()
        return place >> LANE_SHIFT < lane or (
            place >> LANE_SHIFT == lane and place & NUMBER_MASK < lanes.backlog(lane).oldest_number()
        )

    def take_next(self) -> Message:
        """Take the next message out; `ready_or_fetch` has said that it is in memory. `next_place` is where it was."""
        if self._returns and self._is_returned_first():
            return self.take_returned(self.returned.first_place())
        lanes = self._lanes
        if lanes is None:
            backlog = self._backlog
            message = backlog.pop()
            self.next_place = backlog.popped_number
            self.next_redelivered = self.next_place < backlog.delivered_before
        else:
            lane: i64 = lanes.first()
            backlog = lanes.backlog(lane)
            message = backlog.pop()
            self.next_place = lane << LANE_SHIFT | backlog.popped_number
            self.next_redelivered = backlog.popped_number < backlog.delivered_before
        if message.attempts > 0:
            self.next_redelivered = True
        self.count -= 1
        self.body_bytes -= message.body_bytes
        return message

    # --- out, out of turn -----------------------------------------------------------------------------------------

    def waiting_lanes(self) -> list[int]:
        """Return the arguments for `maybe_head`: lanes with messages, and -1 for messages returned or set aside."""
        found = [-1] if self.returned.count() > 0 else []
        return found + [lane for lane in self._used_lanes() if not self.backlog(lane).is_empty()]

    def maybe_head(self, lane: i64) -> Message | None:
        """Return the first message of a lane; None when the lane is empty, or the message has to be read from disk."""
        if lane < 0:
            return self.returned.first() if self.returned.count() > 0 else None
        backlog = self.backlog(lane)
        return backlog.oldest() if backlog.ready_or_fetch() else None

    def take_head(self, lane: i64) -> Message:
        """Take out the message that `maybe_head` has returned; place and flag as after `take_next`."""
        if lane < 0:
            return self.take_returned(self.returned.first_place())
        backlog = self.backlog(lane)
        message = backlog.pop()
        self.next_place = lane << LANE_SHIFT | backlog.popped_number
        self.next_redelivered = backlog.popped_number < backlog.delivered_before or message.attempts > 0
        self.count -= 1
        self.body_bytes -= message.body_bytes
        return message

    def take_returned(self, place: i64) -> Message:
        """Take out the returned message at `place`; place and flag as after `take_next`."""
        returned = self.returned
        message = returned.maybe_take(place)
        assert message is not None
        self.next_place = place
        self.next_redelivered = returned.took_redelivered
        self.count -= 1
        self.body_bytes -= message.body_bytes
        return message

    def is_on_disk(self, place: i64) -> bool:
        """Tell whether a message at `place` waits on disk only, as far as that is known in memory."""
        return self.backlog(place >> LANE_SHIFT).middle.may_have(place & NUMBER_MASK)

    def maybe_waiting(self, place: i64) -> Message | None:
        """Return the message at `place` if it waits in memory, wherever it stands."""
        message = self.backlog(place >> LANE_SHIFT).find(place & NUMBER_MASK)
        return self.returned.maybe_at(place) if message is None else message

    def maybe_take_out(self, place: i64) -> Message | None:
        """Take a message out that waits in memory, wherever it stands; None when it does not."""
        backlog = self.backlog(place >> LANE_SHIFT)
        message = backlog.find(place & NUMBER_MASK)
        if message is not None:
            backlog.remove(place & NUMBER_MASK)
            self._takes_ahead = self.in_log = True
        elif self._returns:
            message = self.returned.maybe_take(place)
        if message is not None:
            self.count -= 1
            self.body_bytes -= message.body_bytes
        return message

    def take_out(self, place: i64, body_bytes: i64) -> bool:
        """Take a fetched message out; False when it no longer waits. Its index page is resident."""
        if not self.returned.take_read(place):
            if not self.backlog(place >> LANE_SHIFT).remove(place & NUMBER_MASK):
                return False
            self._takes_ahead = self.in_log = True
        self.count -= 1
        self.body_bytes -= body_bytes
        return True

    def take_ahead(self, message: Message, place: i64) -> bool:
        """Take `message`, which waits at `place`, out of turn for a delivery; False when it does not wait there.

        `next_redelivered` is as after `take_next`. For a message on disk only the index page is resident.
        """
        if self._returns and self.returned.maybe_take(place) is not None:
            self.next_redelivered = True
        else:
            backlog = self.backlog(place >> LANE_SHIFT)
            number: i64 = place & NUMBER_MASK
            if not backlog.take(number):
                return False
            self._takes_ahead = self.in_log = True
            self.next_redelivered = number < backlog.delivered_before or message.attempts > 0
        self.count -= 1
        self.body_bytes -= message.body_bytes
        return True

    def note_taken(self, place: i64) -> None:
        """Note that a stored message at `place` does not wait, until it is settled: it has never waited."""
        self.backlog(place >> LANE_SHIFT).need_middle().note_taken(place & NUMBER_MASK)
        self._takes_ahead = self.in_log = True

    def thin_out(self) -> None:
        """Free the places between messages that wait far apart, as those do that no consumer takes."""
        for lane in self._used_lanes():
            backlog = self.backlog(lane)
            if not backlog.thin_out():
                self._need_index(lane)
                backlog.batch_closed()

    # --- all of them ----------------------------------------------------------------------------------------------

    def purge(self) -> None:
        """Drop all waiting messages."""
        if self._returns:
            if self.in_log:
                self.returned.settle_all(self._log.reclamation, self.settle)
            self.returned.let_go(self._log.reclamation)
        for backlog in self._backlogs():
            backlog.clear()
        self.count = 0
        self.body_bytes = 0

    def close(self) -> None:
        """Release everything: the queue is deleted. The log forgets its messages with the queue."""
        self._index = None
        self.in_log = False
        for backlog in self._backlogs():
            backlog.close()
        if self._lanes is not None:
            self._lanes.close()
        if self._returns:
            self.returned.let_go(self._log.reclamation)
        self.returned = _NOTHING_RETURNED
        self._returns = False
        self.count = 0
        self.body_bytes = 0

    def paged_out_count(self) -> int:
        """Return how many are on disk only."""
        return sum([int(backlog.middle.count) + backlog.sealed_count() for backlog in self._backlogs()])

    def paged_out_bytes(self) -> int:
        """Return the bodies of those that are on disk only."""
        if not self.paged_out_count():
            return 0
        # A compacted stream may have messages in memory that no longer count.
        in_memory = int(self.returned.body_bytes) + sum([backlog.body_bytes() for backlog in self._backlogs()])
        return max(int(self.body_bytes) - in_memory, 0)

    def memory_bytes(self) -> int:
        """Return roughly how many bytes the messages in memory take; returned ones are not counted."""
        return sum([backlog.memory_bytes() for backlog in self._backlogs()])

    def in_memory(self) -> list[Message]:
        """Return those that are in memory, in order. For tests and small listings only."""
        listed = self.returned.between(0, PLACE_MAX, int(self.returned.count()))
        for lane in self._used_lanes():
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
        if middle == 0:
            assert self.body_bytes == sum(int(message.body_bytes) for message in resident)
        if self._returns:
            self.returned.check_invariants()
            for place in self.returned.places():
                assert place & NUMBER_MASK < self.backlog(place >> LANE_SHIFT).delivered_below()


def _by_place(entry: tuple[int, Message]) -> int:
    return entry[0]
