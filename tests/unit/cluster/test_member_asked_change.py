"""The requests of administrators to a leader: to forget a node, and to drain it (asked_change.py)."""

from __future__ import annotations

import dataclasses

from unit.cluster.member_node import A, B, C, Node, follower, leader, of, record

from warren.cluster.events import (
    Appended,
    ChangeRequested,
    HandOver,
    LinkLost,
    Read,
    ReadFailed,
    RecordRead,
    RefuseCommand,
    RequireAcks,
    Swap,
    SwapUnknown,
    Synced,
    Tick,
    TransferRequested,
)
from warren.cluster.record import Ask, Versioned


def test_a_node_that_is_gone_is_forgotten_and_one_that_is_there_is_not() -> None:
    node = leader(A, B)
    for event in (ChangeRequested(Ask.FORGET, "b"), ChangeRequested(Ask.FORGET, "c", True)):
        assert "stop it for good" in of(RefuseCommand, node.all(event))[0].reason and of(Swap, node.last) == []
    node = leader(A, B, least=2)
    node.all(LinkLost(B))
    assert "2 are required" in of(RefuseCommand, node.all(ChangeRequested(Ask.FORGET, "b")))[0].reason
    swap = node.one(Swap, ChangeRequested(Ask.FORGET, "c"))
    assert swap.record.assigned == {"a", "b"}
    node.done(swap)
    swap = node.one(Swap, ChangeRequested(Ask.FORGET, "b"))
    assert swap.record.in_sync == {A}
    assert of(RequireAcks, node.last) == [], "it may be recorded until that is known"
    assert of(RequireAcks, node.done(swap)) == [RequireAcks(frozenset({A}))]
    assert of(Swap, node.all(Tick(), 0.25)) == []


def test_only_a_leader_changes_something_about_nodes_and_one_thing_at_a_time() -> None:
    assert "does not lead" in of(RefuseCommand, follower().all(ChangeRequested(Ask.DRAIN, "b")))[0].reason
    node = leader(A, B, C)
    swap = node.one(Swap, ChangeRequested(Ask.DRAIN, "b"))
    assert "another change" in of(RefuseCommand, node.all(ChangeRequested(Ask.DRAIN, "c")))[0].reason
    assert of(RefuseCommand, node.all(ChangeRequested(Ask.DRAIN, "b"))) == []
    node.done(swap)
    assert node.one(Swap, ChangeRequested(Ask.DRAIN, "c")).record.drained == {"b", "c"}


def test_what_etcd_does_not_take_in_time_is_not_wanted_any_more() -> None:
    node = leader(A, B)
    swap = node.one(Swap, ChangeRequested(Ask.DRAIN, "b"))
    node.all(SwapUnknown(swap.number))
    for _ in range(20):
        for action in node.all(Tick(), 0.26):
            if isinstance(action, Read):
                node.all(ReadFailed())
        node.answered(B)
    node.one(Read, Tick(), 0.26)
    fence = node.one(Swap, RecordRead(Versioned(node.revision, record(A, B, epoch=6))))
    assert fence.record.drained == frozenset()


def test_a_drained_node_does_not_stand_and_is_the_last_to_be_handed_over_to() -> None:
    drained_b = dataclasses.replace(record(A, B, C), drained=frozenset("b"))
    node = Node(B, drained_b)
    node.beacon()
    for _ in range(3):
        assert of(Swap, node.all(Tick(), 3.5)) == []
        node.all(RecordRead(Versioned(node.revision, drained_b)))
    node = leader(A, B, C)
    node.done(node.one(Swap, ChangeRequested(Ask.DRAIN, "b")))
    node.all(Appended(20))
    node.all(Synced(B, 20))
    assert "revive" in of(RefuseCommand, node.all(TransferRequested("b")))[0].reason
    assert of(HandOver, node.all(TransferRequested())) == [HandOver(C)]


def test_a_command_that_etcd_has_not_taken_keeps_no_later_one_out() -> None:
    node = leader(A, B, C)
    swap = node.one(Swap, ChangeRequested(Ask.DRAIN, "b"))
    node.all(SwapUnknown(swap.number))
    for _ in range(25):
        if of(Read, node.all(Tick(), 0.26)):
            node.all(ReadFailed())
        node.answered(B, C)
    assert of(RefuseCommand, node.all(ChangeRequested(Ask.DRAIN, "c"))) == []
