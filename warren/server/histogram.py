"""Count durations in a histogram with fixed bounds, cheap enough for every turn of the reactor.

1. Bounds are 1, 2 and 5 times the powers of ten from 10 us to 10 s, the same for all, so that histograms can be added.
2. One thread observes. Other threads may read at any time; they may miss the latest observation, or part of it.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

# Upper bounds in seconds, inclusive; longer durations are in one more bucket.
BOUNDS_S: Final[tuple[float, ...]] = (
    *(0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005),
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)


class Histogram:
    """Counts observations by their length. ``sum_s``: the sum of all."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self.sum_s: float = 0.0
        self._bounds = vec[float]()
        self._counts = vec[i64]()
        for bound in BOUNDS_S:
            self._bounds = append(self._bounds, bound)
            self._counts = append(self._counts, 0)
        self._counts = append(self._counts, 0)

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        bounds = self._bounds
        at: i64 = 0
        while at < len(bounds) and seconds > bounds[at]:
            at += 1
        self._counts[at] += 1
        self.count += 1
        self.sum_s += seconds

    def buckets(self) -> list[int]:
        """Return, for each of `BOUNDS_S`, how many values did not exceed it; then the number of all values."""
        found: list[int] = []
        total = 0
        for count in self._counts:
            total += int(count)
            found.append(total)
        return found

    def maybe_quantile(self, share: float) -> float | None:
        """Return an estimate in seconds that `share` (0 to 1) of all values did not exceed; None without any value.

        Values are assumed to be spread evenly within a bucket. For values above the last bound the estimate is that
        bound.
        """
        buckets = self.buckets()
        total = buckets[-1]
        if total == 0:
            return None
        wanted = share * total
        below = 0
        lower_s = 0.0
        for bound_s, up_to in zip(BOUNDS_S, buckets, strict=False):
            if up_to >= wanted and up_to > below:
                return lower_s + (bound_s - lower_s) * (wanted - below) / (up_to - below)
            below = up_to
            lower_s = bound_s
        return lower_s
