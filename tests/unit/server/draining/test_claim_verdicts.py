"""Verdicts about single claims, as intervals: claim_verdicts.py (1), (2), (3)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.server.draining import claim_verdicts
from warren.server.draining.claim_verdicts import (
    ACK,
    DEAD_LETTER,
    GIVE_UP,
    PAGE_VERDICTS,
    REQUEUE,
    Change,
    Failed,
    Verdict,
    VerdictPages,
    decided,
    leaving,
    left,
)

RANGES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda ends: (min(ends), max(ends))), max_size=4
)
CALLS = st.lists(
    st.tuples(RANGES, st.sampled_from([ACK, DEAD_LETTER, REQUEUE]), st.sampled_from([None, 5])), max_size=6
)


class Records:
    """Pages of verdicts as records, each read again after every change if `is_restarted`."""

    def __init__(self, *, is_restarted: bool = True) -> None:
        self.is_restarted = is_restarted
        self.stored: dict[int, bytes] = {}
        self.pages = VerdictPages()
        self.written = 0

    def carry_out(self, change: Change) -> None:
        for number, page in self.pages.carry_out(change).items():
            if page is None:
                del self.stored[number]
            else:
                self.written += len(page)
                self.stored[number] = page
        assert sorted(self.stored) == list(range(len(self.stored))), "a page is missing"
        again = VerdictPages(self.stored[number] for number in range(len(self.stored)))
        assert again.verdicts == self.pages.verdicts
        if self.is_restarted:
            self.pages = again

    def decide(self, ranges: list[tuple[int, int]], kind: str, delay_ms: int | None = None) -> None:
        self.carry_out(decided(self.pages.verdicts, ranges, kind, delay_ms))


@pytest.mark.parametrize("page", [1, 2, 5, PAGE_VERDICTS])
@given(calls=CALLS, number=st.integers(0, 31), is_restarted=st.booleans())
def test_the_last_verdict_about_a_claim_holds(
    page: int, calls: list[tuple[list[tuple[int, int]], str, int | None]], number: int, is_restarted: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claim_verdicts, "PAGE_VERDICTS", page)
        _check_last_verdicts(Records(is_restarted=is_restarted), calls, number)


def _check_last_verdicts(
    records: Records, calls: list[tuple[list[tuple[int, int]], str, int | None]], number: int
) -> None:
    expected: dict[int, tuple[str, int | None]] = {}
    for ranges, kind, delay_ms in calls:
        records.decide(ranges, kind, delay_ms)
        for first, end in ranges:
            for offset in range(first, end):
                expected.pop(offset, None)
                if kind != ACK:
                    expected[offset] = kind, delay_ms
    verdicts = records.pages.verdicts
    found = {offset: (each.kind, each.delay_ms) for each in verdicts for offset in range(each.first, each.end)}
    assert found == expected
    for before, after in pairwise(verdicts):
        assert before.end <= after.first
        assert before.end < after.first or (before.kind, before.delay_ms) != (after.kind, after.delay_ms)
    below = {offset for each in leaving(verdicts, None, number) for offset in range(each.first, each.end)}
    records.carry_out(left(verdicts, number))
    above = {offset for each in records.pages.verdicts for offset in range(each.first, each.end)}
    assert below == {offset for offset in expected if offset < number}
    assert above == {offset for offset in expected if offset >= number}


def test_what_has_failed_is_given_up_where_nothing_else_was_decided() -> None:
    verdicts = decided([], [(3, 5)], DEAD_LETTER, None).verdicts
    failed = Failed(first=2, end=8, times=2, limit=1, epoch=1)
    assert leaving(verdicts, failed, 7) == [Verdict(2, 3, GIVE_UP), Verdict(3, 5, DEAD_LETTER), Verdict(5, 7, GIVE_UP)]
    assert leaving(verdicts, Failed(2, 8, 2, None, 1), 7) == [Verdict(3, 5, DEAD_LETTER)]
    assert leaving([], failed, 2) == []


@pytest.mark.parametrize("order", [1, -1, 7])
def test_a_verdict_about_a_claim_is_written_in_as_many_bytes_however_many_others_there_are(order: int) -> None:
    def written(count: int) -> int:
        records = Records(is_restarted=False)
        for number in range(count):
            offset = 2 * (number * order % count)
            records.decide([(offset, offset + 1)], REQUEUE)
        assert len(records.pages.verdicts) == count
        for offset in range(0, 2 * count, 2):
            records.carry_out(left(records.pages.verdicts, offset + 1))
        assert records.stored == {}
        return records.written

    assert written(1200) < 2.5 * written(600)
