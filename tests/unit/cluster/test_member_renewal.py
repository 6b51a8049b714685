"""The renewal of the record by a leader: lives, the floor, and how many nodes are required (renewal.py)."""

from __future__ import annotations

import pytest
from unit.cluster.member_node import A, B, C, Node, leader, of, record

from warren.cluster.events import Appended, CommittedUpTo, LifeTold, NearlyCaughtUp, Swap, Synced, Tick
from warren.cluster.record import MAJORITY, Life


def test_a_leader_records_lives_when_all_that_are_assigned_have_told_theirs() -> None:
    node = leader(A, B, C, least=2, lives=("a1", "a2"))
    node.all(CommittedUpTo(20))
    assert of(Swap, node.all(LifeTold(B, "b1"))) == []
    (swap,) = of(Swap, node.all(LifeTold(C, "c1")))
    assert swap.record.lives == {Life("a", "a2"), Life("b", "b1"), Life("c", "c1")}
    assert swap.record.floor == (6, 20)
    node.done(swap)
    # How far is committed is recorded now and then, and a life at once.
    node.answered(B, C)
    assert of(Swap, node.all(CommittedUpTo(30), 0.3)) == []
    (swap,) = of(Swap, node.all(LifeTold(B, "b2")))
    assert swap.record.life_of(B) == "b2" and swap.record.floor == (6, 20)
    node.done(swap)
    began_s = node.now
    swaps: list[Swap] = []
    while not swaps:
        swaps = of(Swap, [*node.all(Tick(), 0.24), *node.answered(B, C)])
    assert swaps[0].record.floor == (6, 30) and node.now - began_s == pytest.approx(10.0, abs=1.0)


def test_a_replica_joins_with_its_life_where_lives_are_recorded() -> None:
    node = leader(A, B, least=2, lives=("a1",))
    node.all(CommittedUpTo(20))
    node.all(LifeTold(B, "b1"))
    node.done(node.one(Swap, LifeTold(C, "c1")))
    node.all(Appended(20))
    node.all(NearlyCaughtUp(C))
    swap = node.one(Swap, Synced(C, 20))
    assert swap.record.life_of(C) == "c1"


@pytest.mark.parametrize(("wanted", "least"), [(MAJORITY, 2), (1, 1), (3, 3)])
def test_a_leader_has_the_record_require_what_its_settings_say(wanted: int, least: int) -> None:
    recorded = 2 if least == 1 else 1
    node = Node(A, record(A, B, C, least=recorded), min_in_sync=wanted)
    (taken,) = of(Swap, node.last)
    assert taken.record.least == recorded
    (swap,) = of(Swap, node.done(taken))
    assert (swap.record.least, swap.record.in_sync, swap.record.epoch) == (least, frozenset({A, B, C}), 6)
    node.done(swap)
    assert of(Swap, node.all(Tick(), 0.1)) == []


def test_a_leader_requires_more_nodes_only_when_these_are_in_sync() -> None:
    node = leader(A, B, least=1, min_in_sync=3)
    assert of(Swap, node.all(Tick(), 0.1)) == []
    assert node.member.record is not None and node.member.record.least == 1
