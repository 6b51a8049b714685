"""The protocol, explored state by state; and each of its rules, broken, is noticed there."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from typing import Final

import pytest

from cluster.protocol import SMALL, WIDE, Bounds, Rules, Violation, explore, wander

WALKS: Final = int(os.environ.get("WARREN_TEST_CLUSTER_WALKS", "500"))

JOIN: Final = Bounds(revisions=2, epochs=2, frames=1, in_sync=2)
TAKE_OVER: Final = Bounds(revisions=2, epochs=2, frames=1)
RESTORED: Final = Bounds(revisions=2, epochs=2, frames=1, min_in_sync=2, restores=1, copied=2)
# Where each rule is needed.
NEEDED: Final = {
    "unknown_may_be_done": JOIN,
    "read_settles_nothing": JOIN,
    "set_before_requires_acks": TAKE_OVER,
    "join_needs_all": JOIN,
    "join_requires_acks_first": JOIN,
    "older_epochs_are_refused": TAKE_OVER,
    "only_the_set_stands": JOIN,
    "incarnations_count": Bounds(revisions=2, epochs=2, frames=1, wipes=1, min_in_sync=2),
    "sync_before_commit": TAKE_OVER,
    "epoch_is_synced_before_it_is_sent": Bounds(revisions=2, epochs=2, frames=1, crashes=1),
    "handing_over_writes_nothing": TAKE_OVER,
    "target_has_all": TAKE_OVER,
    "who_hands_over_does_so_for_good": TAKE_OVER,
    "lives_are_compared": replace(RESTORED, copied=1),
    "floor_is_compared": RESTORED,
    "restored_forgets_its_lives": replace(RESTORED, frames=0, crashes=1, copied=3),
    "lives_before_are_kept": replace(RESTORED, crashes=1),
    "lives_are_recorded_when_caught_up": replace(RESTORED, revisions=3, frames=0),
    "commit_waits_for_all": replace(TAKE_OVER, min_in_sync=2),
}


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(each, marks=[pytest.mark.long] if each.crashes or each.wipes or each.restores else [])
        for each in SMALL
    ],
    ids=str,
)
def test_no_state_within_the_bounds_breaks_a_promise(bounds: Bounds) -> None:
    explored = explore(bounds)
    print(f"{bounds}: {explored}")
    assert explored.is_complete and explored.states > 10_000


@pytest.mark.parametrize("bounds", WIDE, ids=str)
def test_no_random_walk_breaks_a_promise(bounds: Bounds) -> None:
    explored = wander(bounds, walks=WALKS)
    print(f"{bounds}: {explored}")
    assert explored.states > 50 * WALKS


def test_every_rule_is_broken_once() -> None:
    assert set(NEEDED) == {field.name for field in fields(Rules)}


@pytest.mark.parametrize("rule", NEEDED)
def test_a_rule_that_is_broken_is_noticed(rule: str) -> None:
    with pytest.raises(Violation):
        explore(NEEDED[rule], Rules(**{rule: False}))
