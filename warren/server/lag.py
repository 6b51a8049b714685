"""Measure how far a follower is behind, by the numbers of what came and the time when it came."""

from __future__ import annotations

from collections import deque
from typing import Final

# With more marks the last one also stands for later numbers: these count as older than they are, never as younger.
MARKS_MAX: Final = 1000


class Lag:
    """Work that has come and is not done, oldest first."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque()  # all numbers below had come by then
        self._end = 0

    def came(self, end: int, now_s: float) -> None:
        """Note that all numbers below `end` have come."""
        if end <= self._end:
            return
        self._end = end
        if len(self._marks) < MARKS_MAX:
            self._marks.append((end, now_s))
        else:
            self._marks[-1] = (end, self._marks[-1][1])

    def done(self, end: int) -> None:
        """Note that all numbers below `end` are done."""
        marks = self._marks
        while marks and marks[0][0] <= end:
            marks.popleft()

    def behind_s(self, now_s: float) -> float:
        """Return for how long the oldest unfinished number has waited; 0 if none waits."""
        return now_s - self._marks[0][1] if self._marks else 0.0
