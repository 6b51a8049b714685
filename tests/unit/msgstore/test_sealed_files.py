"""The files of sealed streams: written messages are found again, and few files are open.

In parentheses: the invariants in the header of ``msgstore/files/sealed_files.py``.
"""

from __future__ import annotations

import errno
import struct
import zlib
from pathlib import Path

import pytest
from simulation.simulated_file_system import SimulatedFileSystem
from unit.msgstore.sealed_disk import (
    STORE_ID,
    Stream,
    bodies_of,
    bounds,
    chunk_of,
    fail_next,
    opened,
    read,
    rows_of,
    same,
)

from warren.msgstore.files.file_system import FileSystem, OsFileSystem
from warren.msgstore.files.sealed_files import READ_HANDLES_MAX, REPLACEMENT, STREAMS, maybe_sealed_name
from warren.msgstore.files.store_errors import StoreFullError, StoreUnreadableError
from warren.msgstore.log.jobs import DropJob, SealedRead
from warren.msgstore.log.sealed_table import SEGMENT_HEADER_BYTES


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


def test_a_bad_sector_is_not_taken_for_damage() -> None:
    """(5)"""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    chunk = chunk_of(Stream(store).seal(3))
    for operation in ("open", "read"):
        fail_next(fs, operation, errno.EIO)
        with pytest.raises(StoreUnreadableError, match="Input/output error"):
            read(store, 7, 0, chunk)
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


def test_what_takes_the_place_of_a_file_is_written_on_though_that_file_is_dropped() -> None:
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    stream.seal(3, begins=True)
    replacement = stream.path(0) + REPLACEMENT
    made = stream.job(3, begins=True)
    made.segment, made.is_replacement = 0, True
    made.carry_out(store)
    stream.drop_oldest()
    for number in range(READ_HANDLES_MAX):
        Stream(store, 100 + number).seal(1)
    assert replacement not in fs.open_paths()
    chunk = chunk_of(made)
    behind = stream.job(3)
    behind.segment, behind.position, behind.is_replacement = 0, int(chunk.position + chunk.stored_bytes), True
    behind.carry_out(store)
    assert replacement in fs.contents()
    store.unmake_sealed(7, 0)
    assert replacement not in fs.contents()


def test_a_segment_that_is_being_removed_is_there_whole_after_a_power_cut_or_gone_and_then_for_good() -> None:
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    for _ in range(3):
        stream.seal(3, begins=True)
    expected = rows_of(store, 7, stream.table)
    states: list[SimulatedFileSystem] = []

    def cut(event: str) -> None:
        if event == "before sync_directory streams":
            states.extend(fs.crash_states(0, 10))

    fs.on_operation = cut
    stream.drop_oldest()
    assert {int(opened(state)[1].tables[7].first()) for state in fs.crash_states(0, 10)} == {3}
    firsts = set()
    for state in states:
        again, found = opened(state)
        table = found.tables[7]
        assert found.problems == []
        rows = rows_of(again, 7, table)
        assert rows == {offset: expected[offset] for offset in range(int(table.first()), 9)}
        firsts.add(int(table.first()))
    assert firsts == {0, 3}
