"""Messages that die in a queue: each is counted, and dead-lettered if the queue has a dead letter exchange.

1. A dead letter reaches its targets in the same batch of the log in which the message here ends, see
   ``vhosts.dead_lettering``: after a crash it is in one place.
2. Of the messages that die at one moment, expired or too many, `LEAVE_MAX` go at once: each may be dead-lettered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.queues.counters import DeathCounts
from warren.queues.queue_host import QueueHost
from warren.queues.rules import QueueRules
from warren.queues.timers import Timer

if TYPE_CHECKING:
    from warren.queues.queue import Queue

LEAVE_MAX: Final = 1024


class MessageDeaths:
    """Handles messages of `queue` that leave it other than to a consumer."""

    def __init__(self, queue: Queue, rules: QueueRules, host: QueueHost) -> None:
        self._queue = queue
        self._host = host
        self._has_exchange: bool = False
        self.at_least_once: bool = False
        self._counts = host.deaths.at(is_quorum=False, has_exchange=False, at_least_once=False)
        self.follow(rules)

    def follow(self, rules: QueueRules) -> None:
        """Dead-letter by other rules from now on."""
        self._has_exchange = rules.dead_letter_exchange is not None
        self.at_least_once = rules.dead_letters_at_least_once
        self._counts = self._host.deaths.at(
            is_quorum=rules.is_quorum, has_exchange=self._has_exchange, at_least_once=self.at_least_once
        )

    def add(self, message: Message, place: i64, reason: str) -> None:
        """Settle a message that dies, unless `place` is -1, and dead-letter it."""
        queue = self._queue
        if self._has_exchange:
            self._host.post_letter(queue, message, place, reason)
        elif place >= 0:
            queue.ready.settle(message, place)
        count_death(queue, reason, self._counts)  # not before: it may fail

    def add_placeless(self, message: Message, reason: str) -> None:
        """Add the death of a message without a place in the queue: it gets one, until its dead letter has another."""
        queue = self._queue
        ready = queue.ready
        gate = queue.gate
        place: i64 = ready.pass_place(0) if gate is None else gate.take_place(0)
        if message.persistent and queue.stores:
            ready.store(message, place)
        ready.note_taken(place)
        self.add(message, place, reason)

    def must_wait(self, timer: Timer) -> bool:
        """Tell whether messages must not die yet, for too many dead letters wait; `timer` is due when they may."""
        return self._has_exchange and self._host.has_letters_waiting(timer)

    def may_dead_letter(self) -> bool:
        """Tell whether the queue has a dead letter exchange."""
        return self._has_exchange

    def confirmed(self) -> None:
        """Count a letter that is sent at least once, and was taken."""
        self._counts.confirmed += 1


def count_death(queue: Queue, reason: str, of_all: DeathCounts) -> None:
    """Count a message that died in `queue`, also in `of_all`, the counts of queues of its kind."""
    of_all.count(reason)
    if queue.deaths is None:
        queue.deaths = DeathCounts()
    queue.deaths.count(reason)
