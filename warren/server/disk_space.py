"""The free space of the message store: the alarm when it is short, and the jobs that wait for some.

On the loop. Numbers in parentheses: the header of ``message_store.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import trio

from warren.msgstore.log.jobs import CommitJob, Errand, SealJob
from warren.msgstore.log.message_log import MessageLog
from warren.server.beats import beat_after
from warren.server.logs import get_logger
from warren.server.settings import DISK_FREE_RESUME_SHARE
from warren.server.store_workers import Job, QuarantineJob, Shortage, SpareJob, kind_of

RETRY_S: Final = 0.5
DISK_CHECK_S: Final = 1.0
DISK_CHECK_MIN_S: Final = 0.05
# The most that can be written.
FILL_BYTES_PER_S: Final = 2 << 30

log = get_logger("message_store")


class Disk(Protocol):
    """The part of ``msgstore.files.store.Store`` that this needs."""

    def free_bytes(self) -> int: ...


class DiskSpace:
    """Watches the free space of `disk`; less than `minimum_bytes` is too little.

    `alarm` sets an alarm of the broker. `retry` gives a job to the housekeeper. `settle` ends the engine's turn.
    """

    def __init__(
        self,
        disk: Disk,
        message_log: MessageLog,
        minimum_bytes: int,
        alarm: Callable[[str, bool], None],
        retry: Callable[[Job], None],
        settle: Callable[[], None],
    ) -> None:
        self.is_low = False
        self.shortages: dict[str, str] = {}  # jobs that wait for space, and the reason
        self._disk = disk
        self._log = message_log
        self._minimum_bytes = minimum_bytes
        self._alarm = alarm
        self._retry = retry
        self._settle = settle
        self._is_known = True
        self._postponed: list[Job] = []  # of the housekeeper, until there may be space again
        self._spared_segment = 0  # the segment in which the next one was requested
        self._written_segment = 0  # written last
        self._space_taken = trio.Event()  # since the last look at the free space

    def spare_is_ready(self) -> None:
        """Look at the free space again: the next segment has been prepared."""
        self._space_taken.set()

    def maybe_prepare_spare(self, job: CommitJob) -> None:
        """Prepare the next segment when half of this one is written, so that no commit waits for it."""
        segment = int(job.segment)
        if segment != self._spared_segment and 2 * (job.lsn - job.base_lsn) > job.capacity:
            self._spared_segment = segment
            self._retry(SpareJob(int(self._log.segment_bytes)))

    def note_segment(self, job: CommitJob) -> None:
        """Look at the free space again if `job` has begun another segment."""
        segment = int(job.segment)
        if segment != self._written_segment:
            self._written_segment = segment
            self._space_taken.set()

    def met(self, shortage: Shortage) -> None:
        """Handle a job that found no space: publishers wait until there is some again (3)."""
        job = shortage.job
        if isinstance(job, QuarantineJob):
            log.warning("no space to copy a damaged segment", segment=job.segment, reason=shortage.reason)
            return
        kind = kind_of(job)
        if kind not in self.shortages:
            log.error("no space for the message store; publishers wait", what=kind, reason=shortage.reason)
        self.shortages[kind] = shortage.reason
        if isinstance(job, SealJob) or not isinstance(job, CommitJob | Errand):
            self._postponed.append(job)
        if kind == "spare":
            # While there is room in this segment, release dead data.
            self._log.checkpoints.want()
        self._set_alarm()

    def found(self, kind: str) -> None:
        """End the shortage of a kind of jobs: one of them has found space."""
        if self.shortages.pop(kind, None) is not None:
            log.info("the message store has space again", what=kind)
            self._set_alarm()

    def _set_alarm(self) -> None:
        self._alarm("disk", self.is_low or len(self.shortages) > 0)

    async def watch(self) -> None:
        """Look at the free space for ever, and give postponed jobs back to the housekeeper."""
        minimum = self._minimum_bytes
        while True:
            pause_s = DISK_CHECK_S
            # Space is taken a segment at a time: looking each time stops publishers at most one segment too late.
            self._space_taken = trio.Event()
            try:
                free = self._disk.free_bytes()
            except OSError as error:
                if self._is_known:
                    log.error("the free disk space cannot be determined", reason=str(error))
                self._is_known = False
            else:
                self._is_known = True
                self._note_free_space(free, minimum)
                # Other programs take space, too: the nearer the watermark, the sooner it can be crossed.
                pause_s = min(max((free - minimum) / FILL_BYTES_PER_S, DISK_CHECK_MIN_S), DISK_CHECK_S)
                if self.is_low:
                    pause_s = RETRY_S
            if self._postponed:
                postponed, self._postponed = self._postponed, []
                for job in postponed:
                    if isinstance(job, SpareJob) and "commit" in self.shortages:
                        self._postponed.append(job)  # the frame that waits comes first
                    else:
                        self._retry(job)
                pause_s = min(pause_s, RETRY_S)
            with trio.move_on_at(min(beat_after(DISK_CHECK_S), trio.current_time() + pause_s)):
                await self._space_taken.wait()

    def _note_free_space(self, free: int, minimum: int) -> None:
        if free < minimum and not self.is_low:
            log.warning("free disk below the minimum", free_bytes=free, minimum_bytes=minimum)
            self.is_low = True
        elif self.is_low and free >= minimum * DISK_FREE_RESUME_SHARE:
            log.info("free disk above the minimum again", free_bytes=free, minimum_bytes=minimum)
            self.is_low = False
        else:
            return
        self._set_alarm()
        self._settle()
