"""How far something is behind, in seconds."""

from __future__ import annotations

from warren.server.lag import MARKS_MAX, Lag


def behind_s(lag: Lag, done: int, now_s: float) -> float:
    lag.done(done)
    return lag.behind_s(now_s)


def test_what_waits_longest_counts() -> None:
    lag = Lag()
    assert lag.behind_s(5.0) == 0
    lag.came(3, 10.0)
    lag.came(3, 11.0)  # told again
    lag.came(5, 12.0)
    assert behind_s(lag, 0, 20.0) == behind_s(lag, 2, 20.0) == 10
    assert behind_s(lag, 3, 20.0) == 8
    assert behind_s(lag, 5, 20.0) == 0
    lag.came(6, 21.0)
    assert behind_s(lag, 5, 22.0) == 1


def test_memory_is_bounded_and_what_came_late_is_never_taken_for_younger_than_it_is() -> None:
    lag = Lag()
    for number in range(3 * MARKS_MAX):
        lag.came(number + 1, float(number))
    assert len(lag._marks) == MARKS_MAX
    assert lag.behind_s(5000.0) == 5000
    assert behind_s(lag, MARKS_MAX - 1, 5000.0) == 5000 - (MARKS_MAX - 1)
    assert behind_s(lag, 2 * MARKS_MAX, 5000.0) >= 5000 - 2 * MARKS_MAX
    assert behind_s(lag, 3 * MARKS_MAX, 5000.0) == 0


def test_what_is_done_leaves_no_marks_for_what_comes_later() -> None:
    lag = Lag()
    for number in range(3 * MARKS_MAX):
        lag.came(number + 1, float(number))
        lag.done(number + 1)
    lag.came(3 * MARKS_MAX + 1, 9000.0)
    assert lag.behind_s(9001.0) == 1
