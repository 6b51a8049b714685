"""A member that stands for election, founds a store, or is handed one (candidacy.py)."""

from __future__ import annotations

import pytest
from unit.cluster.member_node import SURVIVOR, A, B, C, Node, follower, of, record

from warren.cluster.candidacy import Founding
from warren.cluster.events import (
    AskPositions,
    DiskWaits,
    Lead,
    LinkLost,
    LinkRefused,
    Position,
    PositionTold,
    Read,
    ReadFailed,
    RecordChanged,
    RecordRead,
    Report,
    Standing,
    StopAcknowledging,
    Swap,
    SwapUnknown,
    Tick,
)
from warren.cluster.member import Role
from warren.cluster.record import LeaderBy, Record, Replica, Versioned, taken_over


def test_a_follower_stands_when_the_grace_time_is_over_and_acknowledges_nothing_then() -> None:
    node = follower()
    assert node.all(Tick(), 2.999) == []
    assert node.member.wake_at_s(node.now) == pytest.approx(node.now + 0.001)
    actions = node.all(Tick(), 0.001)
    (swap,) = of(Swap, actions)
    assert actions == [StopAcknowledging(), swap] and swap.revision == 7
    assert swap.record == taken_over(record(A, B, C), B, 5)


def test_a_node_gives_way_to_a_longer_log_which_may_hold_what_was_confirmed() -> None:
    """A node whose disk had lost the last confirmed commit led, if it was started first: the others cut that off."""
    node = follower(C)
    node.answers[B] = Standing(Position(5, 11), Position(5, 10))
    node.all(Tick(), 2.6)
    for _ in range(24):
        assert node.all(Tick(), 0.2) == []
    actions = node.all(Tick(), 0.5)  # that one may not reach etcd
    assert of(Swap, actions) != []
    (report,) = of(Report, actions)
    assert "with a shorter log than another one, which has not stood: b has LSN 11 of epoch 5" in report.text


def test_a_node_does_not_wait_for_a_longer_log_that_no_longer_answers() -> None:
    node = follower(C)
    node.answers[B] = Standing(Position(5, 11), Position(5, 10))
    assert node.all(Tick(), 3.1) == []
    del node.answers[B]
    assert of(Swap, node.all(Tick(), 4.0)) != []
    assert of(Report, node.last) == []


def test_a_node_gives_way_to_nobody_who_may_not_stand() -> None:
    node = Node(C, record(A, C))
    node.beacon()
    node.answers[B] = Standing(Position(5, 11), Position(5, 10))  # not in the set: all that it has from there is old
    assert of(Swap, node.all(Tick(), 3.1)) != []


def test_a_node_that_reaches_too_few_others_does_not_stand_and_asks_again() -> None:
    node = Node(B, record(A, B, C, least=2))
    node.beacon()
    node.answers.clear()
    (report,) = of(Report, node.all(Tick(), 3.0))
    assert "needs 1 other node(s) to confirm anything, and 0 answer" in report.text
    assert node.member.role is Role.FOLLOWING
    assert node.member.wake_at_s(node.now) == pytest.approx(node.now + 0.5)
    assert node.all(Tick(), 0.5) == []  # said once
    node.answers[C] = Standing(Position(5, 10), Position(5, 10))
    assert of(Swap, node.all(Tick(), 0.5)) != []


def test_a_node_of_an_older_version_counts_and_says_nothing() -> None:
    node = Node(B, record(A, B, C, least=2))
    node.beacon()
    node.now += 2.5
    (asked,) = of(AskPositions, node.member.handle(node.now, Tick()))
    assert asked.nodes == {"a", "c"}
    assert node.all(PositionTold(asked.number, "c")) == [] and node.all(Tick(), 0.49) == []
    assert of(Swap, node.all(Tick(), 0.02)) != []  # the other one has had its time


def test_a_node_that_lacks_what_another_one_has_as_committed_never_stands() -> None:
    node = Node(A, record(A, B, C, least=2), epoch=4, answers={B: Standing(Position(5, 60), Position(5, 40))})
    for _ in range(20):
        assert of(Swap, node.all(Tick(), 1.0)) == []
    # Outside the set that counts, too: it was taken out by a leader that lacked it.
    node.all(RecordChanged(Versioned(8, record(A, C, least=2))))
    for _ in range(20):
        assert of(Swap, node.all(Tick(), 1.0)) == []
    node.answers[B] = Standing(Position(4, 60), Position(4, 10))
    assert of(Swap, node.all(Tick(), 5.0)) != []


def test_a_leader_that_comes_back_waits_when_another_one_has_more() -> None:
    assert of(Swap, Node(A, record(A, B, C)).last) != []
    node = Node(A, record(A, B, C), answers={B: Standing(Position(5, 11), Position(5, 10))})
    assert of(Swap, node.last) == []
    for _ in range(25):
        assert of(Swap, node.all(Tick(), 0.2)) == []
    assert of(Swap, node.all(Tick(), 0.3)) != []


def test_the_set_of_a_take_over_is_who_answers() -> None:
    node = Node(B, record(A, B, C, least=2))
    node.beacon()
    node.answers = {A: Standing(Position(5, 9), Position(5, 9))}
    swap = node.one(Swap, Tick(), 3.1)
    assert swap.record.in_sync == {A, B}  # the one that is cut off is not waited for


@pytest.mark.parametrize("in_sync", [(A, C), (A, Replica("b", "b0"), C)])
def test_who_is_not_in_the_set_never_stands(in_sync: tuple[Replica, ...]) -> None:
    node = follower(B, *in_sync)
    node.all(LinkLost(A))
    node.all(LinkRefused(A))
    for _ in range(5):  # it may have been added since, so it looks again
        assert node.all(Tick(), 3.0) == [Read()]
        assert node.all(RecordRead(Versioned(7, record(*in_sync)))) == []
        assert node.member.wake_at_s(node.now) == pytest.approx(node.now + 3.0)
    assert node.all(Tick(), 3.0) == [Read()]
    assert of(Swap, node.all(RecordRead(Versioned(8, record(A, B))), 4.0)) != []


def test_a_node_whose_disk_hangs_does_not_stand() -> None:
    node = follower()
    node.all(DiskWaits(node.now))
    assert node.all(Tick(), 10.0) == []
    assert of(Swap, node.all(DiskWaits(None))) != []


def test_no_answer_of_etcd_is_taken_for_a_refusal_and_nothing_is_proposed_again_before_a_read() -> None:
    node = follower()
    swap = node.one(Swap, Tick(), 3.0)
    node.all(SwapUnknown(swap.number))
    for _ in range(5):
        assert node.one(Read, Tick(), 0.3)
        node.all(ReadFailed())
    node.one(Read, Tick(), 0.3)
    assert of(Swap, node.all(RecordRead(Versioned(7, record(A, B, C)))))[0].revision == 7


def test_a_transfer_begins_at_once_and_one_to_an_earlier_life_is_stood_for_again() -> None:
    named = Record("s", 6, B, LeaderBy.TRANSFER, frozenset((A, B)), frozenset("abc"), 1)
    assert of(Lead, follower().all(RecordChanged(Versioned(8, named)))) == [Lead(6)]
    (swap,) = of(Swap, Node(B, named).last)
    assert swap.record.epoch == 7


def test_a_new_store_is_begun_by_the_node_that_may_and_by_no_log_without_a_record() -> None:
    node = Node(A, None, epoch=0, founding=Founding("s", 2))
    (swap,) = of(Swap, node.last)
    assert swap.revision == 0 and swap.record.in_sync == {A} and swap.record.epoch == 1
    assert Lead(1) in node.done(swap)
    for other, reason in (
        (Node(B, None, epoch=0), "cluster_first_node"),
        (Node(B, None, recovery=SURVIVOR), "recover"),
        (Node(A, None, founding=Founding("s", 2)), "recover"),
    ):
        assert reason in of(Report, other.last)[0].text and of(Swap, other.last) == []
