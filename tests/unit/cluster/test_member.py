"""A member as a whole: its first read, its wake-ups, and its timers.

The decisions of a member (member.py), one event at a time, are in the files ``test_member_…``, by subject; its parts
alone are in ``test_member_parts.py``, and random worlds of three members in ``cluster/``.
"""

from __future__ import annotations

import pytest
from unit.cluster.member_node import A, B, C, follower, leader

from warren.cluster.events import Position, Read, RecordChanged, Tick
from warren.cluster.member import Member
from warren.cluster.record import LeaderBy, Record, Versioned
from warren.cluster.timers import Timers


@pytest.mark.parametrize("wrong", [{"suspect_s": 2.0}, {"limit_s": 2.5}, {"grace_s": 1.9}, {"beacon_s": 1.0}])
def test_timers_that_would_break_a_promise_are_refused(wrong: dict[str, float]) -> None:
    Timers()
    with pytest.raises(ValueError, match="has to be"):
        Timers(**wrong)


def test_nothing_is_known_before_the_first_read() -> None:
    member = Member(B, 0.0, position=Position(5, 10))
    named = Record("s", 6, B, LeaderBy.TRANSFER, frozenset((A, B)), frozenset("abc"), 1)
    assert member.handle(0.0, RecordChanged(Versioned(8, named))) == [Read()] and member.record is None


def test_the_wake_up_is_always_in_the_future() -> None:
    for node in (leader(A, B, C), leader(A, B, least=2), follower()):
        for _ in range(100):
            wake_at = node.member.wake_at_s(node.now)
            assert wake_at > node.now
            node.all(Tick(), min(wake_at, node.now + 10.0) - node.now)
