"""The turns of a connection: the order of consumers that could take a message if others had not taken the room.

    the outbox is full              a consumer stands in the line of its connection
    its channel's limit is reached  it stands in the line of its channel; when there is room, the channel stands in the
                                    line of the connection, for all of them

1. A waiter is served first come, first served, and joins the end of the line again afterwards. So while a consumer
   waits, no other one of its channel or connection has two turns.
2. While a line is not empty, consumers outside it are not served first (`Consumer.has_room`).
3. A turn has `RUN_MAX` messages, and continues later when the outbox is full before that. A channel has as many, or one
   for each consumer in its line if these are more, and gives them one message each. A single waiter takes all there is.
4. While the outbox is writable and its line is not empty, the line is on the broker's list. A channel that has room and
   whose line is not empty stands in the line of its connection.
5. A turn costs the same with two waiting as with many thousands.
6. A queue gives nothing to a consumer while one of higher priority has room and only waits for its turn.

A consumer without room of its own waits only for its own answers, and does not stand in a line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.outbox import Outbox
from warren.queues.owed_memory import OwedMemory

if TYPE_CHECKING:
    from warren.queues.base_queue import BaseQueue
    from warren.queues.consumer import Consumer

# How many messages one turn of a consumer has while others wait.
RUN_MAX: Final = 32
# How many messages a connection's line gets before others have their turn.
LINE_BUDGET: Final = 2000
COMPACT_MIN: Final = 32
_NOBODY: Final[list[Waiter | None]] = []  # shared by lines that were never used: never changed


class Waiter:
    """A member of a line: a consumer, or a channel for its consumers."""

    def __init__(self) -> None:
        self.line: Line | None = None  # where it stands
        self.turn_left: i64 = 0  # how many messages of its turn are left, 0: the next one is whole

    def take_turn(self, run: i64) -> i64:
        """Take at most `run` messages, and return the cost, in messages."""
        raise AssertionError("overridden")


class Line:
    """Waiters, first come, first served. A waiter that leaves out of turn leaves a gap, which is passed over."""

    def __init__(self) -> None:
        self._places = _NOBODY
        self._head: i64 = 0  # only gaps are before it
        self._count: i64 = 0

    def count(self) -> i64:
        """Return the number of waiters."""
        return self._count

    def join(self, waiter: Waiter) -> None:
        """Put `waiter`, which is not in a line, at the end."""
        assert waiter.line is None
        waiter.line = self
        self._count += 1
        if self._places is _NOBODY:
            self._places = []
        self._places.append(waiter)

    def put_first(self, waiter: Waiter) -> None:
        """Put `waiter` back where `take_first` found it."""
        assert waiter.line is None
        waiter.line = self
        self._count += 1
        if self._head > 0:
            self._head -= 1
            self._places[self._head] = waiter
        else:
            self._places = [waiter, *self._places]

    def take_first(self) -> Waiter | None:
        """Remove and return the first waiter; None when the line is empty."""
        places = self._places
        while self._head < len(places):
            waiter = places[self._head]
            places[self._head] = None
            self._head += 1
            if waiter is not None and waiter.line is self:
                waiter.line = None
                self._count -= 1
                self._compact()
                return waiter
        self._compact()
        return None

    def leave(self, waiter: Waiter) -> None:
        """Remove `waiter`, which stands here and does not return."""
        waiter.line = None
        self._count -= 1
        self._compact()

    def clear(self) -> None:
        """Remove all waiters."""
        for waiter in self._places:
            if waiter is not None and waiter.line is self:
                waiter.line = None
        self._places = _NOBODY
        self._head = 0
        self._count = 0

    def _compact(self) -> None:
        places = self._places
        if len(places) > COMPACT_MIN and 2 * self._count < len(places):
            self._places = [each for each in places if each is not None and each.line is self]
            self._head = 0


class Turns:
    """The line of one connection. `outbox` is the connection's, `served` the broker's list of lines to be served.

    `owed`: what is owed by the clients of the broker.
    """

    def __init__(self, outbox: Outbox, served: list[Turns], owed: OwedMemory | None = None) -> None:
        self.outbox = outbox
        self.owed = OwedMemory() if owed is None else owed
        self.called: Consumer | None = None  # whose turn it is
        self.called_until: i64 = 0  # the delivery tag with which that ends
        self._line = Line()
        self._scheduled: bool = False
        self._held_back: list[BaseQueue] | None = None  # see (6)
        self._served = served

    def join(self, waiter: Waiter, *, for_outbox: bool) -> None:
        """Put `waiter`, which is not in a line, at the end. `for_outbox`: the outbox is full, or others wait for it."""
        self._line.join(waiter)
        outbox = self.outbox
        if for_outbox:
            outbox.awaited = True
        if outbox.writable:
            self.wake()

    def wake(self) -> None:
        """Serve waiters soon: the outbox may be writable."""
        if not self._scheduled and self._line.count() > 0:
            self._scheduled = True
            self._served.append(self)

    def serve(self) -> None:
        """Serve waiters while the peer takes messages, at most `LINE_BUDGET`; then queue up again."""
        self._scheduled = False
        budget: i64 = LINE_BUDGET
        line = self._line
        outbox = self.outbox
        while outbox.writable:
            if budget <= 0:
                self.wake()
                break
            waiter = line.take_first()
            if waiter is None:
                break
            if line.count() == 0:
                outbox.awaited = False  # a single waiter is served as if there were not a line
            try:
                budget -= waiter.take_turn(RUN_MAX)
            except BaseException:
                self.wake()  # the others have their turns
                raise
        if line.count() == 0:
            outbox.awaited = False
        held_back = self._held_back
        if held_back is not None:
            self._held_back = None
            for queue in held_back:
                queue.wake()

    def hold_back(self, queue: BaseQueue) -> None:
        """Wake `queue` when waiters that can have their turn have had it."""
        if self._held_back is None:
            self._held_back = []
        self._held_back.append(queue)

    def put_first(self, waiter: Waiter, *, for_outbox: bool) -> None:
        """Put `waiter` first in line: it continues its turn when the outbox is writable again; see `join`."""
        self._line.put_first(waiter)
        if for_outbox:
            self.outbox.awaited = True

    def call(self, consumer: Consumer, run: i64) -> None:
        """Deliver at most `run` messages of its queue to `consumer`."""
        if consumer.gone:
            return
        self.called = consumer
        self.called_until = consumer.ledger.next_tag + run
        try:
            consumer.queue.serve(consumer)
        finally:
            self.called = None

    def close(self) -> None:
        """Forget all waiters: the connection ends."""
        held_back = self._held_back
        if held_back is not None:
            self._held_back = None
            for queue in held_back:
                queue.wake()
        self._line.clear()
