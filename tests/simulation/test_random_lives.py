"""Random lives of a broker on a simulated disk that survive crashes anywhere, with limits of the engine made small.

They run on the source only: see `small_limits`. `test_crashes.py` says what a crash state is. Everything follows from
the seed, which is printed; long runs use a new one each time.
"""

from __future__ import annotations

from typing import Final

import pytest

from simulation.small_limits import small_limits
from simulation.states import SEED, SEQUENCE_STATES, STATES, TIME_LIMIT
from simulation.workloads import Life

RULED_STATES: Final = STATES // 6
GROUPS: Final = 8
STEPS: Final = 40
pytestmark = TIME_LIMIT


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_lives_survive_crashes_anywhere(group: int) -> None:
    """Also during recovery, and during the recovery after that; I1 to I7."""
    live((STATES - SEQUENCE_STATES + GROUPS - 1) // GROUPS, SEED * 1_000_000 + group * 100_000, ruled=False)


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_lives_of_queues_with_rules_survive_crashes_anywhere(group: int) -> None:
    """The same with dead letters, expiry, counted returns, delays, retries, priorities, lengths, and a clock."""
    live((RULED_STATES + GROUPS - 1) // GROUPS, SEED * 1_000_000 + group * 100_000, ruled=True)


def live(wanted: int, seed: int, *, ruled: bool) -> None:
    """Live lives from `seed` on until `wanted` crash states were recovered."""
    states = crashes = 0
    first = seed
    with small_limits():
        while states < wanted:
            life = Life(seed, ruled=ruled)
            try:
                life.run(STEPS)
            except AssertionError:
                print(f"seed {seed}, after {' '.join(life.trace)}")
                raise
            states += life.judge.states
            crashes += life.crashes
            seed += 1
    print(f"seeds {first} to {seed - 1}: {states} crash states, {crashes} crashes lived through")
