"""What a node tells its member, and how it treats clients that it may not serve: without a driver.

The numbers in parentheses are the invariants in the header of ``warren/replication/elected_node.py``.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio
import trio.testing

from warren.cluster.events import DisksShort, DiskWaits, Event
from warren.cluster.record import Replica
from warren.cluster.registry import NodeEntry, Seen
from warren.replication.elected_node import GIVE_UP_S, REASONS_MAX, REPEAT_S, ElectedNode, Election
from warren.replication.handshake import Node
from warren.server.replication import ClusterRefusal

ME = Node("one", b"1" * 16)


class Driver:
    """Says what a test wants, and writes down what it is told."""

    def __init__(self) -> None:
        self.member = SimpleNamespace(record=None)
        self.told: list[Event] = []
        self.may_serve = True
        self.silent_s = 0.0

    def tell(self, event: Event) -> None:
        self.told.append(event)

    def serves(self) -> bool:
        return self.may_serve

    def silence_s(self) -> float:
        return self.silent_s

    async def trouble_of_record(self) -> str:
        await trio.lowlevel.checkpoint()
        return ""


class Place:
    def __init__(self) -> None:
        self.driver = Driver()
        self.restarts: list[bool] = []
        entry = NodeEntry("47d0", "broker4:25672", "0.1.0", disk_is_low=True)
        self.registry = SimpleNamespace(seen={"other": Seen(entry, 0.0, True)}, disk_is_low=False)
        self.node = ElectedNode(ME, self.registry, self.restarts.append)
        self.node.driver = self.driver  # type: ignore[assignment]

    def lead(self, *, is_stopping: bool = False) -> None:
        self.node.leader = SimpleNamespace(is_stopping=is_stopping, is_disk_low=lambda: False)  # type: ignore[assignment]


def test_clients_are_held_until_others_answer_and_given_up_when_one_is_silent_for_long() -> None:
    """(3)"""
    place = Place()
    place.lead()
    assert not place.node.may_serve(), "the member has not said so yet"
    place.node.serve()
    assert place.node.may_serve()
    place.driver.may_serve = False
    place.driver.silent_s = GIVE_UP_S - 0.1
    assert not place.node.may_serve()
    place.driver.may_serve = True
    assert place.node.may_serve()
    assert place.restarts == []
    place.driver.may_serve = False
    place.driver.silent_s = GIVE_UP_S
    assert not place.node.may_serve()
    assert place.restarts == [True]


def test_one_that_was_told_to_stop_ends_when_it_may_not_serve() -> None:
    """(3)"""
    place = Place()
    place.lead(is_stopping=True)
    place.node.serve()
    place.driver.may_serve = False
    assert not place.node.may_serve()
    assert place.restarts == [False]


def test_one_that_hands_over_holds_its_clients_and_leaves_the_end_to_its_member() -> None:
    """(3), (4)"""
    place = Place()
    stopped: list[bool] = []
    place.node.leader = SimpleNamespace(is_stopping=False, stop_broker=lambda: stopped.append(True))  # type: ignore[assignment]
    place.node.serve()
    place.node.hand_over(Replica("two", "22" * 16))
    assert stopped == [True] and place.node.may_serve()
    place.driver.may_serve = False
    place.driver.silent_s = GIVE_UP_S
    assert not place.node.may_serve()
    assert place.restarts == []
    place.node.restart("two leads")
    assert place.restarts == [True]
    assert place.node.leader is not None
    place.node.leader.is_stopping = True
    place.node.restart("two leads")
    assert place.restarts == [True, False]


def test_one_that_was_told_to_stop_takes_no_command() -> None:
    place = Place()
    place.lead(is_stopping=True)
    with pytest.raises(ClusterRefusal, match="told to stop"):
        trio.run(place.node.transfer, None)


def test_the_member_knows_since_when_the_disk_of_a_follower_works_and_that_of_a_leader_begins_anew() -> None:
    place = Place()

    async def main() -> None:
        place.node.follower = SimpleNamespace(disk_began_s=7.0, space=SimpleNamespace(is_low=lambda: True))  # type: ignore[assignment]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(place.node.watch_disk)
            await trio.sleep(1.1)
            assert place.registry.disk_is_low
            place.lead()
            await trio.sleep(0.2)
            assert not place.registry.disk_is_low
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert place.driver.told == [DiskWaits(7.0)] * 5 + [DiskWaits(None), DisksShort(frozenset({"other"}))]


def test_what_is_wrong_is_said_when_it_begins_for_each_reason_each_minute_and_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    election = Election.__new__(Election)
    election._said = {}
    now_s = 0.0
    monkeypatch.setattr("warren.replication.elected_node.passed_s", lambda: now_s)
    assert not election._is_news("etcd", "")
    assert election._is_news("etcd", "refused")
    assert not election._is_news("etcd", "refused")
    assert election._is_news("address", "127.0.0.1"), "each thing by itself"
    now_s = REPEAT_S
    assert election._is_news("etcd", "refused")
    assert not election._is_news("etcd", "refused")
    assert election._is_news("etcd", "http://one:1: no answer in time"), "another reason"
    assert not election._is_news("etcd", "http://two:2: no answer in time"), "another member of etcd"
    assert not election._is_news("etcd", "refused")
    reasons = [f"http://one:1: reason {n}" for n in range(REASONS_MAX)]
    assert [election._is_news("etcd", reason) for reason in reasons] == [True] * (REASONS_MAX - 2) + [False] * 2
    now_s = 2 * REPEAT_S
    assert election._is_news("etcd", "the last of many")
    assert len(election._said["etcd"]) == REASONS_MAX
    assert election._is_news("etcd", "")
    assert not election._is_news("etcd", "")
