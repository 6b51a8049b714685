"""The three threads of the message store: which of them gets which job, what they do, and how they report it.

1. A checkpoint waits while segments go through the reader, and a drop of a stream's files waits while a pin is made:
   ``message_store.py`` (1), (7).
2. A thread leaves each outcome in ``outcomes``, and wakes the loop unless the gate will do that (8).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Event
from typing import Final, Protocol

from warren.msgstore.files.pins import PinError, PinnedFile
from warren.msgstore.files.segment_reads import ReadProblem
from warren.msgstore.files.store_errors import StoreError
from warren.msgstore.log.checkpoint import seal
from warren.msgstore.log.jobs import CheckpointJob, CommitJob, DropJob, SealedRead, SealJob, UnlinkJob
from warren.msgstore.log.log_position import LogPosition
from warren.msgstore.log.message_log import MessageLog
from warren.server.commit_pace import CommitPace
from warren.server.disk_space import RETRY_S
from warren.server.histogram import Histogram
from warren.server.logs import get_logger
from warren.server.store_reader import Mender, StoreReader
from warren.server.store_workers import (
    Failure,
    Job,
    MendJob,
    Outcome,
    PinJob,
    QuarantineJob,
    ReleaseJob,
    SpareJob,
    UnpinJob,
    Worker,
)

GRACE_S: Final = 5.0
READ_RETRY_S: Final = 0.05

log = get_logger("message_store")


class StoreFiles(Protocol):
    """The part of ``msgstore.files.store.Store`` that the threads need."""

    def commit(self, job: CommitJob, time_ms: int) -> None: ...
    def read(self, ranges: list[tuple[int, int]]) -> list[bytes]: ...
    def forget_cached(self, ranges: list[tuple[int, int]]) -> None: ...
    def seal(self, job: SealJob) -> None: ...
    def read_sealed(self, job: SealedRead) -> None: ...
    def drop_sealed(self, job: DropJob) -> None: ...
    def swap_sealed(self, stream_id: int, segments: list[int]) -> None: ...
    def unmake_sealed(self, stream_id: int, segment: int) -> None: ...
    def take_read_problems(self) -> list[ReadProblem]: ...
    def write_checkpoint(self, content: bytes) -> None: ...
    def release(self, numbers: list[int]) -> None: ...
    def unlink(self, numbers: list[int]) -> None: ...
    def prepare_spare(self, size: int) -> None: ...
    def quarantine(self, number: int) -> None: ...
    def pin(self, holder: str, position: LogPosition) -> list[PinnedFile]: ...
    def unpin(self, holder: str) -> None: ...
    def free_bytes(self) -> int: ...
    def close(self) -> None: ...


class Gate(Protocol):
    """Between the committer and the engine: whether to report a commit that this node has carried out."""

    def is_open(self, job: CommitJob) -> bool: ...

    def waits(self, job: CommitJob) -> bool:
        """Tell whether the gate is still closed, so that `gate_moved` follows when it opens. Any thread; a hint."""

    def trouble(self) -> str:
        """Return why commits wait, in a few words; empty if they do not."""


class OpenGate:
    """The gate of a single node."""

    def is_open(self, job: CommitJob) -> bool:
        return True

    def waits(self, job: CommitJob) -> bool:
        return False

    def trouble(self) -> str:
        return ""


class StoreThreads:
    """Carries out the jobs of `message_log` with the files of `store`; see `MessageStoreService`."""

    def __init__(
        self,
        store: StoreFiles,
        message_log: MessageLog,
        reads: StoreReader,
        mender: Mender | None,
        gate: Gate,
        commit_times: Histogram,
        *,
        wake: Callable[[], None],
        abandon: Callable[[], None],
        clock_ms: Callable[[], int],
    ) -> None:
        self.outcomes: deque[Outcome] = deque()
        self.pace = CommitPace()  # used by the committer
        self.pins = 0  # number of pins being made
        self._store = store
        self._log = message_log
        self._mender = mender
        self._gate = gate
        self._commit_times = commit_times
        self._wake = wake
        self._abandon = abandon
        self._clock_ms = clock_ms
        self._committer = Worker("committer", self._commit, self._report, _committer_retries)
        self._reader = Worker("reader", reads.read, self._report, _reader_retries)
        self._housekeeper = Worker("housekeeper", self._keep_house, self._report, _housekeeper_retries)
        self._ended = Event()
        self._releasing = 0  # number of removals with the reader
        self._held_back: list[CheckpointJob] = []  # until the removals are with the housekeeper
        self._dropped_later: list[DropJob] = []  # until the pins are made

    # --- on the loop ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads."""
        self._committer.start()
        self._reader.start()
        self._housekeeper.start()

    def read(self, job: Job) -> None:
        """Give `job` to the reader."""
        self._reader.put(job)

    def keep_house(self, job: Job) -> None:
        """Give `job` to the housekeeper."""
        self._housekeeper.put(job)

    def dispatch(self) -> int:
        """Hand the jobs of the log to the threads; return how many errands of the engine are among them."""
        errands = 0
        message_log = self._log
        if message_log.commit_jobs:
            jobs, message_log.commit_jobs = message_log.commit_jobs, []
            for job in jobs:
                self._committer.put(job)
        if message_log.read_jobs:
            reads, message_log.read_jobs = message_log.read_jobs, []
            errands += len(reads)
            for read in reads:
                if self.pins and isinstance(read, DropJob):
                    self._dropped_later.append(read)
                else:
                    self._reader.put(read)
        if message_log.seal_jobs:
            seals, message_log.seal_jobs = message_log.seal_jobs, []
            errands += len(seals)
            for seal_job in seals:
                self._housekeeper.put(seal_job)
        if message_log.checkpoint_jobs:
            checkpoints, message_log.checkpoint_jobs = message_log.checkpoint_jobs, []
            for checkpoint in checkpoints:
                if self._releasing:
                    self._held_back.append(checkpoint)
                else:
                    self._housekeeper.put(checkpoint)
        if message_log.unlink_jobs:
            unlinks, message_log.unlink_jobs = message_log.unlink_jobs, []
            for unlink in unlinks:
                self._releasing += 1
                self._reader.put(ReleaseJob(unlink))
        return errands

    def released(self, job: ReleaseJob) -> None:
        """Remove what has passed the reader: checkpoints that waited for it can continue."""
        self._releasing -= 1
        self._housekeeper.put(job.unlink)
        if not self._releasing:
            checkpoints, self._held_back = self._held_back, []
            for checkpoint in checkpoints:
                self._housekeeper.put(checkpoint)

    def pin_is_over(self) -> None:
        """Resume postponed drops: a pin is made or was cancelled."""
        self.pins -= 1
        if not self.pins:
            drops, self._dropped_later = self._dropped_later, []
            for drop in drops:
                self._reader.put(drop)

    def finish(self) -> bool:
        """End the threads after their last jobs and close the files; tell whether that was done. Blocks."""
        self._committer.finish()
        self._reader.finish()
        if not (self._committer.join(GRACE_S) and self._reader.join(GRACE_S)):
            return False
        self._housekeeper.finish()
        if not self._housekeeper.join(GRACE_S):
            return False
        try:
            self._store.close()
        except StoreError as error:
            log.warning("the message log was not closed", reason=str(error))
            return False
        return True

    def end(self) -> None:
        """Detach from the threads: they no longer wake anybody nor end the process."""
        self._ended.set()
        self._committer.finish()
        self._reader.finish()
        self._housekeeper.finish()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads after `end`, at most `timeout_s` for each; tell whether all have ended."""
        return all(worker.join(timeout_s) for worker in (self._committer, self._reader, self._housekeeper))

    # --- in the threads ---------------------------------------------------------------------------------------------

    def _commit(self, job: Job) -> None:
        assert isinstance(job, CommitJob)
        began_s = time.monotonic()
        self._store.commit(job, self._clock_ms())
        took_s = time.monotonic() - began_s
        self._commit_times.observe(took_s)
        self.pace.note(int(job.written_bytes()), took_s, synced=job.sync)

    def _keep_house(self, job: Job) -> None:
        store = self._store
        if isinstance(job, CheckpointJob):
            store.write_checkpoint(seal(job.content, self._log.checksum, int(job.last_crc)))
        elif isinstance(job, UnlinkJob):
            store.unlink(job.segments)
        elif isinstance(job, SpareJob):
            store.prepare_spare(job.size)
        elif isinstance(job, SealJob):
            job.carry_out(store)
        elif isinstance(job, PinJob):
            assert job.position is not None
            try:
                job.files = store.pin(job.holder, job.position)
            except PinError as error:
                job.error = error
        elif isinstance(job, UnpinJob):
            store.unpin(job.holder)
        elif isinstance(job, MendJob):
            assert self._mender is not None
            self._mender.mend_segment(job.segment, job.lsn)
        else:
            assert isinstance(job, QuarantineJob)
            store.quarantine(job.segment)

    def _report(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if self._ended.is_set():
            return
        # After `append`: the gate may open from now on, and finds the outcome there.
        # The engine requests the next portion of contents when it learns of one, and no gate waits for that.
        if not isinstance(outcome, CommitJob) or outcome.is_continued or not self._gate.waits(outcome):
            self._wake()
        if isinstance(outcome, Failure) and not self._ended.wait(GRACE_S):
            self._abandon()


def _committer_retries(job: Job) -> float | None:
    return RETRY_S


def _reader_retries(job: Job) -> float | None:
    """Repeat reads at once, since no other job may overtake them."""
    return READ_RETRY_S


def _housekeeper_retries(job: Job) -> float | None:
    """Postpone a job without space: it must not hold up one that makes space."""
    return None
