"""meter.py: histogram invariants 1 and 3."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warren.perf.meter import Histogram, Totals

_latencies = st.lists(st.integers(0, 2**50), min_size=1, max_size=200)


@given(_latencies, st.sampled_from([50.0, 95.0, 99.0, 100.0]))
def test_a_percentile_is_within_a_64th_of_the_sample_of_its_rank(latencies: list[int], percent: float) -> None:
    histogram = Histogram()
    for latency in latencies:
        histogram.record(latency)
    rank = max(1, -(-len(latencies) * percent // 100))
    exact = sorted(latencies)[int(rank) - 1]
    assert exact <= histogram.percentile_ns(percent) <= exact + exact / 64


@given(_latencies)
def test_the_maximum_is_exact(latencies: list[int]) -> None:
    histogram = Histogram()
    for latency in latencies:
        histogram.record(latency)
    assert histogram.percentile_ns(100) == histogram.maximum_ns == max(latencies)


def test_a_weight_counts_as_so_many_samples() -> None:
    histogram = Histogram()
    histogram.record(10, weight=99)
    histogram.record(1000)
    assert histogram.samples == 100
    assert histogram.percentile_ns(99) == 10


def test_an_empty_or_cleared_histogram_says_zero() -> None:
    histogram = Histogram()
    histogram.record(5)
    histogram.clear()
    assert histogram.summary_us() == {"p50": 0, "p95": 0, "p99": 0, "p99.9": 0, "max": 0, "samples": 0}


def test_the_difference_of_totals_is_the_window() -> None:
    assert Totals(10, 8, 6, 4).since(Totals(1, 2, 3, 4)) == Totals(9, 6, 3, 0)
