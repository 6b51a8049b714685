"""Which connections look at the time in a tick: real ones, and when they have looked last.

The numbers in parentheses are the invariants in the header of ``warren/channels/rounds.py``.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from engine_harness import Harness

from warren.channels.peer import Peer
from warren.channels.rounds import PATIENCE_S, PATIENT_HEARTBEAT_S, Rounds, is_long

TICK_S = 0.5


class Clock:
    """Some open connections, and when each has looked at the time."""

    def __init__(self, count: int) -> None:
        harness = Harness()
        for _ in range(count):
            harness.channel()
        self.connections = dict(harness.broker.connections)
        self.keys = list(self.connections)
        self.rounds = Rounds()
        self.now_s = harness.broker.now_s + PATIENCE_S
        self.tick(0.0)
        self.looks: dict[int, list[float]] = {key: [] for key in self.keys}

    def tick(self, passed_s: float = TICK_S) -> set[int]:
        """Advance the time; return the connections that have looked."""
        self.now_s += passed_s
        self.rounds.tick(self.now_s, self.connections)
        looked = {key for key, peer in self.connections.items() if self.has_looked(peer)}
        for key in looked if passed_s else ():
            self.looks[key].append(self.now_s)
        return looked

    def has_looked(self, peer: Peer) -> bool:
        return peer.heartbeats._ticked_s == self.now_s


@pytest.mark.parametrize("count", [1, 3, 4, 101])
def test_the_patient_look_once_in_a_round_and_not_all_at_once(count: int) -> None:
    """(2)"""
    clock = Clock(count)
    began_s = clock.now_s
    for _ in range(8):
        assert len(clock.tick()) <= count * TICK_S / PATIENCE_S + 1
    for looks in clock.looks.values():
        assert max(later - earlier for earlier, later in pairwise([began_s, *looks, clock.now_s])) <= PATIENCE_S


def test_who_is_in_a_hurry_looks_in_every_tick_until_it_is_patient() -> None:
    """(1)"""
    clock = Clock(50)
    key = clock.keys[7]
    clock.connections[key].heartbeats.interval_s = PATIENT_HEARTBEAT_S - 1
    clock.rounds.hurry(key)
    assert all(key in clock.tick() for _ in range(6))
    clock.connections[key].heartbeats.interval_s = PATIENT_HEARTBEAT_S
    clock.tick()
    assert sum(key in clock.tick() for _ in range(4)) < 4


def test_one_that_is_not_patient_any_more_is_found_out_in_its_turn() -> None:
    """(1) Though nobody has said so."""
    clock = Clock(20)
    clock.connections[clock.keys[7]].heartbeats.interval_s = PATIENT_HEARTBEAT_S - 1
    for _ in range(4):
        clock.tick()
    assert all(clock.keys[7] in clock.tick() for _ in range(4))


def test_who_has_something_waiting_to_be_sent_is_not_patient() -> None:
    """(1) Else `send_timeout_s` would be known to a round only."""
    clock = Clock(1)
    (peer,) = clock.connections.values()
    assert peer.is_patient()
    peer.outbox.write(b"x")
    assert not peer.is_patient()


def test_after_a_pause_all_look() -> None:
    """(2)"""
    clock = Clock(10)
    clock.tick()
    assert clock.tick(PATIENCE_S) == set(clock.keys)


def test_who_is_gone_is_not_asked_and_who_has_come_is_by_the_next_round() -> None:
    clock = Clock(3)
    gone, comes, _ = clock.keys
    late = clock.connections.pop(comes)
    clock.rounds.hurry(gone)
    del clock.connections[gone]
    for _ in range(2):
        clock.tick()
    clock.connections[comes] = late
    for _ in range(8):
        clock.tick()
    assert not clock.looks[gone] and clock.looks[comes]
    clock.connections.clear()
    clock.tick()


@pytest.mark.parametrize(("count", "stay"), [(50, 1), (300, 3), (1000, 10)])
@pytest.mark.parametrize("ticks", [0, 1, 3])
def test_those_that_stay_when_many_leave_are_looked_at_as_often(count: int, stay: int, ticks: int) -> None:
    """(2) Whatever their places, and however far the round is."""
    clock = Clock(count)
    for _ in range(ticks):
        clock.tick()
    for key in clock.keys[stay - 1 : count - 1]:
        del clock.connections[key]
    began_s = clock.now_s
    for _ in range(20):
        clock.tick()
    for key in clock.connections:
        looks = [began_s, *[at_s for at_s in clock.looks[key] if at_s > began_s], clock.now_s]
        assert max(later - earlier for earlier, later in pairwise(looks)) <= PATIENCE_S + TICK_S


def test_those_that_are_there_when_many_come_are_looked_at_within_two_rounds() -> None:
    """(2)"""
    clock = Clock(20)
    late = {key: clock.connections.pop(key) for key in clock.keys[2:]}
    for number, (key, peer) in enumerate(late.items()):
        if number % 2 == 0:
            clock.tick()
        clock.connections[key] = peer
    for _ in range(8):
        clock.tick()
    for key in clock.keys[:2]:
        assert max(later - earlier for earlier, later in pairwise(clock.looks[key])) <= 2 * PATIENCE_S


def test_after_a_pause_all_look_whoever_has_left_or_come() -> None:
    """(2)"""
    clock = Clock(60)
    late = {key: clock.connections.pop(key) for key in clock.keys[40:]}
    clock.tick()
    for key in clock.keys[:20]:
        del clock.connections[key]
    clock.connections |= late
    assert clock.tick(PATIENCE_S) == set(clock.connections)


@pytest.mark.parametrize("interval_s", [1, PATIENT_HEARTBEAT_S - 1])
def test_short_heartbeats_are_none_that_can_wait(interval_s: int) -> None:
    assert not is_long(interval_s)
    assert is_long(0) and is_long(PATIENT_HEARTBEAT_S)
