"""A leader that gives way to a replica whose disk is quicker, or has space (disk_watch.py)."""

from __future__ import annotations

from collections.abc import Sequence

from unit.cluster.member_node import A, B, C, Node, leader, of

from warren.cluster.events import Appended, DisksShort, GiveWay, Synced, Tick
from warren.cluster.record import Replica


def passes(node: Node, seconds: float, *, own: bool, others: Sequence[Replica]) -> list[GiveWay]:
    """Make the log grow all the time; say which disks carry it out."""
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
