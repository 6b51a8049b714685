"""The messages of a queue that came back and wait again, by their places: the first of them, any of them, or a range.

``_order`` is a heap of their places. It may have stale places of messages that have left, which are passed over: at
most as many as there are messages, or a few.

A key-shared queue has others in their stead, which also have messages that never were away: ``queues.shared_keys``.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import heappop, heappush
from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.reclamation import Reclamation, Settle

STALE_MIN: Final = 64


class ReturnedMessages:
    """The returned messages."""

    def __init__(self) -> None:
        self.body_bytes: i64 = 0
        self.took_redelivered: bool = True  # the last one that was taken may have been delivered before
        self._messages: dict[int, Message] = {}
        self._order: list[int] = []
        self._sorted: bool = False  # `_order` is sorted, after a look at a range

    def count(self) -> i64:
        """Return the number of messages."""
        return len(self._messages)

    def put(self, message: Message, place: i64, is_unanswered: bool = True) -> None:
        """Add `message` at `place`; see `ReadyMessages.put_back`."""
        self._sorted = False
        heappush(self._order, int(place))
        self._messages[int(place)] = message
        self.body_bytes += message.body_bytes

    def first_place(self) -> i64:
        """Return the place of the first; not when it is empty."""
        order = self._order
        messages = self._messages
        while order[0] not in messages:
            self._sorted = False
            heappop(order)
        return order[0]

    def first(self) -> Message:
        """Return the first; not when it is empty."""
        return self._messages[int(self.first_place())]

    def maybe_at(self, place: i64) -> Message | None:
        """Return the one at `place`."""
        return self._messages.get(int(place))

    def may_have_been_delivered(self, place: i64) -> bool:
        """Tell whether the one at `place` may have been delivered before."""
        return True

    def maybe_take(self, place: i64) -> Message | None:
        """Remove and return the one at `place`."""
        messages = self._messages
        message = messages.pop(int(place), None)
        if message is not None:
            self.body_bytes -= message.body_bytes
            if not messages:
                self._order.clear()
            elif len(self._order) > 2 * len(messages) + STALE_MIN:
                self._order = sorted(messages)
        return message

    def take_read(self, place: i64) -> bool:
        """Remove the one at `place`, which was read meanwhile; only where messages come that were not away."""
        return False

    def between(self, first: i64, last: i64, most: int) -> list[tuple[int, Message]]:
        """Return the first of those from place `first` to `last`, with their places, in order."""
        order = self._order
        messages = self._messages
        if not self._sorted:
            order = sorted(messages)
            self._order = order
            self._sorted = True
        at: i64 = bisect_left(order, int(first))
        found: list[tuple[int, Message]] = []
        while at < len(order) and len(found) < most and order[at] <= last:
            message = messages.get(order[at])
            if message is not None:
                found.append((order[at], message))
            at += 1
        return found

    def places(self) -> list[int]:
        """Return all places, in no order."""
        return list(self._messages)

    def settle_all(self, reclamation: Reclamation, settle: Settle) -> None:
        """Settle all of them, in pieces, and forget them."""
        reclamation.settle(self._order, self._messages, settle)
        self._forget()

    def let_go(self, reclamation: Reclamation) -> None:
        """Forget them."""
        reclamation.add(self._order, 0)
        reclamation.add_named(self._messages, 0)
        self._forget()

    def _forget(self) -> None:
        self._order = []
        self._messages = {}
        self._sorted = False
        self.body_bytes = 0

    def check_invariants(self) -> None:
        """Assert what the module header says, and the counts. For tests."""
        assert set(self._messages) <= set(self._order)
        assert len(self._order) <= 2 * len(self._messages) + STALE_MIN
        assert not self._sorted or self._order == sorted(self._order)
        assert self.body_bytes == sum(int(message.body_bytes) for message in self._messages.values())
