"""Which nodes must have a commit, join and leave: the in-sync set of a leader, without nodes and without waiting.

The numbers in parentheses are the invariants in the header of ``warren/replication/in_sync.py``.
"""

from __future__ import annotations

import random

import pytest

from warren.replication.handshake import Node
from warren.replication.in_sync import BACK_OFF_S, SETTLED_S, SUSPECT_S, InSyncSet, Replica

ME = Node("one", b"1" * 16)
TWO = Node("two", b"2" * 16)
THREE = Node("three", b"3" * 16)


def a_set(*others: Node, min_in_sync: int = 1) -> InSyncSet:
    return InSyncSet(ME, frozenset({ME, *others}), min_in_sync, 0.0)


def join(group: InSyncSet, node: Node, lsn: int, now_s: float = 0.0) -> Replica:
    """Make a node connect, catch up, take note of it, and be recorded."""
    replica = group.connected(node, now_s)
    replica.is_live = True
    group.acknowledged(replica, lsn, lsn, now_s)
    assert group.joiners(now_s) == [replica]
    group.noted(replica)
    proposed = group.proposal(now_s)
    if node not in group.members:
        assert proposed is not None
        group.recorded(proposed, now_s)
    return replica


def has(group: InSyncSet, lsn: int, now_s: float = 0.0, *, synced: bool = True) -> bool:
    return group.has(lsn, synced=synced, now_s=now_s)


def test_a_leader_by_itself_waits_for_nobody() -> None:
    group = a_set()
    assert has(group, 100)
    assert group.committed_lsn == 100
    assert group.proposal(0.0) is None


def test_a_commit_is_complete_when_every_member_has_synced_it() -> None:
    """(1)"""
    group = a_set()
    two, three = join(group, TWO, 10), join(group, THREE, 10)
    assert not has(group, 100)
    group.acknowledged(two, 100, 100, 0.0)
    group.acknowledged(three, 100, 99, 0.0)
    assert not has(group, 100)
    assert group.lacks(100, synced=True)
    assert not group.lacks(100, synced=False)
    assert has(group, 100, synced=False)
    assert group.committed_lsn == 0, "written is not committed"
    group.acknowledged(three, 100, 100, 0.0)
    assert not group.lacks(100, synced=True)
    assert has(group, 100)


def test_commits_wait_for_a_node_from_when_it_begins_to_join() -> None:
    """(1), (2)"""
    group = a_set()
    assert has(group, 50)
    two = group.connected(TWO, 0.0)
    two.is_live = True
    group.acknowledged(two, 49, 49, 0.0)
    assert group.joiners(0.0) == []
    assert has(group, 60), "nobody waits for who is behind"
    group.acknowledged(two, 60, 60, 0.0)
    assert group.joiners(0.0) == [two]
    assert group.joiners(0.0) == [], "once"
    assert not has(group, 70)
    assert group.proposal(0.0) is None, "it has not taken note yet"
    group.noted(two)
    assert group.proposal(0.0) == frozenset({ME, TWO})
    assert not has(group, 70), "nor while it is being recorded"
    assert group.members == frozenset({ME})
    assert group.recorded(frozenset({ME, TWO}), 0.0) == []
    assert group.members == frozenset({ME, TWO})
    assert not has(group, 70)


def test_who_is_not_fed_live_does_not_join() -> None:
    group = a_set()
    two = group.connected(TWO, 0.0)
    group.acknowledged(two, 10, 10, 0.0)
    assert group.joiners(0.0) == []


def test_who_leaves_is_waited_for_until_that_is_recorded() -> None:
    """(1)"""
    group = a_set()
    two = join(group, TWO, 10)
    assert not has(group, 20)
    group.disconnected(two, 0.1)
    proposed = group.proposal(0.1)
    assert proposed == frozenset({ME})
    assert not has(group, 20, 0.1)
    assert group.proposal(0.1) is None, "one at a time"
    assert group.recorded(proposed, 0.2) == [two]
    assert has(group, 20, 0.2)


@pytest.mark.parametrize("min_in_sync", [2, 3])
def test_the_set_never_gets_smaller_than_it_may(min_in_sync: int) -> None:
    """(3)"""
    group = a_set(min_in_sync=min_in_sync)
    two, three = join(group, TWO, 10), join(group, THREE, 10)
    group.acknowledged(two, 10, 10, 5.0)
    group.disconnected(two, 5.0)
    group.disconnected(three, 5.0)
    proposed = group.proposal(5.0)
    if min_in_sync == 2:
        assert proposed == frozenset({ME, TWO}), "the one that was heard last stays"
        group.recorded(proposed, 5.0)
    assert group.proposal(6.0) is None
    assert len(group.members) == min_in_sync
    assert group.is_short(6.0)
    assert not has(group, 20, 6.0)


def test_a_set_that_was_never_large_enough_completes_nothing() -> None:
    """(3)"""
    group = a_set(min_in_sync=2)
    assert not has(group, 20)
    assert group.is_short(0.0)
    join(group, TWO, 20)
    assert not group.is_short(0.0)
    assert has(group, 20)


def test_a_member_that_is_silent_leaves_after_a_second() -> None:
    """(4)"""
    group = a_set()
    two = join(group, TWO, 10)
    group.acknowledged(two, 10, 10, 3.0)
    assert group.proposal(3.0 + SUSPECT_S - 0.01) is None
    assert group.proposal(3.0 + SUSPECT_S) == frozenset({ME})


def test_a_member_that_answers_and_does_not_get_on_leaves_when_a_commit_waits_for_it() -> None:
    """(4)"""
    group = a_set()
    two = join(group, TWO, 10)
    for tenths in range(50):
        group.acknowledged(two, 10, 10, tenths / 10)
        assert group.proposal(tenths / 10) is None, "nothing waits for it"
    assert not has(group, 20, 5.0)
    group.acknowledged(two, 10, 10, 5.9)
    assert group.proposal(5.9) is None
    group.acknowledged(two, 15, 10, 5.9)
    group.acknowledged(two, 15, 10, 6.8)
    assert group.proposal(6.8) is None, "it gets on"
    group.acknowledged(two, 15, 10, 6.9 + SUSPECT_S)
    assert group.proposal(6.9 + SUSPECT_S) == frozenset({ME})


def test_members_have_a_second_to_come_back_to_a_leader_that_begins() -> None:
    group = a_set(TWO)
    assert not has(group, 10, 0.0)
    assert group.proposal(SUSPECT_S - 0.01) is None
    assert group.proposal(SUSPECT_S) == frozenset({ME})


def test_a_member_that_comes_back_takes_note_again_and_stays_a_member_meanwhile() -> None:
    group = a_set(TWO)
    two = group.connected(TWO, 0.5)
    assert group.proposal(0.6) is None
    assert not has(group, 10, 0.6)
    two.is_live = True
    group.acknowledged(two, 10, 10, 0.7)
    assert has(group, 10, 0.7)
    assert group.joiners(0.7) == [two]
    group.noted(two)
    assert group.proposal(0.7) is None
    assert group.members == frozenset({ME, TWO})


def test_who_has_to_leave_is_let_in_later_each_time_and_soon_again_after_a_while() -> None:
    """(4)"""
    group = a_set()
    least, most = BACK_OFF_S
    now_s = 0.0
    pauses = []
    for _ in range(9):
        two = join(group, TWO, 10, now_s)
        group.disconnected(two, now_s)
        proposed = group.proposal(now_s)
        assert proposed is not None
        group.recorded(proposed, now_s)
        left_s = now_s
        two = group.connected(TWO, now_s)
        two.is_live = True
        while True:
            group.acknowledged(two, 10, 10, now_s)
            if group.joiners(now_s):
                break
            now_s += 0.25
        group.disconnected(two, now_s)
        pauses.append(now_s - left_s)
        two.admitted_s, two.back_off_s = now_s, max(two.back_off_s / 2, least)
    assert pauses[0] == least
    assert pauses == sorted(pauses)
    assert pauses[-1] <= most
    two = join(group, TWO, 10, now_s)
    now_s += SETTLED_S
    group.disconnected(two, now_s)
    proposed = group.proposal(now_s)
    assert proposed is not None
    group.recorded(proposed, now_s)
    assert two.admitted_s == now_s + least


def test_who_connects_again_while_it_joins_has_left() -> None:
    """(4): else one whose link breaks each time makes all commits wait, again and again."""
    group = a_set()
    two = group.connected(TWO, 0.0)
    two.is_live = True
    assert group.joiners(0.0) == [two]
    again = group.connected(TWO, 5.0)
    again.is_live = True
    assert group.joiners(5.0) == [] and group.joiners(5.0 + BACK_OFF_S[0] / 2) == []
    group.acknowledged(again, 0, 0, 5.0 + BACK_OFF_S[0])
    assert group.joiners(5.0 + BACK_OFF_S[0]) == [again]


def test_who_joins_and_holds_commits_up_is_named_and_not_waited_for_when_it_is_gone() -> None:
    group = a_set()
    two = group.connected(TWO, 0.0)
    two.is_live = True
    group.acknowledged(two, 10, 10, 0.0)
    assert group.joiners(0.0) == [two]
    assert not has(group, 20, 0.0)
    assert group.stragglers(SUSPECT_S - 0.01) == []
    assert group.stragglers(SUSPECT_S) == [two]
    group.disconnected(two, SUSPECT_S)
    assert has(group, 20, SUSPECT_S)


def test_another_directory_of_the_same_name_is_another_node() -> None:
    """(5)"""
    group = a_set(TWO)
    again = Node("two", b"4" * 16)
    replica = group.connected(again, 0.0)
    replica.is_live = True
    group.acknowledged(replica, 10, 10, 0.0)
    assert not has(group, 10, 0.0), "the member of that name does not have it"
    assert again not in group.members


def test_whatever_happens_a_complete_commit_is_with_every_recorded_member() -> None:
    """(1), (2), (3): random events; acknowledged is what a node has, whether it is connected or not."""
    nodes = [TWO, THREE, Node("four", b"4" * 16)]
    for seed in range(300):
        chance = random.Random(seed)
        least = chance.randrange(1, 4)
        group = a_set(min_in_sync=least)
        disks = dict.fromkeys(nodes, 0)
        live: dict[Node, Replica] = {}
        end_lsn = committed = 0
        proposed: frozenset[Node] | None = None
        now_s = 0.0
        for _ in range(200):
            now_s += chance.choice((0.0, 0.05, 0.3, 0.8))
            node = chance.choice(nodes)
            match chance.randrange(9):
                case 0:
                    end_lsn += 8
                case 1 if node not in live:
                    live[node] = group.connected(node, now_s)
                case 2 if node in live:
                    live[node].is_live = True
                case 3 | 4 if node in live:
                    disks[node] = max(disks[node], end_lsn if chance.random() < 0.7 else end_lsn - 8)
                    group.acknowledged(live[node], disks[node], disks[node], now_s)
                case 5 if node in live and chance.random() < 0.4:
                    group.disconnected(live.pop(node), now_s)
                case 6:
                    for replica in group.joiners(now_s):
                        group.noted(replica)
                case 7:
                    proposed = group.proposal(now_s) or proposed
                case 8 if proposed is not None:
                    group.recorded(proposed, now_s)
                    proposed = None
            if group.has(end_lsn, synced=True, now_s=now_s):
                committed = end_lsn
                for record in (group.members, proposed or group.members):
                    assert len(record) >= least, seed
                    assert all(disks[member] >= committed for member in record - {ME}), seed
            else:
                assert end_lsn > committed or len(group.members) < least or live or group.members != frozenset({ME}), (
                    seed
                )
            assert all(disks[member] >= committed for member in group.members - {ME}), seed


def test_who_takes_a_large_frame_stays_though_its_answers_come_behind_it() -> None:
    """(4)"""
    group = a_set()
    two = join(group, TWO, 10)
    assert not has(group, 100)
    now_s = 0.0
    for _ in range(5):
        now_s += SUSPECT_S * 0.9
        group.takes(two, now_s)
    assert group.proposal(now_s) is None
    assert group.proposal(now_s + SUSPECT_S) == frozenset({ME})


def test_a_directory_that_came_in_the_place_of_another_one_is_shown_alone_and_both_count() -> None:
    """(1), (5)"""
    group = a_set(TWO, min_in_sync=2)
    old = join(group, TWO, 10)
    group.disconnected(old, 1.0)
    new = group.connected(Node("two", b"0" * 16), 2.0)
    assert group.replicas() == [new]
    group.acknowledged(new, 100, 100, 2.0)
    assert not has(group, 100, 2.0), "the member may have to lead"
    group.disconnected(new, 3.0)
    assert group.replicas() == [new]
    back = group.connected(TWO, 4.0)
    assert group.replicas() == [back]
