"""The files of sealed streams, on a disk that loses what was not synced, fills up and rots.

In parentheses: the invariants in the header of ``msgstore/files/sealed_files.py``.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from pathlib import Path
from random import Random

import pytest
from simulation.simulated_file_system import SimulatedFileSystem

from warren.msgstore.files.errors import StoreError, StoreFailedError, StoreFullError
from warren.msgstore.files.file_system import FileSystem, OsFileSystem
from warren.msgstore.files.sealed_files import READ_HANDLES_MAX, STREAMS, Scan, maybe_sealed_name, sealed_path
from warren.msgstore.files.store import Store
from warren.msgstore.log.columns import BODIES, CHUNK_HEAD_BYTES, ColumnsWriter, maybe_head
from warren.msgstore.log.jobs import DropJob, SealedRead, SealJob
from warren.msgstore.log.message import Envelope, build_message
from warren.msgstore.log.sealed_table import SEGMENT_HEADER_BYTES, SealedChunk, SealedSegment, SealedTable
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

    A chunk of `count` messages goes behind the others, or with `begins` into a file of its own.
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
        (int(table.first()), int(table.end), int(table.count), int(table.body_bytes), int(table.file_bytes))
        for table in (found, expected)
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
    """Let the next call of an operation fail."""

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


@pytest.fixture(params=["os", "simulated"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    return OsFileSystem(str(tmp_path)) if request.param == "os" else SimulatedFileSystem()


# --- writing and finding it again -------------------------------------------------------------------------------------


def test_what_was_sealed_is_found_at_the_next_start(fs: FileSystem) -> None:
    """(1)"""
    store, found = opened(fs)
    assert found.tables == {}
    one, other = Stream(store, 7), Stream(store, 8, b"x" * 5000)
    one.seal(10)
    other.seal(3)
    one.seal(5)
    one.seal(20, begins=True)
    other.seal(1)
    store.close()
    store, found = opened(fs)
    assert found.problems == []
    assert set(found.tables) == {7, 8}
    assert same(found.tables[7], one.table) and same(found.tables[8], other.table)
    assert fs.names(STREAMS) == [
        "0000000007-00000000000000000000",
        "0000000007-00000000000000000015",
        "0000000008-00000000000000000000",
    ]
    for stream in (one, other):
        stream.store = store
        for job in stream.reads(found.tables[stream.id]):
            assert job.chunk is not None
        whole = b"".join(bodies_of(job) for job in stream.reads(found.tables[stream.id]))
        assert whole == b"".join(stream.body_at(offset) for offset in range(int(stream.table.end)))


def test_sealing_goes_on_behind_what_was_found(fs: FileSystem) -> None:
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(4)
    for _ in range(3):
        store.close()
        store, found = opened(fs)
        stream.store = store
        assert same(found.tables[7], stream.table)
        stream.seal(4)
    assert bounds(stream.table) == [[(0, 4), (4, 8), (8, 12), (12, 16)]]
    assert all(job.chunk is not None for job in stream.reads(stream.table))


def test_the_header_of_a_segment_is_as_the_table_says() -> None:
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store, 7)
    stream.seal(300)
    stream.seal(1, begins=True)
    head = fs.contents()["streams/0000000007-00000000000000000300"][:SEGMENT_HEADER_BYTES]
    assert head == struct.pack("<8sH6s16sQQ12s", b"WARRNSTR", 1, b"", STORE_ID, 7, 300, b"") + head[-4:]
    assert int.from_bytes(head[-4:], "little") == zlib.crc32(head[:-4])


def test_names_that_are_no_segments_are_left_alone() -> None:
    for name in (
        "",
        "x",
        "0000000007",
        "0000000007-1",
        "0000000007-0000000000000000000x",
        "\u0660000000007-" + "0" * 20,
    ):
        assert maybe_sealed_name(name) is None
    assert maybe_sealed_name("0000000007-00000000000000000300") == (7, 300)
    fs = SimulatedFileSystem()
    opened(fs)
    fs.close(fs.create(f"{STREAMS}/notes", 0))
    _, found = opened(fs)
    assert (found.tables, found.problems) == ({}, [])
    assert fs.names(STREAMS) == ["notes"]


def test_a_chunk_is_read_with_its_parts_or_as_it_lies_there() -> None:
    store, _ = opened(SimulatedFileSystem())
    stream = Stream(store, body=b"compressible " * 50)
    chunk = chunk_of(stream.seal(9))
    whole = read(store, 7, 0, chunk)
    assert whole.chunk is not None and len(whole.chunk) == chunk.stored_bytes
    assert bodies_of(whole) == b"".join(stream.body_at(offset) for offset in range(9))
    assert len(bodies_of(whole)) == chunk.body_bytes > chunk.stored_bytes, "it is compressed"
    raw = read(store, 7, 0, chunk, parts=False)
    assert (raw.chunk, raw.parts) == (whole.chunk, [])


def test_what_is_not_there_is_read_as_nothing() -> None:
    """(5)"""
    store, _ = opened(SimulatedFileSystem())
    size = int(chunk_of(Stream(store).seal(3)).stored_bytes)
    for stream_id, segment, position, length in (
        (8, 0, 64, size),
        (7, 1, 64, size),
        (7, 0, 128, size),
        (7, 0, 64, size - 1),
        (7, 0, 1 << 20, size),
    ):
        job = SealedRead(stream_id, segment, position, length)
        job.carry_out(store)
        assert (job.chunk, job.parts) == (None, [])


def test_a_bad_sector_is_read_as_nothing() -> None:
    """(5)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    chunk = chunk_of(Stream(store).seal(3))
    for operation in ("open", "read"):
        fail_next(fs, operation, errno.EIO)
        assert read(store, 7, 0, chunk).chunk is None
    assert read(store, 7, 0, chunk).chunk is not None


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_what_there_is_no_descriptor_for_is_not_taken_for_damaged(number: int) -> None:
    """(5)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    chunk = chunk_of(Stream(store).seal(3))
    fail_next(fs, "open", number)
    with pytest.raises(StoreFullError):
        read(store, 7, 0, chunk)
    assert read(store, 7, 0, chunk).chunk is not None


# --- torn and damaged -------------------------------------------------------------------------------------------------


def test_a_torn_chunk_is_cut_off_and_its_place_is_used_again() -> None:
    """(2)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(5)
    path = stream.path(0)
    whole = len(fs.contents()[path])
    torn = stream.job(6)
    torn.carry_out(store)
    store.close()
    full = fs.contents()[path]
    for size in (whole + 1, whole + CHUNK_HEAD_BYTES, whole + CHUNK_HEAD_BYTES + 64, len(full) - 1):
        handle = fs.open(path, writable=True)
        fs.truncate(handle, size)
        fs.close(handle)
        store, found = opened(fs)
        assert found.problems == []
        assert same(found.tables[7], stream.table)
        assert len(fs.contents()[path]) == whole
        store.close()
        change(fs, path, whole, full[whole:])
    change(fs, path, whole + CHUNK_HEAD_BYTES, b"\xff")
    stream.store, found = opened(fs)
    assert (found.problems, bounds(found.tables[7])) == ([], [[(0, 5)]])
    stream.seal(9)
    assert bounds(stream.table) == [[(0, 5), (5, 14)]]
    assert len(rows_of(stream.store, 7, stream.table)) == 14


def test_a_file_in_which_nothing_was_reported_goes() -> None:
    """(2)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(5)
    stream.job(6, begins=True).carry_out(store)
    store.close()
    path = sealed_path(7, 5)
    full = fs.contents()[path]
    for size in (0, 10, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + 100, len(full) - 1):
        handle = fs.open(path, writable=True)
        fs.truncate(handle, size)
        fs.close(handle)
        store, found = opened(fs)
        assert (found.problems, bounds(found.tables[7])) == ([], [[(0, 5)]])
        assert fs.names(STREAMS) == ["0000000007-00000000000000000000"]
        store.close()
        fs.close(fs.create(path, 0))
        change(fs, path, 0, full)


def test_what_is_behind_a_damaged_place_is_served() -> None:
    """(3)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    for count in (5, 6, 7):
        stream.seal(count)
    stream.seal(8, begins=True)
    stream.seal(9)
    store.close()
    places = [stream.jobs[1].placed_at, stream.jobs[3].placed_at]
    fs.flip_bit(stream.path(0), places[0] + 20, 3)
    fs.flip_bit(stream.path(1), places[1] + CHUNK_HEAD_BYTES, 0)
    path, last = stream.path(0), stream.path(1)
    store, found = opened(fs)
    assert found.problems == [f"{path} is damaged at byte {places[0]}", f"{last} is damaged at byte {places[1]}"]
    table = found.tables[7]
    assert bounds(table) == [[(0, 5), (11, 18)], [(26, 35)]]
    assert (table.count, table.end) == (21, 35)
    expected = {offset: stream.body_at(offset) for offset in [*range(5), *range(11, 18), *range(26, 35)]}
    assert rows_of(store, 7, table) == expected
    stream.store, stream.table = store, table
    stream.seal(2)
    assert rows_of(store, 7, table) == expected | {35: stream.body_at(35), 36: stream.body_at(36)}


def test_damage_at_the_end_of_a_file_is_reported_unless_it_may_be_a_torn_chunk() -> None:
    """(2), (3)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(5)
    stream.seal(6)
    stream.seal(7, begins=True)
    store.close()
    fs.flip_bit(stream.path(0), stream.jobs[1].placed_at + 8, 1)
    _, found = opened(fs)
    assert found.problems == [f"{stream.path(0)} is damaged at byte {stream.jobs[1].placed_at}"]
    assert bounds(found.tables[7]) == [[(0, 5)], [(11, 18)]]
    assert found.tables[7].place(5)[1].first == 11


def test_rot_in_the_body_of_an_older_file_is_noticed_by_whoever_reads_it() -> None:
    """(5)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(5)
    stream.seal(6)
    stream.seal(7, begins=True)
    fs.flip_bit(stream.path(0), stream.jobs[0].placed_at + CHUNK_HEAD_BYTES + 1, 1)
    store, found = opened(fs)
    assert (found.problems, same(found.tables[7], stream.table)) == ([], True), "only heads are looked at"
    stream.store = store
    assert [job.chunk is None for job in stream.reads(found.tables[7])] == [True, False, False]


def test_damage_that_reaches_over_chunks_and_megabytes_is_one_damage() -> None:
    """(3)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    random = Random(3)
    stream = Stream(store)
    stream.seal(3)
    for _ in range(2):
        stream._body = random.randbytes(700_000)
        stream.seal(1)
    stream._body = b""
    stream.seal(4)
    store.close()
    start, end = stream.jobs[1].placed_at, stream.jobs[3].placed_at
    assert end - start > 1 << 20
    change(fs, stream.path(0), start, bytes(end - start))
    _, found = opened(fs)
    assert found.problems == [f"{stream.path(0)} is damaged at byte {start}"]
    assert bounds(found.tables[7]) == [[(0, 3), (5, 9)]]


@pytest.mark.parametrize("at", [0, 20, 35, 45, 62], ids=["magic", "store", "stream", "first", "crc"])
@pytest.mark.parametrize("segment", [0, 1])
def test_a_file_whose_header_is_damaged_is_set_aside_as_it_is(at: int, segment: int) -> None:
    """(3)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(5)
    stream.seal(6, begins=True)
    store.close()
    path = stream.path(segment)
    fs.flip_bit(path, at, 2)
    content = fs.contents()[path]
    _, found = opened(fs)
    (problem,) = found.problems
    assert problem.startswith(f"{path} ")
    assert bounds(found.tables[7]) == [[(5, 11)] if segment == 0 else [(0, 5)]]
    assert fs.contents()[f"{path}.unusable"] == content
    assert path not in fs.contents()
    for state in fs.crash_states(1, 10):
        assert f"{path}.unusable" in state.contents(), "its new name is durable"
    _, found = opened(fs)
    assert found.problems == [], "that is said once"
    assert fs.contents()[f"{path}.unusable"] == content


def test_what_was_set_aside_stays_when_the_same_happens_again() -> None:
    """(3)"""
    fs = SimulatedFileSystem()
    kept: list[bytes] = []
    for _ in range(3):
        store, _ = opened(fs)
        stream = Stream(store, body=b"%d" % len(kept))
        stream.seal(5)
        store.close()
        fs.flip_bit(stream.path(0), 0, 2)
        kept.append(fs.contents()[stream.path(0)])
    opened(fs)
    assert fs.names(STREAMS) == [f"0000000007-00000000000000000000.unusable{end}" for end in ("", ".2", ".3")]
    assert [fs.contents()[f"{STREAMS}/{name}"] for name in fs.names(STREAMS)] == kept


def test_a_file_of_another_store_or_with_another_name_is_set_aside() -> None:
    """(3)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs, OTHER_ID)
    foreign, renamed = Stream(store, 7), Stream(store, 8)
    foreign.seal(5)
    renamed.seal(5)
    store.close()
    _, found = opened(fs)
    assert found.tables == {}
    path = "streams/0000000007-00000000000000000000"
    assert found.problems[0] == f"{path} is of another store, {OTHER_ID.hex()}"
    fs.rename(f"{path}.unusable", "streams/0000000009-00000000000000000002")
    fs.sync_directory(STREAMS)
    _, found = opened(fs, OTHER_ID)
    assert found.problems == ["streams/0000000009-00000000000000000002 says that it is of stream 7 from offset 0 on"]


def test_a_later_format_is_refused_and_nothing_is_touched() -> None:
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(5)
    store.close()
    head = bytearray(fs.contents()[stream.path(0)][:SEGMENT_HEADER_BYTES])
    head[8] = 2
    head[60:] = zlib.crc32(head[:60]).to_bytes(4, "little")
    change(fs, stream.path(0), 0, bytes(head))
    before = fs.contents()
    with pytest.raises(StoreError, match="format version 2: a newer Warren"):
        opened(fs)
    assert fs.contents() == before


@pytest.mark.parametrize("torn", [True, False])
def test_a_chunk_that_somebody_published_is_not_taken_for_one(torn: bool) -> None:
    """(6)"""
    other, _ = opened(SimulatedFileSystem(), OTHER_ID)
    attacker = Stream(other)
    attacker.table.end = 1000
    attacker.seal(3, begins=True)
    read_back = attacker.reads(attacker.table)[0].chunk
    assert read_back is not None
    plain = b"".join(ColumnsWriter().finish(5000, 6000).encode())
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    store._sealed.compresses = False
    stream = Stream(store)
    stream.seal(2)
    random = Random(1)
    for forged in (plain, read_back):
        body = forged + random.randbytes(5000)  # what is so large in truth is not compressed
        writer = ColumnsWriter()
        first = int(stream.table.end)
        writer.add(first, build_message(Q, b"\0\0", body, 0, True), False)
        job = SealJob(7, 0, int(stream.table.segments[0].file_bytes), writer.finish(first, first + 1))
        job.carry_out(store)
        content = fs.contents()[stream.path(0)]
        places = [at for at in range(job.placed_at, len(content), 64) if content.startswith(forged, at)]
        assert places, "one of them is where a chunk may be"
        stream.enter(job)
    stream.seal(4)
    store.close()
    if torn:
        handle = fs.open(stream.path(0), writable=True)
        fs.truncate(handle, stream.jobs[2].placed_at + 4000)
        fs.close(handle)
        change(fs, stream.path(0), stream.jobs[2].placed_at, bytes(64))
    else:
        for job in stream.jobs[1:3]:
            fs.flip_bit(stream.path(0), job.placed_at, 0)
    _, found = opened(fs)
    assert bounds(found.tables[7]) == [[(0, 2), (2, 3)] if torn else [(0, 2), (4, 8)]]
    assert len(found.problems) == (0 if torn else 1)


# --- no space, and errors ---------------------------------------------------------------------------------------------


def test_a_chunk_that_did_not_fit_is_written_when_it_does() -> None:
    """(1)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store, body=Random(1).randbytes(300))
    stream.seal(5)
    for begins in (False, True, False):
        job = stream.job(9, begins=begins)
        left = 0
        while True:
            fs.capacity = sum(map(len, fs.contents().values())) + left
            try:
                job.carry_out(store)
                break
            except StoreFullError:
                assert job.head == b"", "it is not reported"
                for state in fs.crash_states(left, 6):
                    _, found = opened(state)
                    assert (found.problems, same(found.tables[7], stream.table)) == ([], True)
                left += 400
        assert left > 400
        fs.capacity = None
        stream.enter(job)
        assert same(opened(fs.kill9())[1].tables[7], stream.table)
    assert len(rows_of(store, 7, stream.table)) == 32


@pytest.mark.parametrize("operation", ["create", "open", "write", "sync_directory"])
def test_a_job_that_met_a_shortage_can_be_repeated(operation: str) -> None:
    """(1)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(5)
    store.close()
    store, _ = opened(fs)
    stream.store = store
    job = stream.job(6, begins=operation != "open")
    fail_next(fs, operation, errno.EMFILE)
    with pytest.raises(StoreFullError):
        job.carry_out(store)
    assert job.head == b""
    job.carry_out(store)
    stream.enter(job)
    assert len(rows_of(store, 7, stream.table)) == 11
    (state,) = fs.crash_states(0, 1)
    assert same(opened(state)[1].tables[7], stream.table)


@pytest.mark.parametrize("operation", ["create", "write", "sync", "sync_directory"])
def test_a_chunk_whose_writing_failed_is_not_reported_and_the_store_has_failed(operation: str) -> None:
    """(1)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(5)
    job = stream.job(6, begins=True)
    fail_next(fs, operation, errno.EIO)
    with pytest.raises(StoreFailedError):
        job.carry_out(store)
    assert (job.placed_at, job.head) == (0, b"")
    with pytest.raises(StoreFailedError):
        stream.job(6).carry_out(store)
    with pytest.raises(StoreFailedError):
        DropJob(7, [0]).carry_out(store)
    for state in fs.crash_states(0, 20):
        _, found = opened(state)
        assert bounds(found.tables[7])[:1] == [[(0, 5)]]


def test_a_start_that_meets_an_error_changes_nothing() -> None:
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(5)
    stream.seal(6)
    store.close()
    before = fs.contents()
    errors = [("names", errno.EIO), ("size", errno.EIO), ("open", errno.EACCES), ("read", errno.ENOMEM)]
    for operation, number in errors:
        failing = fs.kill9()
        fail_next(failing, operation, number)
        with pytest.raises(StoreFailedError):
            opened(failing)
        assert failing.contents() == before


def test_an_end_that_the_log_does_not_have_any_more_is_not_taken_for_a_torn_one() -> None:
    """(2)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(5)
    stream.seal(6)
    store.close()
    path, at = stream.path(0), stream.jobs[1].placed_at
    fs.flip_bit(path, at + CHUNK_HEAD_BYTES, 1)
    before = fs.contents()[path]
    store, found = opened(fs, log_end=11)
    assert found.problems == [f"{path} is damaged at byte {at}"]
    assert (bounds(found.tables[7]), fs.contents()[path]) == ([[(0, 5)]], before)
    stream.store, stream.table = store, found.tables[7]
    stream.table.end = 11
    stream.seal(3)
    assert fs.contents()[path].startswith(before)
    store.close()
    for log_end in (15, 14):
        begun = sealed_path(7, 14)
        fs.close(fs.create(begun, 40))
        _, found = opened(fs, log_end=log_end)
        assert begun not in fs.contents()
        assert (f"{begun}.unusable" in fs.contents()) == (log_end == 15), "something may have been in it"
        if log_end == 15:
            fs.unlink(f"{begun}.unusable")


# --- bad sectors ------------------------------------------------------------------------------------------------------


def large_stream(store: Store) -> Stream:
    """Return a stream whose chunks are larger than a block of the disk."""
    store._sealed.compresses = False
    return Stream(store, body=bytes(3000))


@pytest.mark.parametrize("place", [0, CHUNK_HEAD_BYTES + 1000], ids=["head", "body"])
def test_a_chunk_that_the_disk_cannot_read_is_passed_over_and_stays(place: int) -> None:
    """(2), (3)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = large_stream(store)
    for count in (2, 3, 4):
        stream.seal(count)
    store.close()
    at = stream.jobs[1].placed_at
    fs.spoil(stream.path(0), at + place, at + place + 64)
    before = fs.contents()
    store, found = opened(fs)
    assert found.problems == [f"{stream.path(0)} cannot be read at byte {at}"]
    assert bounds(found.tables[7]) == [[(0, 2), (5, 9)]]
    assert set(rows_of(store, 7, found.tables[7])) == {0, 1, 5, 6, 7, 8}
    assert fs.contents() == before


@pytest.mark.parametrize("place", [0, CHUNK_HEAD_BYTES + 1000], ids=["head", "body"])
@pytest.mark.parametrize("is_torn", [False, True])
def test_an_end_that_the_disk_cannot_read_is_not_taken_for_a_torn_one(place: int, is_torn: bool) -> None:
    """(2)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = large_stream(store)
    stream.seal(2)
    stream.seal(3)
    store.close()
    path, at = stream.path(0), stream.jobs[1].placed_at
    if is_torn:
        handle = fs.open(path, writable=True)
        fs.truncate(handle, at + 7000)
        fs.close(handle)
    fs.spoil(path, at + place, at + place + 64)
    before = fs.contents()[path]
    stream.store, found = opened(fs)
    assert found.problems == [f"{path} cannot be read at byte {at}"]
    assert bounds(found.tables[7]) == [[(0, 2)]]
    assert fs.contents()[path] == before
    # What the log still has is sealed behind it.
    stream.table = found.tables[7]
    job = stream.seal(5)
    assert (job.placed_at, job.placed_at % 65536) == (65536, 0), "no block that cannot be read is written to"
    assert fs.contents()[path].startswith(before)
    assert len(rows_of(stream.store, 7, stream.table)) == 7
    stream.store.close()
    for healed in (False, True):
        if healed:
            fs.heal(path)
        stream.store, found = opened(fs)
        assert len(found.problems) == (not healed or is_torn)
        assert bounds(found.tables[7]) == [[(0, 2), (2, 7)]]
        assert set(rows_of(stream.store, 7, found.tables[7])) == set(range(7))
        stream.store.close()


def test_a_file_that_was_begun_when_the_end_of_another_could_not_be_read_is_no_left_over() -> None:
    """(7)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = large_stream(store)
    stream.seal(2)
    stream.seal(3)
    store.close()
    path = stream.path(0)
    fs.spoil(path, stream.jobs[1].placed_at + 5000, stream.jobs[1].placed_at + 5100)
    stream.store, found = opened(fs)
    stream.table = found.tables[7]
    stream.seal(1, begins=True)
    stream.seal(4)
    stream.store.close()
    before = fs.contents()
    for _ in ("unreadable", "healed"):
        store, found = opened(fs)
        assert bounds(found.tables[7]) == [[(0, 2)], [(2, 3), (3, 7)]]
        assert set(rows_of(store, 7, found.tables[7])) == set(range(7))
        assert (int(found.tables[7].count), int(found.tables[7].body_bytes)) == (7, 7 * 3001)
        store.close()
        fs.heal(path)
    assert fs.contents() == before


def test_chunks_are_found_behind_bad_sectors_however_many() -> None:
    """(3)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store, body=Random(9).randbytes(700_000))
    for _ in range(4):
        stream.seal(1)
    store.close()
    start, end = stream.jobs[1].placed_at, stream.jobs[3].placed_at
    fs.spoil(stream.path(0), start, end - 5000)
    store, found = opened(fs)
    assert found.problems == [f"{stream.path(0)} cannot be read at byte {start}"]
    assert bounds(found.tables[7]) == [[(0, 1), (3, 4)]]


@pytest.mark.parametrize("segment", [0, 1])
@pytest.mark.parametrize("what", ["header", "chunks", "file"])
def test_a_file_of_which_nothing_can_be_read_is_set_aside_as_it_is(segment: int, what: str) -> None:
    """(3)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = large_stream(store)
    stream.seal(2)
    stream.seal(2, begins=True)
    store.close()
    path = stream.path(segment)
    before = fs.contents()[path]
    if what == "header":
        fs.spoil(path, 0, 8)
        problem = "has a header that cannot be read"
    elif what == "chunks":
        change(fs, path, SEGMENT_HEADER_BYTES + 8, b"\xff")
        fs.spoil(path, 2000, 2001)
        before = fs.contents()[path]
        problem = f"cannot be read at byte {SEGMENT_HEADER_BYTES}"
    else:
        problem = "cannot be opened: Input/output error"

        def hook(event: str) -> None:
            if event == f"before open {path}":
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

        fs.on_operation = hook
    _, found = opened(fs)
    fs.on_operation = None
    assert found.problems == [f"{path} {problem}"]
    assert bounds(found.tables[7]) == [[(2, 4)] if segment == 0 else [(0, 2)]]
    assert path not in fs.contents()
    assert fs.contents()[f"{path}.unusable"] == before
    assert opened(fs)[1].problems == []


def test_a_short_file_that_the_disk_cannot_read_is_not_removed() -> None:
    """(2)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(2)
    path = sealed_path(7, 2)
    fs.close(fs.create(path, 100))
    fs.spoil(path, 50, 60)
    store.close()
    _, found = opened(fs)
    assert found.problems == [f"{path} has a header that cannot be read"]
    assert f"{path}.unusable" in fs.contents()


# --- handles ----------------------------------------------------------------------------------------------------------


def test_few_files_are_open_however_many_streams_there_are() -> None:
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    streams = [Stream(store, number) for number in range(1, 3 * READ_HANDLES_MAX)]
    for stream in streams + streams[::-1]:
        stream.seal(1)
    assert len(fs.open_paths()) == READ_HANDLES_MAX
    for stream in streams + streams[::-1]:
        assert all(job.chunk is not None for job in stream.reads(stream.table))
    assert len(fs.open_paths()) == 2 * READ_HANDLES_MAX
    assert all(len(stream.table.segments[0].chunks) == 2 for stream in streams)
    store.close()
    assert fs.open_paths() == []


def test_of_a_stream_one_file_is_open_to_be_written() -> None:
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    for _ in range(5):
        stream.seal(3, begins=True)
    assert fs.open_paths() == [stream.path(-1)]


def test_a_file_that_is_dropped_gives_its_space_back_though_it_was_open() -> None:
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    for _ in range(3):
        stream.seal(3, begins=True)
    reads = stream.reads(stream.table)
    assert all(job.chunk is not None for job in reads)
    assert len(fs.open_paths()) == 4
    oldest = stream.table.segments[0]
    stream.drop_oldest()
    again = read(store, 7, int(oldest.first), oldest.chunks[0])
    assert again.chunk is None
    assert fs.open_paths() == [stream.path(0), stream.path(1), stream.path(1)]
    stream.drop_oldest()
    stream.drop_oldest()
    assert (fs.open_paths(), fs.contents()) == ([], {}), "the one that was being written too"
    DropJob(7, [0, 3, 6]).carry_out(store)  # again
    _, found = opened(fs)
    assert (found.tables, found.problems) == ({}, [])


def test_a_segment_that_comes_back_with_a_power_cut_is_there_whole() -> None:
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    for _ in range(3):
        stream.seal(3, begins=True)
    expected = rows_of(store, 7, stream.table)
    stream.drop_oldest()
    firsts = set()
    for state in fs.crash_states(0, 10):
        again, found = opened(state)
        table = found.tables[7]
        assert found.problems == []
        rows = rows_of(again, 7, table)
        assert rows == {offset: expected[offset] for offset in range(int(table.first()), 9)}
        firsts.add(int(table.first()))
    assert firsts == {0, 3}


# --- replacing --------------------------------------------------------------------------------------------------------


def replacement(stream: Stream, firsts: list[int], end: int, kept: list[int]) -> SealJob:
    """Return a job that writes a file that is to take the place of some segments: with the offsets `kept`."""
    writer = ColumnsWriter(compacted=True)
    for offset in kept:
        writer.add(offset, build_message(Q, b"\0\0", stream.body_at(offset), 0, True), False)
    job = SealJob(stream.id, firsts[0], 0, writer.finish(firsts[0], end))
    job.is_replacement = True
    return job


def test_segments_are_replaced_in_one_step_or_not_at_all() -> None:
    """(4)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    for _ in range(4):
        stream.seal(3, begins=True)
    before = rows_of(store, 7, stream.table)
    kept = [1, 5, 8]
    after = {offset: before[offset] for offset in [*kept, 9, 10, 11]}
    seen: list[list[int]] = []

    def look(event: str) -> None:
        for state in fs.crash_states(len(seen), 8):
            again, found = opened(state)
            rows = rows_of(again, 7, found.tables[7])
            assert (found.problems, found.tables[7].end) == ([], 12)
            assert rows in (before, after), event
            assert not any(name.endswith(".new") for name in state.names(STREAMS))
            seen.append(list(rows))

    fs.on_operation = look
    replacement(stream, [0, 3, 6], 9, kept).carry_out(store)
    store.swap_sealed(7, [0, 3, 6])
    fs.on_operation = None
    assert list(before) in seen and list(after) in seen
    look("at the end")
    assert seen[-1] == list(after), "it is durable"
    assert set(fs.open_paths()) == {"streams/0000000007-00000000000000000009"}
    made = opened(fs)[1].tables[7]
    assert bounds(made) == [[(0, 9)], [(9, 12)]]


def test_a_read_that_comes_after_a_swap_finds_the_new_file() -> None:
    """(4)"""
    store, _ = opened(SimulatedFileSystem())
    stream = Stream(store)
    stream.seal(3, begins=True)
    stream.seal(3, begins=True)
    assert len(rows_of(store, 7, stream.table)) == 6
    job = replacement(stream, [0], 3, [2])
    job.carry_out(store)
    store.swap_sealed(7, [0])
    assert bodies_of(read(store, 7, 0, chunk_of(job))) == stream.body_at(2)


def test_a_replacement_that_is_given_up_leaves_nothing() -> None:
    """(4)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(3, begins=True)
    stream.seal(3, begins=True)
    replacement(stream, [0], 3, [2]).carry_out(store)
    store.unmake_sealed(7, 0)
    assert fs.names(STREAMS) == ["0000000007-00000000000000000000", "0000000007-00000000000000000003"]
    assert fs.open_paths() == [stream.path(1)]
    replacement(stream, [0], 3, [2]).carry_out(store)
    stream.drop_oldest()
    assert fs.names(STREAMS) == ["0000000007-00000000000000000003"], "nor when retention is quicker"
    store.unmake_sealed(7, 0)
    assert fs.open_paths() == [stream.path(0)]


# --- power cuts -------------------------------------------------------------------------------------------------------


class Life:
    """Two streams that are sealed, cut and replaced at random, with a power cut at every moment.

    `kept`: what was reported of each, by offset, and not given up since; `ever`: what was ever to be sealed.
    """

    def __init__(self, seed: int, states: int) -> None:
        self.random = Random(seed)
        self.fs = SimulatedFileSystem()
        self.store, _ = opened(self.fs)
        self.streams = [Stream(self.store, 7, self.random.randbytes(90)), Stream(self.store, 8)]
        self.kept: dict[int, dict[int, bytes]] = {7: {}, 8: {}}
        self.ever: dict[int, dict[int, bytes]] = {7: {}, 8: {}}
        self.reached = {7: 0, 8: 0}
        self.looked = 0
        self._states = states
        self.fs.on_operation = self.look

    def look(self, event: str) -> None:
        """Cut the power: what was reported is there, whole, and what else there is was to be sealed."""
        for state in [*self.fs.crash_states(self.random.getrandbits(32), self._states), self.fs.kill9()]:
            self.looked += 1
            self.judge(state, event)

    def judge(self, state: SimulatedFileSystem, event: str) -> None:
        store, found = opened(state)
        for stream in self.streams:
            table = found.tables.get(stream.id, SealedTable())
            rows = rows_of(store, stream.id, table)
            assert rows.items() >= self.kept[stream.id].items(), event
            assert rows.items() <= self.ever[stream.id].items(), event
            assert table.end >= self.reached[stream.id]
            assert int(table.count) == len(rows)
            # What was torn or left over is in nobody's way.
            next_life = Stream(store, stream.id, b"next life ")
            next_life.table = table
            next_life.seal(2, begins=not table.segments or self.random.random() < 0.3)
            assert len(rows_of(store, stream.id, table)) == len(rows) + 2
        # A second power cut finds what the first one had left.
        (after,) = state.crash_states(0, 1)
        _, again = opened(after)
        for stream in self.streams:
            if stream.id in found.tables:
                assert same(again.tables[stream.id], found.tables[stream.id])

    def step(self) -> None:
        stream = self.random.choice(self.streams)
        segments = stream.table.segments
        kind = self.random.choices(("seal", "drop", "replace", "restart"), (6, 1, 2, 1))[0]
        if kind == "seal":
            job = stream.job(self.random.randrange(1, 6), begins=self.random.random() < 0.4)
            first = int(stream.table.end)
            rows = {offset: stream.body_at(offset) for offset in range(first, first + int(_count_of(job)))}
            self.ever[stream.id] |= rows
            job.carry_out(self.store)
            stream.enter(job)
            self.kept[stream.id] |= rows
            self.reached[stream.id] = int(stream.table.end)
        elif kind == "drop" and len(segments) > 1:
            end = int(segments[0].end)
            self.kept[stream.id] = {at: body for at, body in self.kept[stream.id].items() if at >= end}
            stream.drop_oldest()
        elif kind == "replace" and len(segments) > 1:
            self.replace(stream, self.random.randrange(1, len(segments)))
        elif kind == "restart":
            self.store.close()
            self.store, found = opened(self.fs)
            for each in self.streams:
                each.store = self.store
                assert same(found.tables.get(each.id, SealedTable()), each.table)

    def replace(self, stream: Stream, count: int) -> None:
        old = stream.table.segments[:count]
        firsts = [int(segment.first) for segment in old]
        end = int(old[-1].end)
        rows = self.kept[stream.id]
        stays = [offset for offset in rows if offset < end and self.random.random() < 0.5]
        for offset in [offset for offset in rows if offset < end and offset not in stays]:
            del rows[offset]
        job = replacement(stream, firsts, end, stays)
        job.carry_out(self.store)
        made = SealedSegment(firsts[0])
        made.add(chunk_of(job))
        assert stream.table.replace(old, made)
        self.store.swap_sealed(stream.id, firsts)


def _count_of(job: SealJob) -> int:
    head = maybe_head(bytes(job.columns.encode()[0]))
    assert head is not None
    return int(head.count)


@pytest.mark.parametrize("seed", range(6))
def test_after_any_power_cut_what_was_reported_is_there_and_nothing_half(seed: int) -> None:
    """(1), (2), (4)"""
    life = Life(seed, states=3)
    for _ in range(10):
        life.step()
    assert life.looked > 50
