"""The decisions of a member, one event at a time (member.py). Random worlds of three members are in ``cluster/``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

import pytest

from warren.cluster.candidacy import Founding
from warren.cluster.events import (
    Acknowledge,
    Action,
    AnswerBeacon,
    Appended,
    AskingEnded,
    AskPositions,
    BeaconAnswered,
    BeaconReceived,
    ChangeRequested,
    CommittedUpTo,
    DisksShort,
    DiskWaits,
    Drained,
    EpochRefused,
    Event,
    GiveWay,
    HandOver,
    Heard,
    KeepLives,
    Lead,
    LifeTold,
    LinkLost,
    LinkRefused,
    NearlyCaughtUp,
    Objected,
    Position,
    PositionTold,
    Read,
    ReadFailed,
    RecordChanged,
    RecordRead,
    Recovered,
    RecoveryRequested,
    RefuseCommand,
    RefuseEpoch,
    Report,
    RequireAcks,
    Restart,
    SendBeacon,
    Serve,
    Standing,
    StopAcknowledging,
    StopServing,
    Swap,
    SwapDone,
    SwapRefused,
    SwapUnknown,
    Synced,
    Tick,
    TransferRequested,
)
from warren.cluster.member import Member, Role
from warren.cluster.record import MAJORITY, Ask, LeaderBy, Life, Record, Replica, Versioned, removed, taken_over
from warren.cluster.timers import Timers

A, B, C = (Replica(node, f"{node}1") for node in "abc")
X = TypeVar("X", bound=Action)


def record(*in_sync: Replica, leader: Replica = A, epoch: int = 5, least: int = 1) -> Record:
    return Record("s", epoch, leader, LeaderBy.TAKE_OVER, frozenset(in_sync), frozenset("abc"), least)


class Node:
    """A member at time `now`, with what it has asked for."""

    def __init__(
        self,
        me: Replica,
        found: Record | None,
        *,
        epoch: int = 5,
        founding: Founding | None = None,
        recovery: Founding | None = None,
        min_in_sync: int | None = None,
        answers: dict[Replica, Standing] | None = None,
        lives: tuple[str, ...] = (),
    ) -> None:
        self.now = 100.0
        position = Position(epoch, 10 if epoch else 0)
        self.member = Member(
            me,
            self.now,
            position=position,
            timers=Timers(limit_s=2.0, grace_s=3.0),
            founding=founding,
            recovery=recovery,
            min_in_sync=min_in_sync,
            lives=lives,
        )
        self.revision = 7
        self.end = 5
        self.beacons: list[SendBeacon] = []
        self.last: list[Action] = []
        behind = Position(0, 0)
        leads = None if found is None else found.leader
        self.answers = {each: Standing(behind, behind) for each in (A, B, C) if each not in (me, leads)}
        if answers is not None:
            self.answers = answers
        assert self.all(Tick()) == [Read()]
        self.all(RecordRead(None if found is None else Versioned(self.revision, found)))

    def all(self, event: Event, after_s: float = 0.0) -> list[Action]:
        self.now += after_s
        self.last = self.member.handle(self.now, event)
        for asked in of(AskPositions, self.last):
            self.last.remove(asked)
            for replica, standing in self.answers.items():
                if replica.node in asked.nodes:
                    told = PositionTold(asked.number, replica.node, replica, standing)
                    self.last += self.member.handle(self.now, told)
            self.last += self.member.handle(self.now, AskingEnded(asked.number))
        self.beacons += [action for action in self.last if isinstance(action, SendBeacon)]
        return self.last

    def one(self, kind: type[X], event: Event, after_s: float = 0.0) -> X:
        (found,) = of(kind, self.all(event, after_s))
        return found

    def beacon(self, leader: Replica = A, epoch: int = 5, after_s: float = 0.0) -> list[Action]:
        return self.all(BeaconReceived(leader, epoch, 1), after_s)

    def answered(self, *replicas: Replica, after_s: float = 0.0) -> list[Action]:
        """Let replicas answer the last beacon."""
        self.now += after_s
        last = self.beacons[-1]
        return [each for replica in replicas for each in self.all(BeaconAnswered(replica, last.epoch, last.number))]

    def done(self, swap: Swap) -> list[Action]:
        self.revision += 1
        return self.all(SwapDone(swap.number, self.revision))


def of(kind: type[X], actions: Sequence[Action]) -> list[X]:
    return [action for action in actions if isinstance(action, kind)]


def leader(*in_sync: Replica, least: int = 1, lives: tuple[str, ...] = (), min_in_sync: int | None = None) -> Node:
    """Return A, which led before, restarted, took epoch 6 and serves, with the answers of all others."""
    node = Node(A, record(*in_sync, least=least), lives=lives, min_in_sync=min_in_sync)
    (swap,) = of(Swap, node.last)
    assert node.done(swap)[-1] == SendBeacon(6, 1) and Lead(6) in node.last
    node.answered(*(set(in_sync) - {A}))
    assert Serve() in node.all(Recovered()) and node.member.role is Role.LEADING
    return node


def follower(me: Replica = B, *in_sync: Replica) -> Node:
    node = Node(me, record(*(in_sync or (A, B, C))))
    assert node.last == []
    assert node.beacon() == [Acknowledge(A, 5), AnswerBeacon(A, 5, 1)]
    return node


# --- disks ---


def passes(node: Node, seconds: float, *, own: bool, others: Sequence[Replica]) -> list[GiveWay]:
    """Let the log grow all the time; say which disks carry it out."""
    given: list[GiveWay] = []
    for _ in range(int(seconds * 10)):
        node.now += 0.1
        node.end += 10
        given += of(GiveWay, node.all(Appended(node.end)))
        node.answered(B, C)
        for replica in (*others, *([A] if own else [])):
            given += of(GiveWay, node.all(Synced(replica, node.end)))
    return given


def long_leader() -> Node:
    node = leader(A, B, C, least=2)
    for replica in (A, B, C):
        node.all(Synced(replica, 5))
    assert passes(node, 15.0, own=True, others=(B, C)) == []
    return node


def test_a_leader_for_whose_disk_all_wait_gives_way_after_some_seconds_and_says_why() -> None:
    node = long_leader()
    assert node.member.trouble_of_disk() == ""
    assert passes(node, 2.0, own=False, others=(B, C)) == []
    assert "slower" in node.member.trouble_of_disk()
    given = passes(node, 1.0, own=False, others=(B, C))
    assert len(given) == 1 and given[0].target in (B, C)
    assert passes(node, 4.0, own=False, others=(B, C)) == [], "it is not asked for all the time"
    assert len(passes(node, 2.0, own=False, others=(B, C))) == 1


def test_a_pause_makes_nobody_give_way_and_nobody_gives_way_to_one_that_is_as_slow() -> None:
    node = long_leader()
    for _ in range(3):
        assert passes(node, 2.0, own=False, others=(B, C)) == []
        assert passes(node, 6.0, own=True, others=(B, C)) == []
    node = long_leader()
    (given,) = passes(node, 4.0, own=False, others=(C,))[:1]
    assert given.target == C
    node = long_leader()
    assert passes(node, 20.0, own=False, others=()) == []


def test_a_leader_without_space_gives_way_to_one_that_has_space_also_while_nothing_is_written() -> None:
    node = long_leader()
    node.all(DisksShort(frozenset({A.node, B.node})))
    given: list[GiveWay] = []
    for _ in range(40):
        given += of(GiveWay, node.all(Tick(), 0.1))
        node.answered(B, C)
    assert [each.target for each in given] == [C] and "full" in given[0].reason
    node.all(DisksShort(frozenset({A.node, B.node, C.node})))
    for _ in range(100):
        assert not of(GiveWay, node.all(Tick(), 0.1))
        node.answered(B, C)


def test_nobody_gives_way_soon_after_it_began_to_lead() -> None:
    node = leader(A, B, C, least=2)
    for replica in (A, B, C):
        node.all(Synced(replica, 5))
    assert passes(node, 9.0, own=False, others=(B, C)) == []
    assert len(passes(node, 2.0, own=False, others=(B, C))) == 1


# --- lives of the directory ---


def lived(life: str, floor: tuple[int, int] = (5, 8), *in_sync: Replica, least: int = 2, head: Replica = A) -> Record:
    """Return a record that knows a life of B, and how far was committed then."""
    found = record(*(in_sync or (A, B, C)), leader=head, least=least)
    return dataclasses.replace(found, lives=frozenset({Life("b", life)}), floor=floor)


@pytest.mark.parametrize(
    ("life", "floor"), [("an older one", (5, 8)), ("b1", (5, 11)), ("b1", (6, 1)), ("b2", (5, 11)), ("b9", (5, 8))]
)
def test_a_restored_directory_forgets_its_lives_leaves_the_set_and_never_stands(
    life: str, floor: tuple[int, int]
) -> None:
    node = Node(B, lived(life, floor), lives=("b1", "b2", "b3"))
    keep, report, swap = node.last
    assert keep == KeepLives(("b3",)) and isinstance(swap, Swap) and swap.record.in_sync == {A, C}
    assert isinstance(report, Report) and "older than it was: its log ended at LSN 10 of epoch 5" in report.text
    assert node.member.trouble_of_directory() == report.text
    node.all(SwapRefused(swap.number))
    node.all(RecordRead(Versioned(8, lived(life, floor, B, C, head=C))))
    for _ in range(20):
        assert of(Swap, node.all(Tick(), 1.0)) == [], "two have to be in sync, so it stays and does not stand"
    # It has been caught up: the leader has its life on record.
    node.all(RecordRead(Versioned(9, lived("b3", (7, 50), B, C, head=C))))
    assert node.member.trouble_of_directory() == ""
    assert of(Swap, node.all(Tick(), 5.0)) != []


def test_a_restored_node_does_not_lead_by_a_transfer_that_was_under_way() -> None:
    node = Node(B, lived("an older one", (5, 8)), lives=("b1", "b2"))
    handed_over = lived("an older one", (5, 8), A, B, head=B)
    handed_over = dataclasses.replace(handed_over, epoch=6, by=LeaderBy.TRANSFER)
    assert of(Lead, node.all(RecordChanged(Versioned(8, handed_over)))) == []
    assert node.member.role is Role.FOLLOWING


@pytest.mark.parametrize(("life", "kept"), [("b1", ()), ("b2", ("b2", "b3")), ("b3", ("b3",))])
def test_a_directory_that_knows_its_life_stands_and_forgets_those_before(life: str, kept: tuple[str, ...]) -> None:
    node = Node(B, lived(life), lives=("b1", "b2", "b3"))
    assert of(KeepLives, node.last) == ([KeepLives(kept)] if kept else [])
    node.beacon()
    swap = node.one(Swap, Tick(), 3.1)
    assert swap.record.life_of(B) == "b3"


def test_a_directory_is_compared_with_the_floor_at_the_start_only() -> None:
    node = Node(B, lived("b1", (5, 8)), lives=("b1", "b2"))
    assert of(KeepLives, node.all(RecordChanged(Versioned(8, lived("b1", (5, 800)))))) == []
    assert node.member.trouble_of_directory() == ""
    # A late change may add it with an earlier life.
    assert of(KeepLives, node.all(RecordChanged(Versioned(9, lived("b0", (5, 800)))))) == [KeepLives(("b2",))]
    assert node.member.trouble_of_directory() != ""


def test_a_record_without_lives_is_that_of_an_older_version_and_gets_none_in_a_take_over() -> None:
    node = Node(B, record(A, B, C), lives=("b1",))
    assert of(KeepLives, node.last) == []
    node.beacon()
    assert node.one(Swap, Tick(), 3.1).record.lives == frozenset()


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


# --- timers ---


@pytest.mark.parametrize("wrong", [{"suspect_s": 2.0}, {"limit_s": 2.5}, {"grace_s": 1.9}, {"beacon_s": 1.0}])
def test_timers_that_would_break_a_promise_are_refused(wrong: dict[str, float]) -> None:
    Timers()
    with pytest.raises(ValueError, match="has to be"):
        Timers(**wrong)


# --- following and standing ---


def test_a_follower_stands_when_the_grace_time_is_over_and_acknowledges_nothing_then() -> None:
    node = follower()
    assert node.all(Tick(), 2.999) == []
    assert node.member.wake_at_s(node.now) == pytest.approx(node.now + 0.001)
    actions = node.all(Tick(), 0.001)
    (swap,) = of(Swap, actions)
    assert actions == [StopAcknowledging(), swap] and swap.revision == 7
    assert swap.record == taken_over(record(A, B, C), B, 5)


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


def test_the_longest_log_stands_first_and_the_others_later() -> None:
    node = follower(C)
    node.answers[B] = Standing(Position(5, 11), Position(5, 10))
    assert node.all(Tick(), 3.1) == []
    assert of(Swap, node.all(Tick(), 0.2)) != []


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
    assert of(Swap, node.all(Tick(), 3.1)) == []
    assert of(Swap, node.all(Tick(), 0.2)) != []


def test_the_set_of_a_take_over_is_who_answers() -> None:
    node = Node(B, record(A, B, C, least=2))
    node.beacon()
    node.answers = {A: Standing(Position(5, 9), Position(5, 9))}
    swap = node.one(Swap, Tick(), 3.1)
    assert swap.record.in_sync == {A, B}  # the one that is cut off is not waited for


def test_a_process_that_is_gone_is_replaced_soon() -> None:
    node = follower()
    assert node.all(LinkRefused(A)) == []  # that says nothing while the link is there
    node.all(LinkLost(A))
    assert node.all(LinkRefused(C)) == [] and node.all(Tick(), 0.4) == []
    assert of(Swap, node.all(LinkRefused(A))) != []


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


def test_nothing_is_known_before_the_first_read() -> None:
    member = Member(B, 0.0, position=Position(5, 10))
    named = Record("s", 6, B, LeaderBy.TRANSFER, frozenset((A, B)), frozenset("abc"), 1)
    assert member.handle(0.0, RecordChanged(Versioned(8, named))) == [Read()] and member.record is None


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


# --- leading ---


def test_a_leader_serves_for_the_limit_after_sending_what_all_have_answered() -> None:
    node = leader(A, B, C)
    began = node.now
    node.all(Tick(), 0.3)
    node.answered(B, C, after_s=0.5)
    node.all(Tick(), 0.1)
    node.answered(B)  # and C does not: the time of the beacon that both answered counts
    limit = began + 0.3 + 2.0
    assert node.member.serves(limit - 0.001) and not node.member.serves(limit)
    node.now = limit
    assert StopServing() in node.all(Tick())


def test_a_late_answer_to_an_old_beacon_is_worth_what_that_one_is_worth() -> None:
    node = leader(A, B)
    old = node.beacons[-1]
    for _ in range(7):
        node.all(Tick(), 0.25)
    node.all(BeaconAnswered(B, old.epoch, old.number), 0.2)
    assert not node.member.serves(node.now + 0.1)


def test_a_set_of_one_needs_no_promise() -> None:
    node = leader(A)
    assert node.member.serves(node.now + 1e9)


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
    """Let the answers of some take half a second, for a while; return what comes of it with the first change."""
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


def test_a_leader_whose_disk_hangs_is_silent() -> None:
    node = leader(A, B)
    node.all(DiskWaits(node.now))
    assert of(SendBeacon, node.all(Tick(), 1.9)) != []
    assert of(SendBeacon, node.all(Tick(), 0.3)) == []


# --- handing over ---


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
        (drained(A, B), "hands over to b already"),
    ):
        (refusal,) = of(RefuseCommand, place.all(TransferRequested("b")))
        assert why in refusal.reason
    recovering = Node(A, record(A, B))
    (swap,) = of(Swap, recovering.last)
    recovering.done(swap)
    (refusal,) = of(RefuseCommand, recovering.all(TransferRequested("b")))
    assert "recovers" in refusal.reason


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


# --- what administrators ask for ---


def test_a_node_that_is_gone_is_forgotten_and_one_that_is_there_is_not() -> None:
    node = leader(A, B)
    for event in (ChangeRequested(Ask.FORGET, "b"), ChangeRequested(Ask.FORGET, "c", True)):
        assert "stop it first" in of(RefuseCommand, node.all(event))[0].reason and of(Swap, node.last) == []
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


SURVIVOR = Founding("s", 2)


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
        (leader(A, B), "nothing has to be recovered"),
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
    assert "start the node again" in of(RefuseCommand, node.all(RecoveryRequested(True, 1000)))[0].reason


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


def test_what_is_drained_without_a_transfer_means_nothing() -> None:
    node = leader(A, B)
    assert of(StopServing, node.all(Drained(20))) == [] and node.member.serves(node.now)


@pytest.mark.parametrize(
    "event",
    [
        RecordChanged(Versioned(99, record(B, C, leader=B, epoch=7))),
        BeaconReceived(B, 7, 1),
        EpochRefused(B, 7),
        Objected(C, Position(5, 40)),
    ],
)
def test_a_leader_that_learns_of_a_greater_epoch_or_of_what_it_lacks_restarts(
    event: Event,
) -> None:
    node = leader(A, B, C)
    actions = node.all(event)
    assert [type(action) for action in actions] == [StopServing, Restart]
    assert node.all(Tick(), 1.0) == [] and not node.member.serves(node.now)


def test_a_leader_goes_on_for_hours_without_etcd_while_all_answer() -> None:
    node = leader(A, B, C)
    for _ in range(4 * 3600):
        node.all(Tick(), 0.26)
        node.answered(B, C)
        assert node.member.serves(node.now)
    assert of(Swap, node.last) == []


def test_a_leader_without_the_answers_it_needs_reads_the_record_again_and_ends_when_another_one_leads() -> None:
    node = leader(A, B, least=2)
    known = record(A, B, epoch=6, least=2)
    began = node.now
    node.answered(B)
    for _ in range(3):
        while not of(Read, node.all(Tick(), 0.25)):
            assert node.now < began + 10.0
        assert not node.member.serves(node.now)
        node.all(RecordRead(Versioned(node.revision, known)))
    node.answered(B)
    assert node.member.serves(node.now)
    for _ in range(40):
        assert not of(Read, node.all(Tick(), 0.25))
        node.answered(B)
    taken = taken_over(known, B, 6)
    assert isinstance(taken, Record)
    while not of(Read, node.all(Tick(), 0.25)):
        pass
    assert of(Restart, node.all(RecordRead(Versioned(node.revision + 1, taken))))


def test_a_replica_that_leaves_while_etcd_is_away_stops_service_until_etcd_is_back() -> None:
    node = leader(A, B, C)
    swap = node.one(Swap, LinkLost(C))
    node.all(SwapUnknown(swap.number))
    for _ in range(40):
        for action in node.all(Tick(), 0.26):
            if isinstance(action, Read):
                node.all(ReadFailed())
        node.answered(B)
    assert not node.member.serves(node.now)
    node.one(Read, Tick(), 0.26)
    (again,) = of(Swap, node.all(RecordRead(Versioned(node.revision, record(A, B, C, epoch=6)))))
    assert again.record == removed(record(A, B, C, epoch=6), A, 6, C)
    node.done(again)
    assert node.member.serves(node.now)


@pytest.mark.parametrize("found", [None, Versioned(3, record(A, B, C, epoch=6))])
def test_a_leader_whose_record_is_gone_or_older_asks_etcd_now_and_then(found: Versioned | None) -> None:
    """Each of its proposals would be refused, and be made again as soon as etcd has answered."""
    node = leader(A, B, C)
    swap = node.one(Swap, LinkLost(C))
    assert Read() in node.all(SwapRefused(swap.number))
    for _ in range(20):
        actions = node.all(RecordRead(found))
        assert of(Swap, actions) == [] and of(Read, actions) == []
        for _ in range(4):
            assert of(Read, node.last) == [] and of(Swap, node.last) == []
            node.all(Tick(), 0.065)
            node.answered(B)
            if of(Read, node.last):
                break
    assert node.member.role is Role.LEADING
    (again,) = of(Swap, node.all(RecordChanged(Versioned(30, record(A, B, C, epoch=6)))))
    assert again.record.in_sync == {A, B}


def test_a_command_that_etcd_has_not_taken_keeps_no_later_one_out() -> None:
    node = leader(A, B, C)
    swap = node.one(Swap, ChangeRequested(Ask.DRAIN, "b"))
    node.all(SwapUnknown(swap.number))
    for _ in range(25):
        if of(Read, node.all(Tick(), 0.26)):
            node.all(ReadFailed())
        node.answered(B, C)
    assert of(RefuseCommand, node.all(ChangeRequested(Ask.DRAIN, "c"))) == []


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


def test_a_record_of_an_older_epoch_is_reported_and_changes_nothing() -> None:
    node = leader(A, B)
    actions = node.all(RecordChanged(Versioned(99, record(A, B, epoch=3))))
    assert "backup" in of(Report, actions)[0].text and node.member.serves(node.now)


def test_the_wake_up_is_always_in_the_future() -> None:
    for node in (leader(A, B, C), leader(A, B, least=2), follower()):
        for _ in range(100):
            wake_at = node.member.wake_at_s(node.now)
            assert wake_at > node.now
            node.all(Tick(), min(wake_at, node.now + 10.0) - node.now)
