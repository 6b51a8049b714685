"""Streams whose chunks are sealed into files, and disks that lose, rot and fail on request."""

from __future__ import annotations

import os

from simulation.simulated_file_system import SimulatedFileSystem

from warren.msgstore.files.file_system import FileSystem
from warren.msgstore.files.sealed_files import Scan, sealed_path
from warren.msgstore.files.store import Store
from warren.msgstore.log.columns import BODIES, ColumnsWriter, maybe_head
from warren.msgstore.log.jobs import DropJob, SealedRead, SealJob
from warren.msgstore.log.message import Envelope, build_message
from warren.msgstore.log.sealed_table import SealedChunk, SealedTable
from warren.streams.raw_chunk import RawChunk

STORE_ID = bytes(range(16))
OTHER_ID = bytes(16)
Q = Envelope("", "q")


def opened(fs: FileSystem, store_id: bytes = STORE_ID, *, log_end: int = 0) -> tuple[Store, Scan]:
    """Return a store, and what it found, while the log has everything from `log_end` on."""
    store = Store(fs)
    store.open()
    return store, store.scan_sealed(store_id, lambda _, offset: offset >= log_end)


class Stream:
    """A stream that is sealed by hand; its bodies are `body` and their offsets. `jobs` are those that were carried out.

    A chunk of `count` messages goes after the others, or with `begins` into a file of its own.
    """

    def __init__(self, store: Store, stream_id: int = 7, body: bytes = b"body ") -> None:
        self.store = store
        self.id = stream_id
        self.table = SealedTable()
        self.jobs: list[SealJob] = []
        self._body = body

    def job(self, count: int, *, begins: bool = False) -> SealJob:
        writer = ColumnsWriter()
        first = int(self.table.end)
        for offset in range(first, first + count):
            writer.add(offset, build_message(Q, b"\0\0", self.body_at(offset), 0, True), False)
        segments = self.table.segments
        if begins or not segments:
            return SealJob(self.id, first, 0, writer.finish(first, first + count))
        last = segments[-1]
        return SealJob(self.id, int(last.first), int(last.file_bytes), writer.finish(first, first + count))

    def seal(self, count: int, *, begins: bool = False) -> SealJob:
        job = self.job(count, begins=begins)
        job.carry_out(self.store)
        self.enter(job)
        return job

    def enter(self, job: SealJob) -> None:
        self.jobs.append(job)
        self.table.add(chunk_of(job), begins_segment=job.position == 0)

    def body_at(self, offset: int) -> bytes:
        return self._body + b"%d" % offset

    def path(self, segment: int) -> str:
        return sealed_path(self.id, int(self.table.segments[segment].first))

    def drop_oldest(self) -> None:
        DropJob(self.id, [int(self.table.drop_oldest().first)]).carry_out(self.store)

    def reads(self, table: SealedTable) -> list[SealedRead]:
        """Return reads of all chunks of a table, carried out."""
        return [read(self.store, self.id, int(s.first), each) for s in table.segments for each in s.chunks]


def chunk_of(job: SealJob) -> SealedChunk:
    head = maybe_head(job.head)
    assert head is not None
    return SealedChunk(job.placed_at, head)


def read(store: Store, stream_id: int, segment: int, chunk: SealedChunk, *, parts: bool = True) -> SealedRead:
    job = SealedRead(stream_id, segment, int(chunk.position), int(chunk.stored_bytes))
    job.wants_parts = parts
    job.carry_out(store)
    return job


def bounds(table: SealedTable) -> list[list[tuple[int, int]]]:
    return [[(int(each.first), int(each.end)) for each in segment.chunks] for segment in table.segments]


def same(found: SealedTable, expected: SealedTable) -> bool:
    """Tell whether two tables say the same."""
    sums = [
        (int(table.first()), int(table.end), int(table.count), int(table.body_bytes)) for table in (found, expected)
    ]
    places = [[int(each.position) for s in table.segments for each in s.chunks] for table in (found, expected)]
    return sums[0] == sums[1] and places[0] == places[1] and bounds(found) == bounds(expected)


def bodies_of(job: SealedRead) -> bytes:
    return job.parts[BODIES]


def rows_of(store: Store, stream_id: int, table: SealedTable) -> dict[int, bytes]:
    """Return the bodies of all that is in a table, by offset; assert that each can be read, and is there once."""
    found: dict[int, bytes] = {}
    for segment in table.segments:
        for chunk in segment.chunks:
            job = read(store, stream_id, int(segment.first), chunk)
            assert job.chunk is not None, f"the chunk from {chunk.first} on cannot be read"
            raw = RawChunk(chunk, job.parts)
            for at in range(int(chunk.count)):
                offset = int(raw.offset_at(at))
                assert chunk.first <= offset < chunk.end and offset not in found
                found[offset] = raw.message(at).body()
    assert list(found) == sorted(found)
    return found


def fail_next(fs: SimulatedFileSystem, operation: str, number: int) -> None:
    """Make the next call of an operation fail."""

    def hook(event: str) -> None:
        if event.startswith(f"before {operation} "):
            fs.on_operation = None
            raise OSError(number, os.strerror(number), event)

    fs.on_operation = hook


def change(fs: SimulatedFileSystem, path: str, at: int, data: bytes) -> None:
    """Change bytes of a file, on the disk."""
    handle = fs.open(path, writable=True)
    fs.write(handle, [data], at)
    fs.sync(handle)
    fs.close(handle)
