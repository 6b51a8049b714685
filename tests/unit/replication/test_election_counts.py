"""A node's counters of the election: new leaders, and the time without a leader."""

from __future__ import annotations

import pytest

from warren.replication.election_counts import ElectionCounts


def test_each_leader_after_the_first_that_is_seen_is_a_takeover() -> None:
    counts = ElectionCounts(0.0)
    for epoch in (None, 7, 7, 8, None, 8, 11, 11):
        counts.look(0.0, epoch, is_led=True)
    assert counts.takeovers == 2, "epochs may be left out"


def test_time_counts_until_somebody_leads_and_from_when_nobody_does() -> None:
    counts = ElectionCounts(10.0)
    counts.look(12.0, None, is_led=False)
    counts.look(13.0, 1, is_led=True)
    assert counts.leaderless_s == pytest.approx(3.0)
    counts.look(20.0, 1, is_led=True)
    counts.look(21.0, 1, is_led=False)
    assert counts.leaderless_s == pytest.approx(3.0), "it was led until now"
    counts.look(21.5, 2, is_led=True)
    assert counts.leaderless_s == pytest.approx(3.5)
