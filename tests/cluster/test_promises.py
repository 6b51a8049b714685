"""Promises between replicas, explored state by state with clocks that differ; each rule, broken, is noticed there."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import pytest

from cluster.promises import SMALL, Clocks, Rules, Violation, explore

ONE_FOLLOWER: Final = Clocks(1, (9, 11), (9, 11))
TWO_FOLLOWERS: Final = Clocks(2, (9,), (11,))
BROKEN: Final[dict[str, tuple[Any, Clocks]]] = {
    "limit": (28, ONE_FOLLOWER),
    "grace": (22, ONE_FOLLOWER),
    "limit_counts_from_sending": (False, ONE_FOLLOWER),
    "all_have_to_answer": (False, TWO_FOLLOWERS),
    "unsettled_sets_count": (False, ONE_FOLLOWER),
    "late_changes_wait": (False, ONE_FOLLOWER),
    "handing_over_stops_service": (False, ONE_FOLLOWER),
}


@pytest.mark.parametrize(("clocks", "revisions"), SMALL, ids=str)
def test_in_no_state_two_nodes_serve(clocks: Clocks, revisions: int) -> None:
    explored = explore(clocks, revisions=revisions)
    print(f"{clocks}, {revisions} revisions: {explored}")
    assert min(explored.states / 10, explored.served, explored.begun) > 500


def test_every_rule_is_broken_once() -> None:
    assert set(BROKEN) == {field.name for field in fields(Rules)}


# To find what this one allows takes more than all others together.
@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=[pytest.mark.long] if rule == "all_have_to_answer" else []) for rule in BROKEN]
)
def test_a_rule_that_is_broken_is_noticed(rule: str) -> None:
    value, clocks = BROKEN[rule]
    with pytest.raises(Violation):
        explore(clocks, Rules(**{rule: value}))
