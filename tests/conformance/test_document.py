"""The table of rules is complete, and the page has each of them."""

from __future__ import annotations

import re
import sys
from collections import Counter

from .rules import AREAS, NOT_SHOWN, SPECIFICATION, document, load


def test_the_page_has_a_row_for_each_rule() -> None:
    rows = Counter(re.findall(r"^\| `(.+?)` \| .+ \| `test_(\w+)\.py::(\w+)` \|$", document(), re.MULTILINE))
    assert rows == Counter((rule.id, rule.area, rule.test) for rule in load())


def test_every_rule_of_the_specification_is_shown_or_excused() -> None:
    shown = {rule.id for rule in load()}
    excused = set(NOT_SHOWN)
    assert not shown & excused, "shown and excused"
    assert set(SPECIFICATION) - shown == excused


def test_ids_of_the_specification_are_no_inventions() -> None:
    for rule in load():
        first = rule.id.partition(".")[0]
        known = rule.id in SPECIFICATION or first in ("rabbitmq", "warren", "abuse") or first.isdigit()
        assert known, f"{rule.test} shows {rule.id}, which does not exist"


def test_every_test_shows_a_rule_and_no_two_claims_are_the_same() -> None:
    rules = load()
    tests = {(rule.area, rule.test) for rule in rules}
    for area in AREAS:
        module = sys.modules[f"{__package__}.test_{area}"]
        for name in vars(module):
            if name.startswith("test_"):
                assert (area, name) in tests, f"test_{area}.py::{name} shows no rule"
    twice = [claim for claim, count in Counter((rule.id, rule.sentence) for rule in rules).items() if count > 1]
    assert twice == []
