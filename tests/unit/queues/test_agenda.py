"""Appointments. Numbers in parentheses: the header of ``warren/queues/agenda.py``."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable

import pytest

from warren.queues.agenda import NEVER, STALE_MIN, Agenda, Appointment


class Note(Appointment):
    """Writes down when it was called; `then`: what else it does."""

    def __init__(self, name: str, calls: list[tuple[str, int]], then: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.name = name
        self.calls = calls
        self.then = then

    def due(self, now_ms: int) -> None:
        assert self.at_ms == NEVER
        self.calls.append((self.name, now_ms))
        if self.then is not None:
            self.then()


@pytest.fixture
def calls() -> list[tuple[str, int]]:
    return []


def test_what_is_due_is_called_once_in_the_order_of_the_times(calls: list[tuple[str, int]]) -> None:
    """(3)"""
    agenda = Agenda()
    for name, at_ms in (("c", 30), ("a", 10), ("d", 31), ("b", 20)):
        agenda.at(at_ms, Note(name, calls))
    assert agenda.next_ms() == 10
    agenda.keep(9)
    assert calls == []
    agenda.keep(30)
    assert calls == [("a", 30), ("b", 30), ("c", 30)]
    assert agenda.next_ms() == 31
    agenda.keep(30)
    assert len(calls) == 3
    agenda.keep(31)
    assert calls[3:] == [("d", 31)]
    assert agenda.next_ms() == NEVER


def test_an_earlier_time_replaces_a_later_one_and_not_the_other_way_round(calls: list[tuple[str, int]]) -> None:
    """(1)"""
    agenda = Agenda()
    note = Note("a", calls)
    agenda.at(50, note)
    agenda.at(70, note)
    assert agenda.next_ms() == 50
    agenda.at(20, note)
    assert agenda.next_ms() == 20
    agenda.keep(100)
    assert calls == [("a", 100)]
    agenda.at(NEVER, note)
    assert agenda.next_ms() == NEVER


def test_a_cancelled_appointment_is_not_called_and_may_be_made_again(calls: list[tuple[str, int]]) -> None:
    agenda = Agenda()
    note, other = Note("a", calls), Note("b", calls)
    agenda.at(10, note)
    agenda.at(20, other)
    agenda.cancel(note)
    agenda.cancel(note)
    assert agenda.next_ms() == 20
    agenda.at(10, note)
    agenda.keep(10)
    assert calls == [("a", 10)]
    agenda.cancel(other)
    agenda.keep(1000)
    assert calls == [("a", 10)]


def test_whoever_is_cancelled_or_moved_by_another_in_the_same_moment_is_not_called(
    calls: list[tuple[str, int]],
) -> None:
    """(3)"""
    agenda = Agenda()
    cancelled, moved, again = Note("cancelled", calls), Note("moved", calls), Note("again", calls)

    def first() -> None:
        agenda.cancel(cancelled)
        agenda.cancel(moved)
        agenda.at(500, moved)

    agenda.at(1, Note("first", calls, first))
    agenda.at(2, cancelled)
    agenda.at(3, moved)
    agenda.at(4, again)
    again.then = lambda: agenda.at(5, again)
    agenda.keep(10)
    assert calls == [("first", 10), ("again", 10)]
    agenda.keep(10)
    assert calls[2:] == [("again", 10)], "it made its next appointment in the past, and is called in the next round"
    again.then = None
    agenda.keep(600)
    assert [name for name, _ in calls[3:]] == ["again", "moved"]


def test_only_an_earlier_first_one_is_told(calls: list[tuple[str, int]]) -> None:
    agenda = Agenda()
    told: list[int] = []
    agenda.on_earlier = lambda: told.append(agenda.next_ms())
    first, second = Note("a", calls), Note("b", calls)
    agenda.at(50, first)
    agenda.at(60, second)
    assert told == [50]
    agenda.at(40, second)
    agenda.at(45, first)
    assert told == [50, 40]


def test_nothing_keeps_a_cancelled_appointment_alive(calls: list[tuple[str, int]]) -> None:
    """(1)"""
    agenda = Agenda()
    note = Note("far away", calls)
    agenda.at(1 << 50, note)
    agenda.at(1 << 49, note)
    agenda.cancel(note)
    alive = weakref.ref(note)
    del note
    assert alive() is None


def test_appointments_that_were_moved_or_cancelled_take_no_memory(calls: list[tuple[str, int]]) -> None:
    """(2)"""
    agenda = Agenda()
    note = Note("a", calls)
    for at_ms in range(100_000, 0, -1):
        agenda.at(at_ms, note)
    assert len(agenda) <= 2 + STALE_MIN
    agenda.cancel(note)
    for number in range(10_000):
        appointment = Note(str(number), calls)
        agenda.at(10**12 + number, appointment)
        agenda.cancel(appointment)
    assert len(agenda) <= STALE_MIN
    agenda.at(10, note)
    agenda.keep(10)
    assert calls == [("a", 10)]


def test_random_appointments_are_kept_like_those_of_a_dict(calls: list[tuple[str, int]]) -> None:
    seed = 20261121
    print("seed", seed)
    rng = random.Random(seed)
    agenda = Agenda()
    notes = [Note(str(number), calls) for number in range(20)]
    times: dict[str, int] = {}
    now_ms = 0
    for _ in range(20_000):
        note = rng.choice(notes)
        action = rng.random()
        if action < 0.5:
            at_ms = now_ms + rng.randrange(-20, 200)
            agenda.at(at_ms, note)
            times[note.name] = min(at_ms, times.get(note.name, NEVER))
        elif action < 0.7:
            agenda.cancel(note)
            times.pop(note.name, None)
        else:
            now_ms += rng.randrange(-5, 30)
            due = sorted((at_ms, name) for name, at_ms in times.items() if at_ms <= now_ms)
            calls.clear()
            agenda.keep(now_ms)
            assert sorted(name for name, _ in calls) == sorted(name for _, name in due)
            assert [times[name] for name, _ in calls] == [at_ms for at_ms, _ in due]
            for _, name in due:
                del times[name]
        assert agenda.next_ms() == min(times.values(), default=NEVER)
        assert len(agenda) <= 2 * len(times) + STALE_MIN
