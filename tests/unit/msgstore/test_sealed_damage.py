"""The files of sealed streams on a disk that tears, rots and cannot be read.

In parentheses: the invariants in the header of ``msgstore/files/sealed_files.py``.
"""

from __future__ import annotations

import errno
import os
import zlib
from random import Random

import pytest
from simulation.simulated_file_system import SimulatedFileSystem
from unit.msgstore.sealed_disk import (
    OTHER_ID,
    Q,
    Stream,
    bounds,
    change,
    opened,
    rows_of,
    same,
)

from warren.msgstore.files.sealed_files import STREAMS, sealed_path
from warren.msgstore.files.store import Store
from warren.msgstore.files.store_errors import StoreError
from warren.msgstore.log.columns import CHUNK_HEAD_BYTES, ColumnsWriter
from warren.msgstore.log.jobs import SealJob
from warren.msgstore.log.message import build_message
from warren.msgstore.log.sealed_table import SEGMENT_HEADER_BYTES

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
        body = forged + random.randbytes(5000)  # content that is really so large is not compressed
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
    # The messages that the log still has are sealed after them.
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
def test_a_file_of_which_nothing_can_be_read_keeps_its_name_and_is_served_when_it_can(segment: int, what: str) -> None:
    """(5)"""
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
    _, found = opened(fs, log_end=4)
    fs.on_operation = None
    assert found.problems == [f"{path} {problem}"]
    assert bounds(found.tables[7]) == [[(2, 4)] if segment == 0 else [(0, 2)]]
    assert fs.contents()[path] == before
    assert fs.names(STREAMS) == [each.removeprefix(f"{STREAMS}/") for each in (stream.path(0), stream.path(1))]
    fs.heal(path)
    _, found = opened(fs)
    if what != "chunks":  # there it is damaged as well
        assert (bounds(found.tables[7]), found.problems) == ([[(0, 2)], [(2, 4)]], [])


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
    assert f"{path}.unusable" in fs.contents(), "the log has all of it"


@pytest.mark.parametrize("segment", [0, 1])
def test_nothing_is_sealed_while_the_end_of_the_sealed_part_is_unread(segment: int) -> None:
    """(5): else the next start would take the later chunk for the newer one, and cut off the one that it overlaps."""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = large_stream(store)
    stream.seal(2)
    stream.seal(2, begins=True)
    store.close()
    fs.spoil(stream.path(segment), 2000, 2001)
    _, found = opened(fs, log_end=3)
    assert found.tables[7].end_is_unread == (segment == 1)
    fs.heal(stream.path(segment))
    _, found = opened(fs)
    assert bounds(found.tables[7]) == [[(0, 2)], [(2, 4)]]
    assert not found.tables[7].end_is_unread
    fs.spoil(stream.path(segment), 2000, 2001)
    _, found = opened(fs, log_end=2)
    assert 7 in found.tables and not found.tables[7].end_is_unread, "the log has all of it, and it is sealed again"


@pytest.mark.parametrize("call", range(1, 30))
def test_a_read_that_fails_once_while_a_start_tolerates_it_changes_no_file(call: int) -> None:
    """(5): the second read of the same place may succeed, and then it looks damaged or torn."""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = large_stream(store)
    stream.seal(2)
    stream.seal(2, begins=True)
    store.close()
    before = fs.contents()
    calls = 0

    def fails(path: str, offset: int, length: int) -> bool:
        nonlocal calls
        calls += path.startswith(STREAMS)
        return calls == call and path.startswith(STREAMS)

    fs.fails_read = fails
    _, found = opened(fs, log_end=5)
    fs.fails_read = None
    assert bool(found.problems) == (calls >= call)
    assert fs.contents() == before
    _, found = opened(fs)
    assert (bounds(found.tables[7]), found.problems) == ([[(0, 2)], [(2, 4)]], [])
