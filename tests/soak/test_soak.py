"""A round of a soak: everything flows, faults come, every queue gets empty, and the judge has no complaint."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from . import report
from .growth import MIB
from .plan import DRAINED_EVERY
from .run import Choices, run
from .topology import FLOWS

SEED = int(os.environ.get("WARREN_TEST_SOAK_SEED") or random.SystemRandom().getrandbits(32))


@pytest.mark.long
def test_a_round_of_everything_keeps_its_promises_and_leaves_a_page(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    # No time at all: it ends as soon as the messages that wait for long have been drained.
    result = run(Choices(SEED, 0.0, tmp_path, tmp_path / "series.jsonl", 256 * MIB))
    assert result.violations == []
    assert len(result.periods) == DRAINED_EVERY
    assert result.counts["the disk nearly full for two seconds"] == 1
    assert result.counts.get("kill -9", 0) + result.counts.get("clean restart", 0) == result.periods[-1]["life"] > 0
    assert result.counts["confirmed"] > 100 * len(FLOWS)
    lines = [json.loads(line) for line in (tmp_path / "series.jsonl").read_text().splitlines()]
    assert lines == result.periods
    assert all(line["rss_bytes"] > 0 for line in lines)
    assert lines[0]["confirm_p99_ms"] > 0
    assert lines[-1]["disk_bytes"] > 0
    report.write(result, tmp_path)
    page = (tmp_path / "SOAK.md").read_text()
    assert f"Seed {SEED}" in page and "Every promise held." in page
    assert (tmp_path / "SOAK.png").stat().st_size > 0
