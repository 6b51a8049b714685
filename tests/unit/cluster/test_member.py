"""What a member decides, one event at a time (member.py). Random worlds of three members are in ``cluster/``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest

from warren.cluster.events import (
    Acknowledge,
    Action,
    AnswerBeacon,
    Appended,
    BeaconAnswered,
    BeaconReceived,
    DiskWaits,
    EpochRefused,
    Event,
    Heard,
    Lead,
    LinkLost,
    LinkRefused,
    NearlyCaughtUp,
    Position,
    Read,
    ReadFailed,
    RecordChanged,
    RecordRead,
    Recovered,
    RefuseEpoch,
    Report,
    RequireAcks,
    Restart,
    SendBeacon,
    Serve,
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
from warren.cluster.member import Founding, Member, Role, Timers
from warren.cluster.record import LeaderBy, Record, Replica, Versioned, removed, taken_over

A, B, C = (Replica(node, f"{node}1") for node in "abc")
X = TypeVar("X", bound=Action)


def record(*in_sync: Replica, leader: Replica = A, epoch: int = 5, least: int = 1) -> Record:
    return Record("s", epoch, leader, LeaderBy.TAKE_OVER, frozenset(in_sync), frozenset("abc"), least)


class Node:
    """A member at time `now`, with what it has asked for."""

    def __init__(self, me: Replica, found: Record | None, *, epoch: int = 5, founding: Founding | None = None) -> None:
        self.now = 100.0
        self.member = Member(me, self.now, position=Position(epoch, 10 if epoch else 0), founding=founding)
        self.revision = 7
        self.beacons: list[SendBeacon] = []
        self.last: list[Action] = []
        assert self.all(Tick()) == [Read()]
        self.all(RecordRead(None if found is None else Versioned(self.revision, found)))

    def all(self, event: Event, after_s: float = 0.0) -> list[Action]:
        self.now += after_s
        self.last = self.member.handle(self.now, event)
        self.beacons += [action for action in self.last if isinstance(action, SendBeacon)]
        return self.last

    def one(self, kind: type[X], event: Event, after_s: float = 0.0) -> X:
        (found,) = of(kind, self.all(event, after_s))
        return found

    def beacon(self, leader: Replica = A, epoch: int = 5, after_s: float = 0.0) -> list[Action]:
        return self.all(BeaconReceived(leader, epoch, 1, {}), after_s)

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


def leader(*in_sync: Replica, least: int = 1) -> Node:
    """Return A, which led before, restarted, took epoch 6 and serves, with the answers of all others."""
    node = Node(A, record(*in_sync, least=least))
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


# --- timers ---


@pytest.mark.parametrize("wrong", [{"suspect_s": 2.0}, {"limit_s": 2.5}, {"grace_s": 2.0}, {"beacon_s": 1.0}])
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
    # Who stands has stopped following: nothing that comes from there changes that.
    node.all(Heard(A))
    assert node.member.role is Role.STANDING


def test_the_longest_log_stands_first_and_the_others_later() -> None:
    node = follower(C)
    node.all(BeaconReceived(A, 5, 2, {B: Position(5, 11)}))
    assert node.all(Tick(), 3.1) == []
    assert of(Swap, node.all(Tick(), 0.2)) != []


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
    for other in (Node(B, None, epoch=0), Node(A, None, founding=Founding("s", 2))):
        assert "recover" in of(Report, other.last)[0].text and of(Swap, other.last) == []


# --- leading ---


def test_a_leader_serves_for_the_limit_after_sending_what_all_have_answered() -> None:
    node = leader(A, B, C)
    began = node.now
    node.all(Tick(), 0.3)
    node.answered(B, C, after_s=0.5)
    node.all(Tick(), 0.1)
    node.answered(B)  # and C no more: what counts is when the beacon was sent that both answered
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


def test_a_transfer_stops_service_before_it_is_proposed_and_until_it_is_settled() -> None:
    node = leader(A, B, C)
    actions = node.all(TransferRequested(B))
    assert [type(action) for action in actions] == [StopServing, Swap]
    (swap,) = of(Swap, actions)
    node.all(SwapUnknown(swap.number))
    node.all(Tick(), 0.25)
    node.answered(B, C)
    node.all(RecordRead(Versioned(node.revision, record(A, B, C, epoch=6))))
    assert not node.member.serves(node.now) and Serve() not in node.last
    assert of(Restart, node.all(RecordChanged(Versioned(9, swap.record)))) != []


def test_a_transfer_to_one_outside_the_set_is_reported_and_nothing_else() -> None:
    assert [type(action) for action in leader(A, B).all(TransferRequested(C))] == [Report]


@pytest.mark.parametrize(
    "event",
    [
        RecordChanged(Versioned(99, record(B, C, leader=B, epoch=7))),
        BeaconReceived(B, 7, 1, {}),
        EpochRefused(B, 7),
    ],
)
def test_a_leader_that_learns_of_a_greater_epoch_restarts_and_does_nothing_more(event: Event) -> None:
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
