"""Whether a figure of a process grows without end while its load is flat.

Each period of a soak ends with empty queues and gives one sample. Judged is every life of the process by itself, since
a restart gives everything back:

1. The first third of the samples of a life is left out: caches fill, and allocators find their size.
2. Of the others the slope is the median of the slopes between any two (Theil and Sen): a few wild samples change
   nothing. The *rise* is that slope times the time from the first to the last.
3. A figure grows without end when its rise is more than is allowed, which is an amount and at least a share of the
   median, and when of any two samples the later one is larger in at least 7 of 10 cases.
4. The disk is not judged by its slope: segments go when compaction comes to them, so that it swings by as much as may
   be left. The allowed rest with empty queues is an amount (`run.EMPTY_DISK_BYTES`).
5. With fewer than `SAMPLES_LEAST` samples left nothing is said of a life.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

SAMPLES_LEAST = 8
RISING_LEAST = 0.7
MIB = 1 << 20


@dataclass(frozen=True)
class Figure:
    """A sampled figure, and its allowed rise in a life."""

    key: str
    title: str
    allowed: float
    allowed_share: float = 0.0


FIGURES = (
    Figure("rss_bytes", "resident memory", 24 * MIB, 0.1),
    Figure("descriptors", "descriptors", 8),
    Figure("threads", "threads", 4),
    Figure("objects", "queues, exchanges, connections and channels", 4),
)


@dataclass(frozen=True)
class Sample:
    """A figure at one time, in one life of the process."""

    at_s: float
    life: int
    value: float


@dataclass(frozen=True)
class Trend:
    """The trend of a figure in one life. `rise` is within the time that was judged, `per_hour` what it would be."""

    life: int
    samples: int
    median: float
    rise: float
    per_hour: float
    rising_share: float
    allowed: float

    def is_growing(self) -> bool:
        return self.rise > self.allowed and self.rising_share >= RISING_LEAST


def trends(samples: Sequence[Sample], figure: Figure) -> list[Trend]:
    """Return a trend for every life that was long enough, the latest last."""
    lives: dict[int, list[Sample]] = {}
    for sample in samples:
        lives.setdefault(sample.life, []).append(sample)
    found = []
    for life, of_life in sorted(lives.items()):
        judged = of_life[-(-len(of_life) // 3) :]
        if len(judged) >= SAMPLES_LEAST:
            found.append(_trend(life, judged, figure))
    return found


def _trend(life: int, judged: Sequence[Sample], figure: Figure) -> Trend:
    pairs = [(early, late) for early, late in combinations(judged, 2) if late.at_s > early.at_s]
    slope = statistics.median((late.value - early.value) / (late.at_s - early.at_s) for early, late in pairs)
    median = statistics.median(sample.value for sample in judged)
    return Trend(
        life,
        len(judged),
        median,
        slope * (judged[-1].at_s - judged[0].at_s),
        slope * 3600,
        sum(late.value > early.value for early, late in pairs) / len(pairs),
        max(figure.allowed, figure.allowed_share * median),
    )


def samples_of(periods: Iterable[Mapping[str, float]], figure: Figure) -> list[Sample]:
    """Return the samples of a figure in the series of a soak, of those periods that have it."""
    return [
        Sample(period["at_s"], int(period["life"]), period[figure.key]) for period in periods if figure.key in period
    ]
