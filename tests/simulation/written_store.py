"""Shared parts of the log's file tests: an open store, frames with their places, and the contents of the files."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from simulation.simulated_file_system import SimulatedFileSystem
from warren.msgstore.files.file_system import FileSystem
from warren.msgstore.files.store import Store
from warren.msgstore.log.bodies_ahead import AheadSizes, BodiesAhead
from warren.msgstore.log.checksum import checksum_function, default_algorithm
from warren.msgstore.log.jobs import CommitJob, PortionJob
from warren.msgstore.log.records import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES
from warren.msgstore.log.replay import FrameHead, maybe_frame

STORE_ID: Final = bytes(range(16))
TIME_MS: Final = 1_700_000_000_000
SEGMENT_BYTES: Final = 1024
EPOCH: Final = 7

checksum = checksum_function(default_algorithm())


def opened(fs: FileSystem, clock_ms: Callable[[], int] = lambda: TIME_MS) -> Store:
    """Return a new store, ready to write."""
    store = Store(fs, clock_ms)
    store.open()
    store.open_segments()
    store.resume(0, 0, EPOCH, STORE_ID, default_algorithm())
    return store


class Placing:
    """Gives frames their places, as the engine does."""

    def __init__(self, segment: int = 0, base_lsn: int = 0) -> None:
        self.jobs: list[CommitJob] = []
        self._segment = segment
        self._base_lsn = base_lsn
        self._end_lsn = base_lsn
        self._capacity = 0

    def job(self, payload: bytes, *, sync: bool = True) -> CommitJob:
        """Return a job with one frame, in a new segment when it does not fit into this one."""
        assert len(payload) % 8 == 0
        size = FRAME_HEADER_BYTES + len(payload)
        if self._end_lsn + size > self._base_lsn + self._capacity:
            self._segment += 1
            self._base_lsn += self._capacity
            self._capacity = max(SEGMENT_BYTES, SEGMENT_HEADER_BYTES + size)
            self._end_lsn = self._base_lsn + SEGMENT_HEADER_BYTES
        half = len(payload) // 2
        chunks = [payload[:half], payload[half:]]
        job = CommitJob(
            len(self.jobs) + 1,
            self._end_lsn,
            self._segment,
            self._base_lsn,
            self._capacity,
            chunks,
            len(payload),
            1,
            sync,
        )
        self._end_lsn += size
        self.jobs.append(job)
        return job

    def ahead(self, content_bytes: int = 2000, more_bytes: int = 0) -> tuple[list[PortionJob], CommitJob]:
        """Return the portions of two contents, and the frame that has them; it begins a segment.

        Their file has `more_bytes` than the segment.
        """
        contents = [bytes([at]) * content_bytes for at in (1, 2)]
        chunks = [bytes(40), contents[0], bytes(24), contents[1], bytes(-(2 * content_bytes) % 8)]
        job = self.job(b"".join(chunks))
        assert job.lsn == job.base_lsn + SEGMENT_HEADER_BYTES
        job.chunks = chunks
        job.bodies = plan = BodiesAhead(AheadSizes(), 1 << 20)
        positions = [40, 40 + content_bytes + 24]
        portions = [
            PortionJob(plan, job.batch, job.segment - 1, [position], [content], job.capacity + more_bytes)
            for position, content in zip(positions, contents, strict=True)
        ]
        return portions, job

    def sync(self) -> CommitJob:
        """Return a job that only syncs."""
        job = CommitJob(
            len(self.jobs) + 1, self._end_lsn, self._segment, self._base_lsn, self._capacity, [], 0, 0, True
        )
        self.jobs.append(job)
        return job


def payload_of(job: CommitJob) -> bytes:
    return b"".join(job.chunks)


def frames_of(image: bytes) -> list[tuple[FrameHead, bytes]]:
    """Return the intact frames of a segment file from its beginning, with their payloads."""
    base_lsn = int.from_bytes(image[40:48], "big")
    found = []
    at = SEGMENT_HEADER_BYTES
    while (frame := maybe_frame(checksum, STORE_ID[:8], image, at, base_lsn + at)) is not None:
        found.append((frame, image[frame.end - frame.payload_bytes : frame.end]))
        at = frame.end
    return found


def content_of(fs: FileSystem, path: str) -> bytes:
    handle = fs.open(path, writable=False)
    try:
        return fs.read(handle, 1 << 20, 0)
    finally:
        fs.close(handle)


def put(fs: FileSystem, path: str, content: bytes) -> None:
    handle = fs.create(path, 0)
    fs.write(handle, [content], 0)
    fs.sync(handle)
    fs.close(handle)


def operations(fs: SimulatedFileSystem) -> list[str]:
    """Return a list that every operation is appended to, sizes and closes left out."""
    done: list[str] = []

    def note(event: str) -> None:
        moment, _, operation = event.partition(" ")
        if moment == "after" and not operation.startswith(("size", "close", "names")):
            done.append(operation)

    fs.on_operation = note
    return done


class Trouble:
    """Makes the `nth` operation from now on fail with an errno, before it has done anything. Closing never fails."""

    def __init__(self, fs: SimulatedFileSystem, nth: int, number: int) -> None:
        self.operation = ""
        self._left = nth
        self._number = number
        fs.on_operation = self._hook

    def _hook(self, event: str) -> None:
        moment, _, operation = event.partition(" ")
        if moment == "after" or self._left == 0 or operation.startswith(("close", "size")):
            return
        self._left -= 1
        if self._left == 0:
            self.operation = operation
            raise OSError(self._number, os.strerror(self._number))
