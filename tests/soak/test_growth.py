"""The judge of growth by itself: a leak is found, whatever else a process does is not taken for one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from .books import Books, Rule
from .growth import FIGURES, MIB, Sample, samples_of, trends
from .plan import Fault, periods
from .run import judge_growth

MEMORY = FIGURES[0]
COUNT = 60
PERIOD_S = 30.0


def growing(value_of: Callable[[int], float], lives: Callable[[int], int] = lambda _: 0) -> bool:
    samples = [Sample(number * PERIOD_S, lives(number), value_of(number)) for number in range(COUNT)]
    return any(trend.is_growing() for trend in trends(samples, MEMORY))


def noise(number: int) -> float:
    return random.Random(number).uniform(-5, 5) * MIB


def test_a_leak_is_found_under_noise() -> None:
    assert growing(lambda number: 80 * MIB + number * MIB + noise(number))


def test_a_leak_is_found_though_restarts_give_it_back() -> None:
    assert growing(lambda number: 80 * MIB + number % 30 * 2 * MIB + noise(number), lambda number: number // 30)


@pytest.mark.parametrize(
    "value_of",
    [
        lambda number: 80 * MIB + noise(number),
        lambda number: 80 * MIB + min(number, 15) * 8 * MIB + noise(number),  # it fills its caches first
        lambda number: (800 if number == 50 else 80) * MIB,  # a wild sample
        lambda number: 80 * MIB + number % 4 * 20 * MIB,  # a backlog comes and goes
        lambda number: 300 * MIB - number * MIB,
        lambda number: 80 * MIB + number * 0.1 * MIB,  # less than is allowed
    ],
)
def test_what_fills_swings_or_falls_is_no_leak(value_of: Callable[[int], float]) -> None:
    assert not growing(value_of)


def test_a_rise_from_life_to_life_is_judged_within_each() -> None:
    assert not growing(lambda number: (80 + number // 20 * 40) * MIB, lambda number: number // 20)


def test_a_life_of_a_few_periods_says_nothing() -> None:
    samples = [Sample(number * PERIOD_S, 0, number * 100 * MIB) for number in range(10)]
    assert trends(samples, MEMORY) == []


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.key)
def test_each_figure_of_a_series_is_judged(figure: object) -> None:
    key = figure.key  # type: ignore[attr-defined]
    lines = [{"at_s": number * PERIOD_S, "life": 0, key: number * 10 * MIB} for number in range(COUNT)]
    books = Books()
    judge_growth(lines, books)
    assert [violation.rule for violation in books.violations] == [Rule.GROWING]


def test_a_period_without_a_figure_gives_no_sample() -> None:
    lines = [{"at_s": 1.0, "life": 0, "rss_bytes": 5.0}, {"at_s": 2.0, "life": 0}]
    assert samples_of(lines, MEMORY) == [Sample(1.0, 0, 5.0)]


def first(seed: int, count: int, *, full_disk: bool = True) -> list[object]:
    found = periods(seed, 3600.0, full_disk=full_disk)
    return [next(found) for _ in range(count)]


def test_the_seed_alone_decides_what_happens_when() -> None:
    assert first(7, 50) == first(7, 50)
    assert first(7, 50) != first(8, 50)


@pytest.mark.parametrize("seed", range(20))
def test_lives_get_longer_so_that_there_is_always_a_long_one(seed: int) -> None:
    plan = periods(seed, 3600.0, full_disk=False)
    restarts = []
    for _ in range(200):
        period = next(plan)
        if any(kind in (Fault.KILL, Fault.RESTART) for _, kind in period.faults):
            restarts.append(period.number)
        if period.number >= 15:
            lives = [end - start for start, end in zip([0, *restarts], [*restarts, period.number], strict=True)]
            assert max(lives) >= period.number / 4
    assert len(restarts) >= 6


def test_there_is_a_disk_to_fill_or_it_is_never_full() -> None:
    def is_filled(full_disk: bool) -> bool:
        plan = periods(1, 3600.0, full_disk=full_disk)
        return any(kind is Fault.FULL_DISK for _ in range(20) for _, kind in next(plan).faults)

    assert is_filled(True)
    assert not is_filled(False)
