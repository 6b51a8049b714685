"""How far something is behind what it follows, by the numbers of what came and the time when it came."""

from __future__ import annotations

from collections import deque
from typing import Final

# With more marks the last one stands for what comes, too: that is taken for older than it is, never for younger.
MARKS_MAX: Final = 1000


class Lag:
    """Work that has come and is not done, oldest first."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque()  # all below the number had come by then
        self._end = 0

    def came(self, end: int, now_s: float) -> None:
        """Note that all below `end` is there now."""
        if end <= self._end:
            return
        self._end = end
        if len(self._marks) < MARKS_MAX:
            self._marks.append((end, now_s))
        else:
            self._marks[-1] = (end, self._marks[-1][1])

    def done(self, end: int) -> None:
        """Note that all below `end` is done."""
        marks = self._marks
        while marks and marks[0][0] <= end:
            marks.popleft()

    def behind_s(self, now_s: float) -> float:
        """Return for how long the oldest has waited of what is not done; 0: nothing waits."""
        return now_s - self._marks[0][1] if self._marks else 0.0
