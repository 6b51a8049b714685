"""The services of a vhost for its queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64, mypyc_attr

from warren.msgstore.log.batch import BatchWaiter
from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.queues.counters import DeathTable
from warren.queues.long_work import LongWork
from warren.queues.timers import Timer, TimerQueue

if TYPE_CHECKING:
    from warren.queues.base_queue import BaseQueue
    from warren.queues.delivery import DeliveryLedger
    from warren.queues.queue import Queue


@mypyc_attr(allow_interpreted_subclasses=True)  # tests have a host that looks at the calls
class QueueHost:
    """The surroundings of queues: the log they store in, the time, and the way for their dead letters."""

    def __init__(self, name: str, log: MessageLog, timers: TimerQueue) -> None:
        self.name = name
        self.log = log
        self.timers = timers
        self.deaths = DeathTable()  # shared by all hosts of a broker
        self.work = LongWork()  # of the broker
        self.sync_confirms: bool = True  # a confirm means synced, not just written

    def post_letter(self, queue: Queue, message: Message, place: i64, reason: str) -> None:
        """Dead-letter a message that has left `place` of `queue`, now or in a later turn, and settle it with that.

        `place` is -1 when there is nothing to settle. The queue's keeper is told the result (`letter_sent`).
        """
        if place >= 0:
            queue.ready.settle(message, place)
        letter = self.dead_letter(queue, message, reason)
        keeper = queue.keeper
        if keeper is not None:
            keeper.lanes.letter_sent(letter)

    def has_letters_waiting(self, timer: Timer) -> bool:
        """Tell whether too many dead letters wait for more messages to die; `timer` is due after that."""
        return False

    def dead_letter(self, queue: Queue, message: Message, reason: str) -> Message | None:
        """Route `message` through the dead letter exchange of `queue`; return the letter unless all took it."""
        raise AssertionError("overridden")

    def send_letter(self, queue: Queue, letter: Message) -> i64:
        """Route a letter of `queue` again to the queues that have not taken it.

        Returns 0 if all have it now, else the time in ms until the next try.
        """
        raise AssertionError("overridden")

    def delivery_overdue(self, ledger: DeliveryLedger, tag: int, timeout_ms: int) -> None:
        """Cancel the consumer of a delivery that was not answered within the time that its queue or consumer allows."""
        raise AssertionError("overridden")

    def partition_of(self, queue: BaseQueue) -> int:
        """Return which partition of a super stream `queue` is, counted from 0; -1: it is not a partition."""
        return -1

    def awaits_declaration(self, queue: BaseQueue, waiter: BatchWaiter) -> bool:
        """Tell whether the declaration of `queue` is not durable yet; `waiter` is told when it is."""
        return False

    def maybe_remembered(self, name: str) -> bytes | None:
        """Return the value remembered under `name` (`remember`); None: there is nothing."""
        return None

    def remember(self, name: str, value: bytes) -> bool:
        """Remember `value` in the frame of this turn's changes; False: not yet, a read is under way."""
        return True

    def forget(self, name: str) -> None:
        """Forget the value under `name`."""

    def queue_expired(self, queue: Queue) -> None:
        """Delete `queue`, which was not used for as long as it allows."""
        raise AssertionError("overridden")
