"""The plan of a soak: its periods and their faults, from the seed alone.

1. The same seed and length give the same plan.
2. The broker is started again in about the first, second, fourth, eighth, ... period: each life is about twice as long
   as the one before, so that there is a long one to judge by, whatever the length of the soak.
3. Messages that wait for long are drained every fourth period.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

PERIODS_ABOUT = 60
PERIOD_LEAST_S = 3.0
PERIOD_MOST_S = 120.0
DRAINED_EVERY = 4


class Fault(StrEnum):
    """Faults of a soak."""

    TEAR = "a client's socket torn"
    TEAR_MANY = "half of all sockets torn"
    STOP = "the broker stopped for a second"
    KILL = "kill -9"
    RESTART = "clean restart"
    FULL_DISK = "the disk nearly full for two seconds"


@dataclass(frozen=True)
class Period:
    """A time of load, with faults at times in seconds after its beginning."""

    number: int
    load_s: float
    faults: tuple[tuple[float, Fault], ...]
    drains_all: bool


def periods(seed: int, total_s: float, *, full_disk: bool) -> Iterator[Period]:
    """Return the periods without end; `total_s` decides how long they are."""
    length_s = min(PERIOD_MOST_S, max(PERIOD_LEAST_S, total_s / PERIODS_ABOUT))
    chooser = random.Random(seed)
    number = 0
    restart_at = 1
    next_power = 2
    while True:
        kinds = [Fault.TEAR] * max(1, int(length_s / 10)) + [chooser.choice([Fault.TEAR_MANY, Fault.STOP, Fault.STOP])]
        if full_disk and number % DRAINED_EVERY == 2:
            kinds.append(Fault.FULL_DISK)
        if number == restart_at:
            kinds.append(Fault.RESTART if chooser.random() < 0.25 else Fault.KILL)
            restart_at = next_power + chooser.randint(0, next_power // 4)
            next_power *= 2
        faults = sorted((chooser.uniform(0.1, 0.8) * length_s, kind) for kind in kinds)
        yield Period(number, length_s, tuple(faults), number % DRAINED_EVERY == DRAINED_EVERY - 1)
        number += 1
