"""Define the jobs and answers of the message store's threads, and the thread that does one job after the other.

Some jobs are those of the log (``msgstore.log.jobs``). The others are here: they concern files that the log does not
know. The service (``message_store.py``) decides which thread gets which job, and when. A worker knows neither jobs nor
files. It tells how each job ended: with the job itself, with a shortage, unread because the disk returns nothing now,
or with a failure, after which the worker ends.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread

import trio

from warren.msgstore.files.pins import PinError, PinnedFile
from warren.msgstore.files.store_errors import StoreError, StoreFullError, StoreUnreadableError
from warren.msgstore.log.jobs import CheckpointJob, CommitJob, Errand, SealJob, UnlinkJob
from warren.msgstore.log.log_position import LogPosition


class SpareJob:
    """Preallocate the next segment."""

    def __init__(self, size: int) -> None:
        self.size = size


class ReleaseJob:
    """Make the reader release segments that will be removed."""

    def __init__(self, unlink: UnlinkJob) -> None:
        self.unlink = unlink


class QuarantineJob:
    """Copy a segment in which corruption was found."""

    def __init__(self, segment: int) -> None:
        self.segment = segment


class MendJob:
    """Mend a segment in which corruption was found."""

    def __init__(self, segment: int, lsn: int) -> None:
        self.segment = segment
        self.lsn = lsn


class PinJob:
    """Hold the files of a log that ends at a position, for `holder`."""

    def __init__(self, holder: str) -> None:
        self.holder = holder
        self.position: LogPosition | None = None  # when it is told
        self.files: list[PinnedFile] = []  # the outcome
        self.error: PinError | None = None  # or this one
        self.is_given_up = False
        self.over = trio.Event()


class UnpinJob:
    """Release the files of `holder`."""

    def __init__(self, holder: str) -> None:
        self.holder = holder


Job = (
    CommitJob | Errand | CheckpointJob | UnlinkJob | SpareJob | ReleaseJob | QuarantineJob | MendJob | PinJob | UnpinJob
)


class Shortage:
    """A job did not get the space it needs. The housekeeper skips it; the other threads try again."""

    def __init__(self, job: Job, reason: str) -> None:
        self.job = job
        self.reason = reason


class Unread:
    """The disk does not return data for a job now. The thread continues with the others; this one is repeated later."""

    def __init__(self, job: Job, error: StoreUnreadableError) -> None:
        self.job = job
        self.error = error


class Failure:
    """The disk has failed, or our code has: the thread ends. `error` is None for the disk."""

    def __init__(self, reason: str, error: BaseException | None) -> None:
        self.reason = reason
        self.error = error


Outcome = Job | Shortage | Unread | Failure


def kind_of(job: Job) -> str:
    """Return what `job` does, in a word for the log."""
    match job:
        case CommitJob():
            return "commit"
        case SealJob():
            return "seal"
        case Errand():
            return "read"
        case CheckpointJob():
            return "checkpoint"
        case UnlinkJob():
            return "unlink"
        case SpareJob():
            return "spare"
        case ReleaseJob():
            return "release"
        case QuarantineJob():
            return "quarantine"
        case MendJob():
            return "mend"
        case PinJob() | UnpinJob():
            return "pin"


class Worker:
    """A thread that does jobs in order and reports each. A daemon: a hanging disk must not keep the process alive.

    `retries` tells how long to wait before a job with a shortage is tried again; None only reports it.
    """

    def __init__(
        self,
        name: str,
        carry_out: Callable[[Job], None],
        report: Callable[[Outcome], None],
        retries: Callable[[Job], float | None],
    ) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.put: Callable[[Job | None], None] = self._jobs.put
        self._carry_out = carry_out
        self._report = report
        self._retries = retries
        self._stopped = Event()
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def finish(self) -> None:
        """End after the jobs requested until now; a job that waits for space is cancelled."""
        self._stopped.set()
        self._jobs.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; tell whether the thread has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if not self._do(job):
                    return
            except StoreError as error:
                self._report(Failure(str(error), None))
                return
            except BaseException as error:
                self._report(Failure(f"internal error: {error!r}", error))
                return

    def _do(self, job: Job) -> bool:
        """Carry `job` out and report that; False if it was cancelled."""
        told = ""
        while True:
            try:
                self._carry_out(job)
            except StoreFullError as error:
                if str(error) != told:
                    told = str(error)
                    self._report(Shortage(job, told))
                pause_s = self._retries(job)
                if pause_s is None:
                    return True
                if self._stopped.wait(pause_s):
                    return False
                continue
            except StoreUnreadableError as error:
                self._report(Unread(job, error))
                return True
            self._report(job)
            return True
