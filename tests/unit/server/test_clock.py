"""Time that passes evenly, whatever the wall clock is set to."""

from __future__ import annotations

import random
import time

import pytest

from warren.server.clock import SLEW_PPM, SteadyClock

START_MS = 1_700_000_000_000
HOUR_S = 3600.0
STEP_S = 0.5


class Machine:
    """A wall clock that can be set, and time that passes."""

    def __init__(self) -> None:
        self.wall_ns = START_MS * 1_000_000
        self.steady_ns = 77_000_000_000
        self.clock = SteadyClock(lambda: self.wall_ns, lambda: self.steady_ns)

    def set(self, seconds: float) -> None:
        """Set the wall clock forth, or back."""
        self.wall_ns += int(seconds * 1e9)

    def live(self, seconds: float, step_s: float = STEP_S) -> None:
        """Advance the time, as the ticker sees it."""
        for _ in range(round(seconds / step_s)):
            self.wall_ns += int(step_s * 1e9)
            self.steady_ns += int(step_s * 1e9)
            self.clock.follow()

    def passed_s(self) -> float:
        return (self.clock.now_ms() - START_MS) / 1000


def test_it_begins_with_the_wall_clock_and_goes_with_it() -> None:
    machine = Machine()
    assert machine.clock.now_ms() == START_MS
    machine.live(HOUR_S)
    assert machine.passed_s() == HOUR_S


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S, 30 * 24 * HOUR_S, -30 * 24 * HOUR_S, 1.5, -1.5])
def test_a_clock_that_is_set_back_and_forth_changes_a_wait_by_a_hundredth_at_most(jump_s: float) -> None:
    machine = Machine()
    machine.set(jump_s)
    machine.live(60)
    assert abs(machine.passed_s() - 60) <= 60 * SLEW_PPM / 1e6 + 0.01
    machine.set(-jump_s)
    machine.live(600)
    assert machine.passed_s() == pytest.approx(660, abs=0.01)


def test_time_never_goes_back_however_the_clock_is_set() -> None:
    generator = random.Random(5)
    machine = Machine()
    last = machine.clock.now_ms()
    for _ in range(5000):
        if generator.random() < 0.1:
            machine.set(generator.choice((1, -1)) * 10 ** generator.uniform(-3, 8))
        passed = int(10 ** generator.uniform(0, 10))
        machine.steady_ns += passed
        machine.wall_ns += passed
        if generator.random() < 0.5:
            before = machine.clock.now_ms()
            machine.clock.follow()
            assert machine.clock.now_ms() == before
        now = machine.clock.now_ms()
        assert now >= last
        last = now


def test_the_wall_clock_is_caught_up_with_and_not_overtaken() -> None:
    machine = Machine()
    machine.set(10)
    machine.live(500)
    assert 504 <= machine.passed_s() < 510
    machine.live(700)
    assert machine.passed_s() == pytest.approx(1210, abs=0.01)
    assert machine.passed_s() <= 1210


def test_a_clock_that_was_set_is_said_once_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "warren.clock")
    machine = Machine()
    machine.set(10)
    machine.live(60)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    machine.live(1200)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_the_clocks_of_this_machine_agree() -> None:
    assert abs(SteadyClock().now_ms() - time.time() * 1000) < 5000
