"""Consumers that want only some of the messages of a queue: how far each has looked, and its turns.

    looks at     messages that came back or are before its place, then later ones, in the order of places
    is through   with all messages: it is out of the ring of the queue until a message comes, or comes back
    waits        for the disk: it is out of the ring until the read is done

1. Each looks at each ready message once, and again whenever that has come back. So n messages and m such consumers
   take at most n * m decisions, whatever else happens to the queue. A consumer without room decides nothing.
2. A message that does not match stays where it is, in its order. One that matches is taken out from between others when
   it is delivered; it is not kept for a consumer without room.
3. The ring of the queue (``queues.consumer_groups``) has the turns: priorities and a single active consumer hold for
   these consumers, too. One turn is a message, or as many decisions as cost `TURN_LOOKS`. Consumers without a selection
   take the first message, as always.
4. Looking counts for the budget of the turn of the queue, and of that of a channel or connection.
5. Messages on disk are read for these consumers a window at a time, one window for each queue. A consumer whose place
   is in the window looks at it there. The next window is read for the consumer that has waited longest, when no
   consumer that could continue has its place in the current one. A window is never brought into the backlog, so the
   head stays short.
6. A queue has at most `SELECTIVE_MAX` of them: each publish costs a decision of each.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import IndexPage, QueueIndex
from warren.queues.consumer import Consumer
from warren.queues.dispatch import Dispatch
from warren.queues.fetch import Fetch
from warren.queues.lanes import LANE_SHIFT, NUMBER_MASK
from warren.queues.ready_messages import ReadyMessages
from warren.queues.selection import Selection

if TYPE_CHECKING:
    from warren.queues.base_queue import BaseQueue
    from warren.queues.queue import Queue

SELECTIVE_MAX: Final = 64
TURN_LOOKS: Final = 8
# The size of a read.
WINDOW_MESSAGES: Final = 256
WINDOW_BYTES: Final = 256 << 10
# How many stale places of returned messages there may be, in addition to as many as came back.
STALE_MIN: Final = 64
# After how many messages taken out from between others it is checked whether to close the gaps.
THIN_OUT_AFTER: Final = 1024


class Search:
    """How far a consumer has looked.

    `again`: a heap of the places of messages that came back since, or were back when the consumer came; some may be
    stale.
    """

    def __init__(self, consumer: Consumer, selection: Selection, lanes: int, again: list[int]) -> None:
        self.consumer = consumer
        self.selection = selection
        self.is_through: bool = False
        self.waits: bool = False
        self.looks: i64 = 0  # decisions, ever
        self._lane: i64 = 0  # earlier lanes have nothing after the place in them
        self._numbers = [0] * lanes  # by lane: everything before in its backlog has been looked at
        self._again = again
        self._marks: dict[int, int] = {}

    def next_place(self, ready: ReadyMessages) -> i64:
        """Return the place that it looks at next, -1: it is through."""
        numbers = self._numbers
        lanes: i64 = len(numbers)
        lane: i64 = self._lane
        place: i64 = -1
        while lane < lanes:
            backlog = ready.backlog(lane)
            if numbers[lane] < backlog.next_number:
                number: i64 = backlog.seek(numbers[lane])
                numbers[lane] = int(number)
                if number < backlog.next_number:
                    place = lane << LANE_SHIFT | number
                    break
            lane += 1
        self._lane = lane
        again = self._again
        while again and (place < 0 or again[0] < place):
            if ready.returned.maybe_at(again[0]) is not None:
                return again[0]
            heappop(again)
        return place

    def number_in(self, lane: i64) -> i64:
        """Return the number in the backlog of a lane up to which it has looked at everything."""
        return self._numbers[lane]

    def pass_to(self, lane: i64, number: i64) -> None:
        """Continue in a lane with `number`."""
        self._numbers[lane] = int(number)

    def passed(self, place: i64) -> None:
        """Continue after `place`, which `next_place` has returned."""
        again = self._again
        came_back: bool = False
        while again and again[0] == place:
            heappop(again)
            came_back = True
        lane: i64 = place >> LANE_SHIFT
        number = int(place & NUMBER_MASK)
        # On disk the backlog has returned messages, too: one may be at this very place.
        if not came_back or self._numbers[lane] == number:
            self._numbers[lane] = number + 1

    def came(self, lane: i64) -> bool:
        """Note that a message has come into a lane; True when the consumer was through."""
        if lane < self._lane:
            self._lane = lane
        return self._search_again()

    def came_back(self, place: i64, ready: ReadyMessages) -> bool:
        """Note that a message has come back; True when the consumer was through."""
        again = self._again
        if len(again) > 2 * ready.returned.count() + STALE_MIN:
            again = sorted({each for each in again if ready.returned.maybe_at(each) is not None})
            self._again = again
        heappush(again, int(place))
        return self._search_again()

    def _search_again(self) -> bool:
        if not self.is_through:
            return False
        self.is_through = False
        self.consumer.come_back()
        return True

    def mark(self, ready: ReadyMessages) -> None:
        """Note the end of all messages now, for `has_seen_all`."""
        lanes = range(len(self._numbers))
        self._marks = {lane: int(ready.backlog(lane).next_number) for lane in lanes if self._is_behind(ready, lane)}

    def _is_behind(self, ready: ReadyMessages, lane: int) -> bool:
        return self._numbers[lane] < ready.backlog(lane).next_number

    def has_seen_all(self, ready: ReadyMessages) -> bool:
        """Tell whether it has looked at all messages, or at those up to the last `mark` or that came back since."""
        if self.is_through:
            return True
        for lane, end in self._marks.items():
            if ready.backlog(lane).seek(self._numbers[lane]) < end:
                return False
        place: i64 = self.next_place(ready)
        return place < 0 or ready.returned.maybe_at(place) is None

    def check_invariants(self, ready: ReadyMessages) -> None:
        """Assert that it is through if it says so. For tests."""
        if self.is_through:
            assert self.next_place(ready) < 0, "who is through has not looked at everything"
            assert not self.waits


class _Window:
    """The messages read from the middle of a lane, up to `end`. `loaded`: index pages that were absent."""

    def __init__(
        self, lane: i64, first: i64, end: i64, numbers: list[int], messages: list[Message | None], loaded: list[int]
    ) -> None:
        self.lane: i64 = lane
        self.loaded = loaded
        self._first: i64 = first
        self._end: i64 = end
        self._numbers = numbers
        self._messages = messages
        self.memory_bytes = sum([int(message.memory_bytes) for message in messages if message is not None])

    def has(self, lane: i64, number: i64) -> bool:
        """Tell whether `number` is in the range that was read, with or without a message."""
        return lane == self.lane and self._first <= number < self._end

    def maybe_message(self, number: i64) -> Message | None:
        """Return the message with `number`."""
        at: i64 = bisect_left(self._numbers, int(number))
        return self._messages[at] if at < len(self._numbers) and self._numbers[at] == number else None

    def behind(self, number: i64) -> i64:
        """Return the number of the next message in it, or its end."""
        at: i64 = bisect_left(self._numbers, int(number) + 1)
        while at < len(self._numbers) and self._messages[at] is None:
            at += 1
        return self._numbers[at] if at < len(self._numbers) else self._end


def why_not_selected(queue: BaseQueue) -> str:
    """Return why consumers of `queue` cannot select messages, "": they can."""
    if queue.rules.key_shared:
        return f"queue '{queue.name}' shares keys, and always delivers the next message of a key"
    if queue.rules.memory_only:
        return f"queue '{queue.name}' has x-storage memory, and messages that nobody takes may be dropped"
    return ""


class Selective(Dispatch):
    """Hands out the messages of `queue`, which has selective consumers. `usual`: does so after the last has gone."""

    def __init__(self, queue: Queue, usual: Dispatch) -> None:
        super().__init__(queue)
        self._log = self._ready.backlog(0).log
        self._usual = usual
        self._searches: list[Search] = []
        self._waiting: list[Search] = []  # for the disk, the longest waiting first
        self._window: _Window | None = None
        self._is_reading: bool = False
        self._taken: i64 = 0  # since gaps were looked for

    def selective_count(self) -> int:
        return len(self._searches)

    def add(self, consumer: Consumer, selection: Selection) -> None:
        """Give `consumer`, which is new, only messages that pass `selection`."""
        again = self._ready.returned.places()
        heapify(again)
        search = Search(consumer, selection, self._ready.lane_count, again)
        consumer.search = search
        self._searches.append(search)

    def without(self, consumer: Consumer) -> Dispatch:
        search = consumer.search
        if search is not None:
            consumer.search = None  # they refer to each other: do not leave them to the cyclic collector
            self._searches.remove(search)
            if search.waits:
                self._waiting.remove(search)
            if not self._searches:
                self._drop_window()
        return self if self._searches else self._usual

    def close(self) -> None:
        for search in self._searches:
            search.consumer.search = None
        self._searches = []
        self._waiting = []
        self._drop_window()

    # --- messages come ------------------------------------------------------------------------------------------------

    def maybe_hand_over(self, message: Message, lane: i64, is_stored: bool) -> i64:
        return -1  # `drain` finds the consumers that want it

    def came(self, lane: i64) -> None:
        queue = self._queue
        for search in self._searches:
            if search.came(lane):
                queue.is_hungry = True
        if queue.is_hungry:
            queue.wake()

    def came_back(self, place: i64) -> None:
        for search in self._searches:
            search.came_back(place, self._ready)

    # --- out ----------------------------------------------------------------------------------------------------------

    def drain(self, budget: i64) -> None:
        queue = self._queue
        ready = self._ready
        while ready.count > 0:
            if budget <= 0:
                queue.wake()
                break
            consumer = queue.pick()
            if queue.is_search_long:
                budget -= queue.groups.take_search_cost()
            if consumer is None:
                break
            search = consumer.search
            if search is None:
                budget -= 1
                if not ready.ready_or_fetch():
                    break  # `Queue.look_again` will continue
                self._hand_out_next(consumer)
                continue
            if not search.is_through and not search.waits:
                cost: i64 = self._take_turn(consumer, search)
                consumer.looked += cost
                budget -= cost
            if (search.is_through or search.waits) and not queue.groups.rest(consumer):
                queue.is_hungry = False
                break
        if self._taken >= THIN_OUT_AFTER:
            self._taken = 0
            ready.thin_out()
        if self._waiting or self._window is not None:
            self._read_on()

    def _take_turn(self, consumer: Consumer, search: Search) -> i64:
        """Search for a consumer until it has a message, or its turn is over; return the cost, in messages."""
        queue = self._queue
        ready = self._ready
        selection = search.selection
        now_ms: i64 = self._log.now_ms
        cost: i64 = 0
        while cost < TURN_LOOKS:
            cost += 1
            place: i64 = search.next_place(ready)
            if place < 0:
                search.is_through = True
                break
            message = ready.maybe_waiting(place)
            if message is None:
                message = self._maybe_read(search, place)
                if message is None:
                    if search.waits:
                        break
                    continue
            search.passed(place)
            search.looks += 1
            is_wanted = selection.passes(message, now_ms)
            cost += selection.cost
            if not is_wanted or not ready.take_ahead(message, place):
                continue
            self._taken += 1
            if self._is_expired(message):
                self._expire(message, place)
                continue
            queue.hand_out(consumer, message, place, ready.next_redelivered)
            break
        return cost

    # --- from disk ----------------------------------------------------------------------------------------------------

    def _maybe_read(self, search: Search, place: i64) -> Message | None:
        """Return the message at a place on disk, if it was read; None: it has to be waited for, or is passed over."""
        lane: i64 = place >> LANE_SHIFT
        number: i64 = place & NUMBER_MASK
        window = self._window
        if window is not None and window.has(lane, number):
            backlog = self._ready.backlog(lane)
            message = window.maybe_message(number)
            if message is not None and backlog.middle.has(number):
                return message
            if message is None or not backlog.middle.may_have(number):
                search.pass_to(lane, window.behind(number))
                return None
            self._drop_window()  # its index page is no longer in memory
        search.waits = True
        self._waiting.append(search)
        return None

    def _read_on(self) -> None:
        """Read for waiting consumers, unless the last window is still needed."""
        window = self._window
        if window is not None and not self._is_needed(window):
            self._drop_window()
            window = None
        if window is None and not self._is_reading and self._waiting:
            self._read_for(self._waiting[0])

    def _is_needed(self, window: _Window) -> bool:
        lane: i64 = window.lane
        somebody_waits = len(self._waiting) > 0
        for search in self._searches:
            if (
                not search.waits
                and window.has(lane, search.number_in(lane))
                and (not somebody_waits or search.consumer.is_ready())
            ):
                return True
        return False

    def _read_for(self, search: Search) -> None:
        place: i64 = search.next_place(self._ready)
        lane: i64 = place >> LANE_SHIFT
        number: i64 = place & NUMBER_MASK
        if place < 0 or self._ready.maybe_waiting(place) is not None:
            self._go_on()  # it has come into memory, or is gone
            return
        backlog = self._ready.backlog(lane)
        index = backlog.index
        assert index is not None
        numbers, end = backlog.middle.numbers_from(number, WINDOW_MESSAGES)
        if not numbers:
            search.pass_to(lane, end)
            self._go_on()
            return
        self._is_reading = True
        _WindowFetch(self, index, lane, number, end, numbers).begin()

    def fetched(self, fetch: Fetch, lane: i64, first: i64, end: i64, messages: list[Message | None]) -> None:
        """Take the messages that were read as the window; they may be only the first."""
        self._is_reading = False
        if fetch.left:
            end = fetch.left[0]
        queue = self._queue
        window = _Window(lane, first, end, fetch.numbers, messages, fetch.loaded)
        if queue.deleted:
            return
        self._window = window
        self._ready.backlog(lane).log.resident_bytes += window.memory_bytes
        if not self._searches:
            self._drop_window()
        self._go_on()

    def _go_on(self) -> None:
        """Resume the searches of waiting consumers."""
        waiting = self._waiting
        self._waiting = []
        for search in waiting:
            search.waits = False
            search.consumer.come_back()
            search.consumer.ledger.searches_on()
        if waiting:
            self._queue.wake()

    def _drop_window(self) -> None:
        window = self._window
        if window is not None:
            self._window = None
            backlog = self._ready.backlog(window.lane)
            backlog.log.resident_bytes -= window.memory_bytes
            backlog.offer_loaded(window.loaded)

    def check_invariants(self, *, is_idle: bool) -> None:
        """Assert (1), and (2) of the queue for these consumers."""
        if not is_idle:
            return
        queue = self._queue
        active = queue.groups.active()
        for search in self._searches:
            consumer = search.consumer
            search.check_invariants(self._ready)
            assert search.waits == (search in self._waiting)
            is_served = not queue.check_restrained() and (active is None or active is consumer)
            if is_served and consumer.is_ready() and search.next_place(self._ready) >= 0:
                assert search.waits or consumer.line is not None, "who could go on does not"
        assert not self._waiting or self._is_reading or self._window is not None, "consumers wait, and nothing is read"
        if self._ready.count > 0 and self._ready.ready_or_fetch() and not queue.check_restrained():
            for consumer in queue.consumers:
                if consumer.search is None and (active is None or active is consumer) and consumer.is_ready():
                    assert consumer.line is not None, "a message waits although a consumer could take it"


class _WindowFetch(Fetch):
    """Reads for a window, from `first` to `end` of a lane."""

    def __init__(
        self, selective: Selective, index: QueueIndex, lane: i64, first: i64, end: i64, numbers: list[int]
    ) -> None:
        super().__init__(index.log, index, numbers, WINDOW_BYTES)
        self._selective = selective
        self._lane: i64 = lane
        self._first_number: i64 = first
        self._end_number: i64 = end

    def fetched(self, messages: list[Message | None]) -> None:
        self._selective.fetched(self, self._lane, self._first_number, self._end_number, messages)

    def page_damaged(self, page: IndexPage) -> None:
        """Do nothing: the backlog counts its lost messages when it reads the page itself."""

    def message_damaged(self, number: i64, lsn: i64) -> None:
        """Do nothing, for the same reason."""
