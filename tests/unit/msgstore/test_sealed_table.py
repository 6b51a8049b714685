"""Which chunk of a stream is where. In parentheses: the invariants in the header of ``sealed_table``."""

from __future__ import annotations

from random import Random

import pytest

from warren.msgstore.log.columns import ColumnsWriter, maybe_head
from warren.msgstore.log.message import Envelope, build_message
from warren.msgstore.log.sealed_table import SEGMENT_HEADER_BYTES, SealedChunk, SealedSegment, SealedTable

Q = Envelope("", "q")


def chunk(first: int, end: int, *, position: int = 64, time_ms: int = 1000, missing: int = 0) -> SealedChunk:
    """Return a chunk of messages of one byte; the last `missing` of them are not there."""
    writer = ColumnsWriter()
    for offset in range(first, end - missing):
        message = build_message(Q, b"\0\0", b"x", 0, True)
        message.time_ms = time_ms
        writer.add(offset, message, False)
    head = maybe_head(bytes(writer.finish(first, end).encode()[0]))
    assert head is not None
    return SealedChunk(position, head)


def table_of(*segments: list[tuple[int, int]]) -> SealedTable:
    """Return a table of segments, each of them a list of chunks: from where to where."""
    table = SealedTable()
    for bounds in segments:
        for at, (first, end) in enumerate(bounds):
            position = int(table.segments[-1].file_bytes) if at else SEGMENT_HEADER_BYTES
            table.add(chunk(first, end, position=position), begins_segment=at == 0)
    return table


def bounds_of(found: list[tuple[SealedSegment, SealedChunk]]) -> list[tuple[int, int, int]]:
    return [(int(segment.first), int(each.first), int(each.end)) for segment, each in found]


def check(table: SealedTable) -> None:
    """Assert that the sums are the sums of what there is."""
    chunks = [each for segment in table.segments for each in segment.chunks]
    assert table.count == sum(int(each.count) for each in chunks)
    assert table.body_bytes == sum(int(each.body_bytes) for each in chunks)
    for segment in table.segments:
        assert segment.count == sum(int(each.count) for each in segment.chunks)
        assert segment.file_bytes == SEGMENT_HEADER_BYTES + sum(int(each.stored_bytes) for each in segment.chunks)
        assert segment.max_time_us == max(int(each.max_time_us) for each in segment.chunks)


def test_an_empty_table_has_nothing_and_begins_where_it_ends() -> None:
    table = SealedTable()
    assert (table.first(), table.end, table.count) == (0, 0, 0)
    assert table.chunks_between(0, 100) == []
    assert table.maybe_at_time(0) is None


def test_sums_follow_what_is_entered_and_what_leaves() -> None:
    """(2)"""
    table = table_of([(0, 10), (10, 15)], [(15, 40)], [(40, 41), (41, 50)])
    assert (table.first(), table.end, table.count, table.body_bytes) == (0, 50, 50, 50)
    check(table)
    segment = table.drop_oldest()
    assert (segment.first, segment.end, segment.count) == (0, 15, 15)
    assert (table.first(), table.end, table.count) == (15, 50, 35)
    check(table)
    table.drop_oldest()
    table.drop_oldest()
    assert (table.segments, table.count, table.body_bytes) == ([], 0, 0)
    assert table.first() == table.end == 50, "it is remembered where it ended"


def test_a_whole_segment_counts_as_its_chunks_do() -> None:
    table, other = table_of([(0, 10)]), table_of([(10, 20), (20, 26)])
    table.add_segment(other.segments[0])
    assert (table.end, table.count) == (26, 26)
    check(table)


def test_what_a_chunk_does_not_have_is_not_counted() -> None:
    """(1)"""
    table = SealedTable()
    table.add(chunk(0, 10, missing=4), begins_segment=True)
    assert (table.end, table.count, table.body_bytes) == (10, 6, 6)


def test_nothing_is_entered_before_the_end() -> None:
    """(1)"""
    table = table_of([(0, 10)])
    overlapping = table_of([(9, 12)]).segments[0]
    with pytest.raises(AssertionError):
        table.add_segment(overlapping)
    with pytest.raises(AssertionError):
        table.add(overlapping.chunks[0], begins_segment=False)


def test_every_offset_has_its_chunk_and_one_in_a_gap_the_next() -> None:
    """(1)"""
    table = table_of([(0, 10), (10, 15)], [(20, 30), (33, 40)], [(50, 60)])
    expected = {
        range(10): (0, 0, 10),
        range(10, 15): (0, 10, 15),
        range(15, 30): (20, 20, 30),
        range(30, 40): (20, 33, 40),
        range(40, 60): (50, 50, 60),
    }
    for offsets, found in expected.items():
        for offset in offsets:
            assert bounds_of([table.place(offset)]) == [found], offset


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [
        (0, 60, [(0, 10), (10, 15), (20, 30), (33, 40), (50, 60)]),
        (9, 11, [(0, 10), (10, 15)]),
        (10, 11, [(10, 15)]),
        (15, 20, []),
        (14, 20, [(10, 15)]),
        (30, 33, []),
        (29, 34, [(20, 30), (33, 40)]),
        (40, 50, []),
        (60, 99, []),
        (5, 5, []),
    ],
)
def test_the_chunks_of_a_range_are_those_that_have_something_of_it(
    first: int, end: int, expected: list[tuple[int, int]]
) -> None:
    table = table_of([(0, 10), (10, 15)], [(20, 30), (33, 40)], [(50, 60)])
    found = table.chunks_between(first, end)
    assert [(begin, stop) for _, begin, stop in bounds_of(found)] == expected


def test_a_time_is_in_the_first_chunk_that_has_one_not_older() -> None:
    table = SealedTable()
    times = [(0, 10, 100), (10, 20, 200), (20, 30, 150), (30, 40, 300)]
    for first, end, time_ms in times:
        table.add(chunk(first, end, time_ms=time_ms), begins_segment=first in (0, 20))
    expected = {0: 0, 100: 0, 101: 10, 200: 10, 201: 30, 300: 30}
    for time_ms, first in expected.items():
        found = table.maybe_at_time(time_ms * 1000)
        assert found is not None and found.first == first, time_ms
    assert table.maybe_at_time(300_001) is None
    # Where the clock was set back the sum of a segment is that of its latest.
    assert [int(segment.max_time_us) for segment in table.segments] == [200_000, 300_000]


def test_segments_are_replaced_by_one_if_they_are_still_there() -> None:
    table = table_of([(0, 10)], [(10, 20)], [(20, 30)], [(30, 40)])
    old = table.segments[1:3]
    made = SealedSegment(10)
    made.add(chunk(10, 30, missing=15))
    assert table.replace(old, made)
    assert [int(segment.first) for segment in table.segments] == [0, 10, 30]
    assert (table.count, table.end) == (25, 40)
    check(table)
    assert not table.replace(old, made), "they are not there any more"
    assert not table.replace([table.segments[0], table.segments[2]], made), "they do not follow one another"
    check(table)


def test_segments_of_which_retention_has_removed_one_are_not_replaced() -> None:
    table = table_of([(0, 10)], [(10, 20)], [(20, 30)])
    old = table.segments[:2]
    table.drop_oldest()
    made = SealedSegment(0)
    made.add(chunk(0, 20))
    assert not table.replace(old, made)
    assert (table.first(), table.count) == (10, 20)
    check(table)


def test_a_segment_that_lost_its_first_or_last_chunk_still_stands_for_its_place() -> None:
    segment = SealedSegment(100)
    segment.add(chunk(110, 120))
    table = SealedTable()
    table.add_segment(segment)
    assert (table.first(), table.end, table.count) == (100, 120, 10)
    assert bounds_of([table.place(100)]) == [(100, 110, 120)]


def test_a_chunk_knows_whether_anybody_looked_for_what_it_is_filtered_by() -> None:
    writer = ColumnsWriter()
    plain = chunk(0, 3)
    assert plain.filter is None
    writer.filter_by("x")
    writer.filter_by(None)
    head = maybe_head(bytes(writer.finish(0, 0).encode()[0]))
    assert head is not None
    filtered = SealedChunk(64, head)
    assert filtered.filter is not None and filtered.has_unfiltered


@pytest.mark.parametrize("seed", range(20))
def test_places_are_those_that_a_search_from_the_beginning_finds(seed: int) -> None:
    random = Random(seed)
    table, end = SealedTable(), random.randrange(50)
    chunks: list[SealedChunk] = []
    for _ in range(random.randrange(1, 40)):
        first = end + random.choice((0, 0, 0, 1, 7))
        end = first + random.randrange(1, 9)
        made = chunk(first, end, time_ms=random.randrange(1000))
        table.add(made, begins_segment=not chunks or random.random() < 0.3)
        chunks.append(made)
    for offset in range(end):
        assert table.place(offset)[1] is next(each for each in chunks if each.end > offset)
        assert table.place(offset)[1] in table.place(offset)[0].chunks
    for _ in range(30):
        low, high = sorted((random.randrange(end + 5), random.randrange(end + 5)))
        found = [each for _, each in table.chunks_between(low, high)]
        assert found == [each for each in chunks if each.end > low and each.first < high and low < high]
    for time_ms in range(0, 1000, 37):
        wanted = [each for each in chunks if each.max_time_us >= time_ms * 1000]
        assert table.maybe_at_time(time_ms * 1000) is (wanted[0] if wanted else None)
