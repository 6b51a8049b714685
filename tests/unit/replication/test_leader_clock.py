"""A follower's knowledge of its leader's clock (leader_clock.py)."""

from __future__ import annotations

import pytest

from warren.replication.leader_clock import BEACONS, SKEW_MS, LeaderClock
from warren.server.clock import SLEW_PPM

LEADER_MS = 1_700_000_000_000
HOURS_MS = 5 * 3600 * 1000


class Machine:
    """That of the follower: its wall clock is ahead of the leader's by a given time."""

    def __init__(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms
        self.passed_ms = 0
        self.clock = LeaderClock(
            lambda: (LEADER_MS + self.passed_ms + self.ahead_ms) * 1_000_000, lambda: self.passed_ms * 1_000_000
        )

    def beacon(self, late_ms: int = 0, epoch: int = 3) -> None:
        """Receive a beacon that was `late_ms` under way."""
        self.passed_ms += 250
        self.clock.told(epoch, LEADER_MS + self.passed_ms - late_ms)


@pytest.mark.parametrize("ahead_ms", [0, 400, -400, SKEW_MS + 1, -SKEW_MS - 1, HOURS_MS, -HOURS_MS])
def test_the_difference_of_both_clocks_is_told_above_half_a_second(ahead_ms: int) -> None:
    """(2)"""
    machine = Machine(ahead_ms)
    assert machine.clock.skew_ms() is None and not machine.clock.is_off()
    machine.beacon()
    assert machine.clock.skew_ms() == ahead_ms
    assert machine.clock.is_off() is (abs(ahead_ms) > SKEW_MS)


def test_a_beacon_that_was_long_under_way_says_nothing_of_the_clock() -> None:
    """(3)"""
    machine = Machine(0)
    machine.beacon(late_ms=20)
    for _ in range(BEACONS - 1):
        machine.beacon(late_ms=4000)
    assert machine.clock.skew_ms() == 20
    machine.beacon(late_ms=4000)  # if all of them were, so is the clock
    assert machine.clock.is_off()


def test_the_first_beacon_of_another_leader_counts_at_once() -> None:
    """(4)"""
    machine = Machine(HOURS_MS)
    machine.beacon()
    machine.beacon(late_ms=-HOURS_MS, epoch=4)
    assert machine.clock.skew_ms() == 0


@pytest.mark.parametrize("ahead_ms", [HOURS_MS, -HOURS_MS])
def test_a_node_that_takes_over_continues_the_time_of_its_leader(ahead_ms: int) -> None:
    """(1)"""
    machine = Machine(ahead_ms)
    machine.beacon(late_ms=2)
    machine.passed_ms += 3000
    clock = machine.clock.continued()
    began_ms = clock.now_ms()
    assert began_ms == LEADER_MS + machine.passed_ms - 2
    for _ in range(7200):
        machine.passed_ms += 500
        clock.follow()
    passed_ms = clock.now_ms() - began_ms
    assert abs(passed_ms - 3_600_000) <= 3_600_000 * SLEW_PPM / 1e6 + 10, "an hour is wrong by a hundredth"
    assert (passed_ms > 3_600_000) is (ahead_ms > 0), "and goes towards the clock of this machine"


def test_a_node_that_heard_nobody_or_agrees_goes_by_its_own_clock() -> None:
    for machine in (Machine(HOURS_MS), Machine(300)):
        if machine.ahead_ms < SKEW_MS:
            machine.beacon()
        assert machine.clock.continued().now_ms() == LEADER_MS + machine.passed_ms + machine.ahead_ms
