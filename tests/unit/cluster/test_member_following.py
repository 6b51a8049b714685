"""A member that follows: the beacons that it answers, and its leader's silence (following.py)."""

from __future__ import annotations

from unit.cluster.member_node import A, B, C, follower, of, record

from warren.cluster.events import (
    Acknowledge,
    AnswerBeacon,
    Heard,
    Lead,
    LinkLost,
    LinkRefused,
    Read,
    RecordChanged,
    RecordRead,
    RefuseEpoch,
    StopAcknowledging,
    Swap,
    SwapRefused,
    SwapUnknown,
    Tick,
)
from warren.cluster.member import Role
from warren.cluster.record import Versioned


def test_beacons_put_it_off_and_those_of_smaller_epochs_are_refused() -> None:
    node = follower()
    assert node.beacon(after_s=2.9) == [AnswerBeacon(A, 5, 1)]
    assert node.beacon(C, 4, after_s=2.9) == [RefuseEpoch(C, 5)]
    assert of(Swap, node.all(Tick(), 0.2)) != []


def test_a_leader_whose_beacon_comes_behind_much_else_is_there() -> None:
    node = follower()
    node.all(Heard(A), 2.9)
    node.all(Heard(C), 2.9)
    assert node.all(Tick(), 0.09) == []
    assert of(Swap, node.all(Tick(), 0.02)) != []
    # A candidate has stopped following: input from there does not change that.
    node.all(Heard(A))
    assert node.member.role is Role.STANDING


def test_a_process_that_is_gone_is_replaced_soon() -> None:
    node = follower()
    assert node.all(LinkRefused(A)) == []  # that says nothing while the link is there
    node.all(LinkLost(A))
    assert node.all(LinkRefused(C)) == [] and node.all(Tick(), 0.4) == []
    assert of(Swap, node.all(LinkRefused(A))) != []


def test_a_candidate_answers_nobody_while_its_change_is_under_way_and_follows_again_when_it_is_not() -> None:
    node = follower()
    swap = node.one(Swap, Tick(), 3.0)
    assert node.beacon() == []
    assert Read() in node.all(SwapUnknown(swap.number)) or node.all(Tick(), 0.3) == [Read()]
    assert node.beacon() == [Acknowledge(A, 5), AnswerBeacon(A, 5, 1)]
    # etcd carries it out after all: it leads, and begins when the promise of that answer is over.
    actions = node.all(RecordChanged(Versioned(8, swap.record)), 0.5)
    assert actions[0] == StopAcknowledging() and of(Lead, actions) == []
    assert of(Lead, node.all(Tick(), 2.4)) == []
    assert of(Lead, node.all(Tick(), 0.2)) == [Lead(6)]


def test_a_candidate_that_was_refused_follows_the_one_that_won() -> None:
    node = follower()
    swap = node.one(Swap, Tick(), 3.0)
    assert node.all(SwapRefused(swap.number)) == [Read()]
    assert node.all(RecordRead(Versioned(8, record(B, C, leader=C, epoch=6)))) == []
    assert node.beacon() == [RefuseEpoch(A, 6)]
    assert node.beacon(C, 6) == [Acknowledge(C, 6), AnswerBeacon(C, 6, 1)]
