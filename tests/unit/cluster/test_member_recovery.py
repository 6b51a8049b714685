"""A node that an administrator makes the leader with what it has (candidacy.py)."""

from __future__ import annotations

import pytest
from unit.cluster.member_node import SURVIVOR, A, B, C, Node, leader, of, record

from warren.cluster.candidacy import Founding
from warren.cluster.events import Lead, RecordRead, RecoveryRequested, RefuseCommand, Swap, Tick
from warren.cluster.record import LeaderBy, Record, Versioned


def recovering(found: Record | None) -> Node:
    node = Node(B, found, recovery=SURVIVOR)
    assert "--accept-loss" in of(RefuseCommand, node.all(RecoveryRequested(False, 1000)))[0].reason
    assert of(Swap, node.last) == []
    return node


@pytest.mark.parametrize("found", [None, record(A, C, epoch=7), record(A, B, C, epoch=4, least=3)])
def test_what_a_node_has_becomes_the_truth_beyond_all_epochs_that_are_known(found: Record | None) -> None:
    node = recovering(found)
    swap = node.one(Swap, RecoveryRequested(True, 1000))
    known = max(5, 0 if found is None else found.epoch)
    assert (swap.record.epoch, swap.record.leader, swap.record.in_sync) == (known + 1001, B, frozenset({B}))
    assert (swap.record.by, swap.record.min_in_sync) == (LeaderBy.RECOVERY, 2 if found is None else found.min_in_sync)
    assert swap.revision == (0 if found is None else 7)
    node.revision = swap.revision
    node.done(swap)
    assert of(Lead, [*node.last, *node.all(Tick(), 3.0)]) == [Lead(known + 1001)]


def test_nothing_is_recovered_while_somebody_leads_or_of_an_empty_node() -> None:
    request = RecoveryRequested(True, 1000)
    following = Node(B, record(A, C), recovery=SURVIVOR)
    following.beacon()
    for place, why in (
        (following, "a leads, and answers"),
        (leader(A, B), "nothing needs recovery"),
        (Node(B, None, epoch=0, founding=Founding("s", 2)), "no messages"),
    ):
        assert why in of(RefuseCommand, place.all(request))[0].reason
    assert of(Swap, following.all(Tick(), 0.1)) == []
    # Much later it may be.
    assert of(RefuseCommand, following.all(request, 3.0)) == []
    assert of(Swap, following.all(RecordRead(Versioned(7, record(A, C))))) != []


def test_a_record_that_vanished_is_made_by_a_node_that_was_started_since() -> None:
    node = Node(B, record(A, C), recovery=SURVIVOR)
    node.all(Tick(), 3.0)
    node.all(RecordRead(None))
    assert "restart the node" in of(RefuseCommand, node.all(RecoveryRequested(True, 1000)))[0].reason
