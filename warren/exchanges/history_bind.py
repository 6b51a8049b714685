"""Binds to exchanges that remember messages: the queue gets those first, the oldest first (``queues.long_work``).

1. The queue is bound when it has the whole history. The exchange also remembers messages that are published meanwhile,
   so these are brought as well. The consumers of the queue see everything from the oldest message on, in the order in
   which the exchange had it, without gaps, and nothing twice.
2. Until then the binding does not exist: it cannot be unbound, watchers are not told, and a restart forgets it. But the
   exchange counts as in use: it is not deleted as unused, nor when it loses its last binding.
3. A bind that is under way is not begun again: a second request for the same bind waits until the first is done.
4. If the queue or the exchange is deleted meanwhile, the bind ends as if it had been completed just before. The queue
   keeps the messages that it has.
5. A publish pays a step for each bind that waits for its message, as for a queue. In return, the binds may bring so
   many messages beyond their share of a turn. So the binds keep up with the publishers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.exchanges.binding import Binding
from warren.exchanges.exchange import BindJob
from warren.exchanges.exchange_host import ExchangeHost
from warren.msgstore.log.message import Message
from warren.msgstore.log.own_writes import ADDS, NOTHING
from warren.queues.base_queue import BaseQueue
from warren.queues.dead_letter import is_letter_of
from warren.queues.delay import negate_delay
from warren.queues.long_work import Steps
from warren.queues.origin import BROKER

if TYPE_CHECKING:
    from warren.exchanges.recent_history_exchange import RecentHistoryExchange

MESSAGE_STEPS: Final = 2  # for each message, at least
# How many messages all binds to an exchange together may bring beyond their share, out of those published since their
# last turn: as many as a turn has units of work.
PAID_MAX: Final = 16384


class Remembered:
    """A message and its size in memory. The last one of a chain has no `following`, and no message yet."""

    __slots__ = ("following", "message", "size")

    def __init__(self) -> None:
        self.message: object = None
        self.size: i64 = 0
        self.following: Remembered | None = None


class HistoryBind(BindJob):
    """Brings `queue` the messages of `history`, and then makes `binding`. `done` gets the ticket to wait for."""

    def __init__(
        self,
        host: ExchangeHost,
        history: RecentHistoryExchange,
        queue: BaseQueue,
        binding: Binding,
        by: str,
        done: Callable[[int], None],
    ) -> None:
        super().__init__()
        self._host = host
        self._history = history
        self._queue = queue
        self._binding = binding
        self._by = by
        self._done = done
        self._begun: bool = False
        self._next = Remembered()  # the next message of the chain to bring
        self._seen: i64 = 0  # the number of messages the exchange had remembered at the last step

    def units(self) -> i64:
        return self._history.count

    def need(self) -> i64:
        # An empty history adds nothing. If it waited for an alarm to end, a start that imports definitions would hang.
        return ADDS if self._history.count > 0 or self._begun else NOTHING

    def run(self, steps: Steps) -> bool:
        history = self._history
        if not self._begun:
            if self._binding in history.pending:
                return False
            if self._is_wanted():
                history.pending[self._binding] = None
                self._next = history.oldest
                self._seen = history.remembered
            self._begun = True
        if self._is_wanted() and not self._bring(steps):
            return False
        if not self._release(steps):
            return False
        ticket = 0
        if self._is_wanted():
            ticket = self._host.make_binding(self._binding, self._by)
        history.pending.pop(self._binding, None)
        self._host.delete_unused(self._binding.source, self._by)
        self.is_done = True
        self._done(ticket)
        return True

    def failed(self) -> bool:
        """Give up: nothing is bound, and the queue keeps the messages that it has."""
        self._history.pending.pop(self._binding, None)
        self.is_done = True
        return False

    def _is_wanted(self) -> bool:
        """Tell whether both ends still exist and are not bound yet: another bind may have bound them meanwhile."""
        source = self._binding.source
        return not (source.deleted or self._queue.deleted or self._binding in source.bindings)

    def _bring(self, steps: Steps) -> bool:
        history = self._history
        paid: i64 = PAID_MAX // i64(len(history.pending))
        if paid > history.remembered - self._seen:
            paid = history.remembered - self._seen
        self._seen = history.remembered
        following = self._next.following
        while following is not None:
            if paid > 0:
                paid -= 1
            elif steps.left > 0:
                steps.left -= max(MESSAGE_STEPS, self._queue.publish_steps())
                steps.wrote(self._next.size)
            else:
                return False
            message = self._next.message
            assert isinstance(message, Message)
            _give(self._queue, message, self._host.log.now_ms)
            self._next = following
            following = following.following
        return True

    def _release(self, steps: Steps) -> bool:
        """Release messages that only this bind may still hold: all that it has not brought."""
        following = self._next.following
        while following is not None:
            if steps.left <= 0:
                return False
            steps.left -= 1
            self._next = following
            following = following.following
        return True


def _give(queue: BaseQueue, message: Message, now_ms: i64) -> None:
    """Hand `queue` a message that was published before it was bound, or hold the message until it is due.

    The queue does not get its own dead letters; it would not get them if it were bound, either. Otherwise the bind of a
    queue that drops its messages, and whose dead letters the exchange remembers, would never end.
    """
    if is_letter_of(message, queue.name):
        return
    copy = message.copy()
    copy.time_ms = 0  # the message may have a time from another queue
    if message.due_ms:
        negate_delay(copy)
    if message.due_ms > now_ms:
        queue.hold(copy, message.due_ms, BROKER)
    else:
        queue.accept(copy, BROKER)
