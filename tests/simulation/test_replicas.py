"""A leader with followers that crash, come back and take over. `simulation.replicas` lists the requirements."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Final
from unittest import mock

import pytest

from simulation.replicas import NODES, ReplicatedLife
from simulation.small_limits import small_limits
from warren.replication import entries, shipping

STATES: Final = int(os.environ.get("WARREN_TEST_CRASH_STATES", "110000"))
SEED: Final = int(os.environ.get("WARREN_TEST_CRASH_SEED", "1" if STATES < 1_000_000 else str(int(time.time()))))
GROUPS: Final = 4
LIVES: Final = max(40, STATES // 100)  # of a group
STEPS: Final = 150
# Events that happen in every group, so that a check is not passed only because its event never comes.
HAPPENS: Final = (
    "take-overs",
    "restarts",
    "truncations",
    "joins",
    "images",
    "follower crashes",
    "chunks",
    "refused",
    "again",
)
pytestmark = pytest.mark.timeout(900 + LIVES)


def test_a_leader_without_room_comes_to_rest_after_few_tries() -> None:
    """Each try ships a SYNC. The answers to it are not progress: the life would try for 10,000 steps."""
    life = ReplicatedLife(1)
    life.run(0)
    leader = life.leading
    leader.declare("a")
    assert leader.rest() and len(life.members) == NODES
    leader.publish(["a"], 9000, confirm=True)
    leader.fs.capacity = sum(len(data) for data in leader.fs.contents().values())
    tries = leader.retries
    assert not leader.rest()
    assert 1 <= leader.retries - tries <= 3
    leader.fs.capacity = None
    assert leader.rest()
    leader.check_replay()


def test_a_state_after_a_clean_stop_says_where_the_log_has_it() -> None:
    """`check_replay` compares with it before the first batch of the next life is written."""
    life = ReplicatedLife(1)
    life.run(0)
    leader = life.leading
    leader.declare("a")
    leader.publish(["a"], 40)
    leader.stop()
    found = life.judge.read(leader.fs.kill9())
    recovered = life.judge.judge(leader, found, leader.written)
    assert found.clean and leader.stopped_clean == recovered.stored
    assert recovered.places == found.places != {}


@pytest.mark.parametrize("group", range(GROUPS))
def test_what_was_confirmed_is_on_every_member_whoever_leads(group: int) -> None:
    counts: Counter[str] = Counter()
    for number in range(LIVES):
        seed = SEED * 1_000_000 + group * 100_000 + number
        print(f"seed {seed}")
        life = ReplicatedLife(seed)
        with (
            small_limits(),
            mock.patch.object(entries, "PIECE_BYTES", 300),
            mock.patch.object(shipping, "PIECE_BYTES", 700),
            mock.patch.object(shipping, "WAITING_BYTES_MAX", 700 if number % 4 == 0 else 1 << 20),
        ):
            life.run(STEPS)
        counts += life.counts
    print(counts)
    assert [what for what in HAPPENS if not counts[what]] == []
