"""The keys of a key-shared queue, the messages set aside for them, and the consumers that they are bound to.

    free    all deliveries of the key are answered
    bound   one is unanswered: ``holder`` has it, a consumer or the channel of a basic.get

1. A key is here while it is bound or messages of it are set aside. A free key with nothing aside costs no memory. Keys
   are text, not bytes: a routing key is text already, and its hash is known.
2. Messages set aside are older than the backlog. ``ReadyMessages`` takes them for messages that came back. Some did;
   `set_aside` took the others from the backlog. They count as resident and are never paged out.
3. The oldest message of each key has its place in the open places, or among the blocked ones of its holder while the
   key is bound to a consumer without room, or nowhere while that consumer is gone. Other places in these heaps are
   stale, and passed over.
4. With `ASIDE_MAX` messages set aside the backlog rests until one of them leaves, also for other keys. While memory is
   short it rests with `SHORT_ASIDE_MAX`.

Which message leaves next is the decision of ``queues.key_sharing``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush, nsmallest
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from warren.amqp.field_table import TableWalker
from warren.amqp.properties import headers_of
from warren.msgstore.log.message import Message
from warren.msgstore.log.reclamation import Reclamation, Settle
from warren.queues.consumer import Consumer
from warren.queues.delivery import DeliveryLedger
from warren.queues.returned_messages import ReturnedMessages

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


class SharedKeys(ReturnedMessages):
    """The keys of `queue`. `header`: has the key; ``""``: the routing key is the key."""

    def __init__(self, queue: Queue, header: str) -> None:
        super().__init__()
        self.aside_max: i64 = ASIDE_MAX
        self._queue = queue
        self._log = queue.ready.backlog(0).log
        self._header: bytes = header.encode()
        self._keys: dict[str, SharedKey] = {}
        self._out: dict[int, SharedKey] = {}  # with a header: of unanswered messages, by place; it is not read twice
        self._aside: dict[int, Aside] = {}  # by place
        self._memory_bytes: i64 = 0  # what they take in memory
        self._by_age: list[int] = []  # a heap of all places in `_aside`, once the oldest was asked for
        self._is_ordered: bool = False
        self._open: list[int] = []  # a heap, see (3)
        self._blocked: dict[object, list[int]] = {}  # heaps, by holder
        self._rests: bool = False  # the backlog rests, see (4)

    # --- keys -------------------------------------------------------------------------------------------------------

    def text_of(self, message: Message) -> str:
        """Return the text of the key of a message."""
        if not self._header:
            return message.envelope.routing_key
        return header_text(message.header_payload(), self._header)

    def maybe_key(self, text: str) -> SharedKey | None:
        """Return the key with this text; None: it is free, and nothing of it is set aside."""
        return self._keys.get(text)

    def bind(self, key: SharedKey | None, text: str, place: i64, holder: object) -> None:
        """Note that a delivery of a key wants an answer. `key`: as `maybe_key` has returned it."""
        if key is None:
            key = SharedKey(text)
            self._keys[text] = key
        key.holder = holder
        key.out += 1
        if self._header:
            self._out[int(place)] = key

    def answered(self, place: i64, message: Message) -> None:
        """Note that a delivery is settled."""
        key = self._key_of_delivery(place, message)
        key.out -= 1
        if key.out == 0:
            holder = key.holder
            key.holder = None
            if key.waiting > 0:
                self.expose(key)
            else:
                del self._keys[key.text]
            self._forget_getter(holder)

    def put(self, message: Message, place: i64, is_unanswered: bool = True) -> None:
        """Put a delivery back."""
        if not is_unanswered:
            text = self.text_of(message)
            free = self._keys.get(text) or SharedKey(text)
            self._keys[text] = free
            self.set_aside(free, place, message, True)
            return
        key = self._key_of_delivery(place, message)
        key.out -= 1
        holder = key.holder
        if key.out == 0:
            key.holder = None
        if self._add(key, place, message, True) or key.out == 0:
            self.expose(key)
        if key.out == 0:
            self._forget_getter(holder)

    def _key_of_delivery(self, place: i64, message: Message) -> SharedKey:
        if self._header:
            return self._out.pop(int(place))
        return self._keys[message.envelope.routing_key]

    def forget_consumer(self, consumer: Consumer) -> None:
        """Forget a consumer that is gone; its keys wait for their answers."""
        self._blocked.pop(consumer, None)

    def _forget_getter(self, holder: object | None) -> None:
        """Forget a channel when none of its basic.gets keep a key waiting."""
        if isinstance(holder, DeliveryLedger) and self.first_held(holder) < 0:
            self._blocked.pop(holder, None)

    # --- set aside --------------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        """Tell whether the backlog rests (4); if so, the queue is woken when a message has left."""
        count: i64 = len(self._aside)
        log = self._log
        self._rests = count >= SHORT_ASIDE_MAX and (count >= self.aside_max or log.resident_bytes > log.memory_bytes)
        return self._rests

    def set_aside(self, key: SharedKey, place: i64, message: Message, redelivered: bool) -> None:
        """Take a message that has left the backlog."""
        if self._add(key, place, message, redelivered):
            self.expose(key)

    def _add(self, key: SharedKey, place: i64, message: Message, redelivered: bool) -> bool:
        self._aside[int(place)] = Aside(key, message, redelivered)
        self.body_bytes += message.body_bytes
        self._memory_bytes += message.memory_bytes
        self._log.resident_bytes += message.memory_bytes
        if self._is_ordered:
            self._push(self._by_age, place)
        return key.add(place)

    def maybe_take(self, place: i64) -> Message | None:
        aside = self._aside.pop(int(place), None)
        if aside is None:
            return None
        key = aside.key
        message = aside.message
        self.took_redelivered = aside.redelivered
        self.body_bytes -= message.body_bytes
        self._memory_bytes -= message.memory_bytes
        self._log.resident_bytes -= message.memory_bytes
        was_first = key.remove(place)
        if key.waiting > 0:
            if was_first:
                self.expose(key)
        elif key.out == 0:
            del self._keys[key.text]
        if not self._aside:
            self._clear_heaps()
        if self._rests:
            self._rests = False
            queue = self._queue
            if queue.is_hungry:
                queue.wake()
        return message

    def take_read(self, place: i64) -> bool:
        return self.maybe_take(place) is not None

    def _clear_heaps(self) -> None:
        self._is_ordered = False
        self._by_age.clear()
        self._open.clear()
        self._blocked.clear()

    # --- which may leave --------------------------------------------------------------------------------------------

    def expose(self, key: SharedKey) -> None:
        """Put the first place of a key where (3) wants it."""
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

    def maybe_first(self, place: i64) -> Aside | None:
        """Return the message set aside at a place, None when the place is stale or not the first of its key."""
        aside = self._aside.get(int(place))
        return aside if aside is not None and aside.key.first() == place else None

    def has_open(self) -> bool:
        """Tell whether a place is open, maybe a stale one; if not, look for consumers that have room again."""
        return len(self._open) > 0 or self.unblock()

    def take_open(self) -> i64:
        """Take out the first open place."""
        return heappop(self._open)

    def reopen(self, place: i64) -> None:
        """Put a place back that `take_open` has returned."""
        self._push(self._open, place)

    def unblock(self) -> bool:
        """Look for consumers that have room again; False when no place is open then."""
        done: list[object] = []
        for holder, heap in self._blocked.items():
            if isinstance(holder, Consumer) and holder.has_room() and not self._pull(holder, heap):
                done.append(holder)
        for holder in done:
            del self._blocked[holder]
        return len(self._open) > 0

    def open_for(self, consumer: Consumer) -> None:
        """Open the first key that is blocked for `consumer` alone, if that has room."""
        heap = self._blocked.get(consumer)
        if heap and consumer.has_room():
            self._pull(consumer, heap)

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
            aside = self.maybe_first(place)
            if aside is not None and aside.key.holder is holder:
                return place
            heappop(heap)
        return -1

    def first_free(self) -> i64:
        """Return the first place of a free key, or -1."""
        heap = self._open
        while heap:
            place: i64 = heap[0]
            aside = self.maybe_first(place)
            if aside is not None and aside.key.out == 0:
                return place
            heappop(heap)
            if aside is not None:
                self.expose(aside.key)
        return -1

    def first_held(self, ledger: DeliveryLedger) -> i64:
        """Return the first place of the keys that are bound to the basic.gets of a channel, or -1."""
        heap = self._blocked.get(ledger)
        return -1 if heap is None else self._first_in(ledger, heap)

    # --- for the ready messages -------------------------------------------------------------------------------------

    def count(self) -> i64:
        return len(self._aside)

    def first_place(self) -> i64:
        if not self._is_ordered:
            self._is_ordered = True
            self._by_age = sorted(self._aside)
        order = self._by_age
        while order[0] not in self._aside:
            heappop(order)
        return order[0]

    def first(self) -> Message:
        return self._aside[int(self.first_place())].message

    def maybe_at(self, place: i64) -> Message | None:
        aside = self._aside.get(int(place))
        return None if aside is None else aside.message

    def may_have_been_delivered(self, place: i64) -> bool:
        return self._aside[int(place)].redelivered

    def between(self, first: i64, last: i64, most: int) -> list[tuple[int, Message]]:
        places = nsmallest(most, [place for place in self._aside if first <= place <= last])
        return [(place, self._aside[place].message) for place in places]

    def places(self) -> list[int]:
        return list(self._aside)

    def settle_all(self, reclamation: Reclamation, settle: Settle) -> None:
        for place, aside in self._aside.items():
            settle(aside.message, place)

    def let_go(self, reclamation: Reclamation) -> None:
        reclamation.add_named(self._aside, self._memory_bytes)
        self._aside = {}
        self.body_bytes = 0
        self._memory_bytes = 0
        self._clear_heaps()
        for key in list(self._keys.values()):
            key.forget_waiting()
            if key.out == 0:
                del self._keys[key.text]

    def close(self) -> None:
        """Release everything: the queue is deleted."""
        reclamation = self._log.reclamation
        reclamation.add_named(self._keys, 0)
        reclamation.add_named(self._out, 0)
        self._keys = {}
        self._out = {}
        self.let_go(reclamation)

    # --- tests ------------------------------------------------------------------------------------------------------

    def all_keys(self) -> list[SharedKey]:
        """Return all keys. For tests."""
        return list(self._keys.values())

    def check_invariants(self) -> None:
        """Assert (1) to (3) of the module header, and the counts."""
        queue = self._queue
        assert queue.unacked_count == sum(int(key.out) for key in self._keys.values())
        assert len(self._out) == (queue.unacked_count if self._header else 0)
        assert self.body_bytes == sum(int(aside.message.body_bytes) for aside in self._aside.values())
        assert self._memory_bytes == sum(int(aside.message.memory_bytes) for aside in self._aside.values())
        assert len(self._aside) == sum(int(key.waiting) for key in self._keys.values())
        for text, key in self._keys.items():
            assert key.text == text
            assert key.out + key.waiting > 0
            assert (key.out > 0) == (key.holder is not None)
            places = key.waiting_places()
            assert len(places) == key.waiting and places == sorted(set(places))
            for place in places:
                assert self._aside[place].key is key
                assert self.text_of(self._aside[place].message) == text
            if places:
                self._check_exposed(key, places[0])
        assert not self._is_ordered or set(self._aside) <= set(self._by_age)
        if not self._aside:
            assert not self._by_age and not self._open and not self._blocked
        holders = {key.holder for key in self._keys.values()}
        for holder in self._blocked:
            if isinstance(holder, Consumer):
                assert not holder.gone, "a consumer that is gone is remembered"
            else:
                assert holder in holders, "a channel is remembered for what it got long ago"

    def _check_exposed(self, key: SharedKey, place: int) -> None:
        holder = key.holder
        if key.out == 0:
            assert place in self._open
        elif not (isinstance(holder, Consumer) and holder.gone):
            assert place in self._open or place in self._blocked[holder]


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
