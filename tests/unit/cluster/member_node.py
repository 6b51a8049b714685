"""A member at a time of its own, with its actions: the helpers of the tests of a member's decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from warren.cluster.candidacy import Founding
from warren.cluster.events import (
    Acknowledge,
    Action,
    AnswerBeacon,
    AskingEnded,
    AskPositions,
    BeaconAnswered,
    BeaconReceived,
    Event,
    Lead,
    Position,
    PositionTold,
    Read,
    RecordRead,
    Recovered,
    SendBeacon,
    Serve,
    Standing,
    Swap,
    SwapDone,
    Tick,
)
from warren.cluster.member import Member, Role
from warren.cluster.record import LeaderBy, Record, Replica, Versioned
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
        """Make replicas answer the last beacon."""
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


SURVIVOR = Founding("s", 2)
