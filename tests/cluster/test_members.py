"""Members in a simulated world: nothing that was confirmed is lost, and one of them serves at a time."""

from __future__ import annotations

import os
from typing import Final

import pytest

from cluster.world import Broken, World
from warren.cluster.record import MAJORITY

SEEDS: Final = int(os.environ.get("WARREN_TEST_CLUSTER_SEEDS", "40"))
FIRST_SEED: Final = int(os.environ.get("WARREN_TEST_CLUSTER_SEED", "1"))
STEPS: Final = 40


@pytest.mark.parametrize("min_in_sync", [1, 2])
def test_random_lives_keep_every_promise(min_in_sync: int) -> None:
    commits = take_overs = transfers = ways = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        world = World(seed, min_in_sync=min_in_sync)
        try:
            world.live(STEPS)
        except Broken as broken:
            pytest.fail(f"seed {seed}, {world.now:.3f} s: {broken}")
        commits += world.commits
        take_overs += world.take_overs
        transfers += world.transfers
        ways += world.ways
    print(f"{SEEDS} lives from seed {FIRST_SEED}: {commits} commits, {take_overs} epochs")
    print(f"{transfers} transfers, of which {ways} were ways given")
    assert commits > 20 * SEEDS and take_overs > 2 * SEEDS and transfers > SEEDS // 4


def test_random_lives_with_other_settings_after_each_start_keep_every_promise() -> None:
    commits = least = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        world = World(seed, settings=(None, MAJORITY, 1, 2, 3))
        try:
            world.live(STEPS)
        except Broken as broken:
            pytest.fail(f"seed {seed}, {world.now:.3f} s: {broken}")
        commits += world.commits
        least += world.etcd.found is not None and world.etcd.found.record.min_in_sync != 2
    print(f"{SEEDS} lives from seed {FIRST_SEED}: {commits} commits, {least} ended with another minimum")
    assert commits > 10 * SEEDS and least > SEEDS // 10


def published(world: World, seconds: float) -> None:
    for _ in range(int(seconds * 5)):
        world.publish()
        world.run(0.2)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 5))
def test_a_leader_with_a_slow_disk_gives_way_once_and_to_none_that_is_as_slow(seed: int) -> None:
    world = World(seed, calm=True)
    published(world, 20.0)
    world.slow_down(set(world.nodes.values()), 2.0)
    published(world, 30.0)
    assert world.ways == 0, "all are slow"
    world.slow_down(set(), 0.0)
    published(world, 60.0)
    leader = world.leader()
    assert leader is not None
    world.slow_down({leader.node}, 2.0)
    published(world, 12.0)
    assert world.ways == 1
    after = world.leader()
    assert after is not None and after.node is not leader.node and world.transfers >= 1
    world.slow_down({after.node}, 2.0)
    published(world, 12.0)
    assert world.ways == 1, "it has been handed over to just now"
    published(world, 30.0)
    assert world.ways == 2
