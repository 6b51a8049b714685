"""Reads of the store that fail on a simulated disk: whatever happens meanwhile, nothing is lost and nothing changed.

`WARREN_TEST_READ_SEQUENCES` is how many random sequences there are; each is a seed of its own, counted from
`WARREN_TEST_CRASH_SEED`.
"""

from __future__ import annotations

import os
from random import Random
from typing import Final

import pytest

from simulation.failing_reads import try_reads
from simulation.sequences import SHAPE, SHORT_SHAPE
from simulation.small_limits import small_limits

SEQUENCES: Final = int(os.environ.get("WARREN_TEST_READ_SEQUENCES", "300"))
SEED: Final = int(os.environ.get("WARREN_TEST_CRASH_SEED", "1"))
LETTERS: Final = ("pffoogkKtcmmipsuABTrxdoQ", "eeqhOylUUGGGnnjjvvbzwwkccmmiisP")
GROUPS: Final = 4


@pytest.mark.parametrize("group", range(GROUPS))
def test_reads_that_fail_at_any_time_lose_nothing(group: int) -> None:
    """Sequences of fourteen operations, of plain queues and of queues with rules, with kills and stops in between."""
    failed = refused = 0
    first = SEED * 1_000_000 + group * 100_000
    with small_limits():
        for seed in range(first, first + -(-SEQUENCES // GROUPS)):
            random = Random(seed)
            letters = "".join(random.choice(LETTERS[seed % 2]) for _ in range(14))
            hits, starts = try_reads(letters, seed, random.choice([SHAPE, SHORT_SHAPE]))
            failed += hits
            refused += starts
    print(f"seeds {first} to {seed}: {failed} reads failed, {refused} starts refused")
    assert failed > SEQUENCES // GROUPS
