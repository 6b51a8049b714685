"""Deadlines added, taken and brought forward at random: they come out like a sorted list."""

from __future__ import annotations

import random
from bisect import insort

from hypothesis import given
from hypothesis import strategies as st

from warren.queues.deadlines import PIECE_ENTRIES, SHRUNK_FROM, Deadlines

TIMES = st.integers(-5, 5) | st.integers(-(1 << 62), 1 << 62)
STEPS = st.lists(
    st.tuples(st.sampled_from(("add", "add", "add", "take", "forward", "look", "clear")), TIMES), max_size=200
)


@given(STEPS)
def test_they_come_out_in_the_order_of_times_and_numbers(steps: list[tuple[str, int]]) -> None:
    deadlines = Deadlines()
    expected: list[tuple[int, int]] = []
    for number, (step, value) in enumerate(steps):
        if step == "add":
            deadlines.add(value, number)
            insort(expected, (value, number))
        elif step == "take" and expected:
            assert (deadlines.first_ms(), deadlines.first_number()) == expected.pop(0)
            deadlines.remove_first()
        elif step == "forward":
            ms = abs(value) % 1000
            deadlines.bring_forward(ms)
            expected = [(time_ms - ms, other) for time_ms, other in expected]
        elif step == "clear" and value == 0:
            deadlines.clear()
            expected.clear()
        elif step == "look":
            most = abs(value) % 10
            assert deadlines.earliest(most) == expected[:most]
            if expected:
                assert deadlines.latest_ms() == expected[-1][0]
        assert len(deadlines) == len(expected)
    assert deadlines.earliest(len(steps) + 1) == expected


def test_a_long_run_with_others_between() -> None:
    deadlines = Deadlines()
    expected: list[tuple[int, int]] = []
    for number in range(3 * PIECE_ENTRIES):
        time_ms = number // 3 if number % 7 else number // 6
        deadlines.add(time_ms, number)
        insort(expected, (time_ms, number))
        if number % 3 == 0:
            assert (deadlines.first_ms(), deadlines.first_number()) == expected.pop(0)
            deadlines.remove_first()
    assert (len(deadlines), deadlines.latest_ms()) == (len(expected), expected[-1][0])
    assert deadlines.earliest(len(expected)) == expected
    for first in expected:
        assert not deadlines.is_empty()
        assert (deadlines.first_ms(), deadlines.first_number()) == first
        deadlines.remove_first()
    assert deadlines.is_empty()


def test_a_long_heap_that_shrinks_keeps_what_is_left() -> None:
    seed = 7
    print("seed", seed)
    rng = random.Random(seed)
    count = 8 * SHRUNK_FROM
    times = [rng.randrange(1000) for _ in range(count)]
    deadlines = Deadlines()
    for number, time_ms in enumerate(times):
        deadlines.add(time_ms, number)
    expected = sorted((time_ms, number) for number, time_ms in enumerate(times))
    for number, first in enumerate(expected):
        assert (deadlines.first_ms(), deadlines.first_number()) == first
        deadlines.remove_first()
        if number % 5000 == 0:
            deadlines.add(-1, number)
            assert deadlines.first_ms() == -1
            deadlines.remove_first()
    assert len(deadlines) == 0
