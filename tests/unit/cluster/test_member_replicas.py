"""The set of a leader: which replicas leave and join it, and whose acks commits need (leadership.py, peers.py)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from unit.cluster.member_node import A, B, C, Node, leader, of

from warren.cluster.events import (
    Action,
    Appended,
    BeaconAnswered,
    Event,
    Heard,
    LinkLost,
    NearlyCaughtUp,
    Read,
    RecordRead,
    Report,
    RequireAcks,
    Swap,
    SwapUnknown,
    Synced,
    Tick,
)
from warren.cluster.record import Replica, Versioned


def test_a_silent_replica_leaves_the_set_and_its_acks_are_required_until_that_is_known() -> None:
    node = leader(A, B, C)
    for _ in range(3):
        node.all(Tick(), 0.25)
        node.answered(B)
    (swap,) = of(Swap, node.all(Tick(), 0.3))
    assert swap.record.in_sync == {A, B} and of(RequireAcks, node.last) == []
    assert of(RequireAcks, node.done(swap)) == [RequireAcks(frozenset({A, B}))]


def test_a_closed_link_is_silence_at_once_but_the_set_stays_large_enough() -> None:
    assert leader(A, B, C, least=2).one(Swap, LinkLost(C)).record.in_sync == {A, B}
    assert of(Swap, leader(A, B, least=2).all(LinkLost(B))) == []


def slow_down(node: Node, slow: Sequence[Replica], quick: Sequence[Replica]) -> list[Action]:
    """Delay the answers of some by half a second, for a while; return what comes of it with the first change."""
    late: list[list[Event]] = [[], []]
    for _ in range(60):
        actions = node.all(Tick(), 0.26)
        last = node.beacons[-1]
        late.append([BeaconAnswered(each, last.epoch, last.number) for each in slow])
        for event in [*late.pop(0), *(BeaconAnswered(each, last.epoch, last.number) for each in quick)]:
            actions = [*actions, *node.all(event)]
        if of(Swap, actions):
            return actions
    return []


def test_a_replica_behind_a_slow_link_leaves_and_stays_out_while_others_are_quick() -> None:
    node = leader(A, B, C, least=2)
    actions = slow_down(node, [C], [B])
    (swap,), (report,) = of(Swap, actions), of(Report, actions)
    assert swap.record.in_sync == {A, B}
    assert "a round trip to c takes more than 0.4 s" in report.text
    node.done(swap)
    for _ in range(8):
        node.answered(B)
        node.all(Tick(), 0.26)
    assert of(RequireAcks, node.all(NearlyCaughtUp(C))) == []
    # With the other one gone commits need it.
    node.all(LinkLost(B))
    node.answered(C)
    (acks,) = of(RequireAcks, node.all(NearlyCaughtUp(C)))
    assert C in acks.replicas


def test_nobody_leaves_for_a_slow_link_when_too_few_are_quick() -> None:
    assert slow_down(leader(A, B, C, least=2), [B, C], []) == []
    assert slow_down(leader(A, B, least=2), [B], []) == []
    assert slow_down(leader(A, B, C, least=3), [C], [B]) == []


def test_nobody_is_removed_while_too_few_answer_to_confirm_anything() -> None:
    node = leader(A, B, C, least=2)
    assert of(Swap, node.all(Tick(), 1.1)) == []
    (swap,) = of(Swap, node.answered(B))
    assert swap.record.in_sync == {A, B}


def test_a_replica_that_answers_and_syncs_nothing_leaves_the_set() -> None:
    node = leader(A, B, C)
    node.all(Appended(11))
    node.all(Synced(B, 11))
    for _ in range(3):
        node.all(Tick(), 0.25)
        node.answered(B, C)
    assert of(Swap, node.last) == []
    node.all(Tick(), 0.25)
    (swap,) = of(Swap, node.last)
    assert swap.record.in_sync == {A, B}


def test_a_replica_that_takes_what_it_is_sent_stays_and_is_not_served_for() -> None:
    node = leader(A, B)
    node.all(Appended(11))
    for _ in range(9):
        node.all(Tick(), 0.25)
        node.all(Heard(B))
    assert node.member.record is not None and node.member.record.in_sync == {A, B} and of(Swap, node.last) == []
    assert not node.member.serves(node.now)
    assert node.member.silence_s(node.now + 2) == pytest.approx(2)


def test_a_replica_joins_when_it_has_what_was_there_as_its_acks_became_required() -> None:
    node = leader(A, B)
    node.all(Appended(20))
    node.all(Synced(B, 20))
    assert node.one(RequireAcks, NearlyCaughtUp(C)).replicas == {A, B, C}
    node.all(Appended(25))
    assert of(Swap, node.all(Synced(C, 19))) == []
    swap = node.one(Swap, Synced(C, 20))
    assert swap.record.in_sync == {A, B, C}
    assert of(RequireAcks, node.done(swap)) == []


def test_a_replica_that_comes_late_has_the_time_to_make_progress_from_when_it_joins() -> None:
    node = leader(A, B)
    node.all(Appended(20))
    node.all(Synced(B, 20))
    for _ in range(4):
        node.answered(B, C)
        node.all(Tick(), 0.5)
    node.answered(B, C)
    assert node.one(RequireAcks, NearlyCaughtUp(C)).replicas == {A, B, C}
    assert of(RequireAcks, node.all(Tick(), 0.1)) == []


def test_how_far_a_replica_was_before_its_link_was_lost_does_not_count_when_it_joins() -> None:
    node = leader(A, B)
    node.all(Appended(20))
    node.all(Synced(B, 20))
    node.all(Synced(C, 20))
    node.all(LinkLost(C))
    node.answered(B, C)
    assert node.one(RequireAcks, NearlyCaughtUp(C)).replicas == {A, B, C}
    assert of(Swap, node.all(Tick(), 0.01)) == []
    assert node.one(Swap, Synced(C, 20)).record.in_sync == {A, B, C}


def test_a_replica_that_vanishes_while_it_joins_holds_nothing_up_once_that_is_settled() -> None:
    node = leader(A, B)
    node.all(NearlyCaughtUp(C))
    swap = node.one(Swap, Synced(C, 1))
    node.all(SwapUnknown(swap.number))
    node.all(LinkLost(C))
    node.one(Read, Tick(), 0.25)
    # It may still be recorded: only another revision says that it will not be.
    known = node.member.record
    assert known is not None
    fence = node.one(Swap, RecordRead(Versioned(node.revision, known)))
    assert of(RequireAcks, node.last) == [] and fence.record == known
    assert of(RequireAcks, node.done(fence)) == [RequireAcks(frozenset({A, B}))]


def test_a_replica_that_left_waits_longer_each_time() -> None:
    node = leader(A, B, C)
    node.done(node.one(Swap, LinkLost(C)))
    assert node.all(NearlyCaughtUp(C)) == []
    node.answered(B, C)
    node.all(Tick(), 1.0)
    node.answered(B, C)
    assert of(RequireAcks, node.all(NearlyCaughtUp(C))) == [RequireAcks(frozenset({A, B, C}))]


def test_acknowledgements_that_repeat_an_answer_do_not_make_a_link_slow() -> None:
    """A replica that acknowledges much repeats the number of the last beacon, and is quick all the same."""
    node = leader(A, B, C, least=2)
    late: list[list[BeaconAnswered]] = [[], []]
    swaps: list[Swap] = []
    before: list[BeaconAnswered] = []
    for _ in range(60):
        swaps += of(Swap, node.all(Tick(), 0.26))
        last = node.beacons[-1]
        late.append([BeaconAnswered(C, last.epoch, last.number)])
        for event in late.pop(0):
            swaps += of(Swap, node.all(event))
        node.now += 0.01
        for event in before:  # what it acknowledges until it has the next beacon
            swaps += of(Swap, node.all(event, 0.17))
        before = [BeaconAnswered(B, last.epoch, last.number)]
        swaps += of(Swap, node.all(before[0]))
        if swaps:
            break
    assert [swap.record.in_sync for swap in swaps] == [{A, B}]
