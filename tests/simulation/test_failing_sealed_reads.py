"""Reads of sealed streams that fail on a simulated disk. `simulation.failing_sealed_reads` lists the requirements.

`WARREN_TEST_READ_LIVES` is how many lives there are, each a seed counted from `WARREN_TEST_CRASH_SEED`.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

from simulation.failing_sealed_reads import UnreadSealingLife

LIVES: Final = int(os.environ.get("WARREN_TEST_READ_LIVES", "16"))
SEED: Final = int(os.environ.get("WARREN_TEST_CRASH_SEED", "1"))
GROUPS: Final = 4
STEPS: Final = 40


@pytest.mark.parametrize("group", range(GROUPS))
def test_streams_lose_nothing_by_reads_that_fail(group: int) -> None:
    """Lives of forty steps: publishes, retention, compaction, checkpoints, kills, power cuts and stops."""
    failed = refused = tolerated = 0
    first = SEED * 1_000_000 + group * 100_000
    for seed in range(first, first + -(-LIVES // GROUPS)):
        life = UnreadSealingLife(seed)
        try:
            for _ in range(STEPS):
                life.step()
            life.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        failed += life.failing.hits
        refused += life.refused
        tolerated += life.tolerated
    print(f"seeds {first} to {seed}: {failed} reads failed, {refused} starts refused, {tolerated} tolerated")
    assert failed > 0
