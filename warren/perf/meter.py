"""Measurements: latencies in a histogram, totals over the measured window.

1. A recorded latency is off by less than 1/64 of its value: buckets have 6 bits below the leading one.
2. Recording is two integer operations and one increment: no allocation, no sorting, any number of samples.
3. `maximum_ns` is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_FINE_BITS: Final = 6
_FINE: Final = 1 << _FINE_BITS


class Histogram:
    """Latencies in nanoseconds, log-linear buckets."""

    def __init__(self) -> None:
        self.samples = 0
        self.maximum_ns = 0
        self._counts = [0] * (64 << _FINE_BITS)

    def record(self, latency_ns: int, weight: int = 1) -> None:
        """Count one latency ``weight`` times; a negative one counts as 0."""
        if latency_ns < 0:
            latency_ns = 0
        if latency_ns > self.maximum_ns:
            self.maximum_ns = latency_ns
        self.samples += weight
        if latency_ns < _FINE:
            self._counts[latency_ns] += weight
            return
        shift = latency_ns.bit_length() - _FINE_BITS - 1
        self._counts[(shift << _FINE_BITS) + (latency_ns >> shift)] += weight

    def percentile_ns(self, percent: float) -> int:
        """Return the upper edge of the bucket that holds the sample of this rank, never above the maximum; 0
        without samples.
        """
        if not self.samples:
            return 0
        rank = max(1, -(-self.samples * percent // 100))
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if seen >= rank:
                return min(_upper_edge_ns(index), self.maximum_ns)
        return self.maximum_ns

    def clear(self) -> None:
        """Forget everything: the measured window starts now."""
        self.samples = 0
        self.maximum_ns = 0
        self._counts = [0] * len(self._counts)

    def summary_us(self) -> dict[str, float]:
        """Return p50, p95, p99, p99.9 and max in microseconds, and the number of samples."""
        return {
            "p50": self.percentile_ns(50) / 1000,
            "p95": self.percentile_ns(95) / 1000,
            "p99": self.percentile_ns(99) / 1000,
            "p99.9": self.percentile_ns(99.9) / 1000,
            "max": self.maximum_ns / 1000,
            "samples": self.samples,
        }


def _upper_edge_ns(index: int) -> int:
    if index < 2 * _FINE:
        return index
    shift = (index >> _FINE_BITS) - 1
    return ((index - (shift << _FINE_BITS) + 1) << shift) - 1


@dataclass(frozen=True)
class Totals:
    """Counters at one moment. The difference of two is the measured window."""

    at_ns: int = 0
    published: int = 0
    confirmed: int = 0
    received: int = 0

    def since(self, earlier: Totals) -> Totals:
        """Return the difference between ``earlier`` and now; ``at_ns`` is then a duration."""
        return Totals(
            self.at_ns - earlier.at_ns,
            self.published - earlier.published,
            self.confirmed - earlier.confirmed,
            self.received - earlier.received,
        )
