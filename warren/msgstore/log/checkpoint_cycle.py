"""When checkpoints are taken, and which segments are removed once one is written.

    want -> the open batch is closed -> taken -> the log is committed up to there -> CheckpointJob -> written
            (soon, and synced)          (`take`)   and removals have ended                            dead segments go

1. A checkpoint is taken when a batch has been closed: then the indexes are exactly what replaying the log up to there
   would make of them. One is under way at a time.
2. It is written only when the log is committed up to there: else it would have messages that a crash takes back. And
   only when no removal is under way (removals.py (3)).
3. A segment is unlinked only after writing a checkpoint that was taken when the segment was dead already: the previous
   checkpoint may refer to it.

The content of the file is in ``checkpoint.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.msgstore.log.jobs import CheckpointJob, UnlinkJob

if TYPE_CHECKING:
    from warren.msgstore.log.message_log import MessageLog


class CheckpointCycle:
    """The checkpoints of one log. ``take`` makes the content of one; without ``take`` no checkpoints are written."""

    def __init__(self, log: MessageLog) -> None:
        self.take: Callable[[], bytes] | None = None
        self.lsn: i64 = 0  # up to where the one on disk reaches
        self.every_bytes: i64 = 128 << 20  # this much log after a checkpoint makes the next one due
        self.clean: bool = False  # the process ends with the next one
        self._log = log
        self._taken_lsn: i64 = 0  # up to where the last one reaches that was taken
        self._wanted: bool = False
        self._under_way: bool = False
        self._waiting: CheckpointJob | None = None
        self._is_durable: bool = False  # the log is, up to where that one reaches
        self._dead: list[int] = []  # segments that go when it is written

    def want(self, *, clean: bool = False) -> None:
        """Take one with the next batch, unless one is under way. `clean`: nothing will follow it."""
        if not self._under_way:
            self.clean = clean or (self.clean and self._wanted)
            self._wanted = True
            self._log.force()

    def log_grows_to(self, lsn: i64) -> None:
        """Take one with the batch that is being closed, if the log up to `lsn` is long enough for that."""
        if lsn - self._taken_lsn >= self.every_bytes:
            self.want()

    def batch_closed(self) -> None:
        """Take one if it is wanted: the batch has been entered in the indexes."""
        if not self._wanted or self.take is None:
            return
        log = self._log
        self._wanted = False
        self._under_way = True
        self._taken_lsn = log.next_lsn
        job = CheckpointJob(log.next_lsn, self.take())
        self._dead = [int(s.number) for s in log.segments.segments if s.is_dead()]
        self._waiting = job
        self._is_durable = False
        self.log_is_durable()

    def log_is_durable(self) -> None:
        """Hand the waiting one over for writing, if the log is durable up to there and nothing is being removed."""
        job = self._waiting
        log = self._log
        if job is None or log.durable_lsn < job.lsn:
            return
        if not self._is_durable:
            self._is_durable = True
            job.last_crc = log.last_crc  # of the frame that ends there: it is the last one committed
        if not log.removals.are_under_way():
            self._waiting = None
            log.checkpoint_jobs.append(job)

    def written(self, job: CheckpointJob) -> None:
        """Remove segments that were dead when the checkpoint was taken: the file is in place."""
        self.lsn = job.lsn
        self._under_way = False
        dead = self._dead
        self._dead = []
        log = self._log
        if dead:
            log.segments.remove(dead)
            log.unlink_jobs.append(UnlinkJob(dead))
