"""The backlogs of a priority queue, one for each level, the highest first.

1. A level gets a backlog with its first message: a queue with 255 levels is not larger than those that it uses.
2. All lanes before ``_first`` are empty, so that the next message is not looked for among many empty lanes each time.
"""

from __future__ import annotations

from bisect import insort

from mypy_extensions import i64

from warren.amqp.properties import priority_of
from warren.msgstore.log.message import HEADER_AT, Message
from warren.queues.backlog import Backlog


class PriorityLanes:
    """The lanes of an empty queue, `count` of them; `highest` is the backlog of the first."""

    def __init__(self, highest: Backlog, count: int) -> None:
        self.used = [0]  # the lanes with a backlog of their own, in order
        self._unused = Backlog(highest.log, highest.on_loaded)  # stands for each lane that has never had a message
        self._lanes = [self._unused] * count
        self._lanes[0] = highest
        self._first: i64 = count

    def backlog(self, lane: i64) -> Backlog:
        """Return the messages of a lane."""
        return self._lanes[lane]

    def in_use(self, lane: i64) -> Backlog:
        """Return the backlog of a lane that gives out numbers."""
        backlog = self._lanes[lane]
        if backlog is self._unused:
            backlog = Backlog(backlog.log, backlog.on_loaded)
            self._lanes[lane] = backlog
            insort(self.used, int(lane))
        return backlog

    def filled(self, lane: i64) -> Backlog:
        """Return the backlog of a lane that gets a message."""
        if lane < self._first:
            self._first = lane
        return self.in_use(lane)

    def of(self, message: Message) -> i64:
        """Return the lane of a message that comes: that of its priority."""
        lane: i64 = i64(len(self._lanes)) - 1 - priority_of(message.header_frame(), HEADER_AT)
        return lane if lane > 0 else i64(0)

    def first(self) -> i64:
        """Return the first lane with a message; the number of lanes when all are empty."""
        lanes = self._lanes
        lane: i64 = self._first
        count: i64 = len(lanes)
        while lane < count and lanes[lane].is_empty():
            lane += 1
        self._first = lane
        return lane

    def close(self) -> None:
        """Release what stands for unused lanes."""
        self._unused.close()
