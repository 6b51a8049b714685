"""The page of attacks has the results of `make verify` (`scripts/verify.py`)."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# Lines as the attacks print them.
LAB = """seed 3, 3 nodes at 10.77.0.1 to 10.77.0.3, port 15672
leader-silent, trial 1 of 2: 17,900 confirmed
leader-silent, trial 1 of 2: 17900 confirmed, worst gap 3.82 s;
all-stopped, trial 2 of 2: 5230 confirmed, worst gap 4.20 s; rabbit@n1 ended with 0 by 1.6 s
leader-silent                     2      27142       3.71s      3.90s  0
seed 3: 9455 confirmed lab.amqp10, 1884322 found, 0 invented, 2 lost, 1482714 read
"""
KILLS = """start after a kill               ready in    empty   killed after   store    confirmed    found
cookies                            0.59 s   0.60 s          0.5 s    32 M          109      109
letters-of-a-megabyte              2.66 s   0.64 s          1.0 s    32 M         1223     1224  BAD
"""


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("verify", ROOT / "scripts" / "verify.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "verify", module)
    spec.loader.exec_module(module)
    return module


def test_counts_are_added_and_of_times_the_longest_counts(verify: Any) -> None:
    lab = verify.ATTACKS["partitions, disks and clocks of a cluster"]
    assert verify.counts_of(lab, LAB) == {
        "trials": 2,
        "confirms": 23_130,
        "lost": 2,
        "invented": 0,
        "worst gap without a confirm": 3.82,
        "when all nodes were stopped": 4.2,
    }
    kills = verify.ATTACKS["kills in the middle of attacks"]
    assert verify.counts_of(kills, KILLS) == {"kills": 2, "confirms": 1332, "longest start": 2.66}


def test_what_an_output_does_not_tell_is_not_a_count_of_zero(verify: Any) -> None:
    for attack in verify.ATTACKS.values():
        assert verify.counts_of(attack, "make: *** [Makefile:1: setup] Error 1\n") == {}


def test_the_page_has_the_table_of_the_results(verify: Any) -> None:
    page = verify.PAGE.read_text()
    results = json.loads(verify.RESULTS.read_text())
    assert verify.with_table(page, results) == page, "make verify writes the table"
    assert set(results) <= set(verify.ATTACKS)


def test_each_attack_stands_in_the_table_that_tells_what_it_does(verify: Any) -> None:
    described, _, _ = verify.PAGE.read_text().partition(verify.BEGIN)
    for name in verify.ATTACKS:
        assert f"| {name} | " in described, name


def test_each_target_of_an_attack_exists(verify: Any) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for attack in verify.ATTACKS.values():
        if attack.command.startswith("make "):
            named = [word for word in attack.command.split()[1:] if re.fullmatch(r"[a-z-]+", word)]
            assert named and set(named) <= targets, attack.command
