"""Sealed chunks read out of files that a store writes meanwhile; sealed_copy.py (1) to (4)."""

from __future__ import annotations

from simulation.simulated_file_system import SimulatedFileSystem
from unit.msgstore.sealed_disk import OTHER_ID, STORE_ID, Stream, change, opened

from warren.msgstore.files.sealed_copy import SealedCopy
from warren.msgstore.files.sealed_files import STREAMS
from warren.msgstore.log.columns import CHUNK_HEAD_BYTES, maybe_head

MOST = 1 << 30


def sealed(*chunks: int, segment_of: int = 3) -> tuple[SimulatedFileSystem, Stream]:
    """Return a disk with a stream of chunks of these sizes, `segment_of` in each file."""
    fs = SimulatedFileSystem()
    store, _ = opened(fs)
    stream = Stream(store)
    for number, count in enumerate(chunks):
        stream.seal(count, begins=number % segment_of == 0)
    return fs, stream


def offsets(chunks: list[bytes]) -> list[tuple[int, int]]:
    heads = [maybe_head(chunk) for chunk in chunks]
    return [(int(head.first), int(head.end)) for head in heads if head is not None]


def test_chunks_follow_each_other_over_files_and_end_where_nothing_more_is_sealed() -> None:
    """(2)"""
    fs, _ = sealed(5, 5, 5, 5, 5)
    copy = SealedCopy(fs)
    chunks, end = copy.read(STORE_ID, 7, 7, 100, MOST)
    assert (offsets(chunks), end) == ([(5, 10), (10, 15), (15, 20), (20, 25)], 25)
    chunks, end = copy.read(STORE_ID, 7, 0, 12, MOST)
    assert (offsets(chunks), end) == ([(0, 5), (5, 10), (10, 15)], 15)
    assert copy.read(STORE_ID, 7, 25, 30, MOST) == ([], 25)
    assert copy.read(STORE_ID, 8, 0, 30, MOST) == ([], 0), "another stream"
    chunks, end = copy.read(STORE_ID, 7, 0, 25, 1)
    assert (offsets(chunks), end) == ([(0, 5)], 5), "as much as was asked for, and a chunk at least"


def test_what_is_sealed_or_dropped_later_is_seen() -> None:
    """(3)"""
    fs, stream = sealed(5, 5, segment_of=1)
    copy = SealedCopy(fs)
    assert copy.read(STORE_ID, 7, 0, 100, MOST)[1] == 10
    stream.seal(5)
    stream.seal(5, begins=True)
    assert copy.read(STORE_ID, 7, 0, 100, MOST)[1] == 20
    stream.drop_oldest()
    assert copy.read(STORE_ID, 7, 0, 100, MOST) == ([], 0)
    assert copy.read(STORE_ID, 7, 5, 100, MOST)[1] == 20


def test_of_another_store_nothing_is_told() -> None:
    """(1)"""
    fs, _ = sealed(5)
    assert SealedCopy(fs).read(OTHER_ID, 7, 0, 5, MOST) == ([], 0)


def test_a_damaged_chunk_is_not_there_and_those_before_and_behind_are() -> None:
    """(1)"""
    fs, stream = sealed(5, 5, 5)
    place = stream.table.segments[0].chunks[1]
    copy = SealedCopy(fs)
    change(fs, stream.path(0), int(place.position) + CHUNK_HEAD_BYTES, b"\xff")
    assert copy.read(STORE_ID, 7, 0, 15, MOST)[1] == 5
    assert copy.read(STORE_ID, 7, 5, 15, MOST) == ([], 5)
    assert offsets(copy.read(STORE_ID, 7, 10, 15, MOST)[0]) == [(10, 15)]


def test_every_torn_end_of_a_chunk_is_not_there() -> None:
    """(1)"""
    fs, stream = sealed(5, 5)
    last = stream.table.segments[0].chunks[1]
    for kept in (0, 1, CHUNK_HEAD_BYTES - 1, CHUNK_HEAD_BYTES, int(last.stored_bytes) - 1):
        handle = fs.open(stream.path(0), writable=True)
        fs.truncate(handle, int(last.position) + kept)
        fs.close(handle)
        assert SealedCopy(fs).read(STORE_ID, 7, 0, 10, MOST)[1] == 5


def test_a_file_that_took_the_place_of_another_is_looked_at_again() -> None:
    """(3)"""
    fs, stream = sealed(4, 4, 4)
    copy = SealedCopy(fs)
    assert copy.read(STORE_ID, 7, 0, 12, MOST)[1] == 12
    other, again = sealed(6, 6)
    handle = other.open(again.path(0), writable=False)
    content = other.read(handle, other.size(handle), 0)
    fs.unlink(stream.path(0))
    made = fs.create(stream.path(0), 0)
    fs.write(made, [content], 0)
    assert offsets(copy.read(STORE_ID, 7, 4, 12, MOST)[0]) == [(0, 6), (6, 12)]


def test_few_heads_are_remembered() -> None:
    """(4)"""
    fs, _ = sealed(*[2] * 40, segment_of=5)
    copy = SealedCopy(fs, heads_max=10)
    for _ in range(3):
        assert copy.read(STORE_ID, 7, 0, 80, MOST)[1] == 80
        assert sum(map(len, copy._places.values())) == copy._heads <= 10
    for name in fs.names(STREAMS):
        fs.unlink(f"{STREAMS}/{name}")
    assert copy.read(STORE_ID, 7, 0, 80, MOST) == ([], 0)
    assert copy._heads == sum(map(len, copy._places.values()))
