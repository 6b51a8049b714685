"""Samples, rates and averages, against a model that remembers every tick."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from warren.mgmt_plugin.metrics.history import A_DAY, AN_HOUR, COARSE, ROWS, SAMPLES_MAX, STEP_S, Clock, Series

START_MS = 1_700_000_000_000
FIELDS = ("messages", "publish")


class Recorded:
    """A series, its clock, and every row there ever was."""

    def __init__(self, *, coarse: int = 0) -> None:
        self.clock = Clock()
        self.series = Series(FIELDS, coarse=coarse)
        self.rows: dict[int, tuple[float, float]] = {}

    def tick(self, *row: float) -> None:
        self.clock.tick += 1
        self.clock.time_ms = START_MS + self.clock.tick * STEP_S * 1000
        messages, publish = row
        self.rows[self.clock.tick] = (messages, publish)
        self.series.take(self.clock.tick, row)

    def details(self, field: str = "messages", age_s: int = 0, incr_s: int = 0) -> dict[str, Any]:
        now = self.rows[self.clock.tick][FIELDS.index(field)] if self.rows else 0
        return self.series.details(self.clock, field, now, age_s, incr_s)

    def check(self, field: str, age_s: int, incr_s: int) -> None:
        """Compare what is told with what was."""
        at = FIELDS.index(field)
        tick = self.clock.tick
        told = self.details(field, age_s, incr_s)
        before = self.rows.get(tick - 1)
        rate = 0.0 if before is None else (self.rows[tick][at] - before[at]) / STEP_S
        assert told["rate"] == pytest.approx(rate)
        step = next(ticks for ticks, reach_s in levels(len(self.series._rings)) if reach_s >= age_s)
        apart = max(1, round(incr_s / STEP_S / step)) * step
        wanted = min(age_s // incr_s + 1, SAMPLES_MAX)
        samples = told["samples"]
        assert 1 <= len(samples) <= wanted
        for back, sample in enumerate(samples):
            of = (tick - back * apart) // step * step
            assert sample["timestamp"] == START_MS + of * STEP_S * 1000
            # The oldest row of a coarse level may be of a tick inside it.
            assert sample["sample"] == self.rows.get(of, self.rows[1])[at]
        oldest = (tick - len(samples) * apart) // step * step
        assert len(samples) == wanted or oldest < 1 or tick - oldest >= min(ROWS, 60) * step, "a sample is missing"
        values = [sample["sample"] for sample in samples]
        if len(values) > 1:
            span_s = (samples[0]["timestamp"] - samples[-1]["timestamp"]) / 1000
            assert told["avg_rate"] == pytest.approx((values[0] - values[-1]) / span_s)
            assert told["avg"] == pytest.approx(sum(values) / len(values))


def levels(count: int) -> Iterator[tuple[int, float]]:
    """Yield the ticks per row of each level, and how far back it is asked for; the last one for ever."""
    for level in range(count):
        ticks, reach_s = (
            (1, ROWS * STEP_S) if level == 0 else (COARSE[level - 1][0], COARSE[level - 1][0] * STEP_S * 60)
        )
        yield ticks, reach_s if level < count - 1 else float("inf")


@pytest.mark.parametrize("coarse", [0, AN_HOUR, A_DAY])
@pytest.mark.parametrize("ticks", [5, 200, 3000])
def test_what_is_told_is_what_was(ticks: int, coarse: int) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    random_source = random.Random(seed)
    recorded = Recorded(coarse=coarse)
    messages = publish = 0
    while recorded.clock.tick < ticks:
        quiet = random_source.choice([0, 0, 1, 3, 200])
        for _ in range(min(quiet, ticks - recorded.clock.tick)):
            recorded.tick(messages, publish)
        if recorded.clock.tick < ticks:
            publish += random_source.randrange(1000)
            messages = random_source.randrange(100)
            recorded.tick(messages, publish)
        if random_source.random() < 0.2 or recorded.clock.tick >= ticks:
            ages = (5, 60, 600, 715, 3600, 36000, 86400)[: 4 + coarse]
            age_s = random_source.choice(ages)
            recorded.check(random_source.choice(FIELDS), age_s, random_source.choice([5, 7, 10, 60, 600, 1800]))


def test_a_rate_is_the_change_over_the_last_tick() -> None:
    recorded = Recorded()
    recorded.tick(0, 10)
    assert recorded.details("publish")["rate"] == 0  # nobody knows what it was before
    recorded.tick(0, 60)
    assert recorded.details("publish")["rate"] == 10.0
    recorded.tick(0, 60)
    assert recorded.details("publish")["rate"] == 0
    recorded.tick(5, 60)
    assert recorded.details("publish")["rate"] == 0
    assert recorded.details("messages")["rate"] == 1.0
    recorded.tick(0, 60)
    assert recorded.details("messages")["rate"] == -1.0


def test_after_a_quiet_time_a_rate_is_of_the_last_tick_and_not_of_the_whole_time() -> None:
    recorded = Recorded()
    recorded.tick(0, 10)
    for _ in range(500):
        recorded.tick(0, 10)
    recorded.tick(0, 60)
    assert recorded.details("publish")["rate"] == 10.0
    recorded.check("publish", 700, 5)


def test_samples_are_newest_first_and_only_when_asked_for() -> None:
    recorded = Recorded()
    for value in (1, 2, 4):
        recorded.tick(value, 0)
    assert recorded.details() == {"rate": 2 / STEP_S}
    told = recorded.details("messages", 60, 5)
    # The answer covers the whole requested time: before the first row it repeats that row.
    assert [sample["sample"] for sample in told["samples"]] == [4, 2, *[1] * 11]
    assert told["avg"] == pytest.approx(17 / 13)
    assert told["avg_rate"] == pytest.approx(3 / 60)
    assert all(type(sample["sample"]) is int for sample in told["samples"])
    assert [sample["sample"] for sample in recorded.details("messages", 10, 10)["samples"]] == [4, 1]


@pytest.mark.parametrize("coarse", [0, AN_HOUR, A_DAY])
def test_without_a_past_it_was_as_it_is(coarse: int) -> None:
    recorded = Recorded(coarse=coarse)
    told = recorded.details("messages", 60, 5)
    assert [sample["sample"] for sample in told["samples"]] == [0] * 13
    assert (told["avg"], told["avg_rate"], told["rate"]) == (0, 0.0, 0.0)
    recorded.tick(3, 3)
    told = recorded.details("messages", 60, 5)
    assert (len(told["samples"]), told["avg"], told["avg_rate"], told["rate"]) == (13, 3, 0.0, 0.0)


@pytest.mark.parametrize(("age_s", "incr_s"), [(1 << 40, 1), (10**15, 10**15), (5, 1 << 40), (1, 1)])
def test_ages_and_steps_may_be_absurd(age_s: int, incr_s: int) -> None:
    for coarse in (0, AN_HOUR, A_DAY):
        recorded = Recorded(coarse=coarse)
        for value in range(2000):
            recorded.tick(value, value)
        samples = recorded.details("messages", age_s, incr_s)["samples"]
        assert 1 <= len(samples) <= SAMPLES_MAX
        assert samples[0]["sample"] <= 1999


def test_a_past_has_a_fixed_size() -> None:
    recorded = Recorded(coarse=A_DAY)
    for value in range(3 * ROWS):
        recorded.tick(value, value)
    sizes = [len(ring._values) for ring in recorded.series._rings]
    most = [2 * rows for rows in (ROWS, *(rows for _, rows in COARSE))]
    assert sizes[0] == most[0] and all(size <= each for size, each in zip(sizes, most, strict=True))
    assert len(recorded.details("messages", 100_000_000, 5)["samples"]) <= SAMPLES_MAX


@pytest.mark.parametrize("ticks", [100, 1500, 5000])
def test_a_series_that_is_told_of_changes_only_has_the_past_of_one_that_is_told_of_every_tick(ticks: int) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    dice = random.Random(seed)
    clock = Clock()
    every, changes = Series(FIELDS, coarse=A_DAY), Series(FIELDS, coarse=A_DAY)
    messages = publish = 0
    before: tuple[float, ...] = ()
    for _ in range(ticks):
        clock.tick += 1
        clock.time_ms = START_MS + clock.tick * STEP_S * 1000
        if dice.random() < 0.02:
            publish += dice.randrange(10)
            messages = dice.randrange(100)
        row = (messages, publish)
        every.take(clock.tick, row)
        if row != before:
            changes.take(clock.tick, row)
        before = row
    for age_s, incr_s in ((60, 5), (600, 5), (3600, 60), (28_800, 600), (86_400, 1800)):
        for field, now in zip(FIELDS, before, strict=True):
            told = [each.details(clock, field, now, age_s, incr_s)["samples"] for each in (every, changes)]
            # What lags behind may still have rows that the other has dropped.
            assert told[1][: len(told[0])] == told[0]  # type: ignore[index, arg-type]


def test_the_tick_by_which_a_counter_passed_a_value_is_found_in_the_finest_level_that_reaches_back_so_far() -> None:
    clock = Clock()
    series = Series(FIELDS, coarse=A_DAY)
    for tick in range(1, 2001):  # one more at each tick, up to tick 1000, and none after 1900
        clock.tick = tick
        series.take(tick, (0, min(tick, 1900)))
    assert series.tick_above("publish", 1899) == (1900, True)
    assert series.tick_above("publish", 1900) == (1901, True), "not yet"
    assert series.tick_above("publish", 1870) == (1871, True)
    # A minute has twelve ticks, ten minutes 120.
    for value, ticks_per_row in ((1500, 12), (950, 12), (500, 120)):
        tick, known = series.tick_above("publish", value)
        assert known and value < tick <= value + ticks_per_row
    assert series.tick_above("publish", -1)[1] is False
    assert series.before(1990)[1] == 1900
    assert series.before(1880)[1] == 1880
    assert 1488 <= series.before(1500)[1] <= 1500
