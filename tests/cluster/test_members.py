"""Members in a simulated world: nothing that was confirmed is lost, and one of them serves at a time."""

from __future__ import annotations

import os
from typing import Final

import pytest

from cluster.world import Broken, World

SEEDS: Final = int(os.environ.get("WARREN_TEST_CLUSTER_SEEDS", "40"))
FIRST_SEED: Final = int(os.environ.get("WARREN_TEST_CLUSTER_SEED", "1"))
STEPS: Final = 40


@pytest.mark.parametrize("min_in_sync", [1, 2])
def test_random_lives_keep_every_promise(min_in_sync: int) -> None:
    commits = take_overs = transfers = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        world = World(seed, min_in_sync=min_in_sync)
        try:
            world.live(STEPS)
        except Broken as broken:
            pytest.fail(f"seed {seed}, {world.now:.3f} s: {broken}")
        commits += world.commits
        take_overs += world.take_overs
        transfers += world.transfers
    print(f"{SEEDS} lives from seed {FIRST_SEED}: {commits} commits, {take_overs} epochs, {transfers} transfers")
    assert commits > 20 * SEEDS and take_overs > 2 * SEEDS and transfers > SEEDS // 4
