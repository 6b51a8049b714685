"""Timers. Numbers in parentheses: the header of ``warren/queues/timers.py``."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable

import pytest

from warren.queues.timers import FAILED_MS, NEVER, STALE_MIN, WORKED_MAX, Timer, TimerQueue


class Note(Timer):
    """Records the time of its call; `then`: its other action."""

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
    timers = TimerQueue()
    for name, at_ms in (("c", 30), ("a", 10), ("d", 31), ("b", 20)):
        timers.at(at_ms, Note(name, calls))
    assert timers.next_ms() == 10
    timers.run_due(9)
    assert calls == []
    timers.run_due(30)
    assert calls == [("a", 30), ("b", 30), ("c", 30)]
    assert timers.next_ms() == 31
    timers.run_due(30)
    assert len(calls) == 3
    timers.run_due(31)
    assert calls[3:] == [("d", 31)]
    assert timers.next_ms() == NEVER


def test_an_earlier_time_replaces_a_later_one_and_not_the_other_way_round(calls: list[tuple[str, int]]) -> None:
    """(1)"""
    timers = TimerQueue()
    note = Note("a", calls)
    timers.at(50, note)
    timers.at(70, note)
    assert timers.next_ms() == 50
    timers.at(20, note)
    assert timers.next_ms() == 20
    timers.run_due(100)
    assert calls == [("a", 100)]
    timers.at(NEVER, note)
    assert timers.next_ms() == NEVER


def test_a_cancelled_timer_is_not_called_and_may_be_made_again(calls: list[tuple[str, int]]) -> None:
    timers = TimerQueue()
    note, other = Note("a", calls), Note("b", calls)
    timers.at(10, note)
    timers.at(20, other)
    timers.cancel(note)
    timers.cancel(note)
    assert timers.next_ms() == 20
    timers.at(10, note)
    timers.run_due(10)
    assert calls == [("a", 10)]
    timers.cancel(other)
    timers.run_due(1000)
    assert calls == [("a", 10)]


def test_whoever_is_cancelled_or_moved_by_another_in_the_same_moment_is_not_called(
    calls: list[tuple[str, int]],
) -> None:
    """(3)"""
    timers = TimerQueue()
    cancelled, moved, again = Note("cancelled", calls), Note("moved", calls), Note("again", calls)

    def first() -> None:
        timers.cancel(cancelled)
        timers.cancel(moved)
        timers.at(500, moved)

    timers.at(1, Note("first", calls, first))
    timers.at(2, cancelled)
    timers.at(3, moved)
    timers.at(4, again)
    again.then = lambda: timers.at(5, again)
    timers.run_due(10)
    assert calls == [("first", 10), ("again", 10)]
    timers.run_due(10)
    assert calls[2:] == [("again", 10)], "it was set again in the past, and is called in the next round"
    again.then = None
    timers.run_due(600)
    assert [name for name, _ in calls[3:]] == ["again", "moved"]


def test_what_is_put_off_is_called_though_stale_entries_were_removed_meanwhile(calls: list[tuple[str, int]]) -> None:
    """(2), (4)"""
    timers = TimerQueue()
    others = [Note("other", calls) for _ in range(2 * STALE_MIN)]
    for other in others:
        timers.at(50, other)

    def works_much() -> None:
        timers.worked += WORKED_MAX
        for other in others:
            timers.cancel(other)

    timers.at(10, Note("a", calls, works_much))
    timers.at(10, Note("b", calls))
    timers.run_due(10)
    assert calls == [("a", 10)]
    assert timers.next_ms() == 10
    timers.run_due(10)
    assert calls == [("a", 10), ("b", 10)]


def test_those_after_one_that_fails_are_called_in_the_next_run(calls: list[tuple[str, int]]) -> None:
    """(4)"""

    def fails() -> None:
        raise MemoryError

    timers = TimerQueue()
    timers.at(10, Note("a", calls, fails))
    timers.at(11, Note("b", calls))
    with pytest.raises(MemoryError):
        timers.run_due(20)
    timers.run_due(20)
    assert calls == [("a", 20), ("b", 20)]


def test_only_an_earlier_first_one_is_told(calls: list[tuple[str, int]]) -> None:
    timers = TimerQueue()
    told: list[int] = []
    timers.on_earlier = lambda: told.append(timers.next_ms())
    first, second = Note("a", calls), Note("b", calls)
    timers.at(50, first)
    timers.at(60, second)
    assert told == [50]
    timers.at(40, second)
    timers.at(45, first)
    assert told == [50, 40]


def test_nothing_keeps_a_cancelled_timer_alive(calls: list[tuple[str, int]]) -> None:
    """(1)"""
    timers = TimerQueue()
    note = Note("far away", calls)
    timers.at(1 << 50, note)
    timers.at(1 << 49, note)
    timers.cancel(note)
    alive = weakref.ref(note)
    del note
    assert alive() is None


def test_timers_that_were_moved_or_cancelled_take_no_memory(calls: list[tuple[str, int]]) -> None:
    """(2)"""
    timers = TimerQueue()
    note = Note("a", calls)
    for at_ms in range(100_000, 0, -1):
        timers.at(at_ms, note)
    assert len(timers) <= 2 + STALE_MIN
    timers.cancel(note)
    for number in range(10_000):
        timer = Note(str(number), calls)
        timers.at(10**12 + number, timer)
        timers.cancel(timer)
    assert len(timers) <= STALE_MIN
    timers.at(10, note)
    timers.run_due(10)
    assert calls == [("a", 10)]


def test_random_timers_are_kept_like_those_of_a_dict(calls: list[tuple[str, int]]) -> None:
    seed = 20261121
    print("seed", seed)
    rng = random.Random(seed)
    timers = TimerQueue()
    notes = [Note(str(number), calls) for number in range(20)]
    times: dict[str, int] = {}
    now_ms = 0
    for _ in range(20_000):
        note = rng.choice(notes)
        action = rng.random()
        if action < 0.5:
            at_ms = now_ms + rng.randrange(-20, 200)
            timers.at(at_ms, note)
            times[note.name] = min(at_ms, times.get(note.name, NEVER))
        elif action < 0.7:
            timers.cancel(note)
            times.pop(note.name, None)
        else:
            now_ms += rng.randrange(-5, 30)
            due = sorted((at_ms, name) for name, at_ms in times.items() if at_ms <= now_ms)
            calls.clear()
            timers.run_due(now_ms)
            assert sorted(name for name, _ in calls) == sorted(name for _, name in due)
            assert [times[name] for name, _ in calls] == [at_ms for at_ms, _ in due]
            for _, name in due:
                del times[name]
        assert timers.next_ms() == min(times.values(), default=NEVER)
        assert len(timers) <= 2 * len(times) + STALE_MIN


def test_one_that_has_failed_is_called_again_after_a_pause(calls: list[tuple[str, int]]) -> None:
    """(4)"""

    def fail_once() -> None:
        if len(calls) == 1:
            raise MemoryError

    timers = TimerQueue()
    timers.at(10, Note("a", calls, fail_once))
    with pytest.raises(MemoryError):
        timers.run_due(10)
    timers.run_due(10 + FAILED_MS - 1)
    assert calls == [("a", 10)]
    timers.run_due(10 + FAILED_MS)
    assert calls == [("a", 10), ("a", 10 + FAILED_MS)]
    assert timers.next_ms() == NEVER
