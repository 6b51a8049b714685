"""Segments of the log: what they keep decides whether they are compacted. The numbers are those of log/segments.py."""

from __future__ import annotations

from warren.msgstore.log.segments import Segment, SegmentTable


def table_of_one() -> tuple[SegmentTable, Segment]:
    """Return a sealed segment of 1,000 bytes in its table."""
    table, segment = SegmentTable(), Segment(1, 0, 1000)
    table.add(segment)
    segment.end_lsn = 1000
    segment.sealed = True
    return table, segment


def test_droppable_records_are_kept_by_compaction_and_so_they_make_no_segment_sparse() -> None:
    """(4): their copies would fill the next segment, which would be as sparse as this one."""
    table, segment = table_of_one()
    table.refer(100, 100, droppable=False)
    table.refer(200, 500, droppable=True)
    assert not segment.is_sparse(urgent=False)
    assert segment.is_sparse(urgent=True)
    assert table.gain_bytes(0, urgent=True) == 400
    table.release(200, 500, droppable=True)
    assert segment.is_sparse(urgent=False)
    assert table.gain_bytes(0, urgent=False) == 900


def test_a_segment_is_dead_without_any_reference() -> None:
    """(3)"""
    table, segment = table_of_one()
    table.refer(100, 100, droppable=True)
    assert not segment.is_dead()
    table.release(100, 100, droppable=True)
    assert segment.is_dead() and segment.kept_bytes() == 0
