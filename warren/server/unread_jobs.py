"""Keep the jobs of the store's reader that the disk does not allow now, and repeat them later.

    failed -> waits here -> given to the reader again -> done, or failed again
              (50 ms, then twice as long each time, `PAUSE_MAX_S` at most)

1. A job is here from its first failure until it succeeds or is left, whether it waits or the reader has it.
2. A failure is logged when the first job of a file fails, and once more when no job of that file fails any longer.

All of it runs on the loop, except `put`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import trio

from warren.msgstore.log.jobs import Errand
from warren.server.logs import get_logger
from warren.server.store_workers import Job, Unread

PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
READ_ADVICE: Final = "check the disk; data that cannot be read is not given up"

log = get_logger("message_store")


class UnreadJob:
    """A failing job. Times are trio's."""

    def __init__(self, job: Job, now_s: float) -> None:
        self.job = job
        self.since_s = now_s
        self.again_s = now_s
        self.pause_s = PAUSE_FIRST_S
        self.failures = 0
        self.path = ""
        self.reason = ""
        self.is_waiting = False

    def subject(self) -> tuple[str, str]:
        """Return vhost and name of the queue that waits for it; empty without one."""
        return self.job.subject() if isinstance(self.job, Errand) else ("", "")

    def described(self, since_ms: int) -> dict[str, Any]:
        """Return it as the API shows it; `since_ms`: of its first failure, in ms since 1970."""
        vhost, queue = self.subject()
        return {
            "what": "read that fails",
            "vhost": vhost or None,
            "queue": queue or None,
            "file": self.path,
            "reason": self.reason,
            "failures": self.failures,
            "since": since_ms,
        }


class UnreadJobs:
    """The failing jobs. `put` gives one to the reader."""

    def __init__(self, put: Callable[[Job], None]) -> None:
        self.failures = 0  # of all reads since the start
        self._put = put
        self._jobs: dict[Job, UnreadJob] = {}
        self._changed = trio.Event()

    def add(self, unread: Unread) -> None:
        """Note that a job has failed: it is repeated after a while."""
        now_s = trio.current_time()
        job, error = unread.job, unread.error
        entry = self._jobs.get(job)
        if entry is None:
            entry = UnreadJob(job, now_s)
            if not any(each.path == error.path for each in self._jobs.values()):
                vhost, queue = entry.subject()
                log.error(
                    "a file of the message store cannot be read now; the read is repeated until it succeeds",
                    file=error.path,
                    lsn=error.lsn,
                    vhost=vhost,
                    queue=queue,
                    reason=error.why,
                )
            self._jobs[job] = entry
        entry.path, entry.reason = error.path, error.why
        entry.failures += 1
        entry.is_waiting = True
        entry.again_s = now_s + entry.pause_s
        entry.pause_s = min(2 * entry.pause_s, PAUSE_MAX_S)
        self.failures += 1
        self._changed.set()

    def done(self, job: Job) -> None:
        """Note that a job has succeeded; most have never failed."""
        entry = self._jobs.pop(job, None) if self._jobs else None
        if entry is not None and isinstance(job, Errand) and job.is_left:
            log.warning("scrubbing has left out a place that cannot be read", file=entry.path, reason=entry.reason)
            return
        if entry is not None and not any(each.path == entry.path for each in self._jobs.values()):
            log.info(
                "a file of the message store can be read again",
                file=entry.path,
                failures=entry.failures,
                seconds=round(trio.current_time() - entry.since_s, 3),
            )

    def leave(self, job: Errand) -> None:
        """End a failing job without its data: nothing needs that."""
        job.is_left = True
        self.hurry(self._jobs[job])

    def hurry(self, entry: UnreadJob) -> None:
        """Repeat a job at once."""
        entry.again_s = trio.current_time()
        self._changed.set()

    def reads(self) -> list[UnreadJob]:
        """Return the failing reads, the oldest first."""
        return list(self._jobs.values())

    def described(self, now_ms: int) -> list[dict[str, Any]]:
        """Return the failing reads as the API shows them; `now_ms`: the time in ms since 1970."""
        now_s = trio.current_time()
        return [entry.described(now_ms - round(1000 * (now_s - entry.since_s))) for entry in self.reads()]

    def longest_s(self) -> float:
        """Return for how long the oldest failing read has failed; 0 without any."""
        reads = self.reads()
        return trio.current_time() - reads[0].since_s if reads else 0.0

    def failing_s(self, job: Job | None) -> float:
        """Return for how long a job has failed; 0 if it has not, or without one."""
        entry = None if job is None else self._jobs.get(job)
        return 0.0 if entry is None else trio.current_time() - entry.since_s

    def trouble(self) -> str:
        """Return what cannot be read, in a few words; empty without failures."""
        reads = self.reads()
        if not reads:
            return ""
        first = reads[0]
        more = f", and {len(reads) - 1} more" if len(reads) > 1 else ""
        return f"{first.path} cannot be read ({first.reason}){more}"

    def tell_stop(self) -> None:
        """Report, when the process stops, that unreadable data is not given up."""
        if reads := self.reads():
            log.warning(
                "the broker stops while reads of the message store fail; unread messages are kept",
                reads=len(reads),
                file=reads[0].path,
                reason=reads[0].reason,
            )

    async def run(self) -> None:
        """Give jobs to the reader again when it is time. For ever."""
        while True:
            self._changed = trio.Event()
            waiting = [entry for entry in self._jobs.values() if entry.is_waiting]
            if not waiting:
                await self._changed.wait()
                continue
            now_s = trio.current_time()
            for entry in waiting:
                if entry.again_s <= now_s:
                    entry.is_waiting = False
                    self._put(entry.job)
            nexts = [entry.again_s for entry in waiting if entry.is_waiting]
            if nexts:
                with trio.move_on_at(min(nexts)):
                    await self._changed.wait()
