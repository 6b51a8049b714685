"""The durable end of the log: the place that a copy of the store, or the next leader, has to reach.

1. Everything before a position is on the disk when it is reported, and in order: it is reported when a batch is done
   that was synced, before the next one is begun.
2. The crc of its last frame identifies everything before it: each frame carries the crc of the previous one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.msgstore.log.batch import BatchWaiter

if TYPE_CHECKING:
    from warren.msgstore.log.message_log import MessageLog


class LogPosition:
    """A place of the log: the end of a frame with the `crc`, in the segment with that number and base.

    `epoch` is that of the process which told it, `store_id` says of which store it is.
    """

    def __init__(self, lsn: int, crc: int, segment: int, base_lsn: int, epoch: int, store_id: bytes) -> None:
        self.lsn = lsn
        self.crc = crc
        self.segment = segment
        self.base_lsn = base_lsn
        self.epoch = epoch
        self.store_id = store_id


def call_with_position(log: MessageLog, told: Callable[[LogPosition], None]) -> None:
    """Call `told` with the end of the log when all that was requested until now is durable.

    The caller settles the turn.
    """
    log.wait(_Asking(log, told), True)


class _Asking(BatchWaiter):
    def __init__(self, log: MessageLog, told: Callable[[LogPosition], None]) -> None:
        self._log = log
        self._told = told

    def batch_done(self, batch: i64) -> None:
        log = self._log
        # A segment that is written ahead, or has no frame yet, begins after the position.
        holder = None
        for segment in log.segments.segments:
            if segment.base_lsn < log.durable_lsn:
                holder = segment
        assert holder is not None, "a log without a frame"
        self._told(
            LogPosition(
                int(log.durable_lsn),
                int(log.last_crc),
                int(holder.number),
                int(holder.base_lsn),
                int(log.epoch),
                log.store_id,
            )
        )
