"""The limits of a queue: x-max-length, x-max-length-bytes, and the way to keep them (x-overflow).

1. Limits count ready messages. They are enforced after each publish and each return; a head that is on disk is dropped
   when it has been read. A publish is refused when ready messages and those that wait for their commit are too many.
2. When there are too many messages `LEAVE_MAX` go at once, the rest when the timers run again.
3. Room that is reserved for a commit counts as used, until the messages come or the reservation is cancelled. They are
   accepted whatever the limits are by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.queues.dead_letter import MAXLEN
from warren.queues.message_deaths import LEAVE_MAX, MessageDeaths
from warren.queues.origin import PROMISED
from warren.queues.queue_host import QueueHost
from warren.queues.receiver import Room
from warren.queues.rules import DROP_HEAD, REJECT_PUBLISH_DLX, QueueRules
from warren.queues.timers import Timer

if TYPE_CHECKING:
    from warren.queues.queue import Queue


class LengthLimit(Room):
    """The limits of `queue`. `timer` is set when a turn may not drop all that is too much."""

    def __init__(self, queue: Queue, rules: QueueRules, host: QueueHost, deaths: MessageDeaths, timer: Timer) -> None:
        self._queue = queue
        self._rules = rules
        self._log: MessageLog = host.log
        self._timers = host.timers
        self._timer = timer
        self._deaths = deaths
        self._promised: i64 = 0
        self._promised_bytes: i64 = 0

    def follow(self, rules: QueueRules) -> None:
        """Follow other limits from now on; `keep` them afterwards."""
        self._rules = rules

    def has_space_for(self, count: i64, body_bytes: i64) -> bool:
        rules = self._rules
        queue = self._queue
        if rules.max_length >= 0 and queue.ready_count + self._promised + count > rules.max_length:
            return False
        return (
            rules.max_length_bytes < 0
            or queue.ready_bytes + self._promised_bytes + body_bytes <= rules.max_length_bytes
        )

    def promise(self, count: i64, body_bytes: i64) -> None:
        self._promised = count
        self._promised_bytes = body_bytes

    def void_promise(self) -> None:
        self._promised = 0
        self._promised_bytes = 0

    def admits(self, message: Message, origin: i64) -> bool:
        """Decide on a publish; False when it is refused. It is dead-lettered then if the rules say so."""
        rules = self._rules
        if origin == PROMISED:
            if self._promised > 0:
                self._promised -= 1
                self._promised_bytes -= message.body_bytes
            return True
        if rules.overflow == DROP_HEAD or self.has_space_for(1, message.body_bytes):
            return True
        if rules.overflow == REJECT_PUBLISH_DLX and self._deaths.may_dead_letter():
            self._deaths.add(message, -1, MAXLEN)
        return False

    def keep(self) -> None:
        """Drop from the head while more messages wait than may."""
        rules = self._rules
        if rules.overflow != DROP_HEAD:
            return
        ready = self._queue.ready
        left: i64 = LEAVE_MAX
        while (rules.max_length >= 0 and ready.count > rules.max_length) or (
            rules.max_length_bytes >= 0 and ready.body_bytes > rules.max_length_bytes
        ):
            if left == 0:
                self._timers.at(self._log.now_ms, self._timer)
                break
            if self._deaths.must_wait(self._timer) or not ready.ready_or_fetch():
                break
            left -= 1
            self._deaths.add(ready.take_next(), ready.next_place, MAXLEN)
        if left < LEAVE_MAX:
            self._timers.worked += LEAVE_MAX - left

    def close(self) -> None:
        """Release everything: the queue is deleted."""
        self._timer = Timer()  # it refers to us, and we to it
