"""Which consumer takes which ready message: one object for each way to decide, for a queue that has a keeper.

    Dispatch          first in, first out; the base of the others
    PriorityDispatch  the same for each level, the highest first
    KeyShared         a key goes to one consumer at a time: ``queues.key_sharing``
    Selective         some consumers want only some of the messages: ``queues.selective``

    becomes ready --maybe_hand_over--> at a consumer
                  `--came-->           waits  --drain, maybe_take-->  at a client  --settled--> gone
                                         ^------------came_back------------'

1. A message is offered once, when it becomes ready, if the queue is hungry. If it is not taken then, it waits, and
   `came` tells so.
2. Each delivery that wants an answer ends with `settled` or with `came_back`.
3. A dispatch knows the consumers and the messages that it needs for its decision. The queue counts and delivers.

A queue without a keeper is first in, first out as well: `Queue.publish`, `Queue.drain` and `Queue.settle` do in line
what this class does. A call through the table of methods for each message is not worth its time there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.queues.consumer import Consumer
from warren.queues.delivery import DeliveryLedger

if TYPE_CHECKING:
    from warren.queues.queue import Queue

# How many messages one drain delivers before the other queues have their turn.
DRAIN_BUDGET: Final = 2000


class Dispatch:
    """Hands out the messages of `queue`, the oldest to the next consumer."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._ready = queue.ready

    # --- messages come ----------------------------------------------------------------------------------------------

    def maybe_hand_over(self, message: Message, lane: i64, is_stored: bool) -> i64:
        """Deliver a message that becomes ready to a consumer at once; return its place, -1: it has to wait.

        The queue is hungry.
        """
        queue = self._queue
        if self._ready.count > 0:
            return -1
        consumer = queue.let_wait() if queue.is_search_long else queue.pick()
        if consumer is None:
            return -1
        place: i64 = self._take_place(consumer, message, lane, is_stored)
        queue.deliver(consumer, message, place, message.attempts > 0)
        return place

    def _take_place(self, consumer: Consumer, message: Message, lane: i64, is_stored: bool) -> i64:
        """Return the place of a message that `consumer` gets at once, which is in the log then if it has to be."""
        queue = self._queue
        place: i64 = self._ready.skip(lane)
        if is_stored:
            if consumer.no_ack:
                self._ready.settle(message, place)
        elif not consumer.no_ack and message.persistent and queue.stores:
            self._ready.store(message, place)
        return place

    def came(self, lane: i64) -> None:
        """Note that a message has come into a lane, and waits."""

    def came_back(self, place: i64) -> None:
        """Note that a delivery waits at its place again. The caller wakes the queue."""

    # --- messages leave ---------------------------------------------------------------------------------------------

    def drain(self, budget: i64) -> None:
        """Deliver waiting messages while consumers take them; queue up again when `budget`, in messages, is spent."""
        queue = self._queue
        ready = self._ready
        while ready.count > 0:
            if budget <= 0:
                queue.wake()
                return
            budget -= 1
            if not ready.ready_or_fetch():
                return  # `Queue.look_again` will continue
            consumer = queue.pick()
            if queue.is_search_long:
                budget -= queue.groups.take_search_cost()
            if consumer is None:
                return
            self._hand_out_next(consumer)

    def _hand_out_next(self, consumer: Consumer) -> None:
        """Deliver the next message, which is in memory, unless it has expired."""
        ready = self._ready
        message = ready.take_next()
        keeper = self._queue.keeper
        if keeper is not None and keeper.expiry.is_expired(message):
            keeper.expiry.expired_at_hand_out(message, ready.next_place)
        else:
            self._queue.hand_out(consumer, message, ready.next_place, ready.next_redelivered)

    def _is_expired(self, message: Message) -> bool:
        keeper = self._queue.keeper
        return keeper is not None and keeper.expiry.is_expired(message)

    def _expire(self, message: Message, place: i64) -> None:
        """Expire a message that was taken out; its dead letter may come back here before this returns."""
        keeper = self._queue.keeper
        if keeper is not None:
            keeper.expiry.expired_at_hand_out(message, place)

    def ready_or_fetch(self) -> bool:
        """Tell whether the next message for a basic.get is in memory or does not exist."""
        return self._ready.ready_or_fetch()

    def maybe_take(self, ledger: DeliveryLedger) -> Message | None:
        """Take out the message for a basic.get through `ledger`; None: the next one has to be read, or does not exist.

        The place is ``ready.next_place``.
        """
        while self._ready.count > 0 and self.ready_or_fetch():
            message = self._maybe_take_next(ledger)
            if message is None or not self._is_expired(message):
                return message
            self._expire(message, self._ready.next_place)
        return None

    def _maybe_take_next(self, ledger: DeliveryLedger) -> Message | None:
        return self._ready.take_next()

    def got(self, message: Message, place: i64, ledger: DeliveryLedger) -> None:
        """Note that a message that `maybe_take` returned wants an answer."""

    def settled(self, message: Message, place: i64) -> None:
        """Note that a delivery is settled. The caller wakes the queue."""

    # --- consumers --------------------------------------------------------------------------------------------------

    def selective_count(self) -> int:
        """Return how many consumers want only some of the messages."""
        return 0

    def without(self, consumer: Consumer) -> Dispatch:
        """Forget `consumer`, which is gone; return the dispatch from now on."""
        return self

    def close(self) -> None:
        """Release everything: the queue is deleted."""

    def check_invariants(self, *, is_idle: bool) -> None:
        """Assert that no message waits in vain. For tests. `is_idle`: the queue is not on the runnable list."""
        if is_idle and self._ready.count > 0 and self._ready.ready_or_fetch():
            assert self._queue.pick() is None, "a message waits although a consumer could take it"


class PriorityDispatch(Dispatch):
    """Hands out the messages of a priority queue."""

    def came(self, lane: i64) -> None:
        queue = self._queue
        if queue.is_hungry:
            queue.wake()  # messages of lower levels may be waiting for the disk
