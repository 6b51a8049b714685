"""When a leader gives up a follower that catches up, and when that follower may start again.

The numbers in parentheses are those in the header of ``warren/replication/catching_up.py``.
"""

from __future__ import annotations

from warren.replication.catching_up import BACK_OFF_S, STALLED_S, CatchingUp


def test_who_takes_nothing_for_long_is_given_up() -> None:
    """(1)"""
    follower = CatchingUp()
    follower.begin(1000, 10.0)
    assert not follower.reason_to_give_up(0, 0, 9.9 + STALLED_S)
    assert "has taken nothing" in follower.reason_to_give_up(0, 0, 10.0 + STALLED_S)


def test_who_takes_a_little_now_and_then_goes_on() -> None:
    """(1)"""
    follower = CatchingUp()
    follower.begin(0, 0.0)
    for number in range(1, 10):
        now_s = number * (STALLED_S - 1)
        follower.takes(number, 1 << 20, now_s)
        assert not follower.reason_to_give_up(0, 0, now_s)
    follower.takes(9, 1 << 20, now_s := 10 * STALLED_S)
    assert follower.reason_to_give_up(0, 0, now_s)


def test_who_has_taken_all_that_there_was_to_send_does_not_stand_still() -> None:
    """(1)"""
    follower = CatchingUp()
    follower.begin(7, 0.0)
    follower.takes(7, 0, 2 * STALLED_S)
    assert not follower.reason_to_give_up(0, 0, 2 * STALLED_S)


def test_who_has_more_kept_for_it_than_half_of_what_is_free_is_given_up() -> None:
    """(2)"""
    follower = CatchingUp()
    follower.begin(0, 0.0)
    assert not follower.reason_to_give_up(50, 100, 1.0)
    assert "too slow" in follower.reason_to_give_up(51, 100, 1.0)


def test_who_was_given_up_waits_longer_each_time() -> None:
    follower = CatchingUp()
    assert follower.waits_s(0.0) == 0
    least, most = BACK_OFF_S
    assert [follower.give_up("slow", 0.0) for _ in range(8)] == [least, 10, 20, 40, 80, 160, most, most]
    assert follower.waits_s(1.0) == most - 1
    assert follower.waits_s(most) == 0
    assert follower.given_up == "slow"


def test_the_log_is_told_every_five_seconds_how_far_it_is() -> None:
    follower = CatchingUp()
    assert [now_s for now_s in range(12) if follower.is_to_be_told(float(now_s))] == [0, 5, 10]
