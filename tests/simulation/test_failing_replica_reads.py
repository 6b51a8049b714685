"""Reads that fail on the disks of replicas. `simulation.failing_replica_reads` says what has to hold.

`WARREN_TEST_READ_LIVES` is how many lives there are, each a seed counted from `WARREN_TEST_CRASH_SEED`.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Final
from unittest import mock

from simulation.failing_replica_reads import UnreadReplicatedLife
from simulation.small_limits import small_limits
from warren.replication import entries, shipping

LIVES: Final = int(os.environ.get("WARREN_TEST_READ_LIVES", "16"))
SEED: Final = int(os.environ.get("WARREN_TEST_CRASH_SEED", "1"))
STEPS: Final = 150


def test_reads_that_fail_while_a_follower_catches_up_lose_nothing() -> None:
    """Lives with crashes, kills, take-overs and followers that connect while reads fail."""
    counts: Counter[str] = Counter()
    failed = 0
    for seed in range(SEED * 1_000_000, SEED * 1_000_000 + LIVES):
        print(f"seed {seed}")
        life = UnreadReplicatedLife(seed)
        with (
            small_limits(),
            mock.patch.object(entries, "PIECE_BYTES", 300),
            mock.patch.object(shipping, "PIECE_BYTES", 700),
            mock.patch.object(shipping, "WAITING_BYTES_MAX", 700 if seed % 4 == 0 else 1 << 20),
        ):
            life.run(STEPS)
        counts += life.counts
        failed += life.failed
    print(f"seeds {SEED * 1_000_000} to {seed}: {failed} reads failed, {dict(counts)}")
    assert failed > 0 and counts["links that failed"] > 0
