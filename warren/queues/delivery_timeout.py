"""How long a delivery may be unanswered: x-visibility-timeout, and x-consumer-timeout.

    visibility timeout    the message comes back to its queue, as one that has failed
    consumer timeout      the message comes back, not as one that has failed, and its consumer is cancelled: it is
                          assumed to be stuck

1. Each delivery with a limit has an entry in one heap by time. An answer leaves the entry there. From `STALE_MIN`
   entries on answered ones are removed: their time may be hours ahead, and they keep their channel in memory.
2. A delivery whose time begins again has another entry, and `_touched` says which one is valid. That is forgotten
   together with the entries of answered deliveries. So the entries of a delivery do not add up, however often its time
   begins again. An answer that waits in a transaction ends both limits, and a rollback begins them again.
3. Deliveries come back in the order of their limits, `LEAVE_MAX` in one turn, and as many as the open batch has room
   for if they are stored again (``msgstore.log.own_writes``).
   A delivery that cannot come back, by a defect of ours, is tried again later; the others come back meanwhile.
4. An answer after the consumer timeout is ignored: the ledger knows the tag (`DeliveryLedger.take_overdue`). After the
   visibility timeout the tag is unknown: the consumer stays, and has to learn that its answer had no effect.

The limit of the broker (`limits.delivery_timeout_s`) is for quorum queues only, and not here: channels look at their
oldest deliveries once a minute (`channels.overdue`), which costs a delivery nothing.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.own_writes import PACED
from warren.queues.delivery import DeliveryLedger, give_back
from warren.queues.message_deaths import LEAVE_MAX
from warren.queues.queue_host import QueueHost
from warren.queues.timers import FAILED_MS, NEVER, Timer

if TYPE_CHECKING:
    from warren.queues.queue import Queue

# From this number on, limits of answered deliveries are removed.
STALE_MIN: Final = 1024


class TimeLimit:
    """A delivery that comes back when it is not answered in time, or with a `timeout_ms` cancels its consumer."""

    def __init__(self, at_ms: i64, ledger: DeliveryLedger, tag: i64, timeout_ms: i64) -> None:
        self.at_ms: i64 = at_ms
        self.ledger = ledger
        self.tag: i64 = tag
        self.timeout_ms: i64 = timeout_ms

    def key(self) -> tuple[DeliveryLedger, int]:
        """Return the delivery and the kind of the limit: a negative tag is that of a consumer timeout."""
        return self.ledger, int(self.tag if self.timeout_ms == 0 else -self.tag)


class DeliveryTimeouts:
    """The time limits of the unacked deliveries of `queue`. `timer` is set for the first one."""

    def __init__(self, queue: Queue, host: QueueHost, timer: Timer) -> None:
        self._queue = queue
        self._host = host
        self._log: MessageLog = host.log
        self._timer = timer
        self._limits: list[tuple[int, int, TimeLimit]] = []  # a heap by time; the number keeps equal times in order
        self._made: i64 = 0
        self._rests_until_ms: i64 = 0  # the open batch has no room until then, as far as we know
        self._touched: dict[tuple[DeliveryLedger, int], int] = {}  # until when, by `TimeLimit.key`

    def __len__(self) -> int:
        """Return how many limits are noted, those of answered deliveries included."""
        return len(self._limits)

    def touched_count(self) -> int:
        """Return how many limits are noted that began again, those of answered deliveries included."""
        return len(self._touched)

    def begin(self, ledger: DeliveryLedger, visible_ms: i64, timeout_ms: i64) -> None:
        """Set one or two limits for the answer to the message that `ledger` has delivered last."""
        tag: i64 = ledger.next_tag - 1
        if visible_ms > 0:
            self._add(TimeLimit(self._log.now_ms + visible_ms, ledger, tag, 0))
        if timeout_ms > 0:
            self._add(TimeLimit(self._log.now_ms + timeout_ms, ledger, tag, timeout_ms))

    def begin_again(self, ledger: DeliveryLedger, tag: i64, visible_ms: i64, timeout_ms: i64) -> None:
        """Begin the time of a delivery again, for one or both of its limits."""
        if visible_ms > 0:
            self._replace(TimeLimit(self._log.now_ms + visible_ms, ledger, tag, 0))
        if timeout_ms > 0:
            self._replace(TimeLimit(self._log.now_ms + timeout_ms, ledger, tag, timeout_ms))

    def _replace(self, limit: TimeLimit) -> None:
        key = limit.key()
        if self._touched.get(key, 0) == limit.at_ms:
            return
        self._touched[key] = int(limit.at_ms)
        self._add(limit)

    def _add(self, limit: TimeLimit) -> None:
        if len(self._limits) > 4 * self._queue.unacked_count + STALE_MIN:
            self._forget_answered()
        self._made += 1
        heappush(self._limits, (int(limit.at_ms), int(self._made), limit))
        self._host.timers.at(limit.at_ms, self._timer)

    def _forget_answered(self) -> None:
        kept: list[tuple[int, int, TimeLimit]] = []
        for entry in self._limits:
            limit = entry[2]
            until_ms: i64 = self._touched.get(limit.key(), 0) if self._touched else 0
            if until_ms <= limit.at_ms and limit.ledger.is_outstanding(limit.tag):
                kept.append(entry)
        heapify(kept)
        self._limits = kept
        self._touched = {key: at_ms for key, at_ms in self._touched.items() if key[0].is_outstanding(abs(key[1]))}

    def first_ms(self) -> i64:
        """Return when the next limit is over."""
        if not self._limits:
            return NEVER
        first_ms: i64 = self._limits[0][0]
        return first_ms if first_ms > self._rests_until_ms else self._rests_until_ms

    def end_due(self, now_ms: i64) -> None:
        """Take back deliveries whose time is over, see (3)."""
        limits = self._limits
        if not limits or limits[0][0] > now_ms:
            return
        own = self._log.own
        room: i64 = own.room() if own.may(PACED) else i64(0)
        left: i64 = LEAVE_MAX
        failure: Exception | None = None
        own.begin()
        try:
            while limits and limits[0][0] <= now_ms and left > 0 and room > 0:
                left -= 1
                limit = heappop(limits)[2]
                try:
                    room -= self._end(limit)
                except Exception as error:
                    failure = error
                    limit.at_ms = now_ms + FAILED_MS
                    self._made += 1
                    heappush(limits, (int(limit.at_ms), int(self._made), limit))
                limits = self._limits
        finally:
            own.end()
        if room <= 0:
            self._rests_until_ms = now_ms + 1
        self._host.timers.worked += LEAVE_MAX - left
        if failure is not None:
            raise failure

    def _end(self, limit: TimeLimit) -> i64:
        """End a limit; return how many bytes that stores again, about."""
        ledger = limit.ledger
        if self._touched:
            key = limit.key()
            if self._touched.get(key, 0) > limit.at_ms:
                return 0
            self._touched.pop(key, None)
        delivery = ledger.find(limit.tag)
        if delivery is None:
            return 0
        queue = self._queue
        stored: i64 = delivery.message.memory_bytes if queue.rewrites(-1) else i64(0)
        if limit.timeout_ms > 0:
            self._host.delivery_overdue(ledger, int(limit.tag), int(limit.timeout_ms))
            return stored
        ledger.maybe_take(limit.tag)
        give_back(ledger, delivery, requeue=True)
        queue.wake()
        return stored

    def close(self) -> None:
        """Release everything: the queue is deleted."""
        self._limits.clear()
        self._touched = {}
        self._timer = Timer()  # it has us, and we have it
