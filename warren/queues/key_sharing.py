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
3. A message of a bound key that cannot leave is set aside: no longer in the backlog, ready and in the log as before.
   Messages that were set aside or returned are older than the backlog. Only the head of the backlog is looked at.
4. Among the messages that may leave, the oldest leaves first. The oldest message of each key in `_aside` has its place
   in `_open`, or in `_blocked` while the key is bound to a consumer without room, or nowhere while that consumer is
   gone. Other places in these heaps are stale, and passed over.
5. With `ASIDE_MAX` messages set aside the backlog rests until one of them leaves, also for other keys. While
   memory is short it rests with `SHORT_ASIDE_MAX`: messages set aside count as resident and are never paged out.
6. A free key with nothing aside costs no memory. Keys are text, not bytes: a routing key is text already, and its hash
   is known.

Consumers that come and go change only which one is next for a free key. Hashing keys onto consumers, as other brokers
do, moves keys with every change and has to hold them back meanwhile. It also leaves a key to a busy consumer while
others are idle.

Order is that of places. A held message (a delay, a delayed retry) gets its place when it is released. A message at a
client is not overtaken by one that comes back later. After a clean restart, messages that had been set aside may be
flagged redelivered.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from warren.amqp.field_table import TableWalker
from warren.amqp.properties import headers_of
from warren.msgstore.log.message import Message
from warren.queues.backlog import Backlog
from warren.queues.delivery import Consumer, DeliveryLedger

if TYPE_CHECKING:
    from warren.queues.queue import Queue

ASIDE_MAX: Final = 10_000
SHORT_ASIDE_MAX: Final = 64
# How many places a heap has at least before stale ones are looked for.
PRUNE_MIN: Final = 64


@mypyc_attr(acyclic=True, free_list_len=1)
class SharedKey:
    """A key with unanswered messages or messages set aside. `holder`: a consumer or ledger (basic.get); None: free."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.holder: object | None = None
        self.out: i64 = 0  # unanswered
        self.waiting: i64 = 0  # set aside
        self._places: list[int] | None = None  # of messages set aside, ascending from `_head` on
        self._head: i64 = 0

    def first(self) -> i64:
        """Return the place of the oldest message set aside; not for a key without any."""
        places = self._places
        assert places is not None
        return places[self._head]

    def add(self, place: i64) -> bool:
        """Add the place of a message; True when it is the first now."""
        places = self._places
        self.waiting += 1
        if places is None:
            self._places = [int(place)]
            return True
        count: i64 = len(places)
        if count == self._head or place > places[count - 1]:
            places.append(int(place))
        else:
            insort(places, int(place), lo=int(self._head))
        return places[self._head] == place

    def remove(self, place: i64) -> bool:
        """Remove a place; True when it was the first."""
        places = self._places
        assert places is not None
        self.waiting -= 1
        head: i64 = self._head
        if places[head] != place:
            del places[bisect_left(places, int(place), lo=int(head))]
            return False
        head += 1
        if self.waiting == 0:
            places.clear()
            head = 0
        elif head > 32 and head * 2 > len(places):
            del places[:head]
            head = 0
        self._head = head
        return True

    def forget_waiting(self) -> None:
        """Note that all messages set aside are gone."""
        self.waiting = 0
        self._places = None
        self._head = 0

    def waiting_places(self) -> list[int]:
        """Return the places of messages set aside, ascending. For tests."""
        return [] if self._places is None else self._places[self._head :]


@mypyc_attr(acyclic=True, free_list_len=1)
class Aside:
    """A message that was set aside."""

    def __init__(self, key: SharedKey, message: Message, redelivered: bool) -> None:
        self.key = key
        self.message = message
        self.redelivered: bool = redelivered


class KeySharing:
    """Decides for `queue` who may have which message. `header`: has the key; ``""``: the routing key is the key."""

    def __init__(self, queue: Queue, backlog: Backlog, header: str) -> None:
        self.aside_max: i64 = ASIDE_MAX
        self._queue = queue
        self._backlog = backlog
        self._log = backlog.log
        self._header: bytes = header.encode()
        self._keys: dict[str, SharedKey] = {}
        self._out: dict[int, SharedKey] = {}  # with a header: of unanswered messages, by place; it is not read twice
        self._aside: dict[int, Aside] = {}  # by place
        self.aside_bytes: i64 = 0  # of their bodies
        self._aside_memory_bytes: i64 = 0  # and what they take in memory
        self._order: list[int] = []  # a heap of all places in `_aside`, once the oldest was asked for
        self._ordered: bool = False
        self._open: list[int] = []  # a heap, see (4)
        self._blocked: dict[object, list[int]] = {}  # heaps, by holder
        self._rests: bool = False  # the backlog rests, see (5)

    def key_of(self, message: Message) -> str:
        """Return the key of a message."""
        if not self._header:
            return message.envelope.routing_key
        return header_text(message.header_payload(), self._header)

    # --- out --------------------------------------------------------------------------------------------------------

    def maybe_hand_over(self, message: Message, is_stored: bool) -> i64:
        """Hand a new message to a consumer at once if one may have it, and return its place; else -1.

        The queue has nothing else to deliver now.
        """
        queue = self._queue
        if queue.is_search_long or not self._backlog.is_empty() or queue.is_restrained():
            return -1
        text = self.key_of(message)
        key = self._keys.get(text)
        consumer = queue.pick() if key is None else self._maybe_next(key)
        if consumer is None:
            return -1
        place: i64 = queue.hand_over(consumer, message, 0, is_stored)
        if not consumer.no_ack:
            self._bind(key, text, place, consumer)
        return place

    def maybe_look_past(self) -> bool:
        """Set the last message aside when it is the only one in the backlog; False when a look is not enough.

        Otherwise it would block later ones until the end of the turn, and all would count as waiting.
        """
        backlog = self._backlog
        if backlog.is_empty():
            return True  # it has expired by now
        if self._queue.is_search_long:
            return False
        if not self._queue.has_room():
            return True  # nobody waits for others
        if self._is_full() or not backlog.is_ready():
            return False
        key = self._keys.get(self.key_of(backlog.head()))
        if key is None:
            return False
        self._set_aside(key)
        return backlog.is_empty()

    def drain(self, budget: i64) -> None:
        """Deliver messages that may leave, oldest first; queue up again after `budget` messages."""
        queue = self._queue
        self._unblock()
        while self._open or self._unblock():
            if queue.is_search_long:
                budget -= queue.take_search_cost()
            if budget <= 0:
                queue.wake()
                return
            budget -= 1
            if queue.is_restrained() or not self._hand_out_aside(heappop(self._open)):
                return
        self._drain_backlog(budget)

    def _hand_out_aside(self, place: i64) -> bool:
        """Try to deliver the message at a place from `_open`; False when all consumers are full."""
        aside = self._maybe_first(place)
        if aside is None:
            return True
        queue = self._queue
        key = aside.key
        consumer: Consumer | None
        if key.out == 0:
            consumer = queue.pick()
            if consumer is None:
                self._push(self._open, place)
                return False
        else:
            consumer = _with_room(key.holder)
            if consumer is None:
                self._expose(key)
                return True
        message = aside.message
        if self._is_expired(message):
            self._remove(place, aside)
            self._expire(message, place)
            return True
        if not consumer.no_ack:
            self._bind(key, key.text, place, consumer)
        self._remove(place, aside)
        queue.hand_out(consumer, message, place, aside.redelivered)
        heap = self._blocked.get(consumer)
        if heap and consumer.has_room():
            self._pull(consumer, heap)
        return True

    def _drain_backlog(self, budget: i64) -> None:
        queue = self._queue
        backlog = self._backlog
        somebody: bool = False  # has room, as far as we know
        while not backlog.is_empty() and not self._is_full():
            if queue.is_search_long:
                budget -= queue.take_search_cost()
            if budget <= 0:
                queue.wake()
                return
            budget -= 1
            if not backlog.is_ready():
                return  # `Queue._loaded` will continue
            if queue.is_restrained():
                return
            text = self.key_of(backlog.head())
            key = self._keys.get(text)
            consumer = queue.pick() if key is None else self._maybe_next(key)
            if consumer is not None:
                somebody = False
                message = queue.ready.take_next()
                place: i64 = queue.ready.next_place
                redelivered = queue.ready.next_redelivered
                if self._is_expired(message):
                    self._expire(message, place)
                    continue
                if not consumer.no_ack:
                    self._bind(key, text, place, consumer)
                queue.hand_out(consumer, message, place, redelivered)
                continue
            # Set nothing aside while there are no other consumers with room.
            if key is None or not (somebody or queue.has_room()):
                return
            somebody = True
            self._set_aside(key)

    def _maybe_next(self, key: SharedKey) -> Consumer | None:
        """Return the consumer that may have a message of `key` that is not set aside, if it has room."""
        return None if key.waiting > 0 else _with_room(key.holder)

    def _bind(self, key: SharedKey | None, text: str, place: i64, holder: object) -> None:
        """Note that a delivery of the key wants an answer. `key` is None for an unknown key."""
        if key is None:
            key = SharedKey(text)
            self._keys[text] = key
        key.holder = holder
        key.out += 1
        if self._header:
            self._out[int(place)] = key

    def _is_expired(self, message: Message) -> bool:
        keeper = self._queue.keeper
        return keeper is not None and keeper.expiry.is_expired(message)

    def _expire(self, message: Message, place: i64) -> None:
        """Let a message that was taken out expire; its dead letter may come back here before this returns."""
        keeper = self._queue.keeper
        if keeper is not None:
            keeper.expiry.expired_at_hand_out(message, place)

    # --- answers ------------------------------------------------------------------------------------------------------

    def answered(self, place: i64, message: Message) -> None:
        """Note that a delivery is settled. The caller wakes the queue."""
        key = self._key_of_delivery(place, message)
        key.out -= 1
        if key.out == 0:
            holder = key.holder
            key.holder = None
            if key.waiting > 0:
                self._expose(key)
            else:
                del self._keys[key.text]
            self._forget_getter(holder)

    def returned(self, place: i64, message: Message) -> None:
        """Note that a delivery is ready again, and counted so. The caller wakes the queue."""
        key = self._key_of_delivery(place, message)
        key.out -= 1
        holder = key.holder
        if key.out == 0:
            key.holder = None
        if self._add(key, place, message, True) or key.out == 0:
            self._expose(key)
        if key.out == 0:
            self._forget_getter(holder)

    def _key_of_delivery(self, place: i64, message: Message) -> SharedKey:
        if self._header:
            return self._out.pop(int(place))
        return self._keys[message.envelope.routing_key]

    def consumer_removed(self, consumer: Consumer) -> None:
        """Note that `consumer` gets nothing more; its keys wait for their answers."""
        self._blocked.pop(consumer, None)

    def _forget_getter(self, holder: object | None) -> None:
        """Forget a channel when none of its basic.gets keep a key waiting."""
        if isinstance(holder, DeliveryLedger) and self._first_held(holder) < 0:
            self._blocked.pop(holder, None)

    # --- set aside ----------------------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        count: i64 = len(self._aside)
        log = self._log
        self._rests = count >= SHORT_ASIDE_MAX and (count >= self.aside_max or log.resident_bytes > log.memory_bytes)
        return self._rests

    def _set_aside(self, key: SharedKey) -> None:
        """Set the head of the backlog aside, which is in memory."""
        backlog = self._backlog
        message = backlog.pop()
        place: i64 = backlog.popped_number
        if self._add(key, place, message, place < backlog.delivered_before or message.attempts > 0):
            self._expose(key)

    def _add(self, key: SharedKey, place: i64, message: Message, redelivered: bool) -> bool:
        self._aside[int(place)] = Aside(key, message, redelivered)
        self.aside_bytes += message.body_bytes
        self._aside_memory_bytes += message.memory_bytes
        self._log.resident_bytes += message.memory_bytes
        if self._ordered:
            self._push(self._order, place)
        return key.add(place)

    def _remove(self, place: i64, aside: Aside) -> None:
        """Remove a message that was set aside: it is no longer ready."""
        queue = self._queue
        key = aside.key
        message = aside.message
        del self._aside[int(place)]
        self.aside_bytes -= message.body_bytes
        self._aside_memory_bytes -= message.memory_bytes
        self._log.resident_bytes -= message.memory_bytes
        queue.ready.count -= 1
        queue.ready.body_bytes -= message.body_bytes
        was_first = key.remove(place)
        if key.waiting > 0:
            if was_first:
                self._expose(key)
        elif key.out == 0:
            del self._keys[key.text]
        if not self._aside:
            self._clear_heaps()
        if self._rests:
            self._rests = False
            queue.wake_if_hungry()

    def _clear_heaps(self) -> None:
        self._ordered = False
        self._order.clear()
        self._open.clear()
        self._blocked.clear()

    def _expose(self, key: SharedKey) -> None:
        """Put the first place of a key where (4) wants it."""
        holder = key.holder
        if key.out == 0:
            self._push(self._open, key.first())
            return
        if isinstance(holder, Consumer) and holder.gone:
            return
        heap = self._blocked.get(holder)
        if heap is None:
            heap = []
            self._blocked[holder] = heap
        self._push(heap, key.first())

    def _push(self, heap: list[int], place: i64) -> None:
        count: i64 = len(heap)
        if count >= PRUNE_MIN and count > 2 * len(self._aside):
            heap[:] = sorted({there for there in heap if there in self._aside})
        heappush(heap, int(place))

    def _maybe_first(self, place: i64) -> Aside | None:
        """Return the message set aside at a place, None when the place is stale or not the first of its key."""
        aside = self._aside.get(int(place))
        return aside if aside is not None and aside.key.first() == place else None

    def _unblock(self) -> bool:
        """Look for consumers that have room again; False when no key is open then."""
        done: list[object] = []
        for holder, heap in self._blocked.items():
            if isinstance(holder, Consumer) and holder.has_room() and not self._pull(holder, heap):
                done.append(holder)
        for holder in done:
            del self._blocked[holder]
        return len(self._open) > 0

    def _pull(self, holder: object, heap: list[int]) -> bool:
        """Open the first key in a holder's heap; False when the heap has none."""
        place: i64 = self._first_in(holder, heap)
        if place < 0:
            return False
        heappop(heap)
        self._push(self._open, place)
        return True

    def _first_in(self, holder: object, heap: list[int]) -> i64:
        while heap:
            place: i64 = heap[0]
            aside = self._maybe_first(place)
            if aside is not None and aside.key.holder is holder:
                return place
            heappop(heap)
        return -1

    # --- basic.get ------------------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Tell whether the next message for a basic.get is in memory or does not exist; look past bound keys for it."""
        backlog = self._backlog
        while self._first_free() < 0 and not backlog.is_empty() and not self._is_full():
            if not backlog.is_ready():
                return False
            key = self._keys.get(self.key_of(backlog.head()))
            if key is None:
                return True
            self._set_aside(key)
        return True

    def maybe_take_for(self, ledger: DeliveryLedger) -> Message | None:
        """Take the oldest message that a basic.get of a channel may have; `is_ready` was True just now."""
        place: i64 = self._first_free()
        own: i64 = self._first_held(ledger)
        if own >= 0 and (place < 0 or own < place):
            place = own
        if place >= 0:
            return self._take(place)
        if self._backlog.is_empty() or self._is_full():
            return None
        return self._queue.ready.take_next()

    def got(self, message: Message, place: i64, ledger: DeliveryLedger) -> None:
        """Bind the key of a message that `maybe_take_for` returned: it wants an answer."""
        text = self.key_of(message)
        self._bind(self._keys.get(text), text, place, ledger)

    def _first_free(self) -> i64:
        """Return the first place of a free key, or -1."""
        heap = self._open
        while heap:
            place: i64 = heap[0]
            aside = self._maybe_first(place)
            if aside is not None and aside.key.out == 0:
                return place
            heappop(heap)
            if aside is not None:
                self._expose(aside.key)
        return -1

    def _first_held(self, ledger: DeliveryLedger) -> i64:
        heap = self._blocked.get(ledger)
        return -1 if heap is None else self._first_in(ledger, heap)

    # --- out of turn --------------------------------------------------------------------------------------------------

    def maybe_oldest(self) -> Message | None:
        """Return the oldest message that is set aside."""
        place: i64 = self._oldest()
        return None if place < 0 else self._aside[int(place)].message

    def take_oldest(self) -> Message:
        """Take out the message that `maybe_oldest` returns; ``next_place`` of the queue is where it was."""
        return self._take(self._oldest())

    def maybe_aside(self, place: i64) -> Message | None:
        """Return the message at `place` if it is set aside."""
        aside = self._aside.get(int(place))
        return None if aside is None else aside.message

    def maybe_take_out(self, place: i64) -> Message | None:
        """Take the message at `place` out if it is set aside."""
        return self._take(place) if int(place) in self._aside else None

    def purge(self) -> None:
        """Settle everything that is set aside. The queue counts."""
        for place, aside in self._aside.items():
            self._queue.ready.settle(aside.message, place)
        self._forget_aside()
        for key in list(self._keys.values()):
            key.forget_waiting()
            if key.out == 0:
                del self._keys[key.text]

    def close(self) -> None:
        """Release everything: the queue is deleted."""
        self._forget_aside()
        reclamation = self._log.reclamation
        reclamation.add_named(self._keys, 0)
        reclamation.add_named(self._out, 0)
        self._keys = {}
        self._out = {}

    def _forget_aside(self) -> None:
        reclamation = self._log.reclamation
        reclamation.add_named(self._aside, self._aside_memory_bytes)
        self._aside = {}
        self.aside_bytes = 0
        self._aside_memory_bytes = 0
        self._clear_heaps()

    def aside_places(self) -> list[tuple[int, Message]]:
        """Return the messages set aside, with their places."""
        return [(place, aside.message) for place, aside in self._aside.items()]

    def may_have_been_delivered(self, place: i64) -> bool:
        """Tell whether the message that is set aside at `place` will be flagged as redelivered."""
        return self._aside[int(place)].redelivered

    def aside_messages(self) -> list[Message]:
        """Return the messages set aside, in order. For tests and small listings."""
        return [self._aside[place].message for place in sorted(self._aside)]

    def _oldest(self) -> i64:
        if not self._ordered:
            self._ordered = True
            self._order = sorted(self._aside)
        order = self._order
        while order:
            place: i64 = order[0]
            if int(place) in self._aside:
                return place
            heappop(order)
        return -1

    def _take(self, place: i64) -> Message:
        aside = self._aside[int(place)]
        self._remove(place, aside)
        queue = self._queue
        queue.ready.next_place = place
        queue.ready.next_redelivered = aside.redelivered
        return aside.message

    # --- tests --------------------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Assert (2) to (6) of the module header. For tests; the queue is not on the runnable list."""
        queue = self._queue
        assert queue.unacked_count == sum(int(key.out) for key in self._keys.values())
        assert len(self._out) == (queue.unacked_count if self._header else 0)
        assert self.aside_bytes == sum(int(aside.message.body_bytes) for aside in self._aside.values())
        assert self._aside_memory_bytes == sum(int(aside.message.memory_bytes) for aside in self._aside.values())
        assert len(self._aside) == sum(int(key.waiting) for key in self._keys.values())
        for text, key in self._keys.items():
            assert key.text == text
            assert key.out + key.waiting > 0
            assert (key.out > 0) == (key.holder is not None)
            places = key.waiting_places()
            assert len(places) == key.waiting and places == sorted(set(places))
            for place in places:
                assert self._aside[place].key is key
                assert self.key_of(self._aside[place].message) == text
                assert place < self._backlog.delivered_below()
            if places:
                self._check_exposed(key, places[0])
        assert not self._ordered or set(self._aside) <= set(self._order)
        if not self._aside:
            assert not self._order and not self._open and not self._blocked
        holders = {key.holder for key in self._keys.values()}
        for holder in self._blocked:
            if isinstance(holder, Consumer):
                assert not holder.gone, "a consumer that is gone is remembered"
            else:
                assert holder in holders, "a channel is remembered for what it got long ago"

    def check_nothing_could_leave(self) -> None:
        """Assert that every waiting message has a reason: no consumer could take it. For tests."""
        queue = self._queue
        if queue.is_restrained():
            return
        for key in self._keys.values():
            if key.waiting > 0:
                assert key.out > 0 or not queue.has_room(), f"key {key.text!r} waits, and is free"
                assert _with_room(key.holder) is None, f"key {key.text!r} waits, and its consumer has room"
        if not self._backlog.is_empty() and self._backlog.is_ready() and not self._is_full():
            assert not queue.has_room(), "the backlog waits, and a consumer has room"

    def _check_exposed(self, key: SharedKey, place: int) -> None:
        holder = key.holder
        if key.out == 0:
            assert place in self._open
        elif not (isinstance(holder, Consumer) and holder.gone):
            assert place in self._open or place in self._blocked[holder]


def _with_room(holder: object | None) -> Consumer | None:
    """Return the holder of a key if it is a consumer that can take a message."""
    if isinstance(holder, Consumer) and not holder.gone and holder.has_room():
        return holder
    return None


def header_text(payload: bytes, name: bytes) -> str:
    """Return the value of a header as text, from a scanned content header payload; ``""`` without it."""
    # Looking for the name is quicker than walking a table that does not have it.
    if name not in payload:
        return ""
    table = headers_of(payload)
    if not table:
        return ""
    walker = TableWalker(table, 4, len(table))
    value: object = None
    while walker.pos < walker.end:
        start: i64 = walker.pos
        walker.skip_key()
        if table[start + 1 : walker.pos] == name:
            value = walker.value(1)
        else:
            walker.skip_value(1)
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value)
