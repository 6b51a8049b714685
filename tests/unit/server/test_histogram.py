"""Histograms: where an observation goes, and what is said about all of them."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from warren.server.histogram import BOUNDS_S, Histogram


def test_bounds_ascend_from_10_microseconds_to_10_seconds_in_steps_of_about_two() -> None:
    assert (BOUNDS_S[0], BOUNDS_S[-1], len(BOUNDS_S)) == (0.00001, 10.0, 19)
    assert all(2 <= round(after / before, 6) <= 2.5 for before, after in pairwise(BOUNDS_S))


def test_a_bound_belongs_to_the_bucket_below_it() -> None:
    histogram = Histogram()
    for bound in BOUNDS_S:
        histogram.observe(bound)
    assert histogram.buckets() == [*range(1, 20), 19]


def test_buckets_are_cumulative_and_the_last_is_all_of_them() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.000015, 0.000015, 0.3, 11.0, 1e9):
        histogram.observe(seconds)
    at_most_half = BOUNDS_S.index(0.5)
    assert histogram.buckets() == [1, *[3] * (at_most_half - 1), *[4] * (19 - at_most_half), 6]
    assert histogram.count == 6
    assert histogram.sum_s == pytest.approx(1e9 + 11.30003)


def test_without_observations_there_is_no_quantile() -> None:
    assert Histogram().maybe_quantile(0.5) is None


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.99, 1.0])
def test_a_quantile_lies_in_the_bucket_of_the_true_one(share: float) -> None:
    draw = random.Random(1)
    observed = sorted(10 ** draw.uniform(-5.5, 1) for _ in range(1000))
    histogram = Histogram()
    for seconds in observed:
        histogram.observe(seconds)
    true = observed[max(round(share * 1000) - 1, 0)]
    found = histogram.maybe_quantile(share)
    assert found is not None
    below = max((bound for bound in BOUNDS_S if bound < true), default=0.0)
    assert below <= found <= min(bound for bound in BOUNDS_S if bound >= true)


def test_within_a_bucket_a_quantile_goes_up_evenly() -> None:
    histogram = Histogram()
    for _ in range(10):
        histogram.observe(0.0015)
    assert histogram.maybe_quantile(0.5) == pytest.approx(0.0015)
    assert histogram.maybe_quantile(0.1) == pytest.approx(0.0011)


def test_beyond_the_last_bound_a_quantile_says_no_more_than_that() -> None:
    histogram = Histogram()
    histogram.observe(0.5)
    histogram.observe(60.0)
    assert histogram.maybe_quantile(1.0) == 10.0
