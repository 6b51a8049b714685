"""Which connections look at the time in a tick.

The numbers in parentheses are the invariants in the header of ``warren/channels/rounds.py``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import pytest

from warren.channels.peer import Peer
from warren.channels.rounds import PATIENCE_S, PATIENT_HEARTBEAT_S, Rounds, is_long

TICK_S = 0.5


class Looked:
    """A connection that counts how often it has looked at the time, and when it did last."""

    def __init__(self, *, patient: bool = True) -> None:
        self.patient = patient
        self.looks: list[float] = []

    def tick(self, now_s: float) -> None:
        self.looks.append(now_s)

    def is_patient(self) -> bool:
        return self.patient


class Clock:
    def __init__(self, *connections: Looked) -> None:
        self.connections = dict(enumerate(connections))
        self.rounds = Rounds()
        self.now_s = 1000.0
        self.tick(0.0)
        for each in connections:
            each.looks.clear()

    def tick(self, passed_s: float = TICK_S) -> None:
        self.now_s += passed_s
        self.rounds.tick(self.now_s, cast("dict[int, Peer]", self.connections))


@pytest.mark.parametrize("count", [1, 3, 4, 100, 1001])
def test_the_patient_look_once_in_a_round_and_not_all_at_once(count: int) -> None:
    """(2)"""
    clock = Clock(*(Looked() for _ in range(count)))
    for _ in range(8):
        before = sum(len(each.looks) for each in clock.connections.values())
        clock.tick()
        assert sum(len(each.looks) for each in clock.connections.values()) - before <= count * TICK_S / PATIENCE_S + 1
    for each in clock.connections.values():
        times = [clock.now_s - 8 * TICK_S, *each.looks, clock.now_s]
        assert max(later - earlier for earlier, later in pairwise(times)) <= PATIENCE_S


def test_who_is_in_a_hurry_looks_in_every_tick_until_it_is_patient() -> None:
    """(1)"""
    hurried = Looked(patient=False)
    clock = Clock(hurried, *(Looked() for _ in range(50)))
    clock.rounds.hurry(0)
    for number in range(1, 5):
        clock.tick()
        assert hurried.looks[-1] == clock.now_s and len(set(hurried.looks)) == number
    hurried.patient = True
    clock.tick()
    hurried.looks.clear()
    for _ in range(4):
        clock.tick()
    assert len(hurried.looks) == 1


def test_one_that_is_not_patient_any_more_is_found_out_by_its_turn() -> None:
    """(1) Though nobody has said so."""
    clock = Clock(*(Looked() for _ in range(20)))
    clock.connections[7].patient = False
    for _ in range(4):
        clock.tick()
    clock.connections[7].looks.clear()
    for _ in range(3):
        clock.tick()
    assert len(set(clock.connections[7].looks)) == 3


def test_after_a_pause_all_look() -> None:
    """(2)"""
    clock = Clock(*(Looked() for _ in range(10)))
    clock.tick()
    for each in clock.connections.values():
        each.looks.clear()
    clock.tick(PATIENCE_S)
    assert all(set(each.looks) == {clock.now_s} for each in clock.connections.values())


def test_who_is_gone_is_not_asked_and_who_has_come_is_by_the_next_round() -> None:
    gone, stays, comes = Looked(), Looked(), Looked()
    clock = Clock(gone, stays)
    clock.rounds.hurry(0)
    del clock.connections[0]
    clock.connections[2] = comes
    for _ in range(8):
        clock.tick()
    assert not gone.looks and stays.looks and comes.looks
    clock.connections.clear()
    clock.tick()


@pytest.mark.parametrize("interval_s", [1, PATIENT_HEARTBEAT_S - 1])
def test_short_heartbeats_are_none_that_can_wait(interval_s: int) -> None:
    assert not is_long(interval_s)
    assert is_long(0) and is_long(PATIENT_HEARTBEAT_S)
