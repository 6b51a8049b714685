"""Binds to exchanges that remember messages: the queue gets those first, the oldest first (``queues.long_work``).

1. The queue is bound when it has the whole history. The exchange also remembers messages that are published meanwhile,
   so these are brought as well. The consumers of the queue see everything from the oldest message on, in the order in
   which the exchange had it, without gaps, and nothing twice.
2. Until then the binding does not exist: it cannot be unbound, watchers are not told, and a restart forgets it. Still
   the exchange is in use: it is not deleted as unused, nor because its last binding has gone.
3. A bind that is under way is not begun again: a second request for the same bind waits until the first is done.
4. When the queue or the exchange goes, so does the bind, as if it had been done right before. The queue keeps the
   messages that it has.
5. A publish pays for the binds that wait for its message, as for queues; these binds may exceed their share. So
   publishers cannot be faster than the binds follow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.exchanges.binding import Binding
from warren.exchanges.delayed_message_exchange import DelayedMessageExchange
from warren.exchanges.destination import Destination
from warren.exchanges.exchange import Exchange
from warren.exchanges.recent_history_exchange import RecentHistoryExchange, Remembered
from warren.msgstore.log.message import Message
from warren.msgstore.log.own_writes import ADDS
from warren.queues.long_work import Job, Steps
from warren.queues.queue import Queue

if TYPE_CHECKING:
    from warren.vhosts.virtual_host import VirtualHost

MESSAGE_STEPS: Final = 2
KEPT_STEPS: Final = 4  # where the queue has rules
# How many messages that were published since their last turn all binds to an exchange may bring beyond their share: as
# many as a turn has units of work.
PAID_MAX: Final = 16384


def history_of(source: Exchange) -> RecentHistoryExchange | None:
    """Return the exchange that remembers messages for queues bound to `source`; None: nothing remembers."""
    remembering = source.inner if isinstance(source, DelayedMessageExchange) else source
    return remembering if isinstance(remembering, RecentHistoryExchange) else None


def is_in_use(exchange: Exchange) -> bool:
    """Tell whether anything is bound to `exchange`, or about to be."""
    if exchange.bindings:
        return True
    history = history_of(exchange)
    return history is not None and len(history.pending) > 0


def remember_in(exchanges: list[RecentHistoryExchange], message: Message) -> i64:
    """Have `exchanges` remember `message`; return how many binds wait for it."""
    pending: i64 = 0
    for exchange in exchanges:
        exchange.remember(message, message.memory_bytes)
        pending += len(exchange.pending)
    return pending


def maybe_history_bind(
    vhost: VirtualHost,
    source: Exchange,
    destination: Destination,
    routing_key: str,
    arguments: bytes,
    by: str,
    done: Callable[[int], None],
) -> HistoryBind | None:
    """Return the job that binds `destination` to `source`; None: `VirtualHost.bind` does it alone.

    Raises:
        ChannelException: 406, the exchange type refuses the binding.
    """
    history = history_of(source)
    if history is None or not isinstance(destination, Queue):
        return None
    if source.has_binding(destination, routing_key, arguments):
        return None
    source.check_binding(routing_key, arguments)
    return HistoryBind(vhost, source, history, destination, routing_key, arguments, by, done)


class HistoryBind(Job):
    """Brings `queue` the messages of `history`, and then binds it to `source`. `done` gets the ticket to wait for."""

    def __init__(
        self,
        vhost: VirtualHost,
        source: Exchange,
        history: RecentHistoryExchange,
        queue: Queue,
        routing_key: str,
        arguments: bytes,
        by: str,
        done: Callable[[int], None],
    ) -> None:
        self._vhost = vhost
        self._source = source
        self.history = history
        self._queue = queue
        self._binding = Binding(source, queue, routing_key, arguments)
        self._by = by
        self._done = done
        self.is_done: bool = False
        self._begun: bool = False
        self._next = Remembered()  # of the chain
        self._seen: i64 = 0  # the number of messages the exchange had remembered at the last step

    def need(self) -> i64:
        return ADDS

    def go_on(self, steps: Steps) -> bool:
        history = self.history
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
            wanted = self._binding
            ticket = self._vhost.bind(self._source, self._queue, wanted.routing_key, wanted.arguments, self._by)
        history.pending.pop(self._binding, None)
        if self._vhost.is_to_auto_delete(self._source):
            self._vhost.delete_exchange(self._source, self._by)
        self.is_done = True
        self._done(ticket)
        return True

    def _is_wanted(self) -> bool:
        """Tell whether both ends still exist, and are not bound: another bind may have been done meanwhile."""
        return not (self._source.deleted or self._queue.deleted or self._binding in self._source.bindings)

    def _bring(self, steps: Steps) -> bool:
        history = self.history
        paid: i64 = PAID_MAX // i64(len(history.pending))
        if paid > history.remembered - self._seen:
            paid = history.remembered - self._seen
        self._seen = history.remembered
        following = self._next.following
        while following is not None:
            if paid > 0:
                paid -= 1
            elif steps.left > 0:
                steps.left -= MESSAGE_STEPS if self._queue.keeper is None else KEPT_STEPS
                steps.wrote(self._next.size)
            else:
                return False
            message = self._next.message
            assert isinstance(message, Message)
            self._vhost.publish_remembered(self._queue, message)
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
