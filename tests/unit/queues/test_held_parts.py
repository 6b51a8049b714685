"""The parts of a lane of held messages alone: what is in memory, and when what is due."""

from __future__ import annotations

import pytest
from stored_log import StoredLog

from warren.msgstore.log.message import Envelope, Message, build_message
from warren.queues.held_memory import HeldMemory
from warren.queues.held_times import STALE_MIN, HeldTimes
from warren.queues.timers import NEVER

NOW_MS = 1000
PURPOSE = 2


def message(body: bytes = b"body") -> Message:
    return build_message(Envelope("", "q"), b"\0\0", body, 4096, True)


def memory_of(*numbers: int, store: StoredLog | None = None) -> HeldMemory:
    """Return the memory of a lane with messages that are only there."""
    memory = HeldMemory((store or StoredLog()).log)
    for number in numbers:
        memory.add(number, message(), stored=False)
    return memory


def times_of(memory: HeldMemory, *times: tuple[int, int]) -> HeldTimes:
    found = HeldTimes(memory)
    for time_ms, number in times:
        found.add(time_ms, number)
    return found


def test_what_is_due_comes_in_the_order_of_the_times() -> None:
    times = times_of(memory_of(), (30, 1), (10, 2), (20, 3), (NOW_MS + 1, 4))
    assert times.take_due(NOW_MS, 2, 1) == [2, 3]
    assert times.take_due(NOW_MS, 9, 1) == [1]
    assert (times.take_due(NOW_MS, 9, 1), times.first_ms()) == ([], NOW_MS + 1)


def test_what_is_due_ends_where_the_batch_is_full() -> None:
    times = times_of(memory_of(1, 2, 3), (10, 1), (11, 2), (12, 3))
    assert times.take_due(NOW_MS, 9, 1) == [1]
    assert times.take_due(NOW_MS, 9, 1 << 20) == [2, 3]


@pytest.mark.parametrize("is_scanning", [False, True])
def test_a_sweep_takes_what_there_was_and_what_a_scan_finds(is_scanning: bool) -> None:
    times = times_of(memory_of(), (NOW_MS + 50, 1), (NOW_MS + 10, 2))
    times.sweep(PURPOSE, NOW_MS, is_scanning=is_scanning)
    times.found(NOW_MS + 70, 3, NOW_MS)
    times.scanned()
    times.found(NOW_MS + 90, 4, NOW_MS)
    assert times.sweep_purpose == PURPOSE
    assert sorted(times.take_due(NOW_MS, 9, 1)) == ([1, 2, 3] if is_scanning else [1, 2])
    assert times.sweep_left == 0
    assert times.first_ms() == NOW_MS + (90 if is_scanning else 70)


def test_stale_deadlines_go_at_once_in_front_and_elsewhere_when_they_are_most() -> None:
    memory = memory_of(7)
    times = times_of(memory, (5, 1), (6, 2), (8, 7), *[(9, number) for number in range(10, 10 + STALE_MIN)])
    times.forget_stale(1)
    assert (len(times), times.first_ms()) == (1 + STALE_MIN, 8), "there may be so many"
    times.add(9, 2)
    times.add(9, 3)
    times.forget_stale(1)
    assert (len(times), times.earliest(5)) == (1, [7])
    memory.messages.clear()
    times.forget_stale(0)
    assert times.first_ms() == NEVER


def test_stored_messages_leave_memory_and_unstored_ones_do_not() -> None:
    store = StoredLog()
    memory = memory_of(0, 1, store=store)
    index = store.index(7)
    memory.begin_storing(index)
    for number in (2, 3):
        memory.add(number, message(), stored=True)
    memory.kept_max = 1
    memory.batch_closed()
    memory.check_invariants()
    assert sorted(memory.messages) == [0, 1, 2, 3], "they are in the open batch"
    store.rest()
    memory.batch_closed()
    memory.check_invariants()
    assert sorted(memory.messages) == [0, 1]
    assert memory.lacks([2]) and not memory.lacks([0, 1, 9])
    assert memory.may_hold(3) and not memory.may_hold(9)


def test_memory_that_is_short_has_a_bounded_number_stored_in_a_turn() -> None:
    store = StoredLog()
    memory = memory_of(*range(6), store=store)
    memory.begin_storing(store.index(7))
    memory.paged_out_max = 4
    store.log.memory_bytes = 0
    store.log.under_pressure = True
    for left in (2, 0):
        assert memory.page_out() == []
        assert len(memory.unstored) == left
        store.rest()
        memory.batch_closed()
    memory.check_invariants()
    assert not memory.messages and store.log.resident_bytes == 0


def test_a_message_that_leaves_says_whether_the_log_has_it() -> None:
    store = StoredLog()
    memory = memory_of(0, store=store)
    assert not memory.left(0, memory.messages.pop(0))
    memory.begin_storing(store.index(7))
    memory.add(1, message(), stored=False)
    memory.add(2, message(), stored=True)
    assert [memory.left(number, memory.messages.pop(number)) for number in (1, 2)] == [False, True]
    memory.check_invariants()
    assert store.log.resident_bytes == 0
