"""Short runs of random hostile clients; ``make abuse`` has the long ones."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from . import scene
from .requests import Requests
from .sequences import JUDGED_BATCHES_MIN, Sequences

METHODS = int(os.environ.get("WARREN_TEST_ABUSE_METHODS", "30000"))
REQUESTS = int(os.environ.get("WARREN_TEST_ABUSE_REQUESTS", "1500"))


@pytest.mark.long
@pytest.mark.timeout(300 + METHODS // 50)
def test_extreme_values_in_every_method_leave_the_engine_whole_and_as_small_as_before() -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}, again with (in tests/): python -m abuse.sequences --seed {seed} --methods {METHODS}")
    sequences = Sequences(seed)
    sequences.run(METHODS, batches=JUDGED_BATCHES_MIN)
    sequences.check_memory()
    # Clients that are refused at login would test only the login.
    assert sequences.counts["methods"] > 20 * sequences.counts["connections"]
    for code in (403, 404, 405, 406):
        assert sequences.counts[f"channel.close {code}"] > 0


@pytest.mark.timeout(300 + REQUESTS)
def test_extreme_values_in_every_request_are_answered_without_a_fault(tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}, again with (in tests/): python -m abuse.requests --seed {seed} --requests {REQUESTS}")
    with scene.broker(tmp_path, is_executed=False) as process:
        scene.admit(process)
        requests = Requests(process, seed)
        requests.run(REQUESTS)
        requests.close()
        assert requests.counts["200"] + requests.counts["204"] > REQUESTS / 10
        assert "internal error" not in process.log()
