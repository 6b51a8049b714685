"""A leader that hands over to another replica (handover.py)."""

from __future__ import annotations

import pytest
from unit.cluster.member_node import A, B, C, Node, follower, leader, of, record

from warren.cluster.events import (
    Appended,
    Drained,
    HandOver,
    Heard,
    LinkLost,
    RecordChanged,
    RecordRead,
    RefuseCommand,
    Restart,
    Serve,
    StopServing,
    Swap,
    SwapUnknown,
    Synced,
    Tick,
    TransferRequested,
)
from warren.cluster.record import LeaderBy, Replica, Versioned


def drained(*in_sync: Replica, to: Replica | None = B, lsn: int = 20, least: int = 1) -> Node:
    """Return a leader that hands over, with all written up to there; B has 19 of it, and the others less."""
    node = leader(*in_sync, least=least)
    node.all(Appended(20))
    for other in set(in_sync) - {A}:
        node.all(Synced(other, 19 if other == B else 18))
    assert node.all(TransferRequested(None if to is None else to.node)) == [HandOver(to or B)]
    assert node.member.serves(node.now)
    assert [type(action) for action in node.all(Drained(lsn))] == [StopServing]
    return node


def test_a_transfer_is_proposed_when_nobody_is_served_any_more_and_the_target_has_all() -> None:
    node = drained(A, B, C)
    assert of(Swap, node.all(Synced(C, 20))) == []
    swap = node.one(Swap, Synced(B, 20))
    assert (swap.record.leader, swap.record.epoch, swap.record.by) == (B, 7, LeaderBy.TRANSFER)
    # Whether it comes into force or not, this process serves no more.
    node.all(SwapUnknown(swap.number))
    node.all(Tick(), 0.25)
    node.answered(B, C)
    again = node.one(Swap, RecordRead(Versioned(node.revision, record(A, B, C, epoch=6))))
    assert again.record == swap.record
    assert not node.member.serves(node.now) and Serve() not in node.last
    assert of(Restart, node.all(RecordChanged(Versioned(9, swap.record)))) != []


def test_who_hands_over_leaves_the_set_if_enough_remain() -> None:
    """Its process restarts: the next leader would wait for it."""
    assert drained(A, B, C, least=2).one(Swap, Synced(B, 20)).record.in_sync == {B, C}
    assert drained(A, B, least=2).one(Swap, Synced(B, 20)).record.in_sync == {A, B}


def test_without_a_name_who_has_most_of_the_log_is_the_next_leader() -> None:
    drained(A, B, C, to=None)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("a", "leads already"),
        ("c", "not in sync"),
        ("d", "its nodes are a, b, c"),
        ("b", "does not answer"),
        (None, "no other node"),
    ],
)
def test_a_transfer_that_cannot_be_is_refused_and_nothing_else_happens(node: str | None, why: str) -> None:
    place = leader(A, B)
    silent = node in ("b", None)
    if silent:
        place.all(Appended(20))
        place.now += 1.0
    (refusal,) = of(RefuseCommand, place.all(TransferRequested(node)))
    assert why in refusal.reason and of(HandOver, place.last) == []
    assert silent or place.member.serves(place.now)


def test_only_a_leader_that_has_recovered_hands_over_and_only_once() -> None:
    for place, why in (
        (follower(), "does not lead"),
        (drained(A, B), "already handing over to b"),
    ):
        (refusal,) = of(RefuseCommand, place.all(TransferRequested("b")))
        assert why in refusal.reason
    recovering = Node(A, record(A, B))
    (swap,) = of(Swap, recovering.last)
    recovering.done(swap)
    (refusal,) = of(RefuseCommand, recovering.all(TransferRequested("b")))
    assert "recovering" in refusal.reason


def test_another_replica_takes_the_place_of_a_target_that_is_gone() -> None:
    node = drained(A, B, C)
    assert of(HandOver, node.all(LinkLost(B))) == []
    (without_b,) = of(Swap, node.last)
    node.done(without_b)
    assert node.one(Swap, Synced(C, 20)).record.leader == C


def test_a_leader_from_which_nobody_takes_over_in_time_begins_anew() -> None:
    node = drained(A, B)
    for _ in range(11):
        node.all(Tick(), 0.25)
        node.answered(B)
        node.all(Heard(B))
    assert node.member.wake_at_s(node.now) <= node.now + 0.25 and of(Restart, node.last) == []
    assert of(Restart, node.all(Tick(), 0.25)) == [Restart("no other node has taken over in time")]


def test_what_is_drained_without_a_transfer_means_nothing() -> None:
    node = leader(A, B)
    assert of(StopServing, node.all(Drained(20))) == [] and node.member.serves(node.now)
