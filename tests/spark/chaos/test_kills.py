"""A few kills of a pipeline, of the kind that `make spark-kills` makes a hundred of: nothing is lost, doubled or wrong.

WARREN_TEST_PIPELINE_KILLS and WARREN_TEST_PIPELINE_SEED: how many (3), and the seed instead of a random one.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from object_store import SERVER

from .__main__ import run
from .report import kill_lines, verdict_lines

pytest.importorskip("pyiceberg_core")
pytest.importorskip("deltalake")

KILLS = int(os.environ.get("WARREN_TEST_PIPELINE_KILLS", "3"))


@pytest.mark.long
@pytest.mark.skipif(not SERVER.exists(), reason="moto is not in .cache/objects: make setup-test installs it")
@pytest.mark.timeout(900 + 120 * KILLS)
def test_each_message_is_everywhere_once_whoever_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("WARREN_TEST_PIPELINE_SEED", "0")) or random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    outcome = run(tmp_path, seed, KILLS)
    print("\n".join([*verdict_lines(outcome), *kill_lines(outcome), *outcome.losses]))
    assert outcome.is_right, seed
