"""Verdicts about single claims, as intervals: claim_verdicts.py (1), (2), (3)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from warren.server.draining.claim_verdicts import (
    ACK,
    DEAD_LETTER,
    GIVE_UP,
    REQUEUE,
    Failed,
    Verdict,
    decided,
    decoded,
    encoded,
    leaving,
    left,
)

RANGES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda ends: (min(ends), max(ends))), max_size=4
)
CALLS = st.lists(
    st.tuples(RANGES, st.sampled_from([ACK, DEAD_LETTER, REQUEUE]), st.sampled_from([None, 5])), max_size=6
)


@given(calls=CALLS, number=st.integers(0, 31))
def test_the_last_verdict_about_a_claim_holds(
    calls: list[tuple[list[tuple[int, int]], str, int | None]], number: int
) -> None:
    verdicts: list[Verdict] = []
    expected: dict[int, tuple[str, int | None]] = {}
    for ranges, kind, delay_ms in calls:
        verdicts = decided(decoded(encoded(verdicts)), ranges, kind, delay_ms)
        for first, end in ranges:
            for offset in range(first, end):
                expected.pop(offset, None)
                if kind != ACK:
                    expected[offset] = kind, delay_ms
    found = {offset: (each.kind, each.delay_ms) for each in verdicts for offset in range(each.first, each.end)}
    assert found == expected
    for before, after in pairwise(verdicts):
        assert before.end <= after.first
        assert before.end < after.first or (before.kind, before.delay_ms) != (after.kind, after.delay_ms)
    below = {offset for each in leaving(verdicts, None, number) for offset in range(each.first, each.end)}
    above = {offset for each in left(verdicts, number) for offset in range(each.first, each.end)}
    assert below == {offset for offset in expected if offset < number}
    assert above == {offset for offset in expected if offset >= number}


def test_what_has_failed_is_given_up_where_nothing_else_was_decided() -> None:
    verdicts = decided([], [(3, 5)], DEAD_LETTER, None)
    failed = Failed(first=2, end=8, times=2, limit=1, epoch=1)
    assert leaving(verdicts, failed, 7) == [Verdict(2, 3, GIVE_UP), Verdict(3, 5, DEAD_LETTER), Verdict(5, 7, GIVE_UP)]
    assert leaving(verdicts, Failed(2, 8, 2, None, 1), 7) == [Verdict(3, 5, DEAD_LETTER)]
    assert leaving([], failed, 2) == []
