"""Key-shared queues (``x-key-shared``): a key goes to one consumer at a time and in order, keys go to all consumers.

The key of a message is its routing key, or with ``x-key-header`` the value of that header as text; without the header,
or without a value in it, the empty text.

    free    all deliveries of the key are answered: its next message goes to any consumer with room, as in other queues
    bound   one is unanswered: the next message goes only to the same consumer, when that has room

1. A key is bound from its first delivery that wants an answer until the last one is settled or back, even when its
   consumer was cancelled meanwhile: then it waits. Consumers without acks bind nothing. The basic.gets of a channel
   are one consumer.
2. A message leaves only when no older one of its key is ready. So a returned one goes before all later ones of its key
   that were not delivered already.
3. A message of a bound key that cannot leave is set aside (``queues.shared_keys``): no longer in the backlog, ready and
   in the log as before. Only the head of the backlog is looked at.
4. Among the messages that may leave, the oldest leaves first.
5. While as many messages are set aside as may be, the backlog rests, also for other keys.

Consumers that come and go change only which one is next for a free key. Hashing keys onto consumers, as other brokers
do, moves keys with every change and has to hold them back meanwhile. It also leaves a key to a busy consumer while
others are idle.

Order is that of places. A held message (a delay, a delayed retry) gets its place when it is released. A message at a
client is not overtaken by one that comes back later. After a clean restart, messages that had been set aside may be
flagged redelivered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.queues.consumer import Consumer
from warren.queues.consumer_groups import PASSED_OVER_PER_MESSAGE
from warren.queues.delivery import DeliveryLedger
from warren.queues.dispatch import Dispatch
from warren.queues.shared_keys import SharedKey, SharedKeys

if TYPE_CHECKING:
    from warren.queues.queue import Queue


class KeyShared(Dispatch):
    """Hands out the messages of `queue`, which is new. `header`: has the key; ``""``: the routing key is the key."""

    def __init__(self, queue: Queue, header: str) -> None:
        super().__init__(queue)
        self.keys = SharedKeys(queue, header)
        self._backlog = queue.ready.backlog(0)
        queue.ready.return_to(self.keys)

    # --- messages come ----------------------------------------------------------------------------------------------

    def maybe_hand_over(self, message: Message, lane: i64, is_stored: bool) -> i64:
        queue = self._queue
        if queue.is_scheduled:
            return -1  # on the runnable list older messages of other keys go first
        if queue.is_search_long or not self._backlog.is_empty() or queue.check_restrained():
            return -1
        text = self.keys.text_of(message)
        key = self.keys.maybe_key(text)
        consumer = queue.pick() if key is None else _maybe_next(key)
        if consumer is None:
            return -1
        place: i64 = self._take_place(consumer, message, lane, is_stored)
        if not consumer.no_ack:
            self.keys.bind(key, text, place, consumer)
        queue.deliver(consumer, message, place, message.attempts > 0)
        return place

    def came(self, lane: i64) -> None:
        queue = self._queue
        if queue.is_hungry and (queue.is_scheduled or not self._maybe_look_past()):
            queue.wake()

    def _maybe_look_past(self) -> bool:
        """Set the last message aside when it is the only one in the backlog; False when a look is not enough.

        Otherwise it would block later ones until the end of the turn, and all would count as waiting.
        """
        backlog = self._backlog
        if backlog.is_empty():
            return True  # it has expired by now
        if self._queue.is_search_long:
            return False
        if not self._has_room():
            return True  # nobody waits for others
        if self.keys.is_full() or not backlog.ready_or_fetch():
            return False
        key = self._key_of_head()
        if key is None:
            return False
        self._set_aside(key)
        return backlog.is_empty()

    # --- messages leave ---------------------------------------------------------------------------------------------

    def drain(self, budget: i64) -> None:
        queue = self._queue
        keys = self.keys
        keys.unblock()
        while keys.has_open():
            if queue.is_search_long:
                budget -= queue.groups.take_search_cost()
            if budget <= 0:
                queue.wake()
                return
            budget -= 1
            if queue.check_restrained() or not self._hand_out_aside(keys.take_open()):
                return
        self._drain_backlog(budget)

    def _hand_out_aside(self, place: i64) -> bool:
        """Try to deliver the message at an open place; False when all consumers are full."""
        keys = self.keys
        aside = keys.maybe_first(place)
        if aside is None:
            return True
        queue = self._queue
        ready = self._ready
        key = aside.key
        consumer: Consumer | None
        if key.out == 0:
            consumer = queue.pick()
            if consumer is None:
                keys.reopen(place)
                return False
        else:
            consumer = _with_room(key.holder)
            if consumer is None:
                keys.expose(key)
                return True
        message = aside.message
        if self._is_expired(message):
            ready.take_returned(place)
            self._expire(message, place)
            return True
        if not consumer.no_ack:
            keys.bind(key, key.text, place, consumer)
        ready.take_returned(place)
        queue.hand_out(consumer, message, place, ready.next_redelivered)
        keys.open_for(consumer)
        return True

    def _drain_backlog(self, budget: i64) -> None:
        queue = self._queue
        ready = self._ready
        keys = self.keys
        backlog = self._backlog
        somebody: bool = False  # has room, as far as we know
        while not backlog.is_empty() and not keys.is_full():
            if queue.is_search_long:
                budget -= queue.groups.take_search_cost()
            if budget <= 0:
                queue.wake()
                return
            budget -= 1
            if not backlog.ready_or_fetch():
                return  # `Queue.look_again` will continue
            if queue.check_restrained():
                return
            message = backlog.oldest()
            text = keys.text_of(message)
            key = keys.maybe_key(text)
            consumer = queue.pick() if key is None else _maybe_next(key)
            if consumer is not None:
                somebody = False
                place: i64 = backlog.oldest_number()
                is_expired = self._is_expired(message)
                if not is_expired and not consumer.no_ack:
                    keys.bind(key, text, place, consumer)
                ready.take_head(0)
                if is_expired:
                    self._expire(message, place)
                else:
                    queue.hand_out(consumer, message, place, ready.next_redelivered)
                continue
            # Set nothing aside while there are no other consumers with room.
            if key is None or not (somebody or self._has_room()):
                return
            somebody = True
            self._set_aside(key)

    def _has_room(self) -> bool:
        """Tell whether some consumer may take a message, out of turn; note it when all are full."""
        queue = self._queue
        groups = queue.groups
        found = groups.has_room()
        if groups.passed_over > PASSED_OVER_PER_MESSAGE:
            queue.is_search_long = True
        if not found:
            queue.is_hungry = False
        return found

    def _key_of_head(self) -> SharedKey | None:
        return self.keys.maybe_key(self.keys.text_of(self._backlog.oldest()))

    def _set_aside(self, key: SharedKey) -> None:
        """Set the head of the backlog aside, which is in memory."""
        backlog = self._backlog
        message = backlog.oldest()
        place: i64 = backlog.oldest_number()
        self.keys.set_aside(key, place, message, place < backlog.delivered_before or message.attempts > 0)
        backlog.pop()

    def ready_or_fetch(self) -> bool:
        """Look past bound keys for the next message; tell whether it is in memory or does not exist."""
        backlog = self._backlog
        while self.keys.first_free() < 0 and not backlog.is_empty() and not self.keys.is_full():
            if not backlog.ready_or_fetch():
                return False
            key = self._key_of_head()
            if key is None:
                return True
            self._set_aside(key)
        return True

    def _maybe_take_next(self, ledger: DeliveryLedger) -> Message | None:
        keys = self.keys
        place: i64 = keys.first_free()
        own: i64 = keys.first_held(ledger)
        if own >= 0 and (place < 0 or own < place):
            place = own
        if place >= 0:
            return self._ready.take_returned(place)
        if self._backlog.is_empty() or keys.is_full():
            return None
        return self._ready.take_head(0)

    def got(self, message: Message, place: i64, ledger: DeliveryLedger) -> None:
        text = self.keys.text_of(message)
        self.keys.bind(self.keys.maybe_key(text), text, place, ledger)

    def settled(self, message: Message, place: i64) -> None:
        self.keys.answered(place, message)

    # --- consumers --------------------------------------------------------------------------------------------------

    def without(self, consumer: Consumer) -> Dispatch:
        self.keys.forget_consumer(consumer)
        return self

    def close(self) -> None:
        self.keys.close()

    def check_invariants(self, *, is_idle: bool) -> None:
        """Assert that every waiting message has a reason: no consumer could take it."""
        queue = self._queue
        if not is_idle or queue.check_restrained():
            return
        for key in self.keys.all_keys():
            if key.waiting > 0:
                assert key.out > 0 or not self._has_room(), f"key {key.text!r} waits, and is free"
                assert _with_room(key.holder) is None, f"key {key.text!r} waits, and its consumer has room"
        if not self._backlog.is_empty() and self._backlog.ready_or_fetch() and not self.keys.is_full():
            assert not self._has_room(), "the backlog waits, and a consumer has room"


def _maybe_next(key: SharedKey) -> Consumer | None:
    """Return the consumer that may have a message of `key` that is not set aside, if it has room."""
    return None if key.waiting > 0 else _with_room(key.holder)


def _with_room(holder: object | None) -> Consumer | None:
    """Return the holder of a key if it is a consumer that can take a message."""
    if isinstance(holder, Consumer) and not holder.gone and holder.has_room():
        return holder
    return None
