"""The reads of the message store: the work of the reader's thread, for each read and for one that fails.

Only that thread calls `read`. Numbers in parentheses: the header of ``message_store.py``.
"""

from __future__ import annotations

from typing import Final, Protocol

from warren.msgstore.files.readable_files import ReadableFiles
from warren.msgstore.files.segment_reads import ReadProblem
from warren.msgstore.files.store_errors import StoreUnreadableError
from warren.msgstore.log.jobs import Errand, Files, ReadJob, Removal, SealedRead
from warren.msgstore.log.records import Checksum
from warren.server.logs import get_logger
from warren.server.store_workers import Job, ReleaseJob

# After this number of failures of a read, the copy of another node is requested, if there is one.
FAILURES_BEFORE_MENDING: Final = 6

log = get_logger("message_store")


class ReadableStore(Files, Protocol):
    """The part of ``msgstore.files.store.Store`` that the reader needs."""

    def release(self, numbers: list[int]) -> None: ...
    def forget_cached(self, ranges: list[tuple[int, int]]) -> None: ...
    def take_read_problems(self) -> list[ReadProblem]: ...


class Mender(Protocol):
    """Mends damage on disk from other nodes that have the same data. Called in the threads; blocks for seconds."""

    def mend(self, job: Errand, places: list[int]) -> bool:
        """Mend what `job` has met, in the log at these places; tell whether to run the job again."""

    def mend_unread(self, job: Errand, segment: int) -> bool:
        """Mend what the disk does not give to `job`: of that segment of the log, or the chunk; tell as `mend` does."""

    def mend_segment(self, number: int, lsn: int) -> None:
        """Mend the frame at `lsn`."""


class StoreReader:
    """Reads for the engine, from `store`. `mender`: another node's data, or None (9)."""

    def __init__(self, store: ReadableStore, checksum: Checksum, mender: Mender | None) -> None:
        self._store = store
        self._checksum = checksum
        self._mender = mender
        # How often reads failed that still fail, and those of them whose file is gone.
        self._failures: dict[Errand, int] = {}
        self._files_gone: set[Errand] = set()
        self._given_up: set[Errand] = set()  # reads that an operator has cancelled

    def give_up(self, job: Errand) -> None:
        """Accept what the disk returns for `job` the next time. Any thread."""
        self._given_up.add(job)

    def read(self, job: Job) -> None:
        """Do `job` of the reader, in its thread.

        Raises:
            StoreUnreadableError: the disk does not return the data.
        """
        store = self._store
        if isinstance(job, ReleaseJob):
            store.release(job.unlink.segments)
            return
        assert isinstance(job, Errand)
        try:
            self._carry_out(job)
        except StoreUnreadableError:
            self._failures[job] = self._failures.get(job, 0) + 1
            raise
        if self._failures:
            self._failures.pop(job, None)
            self._files_gone.discard(job)
            if isinstance(job, Removal):
                self._note_gone(*job.replaced())
        for problem in store.take_read_problems():
            log.error("the message log cannot be read", segment=problem.segment, lsn=problem.lsn, reason=problem.text)

    def _carry_out(self, job: Errand) -> None:
        """Do `job`; its data counts as damaged only if it is read so twice and cannot be mended."""
        if job in self._files_gone or job.is_left:
            return
        store, checksum = self._store, self._checksum
        if job in self._given_up:
            job.carry_out(ReadableFiles(store))
            self._given_up.discard(job)
            return
        try:
            job.carry_out(store)
        except StoreUnreadableError as error:
            # Writing the right bytes over unreadable ones does not change anything else. See ``replication.mending``.
            if self._mender is None or self._failures.get(job, 0) < FAILURES_BEFORE_MENDING:
                raise
            if not self._mender.mend_unread(job, error.segment):
                raise
            job.carry_out(store)
        places = job.damaged(checksum)
        if places:
            assert isinstance(job, ReadJob)
            store.forget_cached(job.ranges)
            job.carry_out(store)
            places = job.damaged(checksum)
        is_missing = isinstance(job, SealedRead) and job.chunk is None
        if (places or is_missing) and self._mender is not None and self._mender.mend(job, places):
            if isinstance(job, ReadJob):
                store.forget_cached(job.ranges)
            job.carry_out(store)
            places = job.damaged(checksum)
        job.is_checked = not places

    def _note_gone(self, stream_id: int, segments: list[int]) -> None:
        """Note that files of a stream were removed or replaced: failing reads of them find nothing."""
        for job in self._failures:
            if isinstance(job, SealedRead) and job.stream_id == stream_id and job.segment in segments:
                self._files_gone.add(job)
