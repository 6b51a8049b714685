"""What a queue asks of the vhost that it lives in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64, mypyc_attr

from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.queues.counters import DeathTable
from warren.queues.timers import Timer, TimerQueue

if TYPE_CHECKING:
    from warren.queues.delivery import DeliveryLedger
    from warren.queues.queue import Queue


@mypyc_attr(allow_interpreted_subclasses=True)  # tests have a host that looks at what passes
class QueueHost:
    """The surroundings of queues: the log they store in, the time, and where their dead letters go."""

    def __init__(self, name: str, log: MessageLog, timers: TimerQueue) -> None:
        self.name = name
        self.log = log
        self.timers = timers
        self.deaths = DeathTable()  # shared by all hosts of a broker

    def post_letter(self, queue: Queue, message: Message, place: i64, reason: str) -> None:
        """Dead-letter a message that has left `place` of `queue`, now or in a later turn, and settle it with that.

        `place` is -1 when there is nothing to settle. The queue's keeper hears what came of it (`letter_sent`).
        """
        if place >= 0:
            queue.ready.settle(message, place)
        letter = self.dead_letter(queue, message, reason)
        keeper = queue.keeper
        if keeper is not None:
            keeper.lanes.letter_sent(letter)

    def has_letters_waiting(self, timer: Timer) -> bool:
        """Tell whether so many dead letters wait that what is to die stays where it is; `timer` is due after that."""
        return False

    def dead_letter(self, queue: Queue, message: Message, reason: str) -> Message | None:
        """Route `message` through the dead letter exchange of `queue`; return the letter unless everybody took it."""
        raise AssertionError("overridden")

    def send_letter(self, queue: Queue, letter: Message) -> bool:
        """Route a letter of `queue` again to those that have not taken it; tell whether there is nobody left."""
        raise AssertionError("overridden")

    def delivery_overdue(self, ledger: DeliveryLedger, tag: int, timeout_ms: int) -> None:
        """A delivery was not answered within the time that its queue or consumer allows: cancel its consumer."""
        raise AssertionError("overridden")

    def partition_of(self, queue: Queue) -> int:
        """Return which partition of a super stream `queue` is, counted from 0; -1: of none."""
        return -1

    def maybe_remembered(self, name: str) -> bytes | None:
        """Return what is remembered under `name` (`remember`); None: nothing."""
        return None

    def remember(self, name: str, value: bytes) -> bool:
        """Remember `value` in the frame of what is stored in this turn; False: not yet, something is being read."""
        return True

    def forget(self, name: str) -> None:
        """Forget what is remembered under `name`."""

    def queue_expired(self, queue: Queue) -> None:
        """Nobody has used `queue` for as long as it allows: delete it."""
        raise AssertionError("overridden")
