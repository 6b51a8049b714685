"""Segments that the checkpoint of a follower needs, and that are missing in its log, or end too early.

1. Each is told once, until the log is read with another result.
2. A segment that has come again is no longer missing; the scrubber requests them (``replica_scrub``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from warren.msgstore.files.segment_header import SegmentHeader
from warren.replication.replica_checkpoint import NeededSegment
from warren.server.logs import get_logger

log = get_logger("replication")


class MissingSegments:
    """Those of one replica."""

    def __init__(self) -> None:
        self._short: frozenset[int] = frozenset()  # they end before the last frame that the checkpoint has of them
        self._told: list[int] = []

    def of(self, needed: Mapping[int, NeededSegment], there: Mapping[int, SegmentHeader]) -> dict[int, NeededSegment]:
        """Return those of the `needed` segments that are not `there`, or too short, by number. Any thread."""
        short = self._short
        return {number: each for number, each in needed.items() if number not in there or number in short}

    def find(self, needed: Mapping[int, NeededSegment], headers: Sequence[SegmentHeader]) -> None:
        """Look for them in a log with these segments, and tell them. The last segment may be any length."""
        self._short = frozenset(
            each.number
            for each in headers[:-1]
            if each.number in needed and each.base_lsn + each.size < needed[each.number].end_lsn
        )
        missing = sorted(self.of(needed, {each.number: each for each in headers}))
        for number in missing if missing != self._told else ():
            log.error("a segment of the message log is missing", segment=number)
        self._told = missing

    def came(self, number: int) -> None:
        """Note that a segment is here, whole."""
        self._short = self._short - {number}
