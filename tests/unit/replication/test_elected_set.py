"""Which nodes must have a commit if a member decides that: an elected leader's set, without a member and nodes.

The numbers in parentheses are the invariants in the header of ``warren/replication/elected_set.py``.
"""

from __future__ import annotations

from warren.cluster.events import (
    Appended,
    BeaconAnswered,
    DiskWaits,
    EpochRefused,
    Event,
    Heard,
    LinkLost,
    NearlyCaughtUp,
    Recovered,
    Synced,
)
from warren.cluster.record import LeaderBy, Record
from warren.cluster.record import Replica as RecordedReplica
from warren.replication.elected_set import ElectedSet, recorded
from warren.replication.handshake import Node
from warren.replication.in_sync import Replica

ME = Node("one", b"1" * 16)
TWO = Node("two", b"2" * 16)


class Member:
    """Keeps the reports that it gets; requires two nodes when one has nearly caught up."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.requires_near = True
        self.set = ElectedSet(ME, self.tell, 0.0)

    def tell(self, event: Event) -> None:
        self.told.append(event)
        if isinstance(event, NearlyCaughtUp) and self.requires_near:
            self.require(ME, TWO)

    def require(self, *nodes: Node) -> None:
        self.set.require(frozenset(map(recorded, nodes)), 0.0)

    def record(self, *nodes: Node, least: int = 1) -> None:
        names = frozenset(node.name for node in nodes)
        replicas = frozenset(map(recorded, nodes))
        self.set.learn(Record("s", 1, recorded(ME), LeaderBy.FIRST, replicas, names, least), 0.0)

    def has(self, lsn: int, now_s: float = 0.0) -> bool:
        return self.set.has(lsn, synced=True, now_s=now_s)

    def follower(self, lsn: int) -> Replica:
        """Return a follower that is sent what is written, and has it up to there."""
        replica = self.set.connected(TWO, 0.0)
        replica.is_live = True
        self.set.acknowledged(replica, lsn, lsn, 0.0)
        return replica

    def alone(self) -> None:
        self.record(ME)
        self.require(ME)


def test_no_commit_is_complete_before_the_member_has_said_whose_acks_it_needs() -> None:
    """(1)"""
    member = Member()
    assert not member.has(100)
    member.require(ME)
    assert member.has(100)


def test_a_commit_waits_for_one_that_has_never_been_here() -> None:
    """(1)"""
    member = Member()
    member.record(ME, TWO)
    member.require(ME, TWO)
    assert not member.has(100)
    member.follower(99)
    assert not member.has(100)
    member.follower(100)
    assert member.has(100)


def test_what_is_committed_first_says_that_the_epoch_has_begun_once() -> None:
    member = Member()
    member.alone()
    assert member.has(100) and member.has(200)
    assert member.told == [Recovered()]


def test_who_is_near_takes_note_when_the_member_requires_its_acks() -> None:
    """(2)"""
    member = Member()
    member.alone()
    assert member.has(100)
    replica = member.follower(100)
    member.requires_near = False
    assert member.set.joiners(0.0) == []
    assert member.told[-1] == NearlyCaughtUp(recorded(TWO))
    assert member.has(200)
    member.set.acknowledged(replica, 200, 200, 0.0)
    member.requires_near = True
    assert member.set.joiners(0.0) == [replica]
    assert not member.has(300)
    assert member.set.joiners(0.0) == []


def test_the_member_hears_of_acks_when_the_follower_has_taken_note() -> None:
    """(2)"""
    member = Member()
    member.alone()
    replica = member.follower(100)
    member.set.joiners(0.0)
    member.told.clear()
    member.set.tell_progress(150, 7.0)
    assert member.told == [DiskWaits(7.0), Appended(150)]
    member.set.noted(replica)
    member.told.clear()
    member.set.tell_progress(150, None)
    assert member.told == [DiskWaits(None), Synced(recorded(TWO), 100), Appended(150)]


def test_the_member_hears_of_the_acks_of_a_member_that_is_back() -> None:
    member = Member()
    member.record(ME, TWO)
    member.require(ME, TWO)
    member.follower(100)
    member.set.tell_progress(150, None)
    assert Synced(recorded(TWO), 100) in member.told


def test_who_is_required_no_more_is_disconnected() -> None:
    """(3)"""
    for is_noted in (False, True):
        member = Member()
        member.alone()
        replica = member.follower(100)
        member.set.joiners(0.0)
        if is_noted:
            member.set.noted(replica)
        assert member.set.stragglers(0.0) == []
        member.require(ME)
        assert member.set.stragglers(0.0) == [replica]
        assert member.set.joiners(0.0) == []  # not on this connection
        assert member.has(200)


def test_the_member_hears_of_answers_refusals_and_lost_links() -> None:
    member = Member()
    replica = member.follower(100)
    member.set.answered(replica, 3, 7)
    member.set.refused(replica, 4)
    member.set.takes(replica, 0.0)
    member.set.disconnected(replica, 0.0)
    two = recorded(TWO)
    assert member.told == [BeaconAnswered(two, 3, 7), EpochRefused(two, 4), Heard(two), LinkLost(two)]


def test_a_link_in_the_place_of_another_one_is_the_end_of_that() -> None:
    """The member would take its acknowledgements over the first link for what it has now."""
    member = Member()
    member.follower(100)
    member.told.clear()
    member.set.connected(TWO, 5.0)
    assert member.told == [LinkLost(recorded(TWO))]


def test_a_record_may_name_replicas_that_are_no_nodes_and_commits_wait_for_them() -> None:
    member = Member()
    member.set.require(frozenset({recorded(ME), RecordedReplica("x", "not hexadecimal")}), 0.0)
    assert not member.has(1)


def test_the_alarm_goes_by_what_the_record_requires() -> None:
    member = Member()
    member.record(ME, TWO, least=2)
    member.require(ME, TWO)
    assert member.set.is_short(5.0)
    replica = member.follower(1)
    member.set.acknowledged(replica, 1, 1, 5.0)
    assert not member.set.is_short(5.0)
