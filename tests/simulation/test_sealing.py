"""Streams that are sealed, on a disk that is cut off at any moment. `simulation.sealing` lists the requirements."""

from __future__ import annotations

import os
import time
from typing import Final

import pytest

from simulation.sealing import SealingLife

STATES: Final = int(os.environ.get("WARREN_TEST_CRASH_STATES", "110000"))
SEED: Final = int(os.environ.get("WARREN_TEST_CRASH_SEED", "1" if STATES < 1_000_000 else str(int(time.time()))))
GROUPS: Final = 6
# Each state means a broker that is started, read, and continued: some dozens a second.
STATES_OF_A_LIFE: Final = 50
STATES_EACH: Final = max(STATES_OF_A_LIFE if STATES < 10_000 else 2 * STATES_OF_A_LIFE, STATES // 1000)
STEPS: Final = 40
pytestmark = pytest.mark.timeout(900 + STATES_EACH)


@pytest.mark.parametrize("group", range(GROUPS))
def test_streams_keep_what_they_promised_whenever_the_power_is_cut(group: int) -> None:
    states = number = 0
    while states < STATES_EACH:
        seed = SEED * 1_000_000 + group * 10_000 + number
        print(f"seed {seed}")
        life = SealingLife(seed, STATES_OF_A_LIFE)
        for _ in range(STEPS):
            life.step()
        life.check()
        states += life.states
        number += 1
    print(f"{states} crash states")
