"""kill -9 under load, again and again on the same data directory: what was promised is there, whole and in order.

`WARREN_TEST_CRASH_CYCLES` is how often the broker is killed (20; ``make crashtest`` takes 500),
`WARREN_TEST_CRASH_SEED` the seed of the first life instead of a random one; the following lives count on from it.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from broker_process import WarrenProcess

from .life import Life, small_store

CYCLES = int(os.environ.get("WARREN_TEST_CRASH_CYCLES", "20"))
CYCLES_PER_LIFE = 10
SEED = int(os.environ.get("WARREN_TEST_CRASH_SEED") or random.SystemRandom().getrandbits(32))


def begin(directory: Path, seed: int, settings: dict[str, object] | None = None) -> tuple[Life, random.Random]:
    """Start a broker on an empty directory, with what the seed says."""
    chooser = random.Random(seed)
    chosen = small_store(chooser) | (settings or {})
    print(f"seed {seed}, " + ", ".join(f"{key} = {value}" for key, value in chosen.items()))
    return Life(WarrenProcess(directory, {"http": "off"}, chosen), chooser), chooser


@pytest.mark.parametrize("number", range(-(-CYCLES // CYCLES_PER_LIFE)))
def test_what_was_promised_survives_kill_9_at_random_moments(tmp_path: Path, number: int) -> None:
    life, chooser = begin(tmp_path, SEED + number)
    try:
        for cycle in range(min(CYCLES_PER_LIFE, CYCLES - number * CYCLES_PER_LIFE)):
            print(f"cycle {cycle}")
            life.crash(crashes_in_recovery=chooser.choice([0, 0, 0, 0, 1]))
            if chooser.random() < 0.1:
                # Files of a clean stop must not be believed after the next crash.
                print("stop")
                life.stop()
    finally:
        life.process.kill()
        print(life.summary())
    assert life.history.counts["confirmed"] > 0
    assert life.history.counts["found"] > 0


def test_a_broker_that_is_killed_again_and_again_while_it_recovers_loses_nothing(tmp_path: Path) -> None:
    life, _ = begin(tmp_path, SEED + 1_000_000)
    try:
        for crashes in (1, 3):
            life.crash(crashes_in_recovery=crashes)
    finally:
        life.process.kill()
        print(life.summary())


def test_what_was_written_but_not_synced_survives_the_death_of_the_process_alone(tmp_path: Path) -> None:
    life, _ = begin(tmp_path, SEED + 2_000_000, {"store.confirm": "os"})
    try:
        for _cycle in range(min(3, CYCLES)):
            life.crash()
    finally:
        life.process.kill()
        print(life.summary())
