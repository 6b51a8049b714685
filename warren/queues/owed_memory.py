"""How much more than before clients may hold unanswered while memory is short.

A delivery keeps its message in memory until it is answered, whether the message is on disk or not: 80 bytes for
itself, 220 for the message, and the frames. Publishers wait in a memory alarm; a consumer without prefetch would take
whole queues from the disk.

1. A channel may always owe as many answers as it did when memory became short, and `ALWAYS`: a consumer that answers
   drains its queues as before.
2. Beyond that it needs room, `ALARM_BYTES` for all channels in one alarm. A connection gets at most as much as is left
   for others, so something is left for each. `GRANT` deliveries are granted at a time. They are counted by the mean
   size of the last ones.
3. Without room a consumer waits for an answer to another delivery of its channel, for the end of a channel that has
   had some room, for the end of the alarm, or for `tick`. That grants `TICK_BYTES` to those who wait, in turn: a client
   that answers whole batches only, and has received a part of one, would wait for ever, and the alarm for its answers.
   Answers are always taken.
4. Nothing is counted while memory is not short.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

if TYPE_CHECKING:
    from warren.queues.delivery import DeliveryLedger
    from warren.queues.turns import Turns

ALWAYS: Final = 16
GRANT: Final = 16
ALARM_BYTES: Final = 1 << 26
TICK_BYTES: Final = 1 << 20
# How many waiting channels are looked at when there is room, whatever they need.
LOOKED_AT: Final = 64
# Of a delivery, besides its message.
DELIVERY_BYTES: Final = 80


class OwedMemory:
    """The room of one broker. `alarm_bytes`: all of it in one alarm."""

    def __init__(self) -> None:
        self.is_short: bool = False
        self.alarm_bytes: i64 = ALARM_BYTES
        self.tick_bytes: i64 = TICK_BYTES
        self._left_bytes: i64 = 0
        self._used: dict[Turns, int] = {}  # by connection
        self._waiting: dict[DeliveryLedger, None] = {}

    def begin(self) -> None:
        """Memory has become short; `DeliveryLedger.hold_back` follows for each channel."""
        self.is_short = True
        self._left_bytes = self.alarm_bytes

    def end(self) -> None:
        """It is no longer short."""
        self.is_short = False
        self._used = {}
        waiting = self._waiting
        self._waiting = {}
        for ledger in waiting:
            try:
                ledger.owe_more()
            except Exception as error:
                ledger.outbox.failed(error)  # ends its peer

    def may_owe_more(self, ledger: DeliveryLedger) -> bool:
        """Let a channel owe more answers than it may so far, if there is room."""
        if not self.is_short:
            ledger.unacked_max = ledger.unacked_limit
            ledger.granted_bytes = 0  # of an earlier alarm
            return True
        size: i64 = _grant_bytes(ledger)
        used: i64 = self._used.get(ledger.turns, 0) + size
        if used > self._left_bytes - size:
            self._waiting[ledger] = None
            return False
        self._grant(ledger, size)
        return True

    def _grant(self, ledger: DeliveryLedger, size: i64) -> None:
        self._used[ledger.turns] = self._used.get(ledger.turns, 0) + int(size)
        self._left_bytes -= size
        ledger.granted_bytes += size
        ledger.unacked_max = min(ledger.unacked_max + GRANT, ledger.unacked_limit)

    def tick(self) -> None:
        """Let some of the channels that wait owe more. About twice a second."""
        left: i64 = self.tick_bytes
        for ledger in list(islice(self._waiting, LOOKED_AT)):
            if left <= 0:
                return
            del self._waiting[ledger]
            size: i64 = _grant_bytes(ledger)
            left -= size
            self._grant(ledger, size)
            ledger.make_room()

    def left(self, ledger: DeliveryLedger) -> None:
        """A channel ends."""
        self._waiting.pop(ledger, None)
        size: i64 = ledger.granted_bytes
        if not self.is_short or size == 0:
            return
        ledger.granted_bytes = 0
        self._left_bytes += size
        used: i64 = self._used.get(ledger.turns, 0) - size
        if used > 0:
            self._used[ledger.turns] = int(used)
        else:
            self._used.pop(ledger.turns, None)  # the connection may be gone, long before the alarm is over
        for each in list(islice(self._waiting, LOOKED_AT)):
            del self._waiting[each]
            if self.may_owe_more(each):
                each.make_room()


def _grant_bytes(ledger: DeliveryLedger) -> i64:
    return GRANT * (DELIVERY_BYTES + ledger.mean_bytes(GRANT))
