"""The segments of the log and how much of each is still needed.

1. A segment owns the LSNs from ``base_lsn`` to ``base_lsn + capacity``. Ranges do not overlap, and a later segment has
   a larger number and larger LSNs.
2. ``live_refs`` counts the index entries and index pages that point into the segment, ``live_bytes`` the bytes that
   they point at; a record with several live places counts once for each. ``droppable_refs`` and ``droppable_bytes``
   count the entries that mean nothing after a restart.
3. References are only added to the newest segment. A sealed segment without references stays without.
4. Compaction copies droppable records as well. So they count in what a segment keeps: otherwise a segment that is full
   of them looks sparse, so does the one with its copies, and they are copied for ever.
"""

from __future__ import annotations

from bisect import bisect_right

from mypy_extensions import i64


class Segment:
    """One file of the log."""

    def __init__(self, number: i64, base_lsn: i64, capacity: i64) -> None:
        self.number: i64 = number
        self.base_lsn: i64 = base_lsn
        self.capacity: i64 = capacity
        self.end_lsn: i64 = base_lsn  # after its last frame
        self.live_refs: i64 = 0
        self.live_bytes: i64 = 0
        self.droppable_refs: i64 = 0
        self.droppable_bytes: i64 = 0
        self.sealed: bool = False
        self.spent: bool = False  # compaction or removal is under way

    def is_dead(self) -> bool:
        """Tell whether the file is no longer needed."""
        return self.sealed and self.live_refs == 0 and self.droppable_refs == 0

    def is_sparse(self, urgent: bool) -> bool:
        """Tell whether copying the live part is worth the rest; `urgent`: if that is a tenth."""
        size: i64 = self.end_lsn - self.base_lsn
        if not self.sealed or self.live_refs == 0:
            return False
        kept: i64 = self.kept_bytes()
        return kept * 2 < size or (urgent and kept * 10 < size * 9)

    def kept_bytes(self) -> i64:
        """Return how many bytes compaction would copy (4)."""
        return self.live_bytes + self.droppable_bytes


class SegmentTable:
    """All segments, oldest first."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._bases: list[int] = []
        self._last: Segment | None = None

    def add(self, segment: Segment) -> None:
        """Append a newer segment."""
        assert not self._bases or self._bases[-1] < segment.base_lsn
        self.segments.append(segment)
        self._bases.append(int(segment.base_lsn))

    def remove(self, numbers: list[int]) -> None:
        """Forget segments, all in one pass: there may be a hundred thousand of them."""
        gone = set(numbers)
        self.segments = [segment for segment in self.segments if int(segment.number) not in gone]
        self._bases = [int(segment.base_lsn) for segment in self.segments]
        self._last = None

    def find(self, lsn: i64) -> Segment:
        """Return the segment that holds `lsn`."""
        last = self._last
        if last is not None and last.base_lsn <= lsn < last.base_lsn + last.capacity:
            return last
        at = bisect_right(self._bases, int(lsn)) - 1
        assert at >= 0, "an LSN before the oldest segment"
        found = self.segments[at]
        assert lsn < found.base_lsn + found.capacity, "an LSN in no segment"
        self._last = found
        return found

    def maybe_find(self, lsn: i64) -> Segment | None:
        """Return the segment that holds `lsn`; None when it is gone."""
        at = bisect_right(self._bases, int(lsn)) - 1
        if at < 0:
            return None
        found = self.segments[at]
        return found if lsn < found.base_lsn + found.capacity else None

    def gain_bytes(self, covered_lsn: i64, urgent: bool) -> i64:
        """Return how many bytes a checkpoint would free, now and when the segments that it first covers are compacted.

        `covered_lsn`: up to where the one on disk reaches. `urgent`: see `Segment.is_sparse`.
        """
        gain: i64 = 0
        for segment in self.segments:
            if segment.is_dead():
                gain += segment.end_lsn - segment.base_lsn
            elif segment.end_lsn > covered_lsn and segment.is_sparse(urgent):
                gain += segment.end_lsn - segment.base_lsn - segment.kept_bytes()
        return gain

    def refer(self, lsn: i64, length: i64, droppable: bool) -> None:
        """Count a reference to the record of `length` bytes at `lsn`."""
        segment = self.find(lsn)
        if droppable:
            segment.droppable_refs += 1
            segment.droppable_bytes += length
            return
        segment.live_refs += 1
        segment.live_bytes += length

    def release(self, lsn: i64, length: i64, droppable: bool) -> None:
        """Take a reference back."""
        segment = self.find(lsn)
        if droppable:
            segment.droppable_refs -= 1
            segment.droppable_bytes -= length
            assert segment.droppable_refs >= 0
            return
        segment.live_refs -= 1
        segment.live_bytes -= length
        assert segment.live_refs >= 0
