"""When free memory is given back to the system. The numbers in parentheses are those of ``freed_memory.py``."""

from __future__ import annotations

import threading

import pytest
import trio

from warren.server import freed_memory
from warren.server.freed_memory import (
    BUSY_EVERY_S,
    BUSY_MOST_BYTES,
    GROWN_BYTES,
    KEPT_BYTES,
    LOOK_EVERY_S,
    PAUSE_PER_S,
    PIECE_BYTES,
    QUIET_LOOKS,
    QUIET_SHARE,
    SHORT_EVERY_S,
    SHORT_LOOK_EVERY_S,
    SHORT_PAUSE_PER_S,
    FreedMemory,
    return_freed_memory,
)

LEAST = 60 << 20
MUCH = LEAST + KEPT_BYTES + 1


class Looks:
    """Looks at a process that takes `resident` bytes."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.processor_s = 5.0
        self.freed = FreedMemory(LEAST, self.processor_s, self.now_s)

    def look(self, resident: int, *, share: float = 0.0) -> bool:
        """Look after the usual time, of which the process has used the processor for `share`."""
        self.now_s += LOOK_EVERY_S
        self.processor_s += share * LOOK_EVERY_S
        return self.freed.look(resident, self.processor_s, self.now_s)

    def until_due(self, resident: int) -> int:
        """Return how many looks it takes until it is time."""
        for count in range(1, 10_000):
            if self.look(resident):
                return count
        raise AssertionError("never")


def test_it_is_time_when_the_process_has_been_quiet_for_some_looks() -> None:
    """(1)"""
    looks = Looks()
    for _ in range(3):
        for _ in range(QUIET_LOOKS - 1):
            assert not looks.look(MUCH)
        assert not looks.look(MUCH, share=QUIET_SHARE * 1.1)
    assert looks.until_due(MUCH) == QUIET_LOOKS


def test_what_is_little_stays() -> None:
    """(1)"""
    looks = Looks()
    assert not any(looks.look(MUCH - 1) for _ in range(10 * QUIET_LOOKS))
    # It started with much memory in use; it learns its least later.
    assert not looks.look(LEAST - 2)
    assert looks.look(MUCH - 1)


def hours_of_load(hours: int, used: int) -> tuple[int, int]:
    """Make a heap grow by a MiB at each look, though it is used to `used` bytes; return its most, and how often it is
    given back."""
    looks = Looks()
    resident = most = used
    count = 0
    for _ in range(int(hours * 3600 / LOOK_EVERY_S)):
        resident += 1 << 20
        most = max(most, resident)
        if looks.look(resident, share=0.9):
            resident = used
            looks.freed.given_back(0.005, resident, looks.now_s)
            count += 1
    return most, count


def test_a_heap_that_grows_under_load_is_bounded_however_long_the_load_lasts() -> None:
    """(2)"""
    of_one, of_two = hours_of_load(1, LEAST), hours_of_load(2, LEAST)
    assert of_one[0] == of_two[0] <= LEAST + 2 * GROWN_BYTES
    assert 0 < of_one[1] <= 3600 / BUSY_EVERY_S


def test_under_load_nothing_is_given_back_that_would_take_long() -> None:
    """(2)"""
    assert hours_of_load(1, BUSY_MOST_BYTES)[1] == 0


def test_under_load_it_is_not_time_while_the_heap_has_not_grown() -> None:
    """(2)"""
    looks = Looks()
    assert not any(looks.look(LEAST + GROWN_BYTES, share=0.9) for _ in range(1000))
    assert looks.look(LEAST + GROWN_BYTES + 1, share=0.9)
    # The memory in use is measured again each time.
    looks.freed.given_back(0.0, LEAST + GROWN_BYTES, looks.now_s)
    assert not any(looks.look(LEAST + 2 * GROWN_BYTES, share=0.9) for _ in range(1000))


def test_it_takes_a_thousandth_of_the_time_at_most() -> None:
    """(4)"""
    looks = Looks()
    looks.until_due(MUCH)
    for took_s in (0.3, 0.03, 0.0):
        looks.freed.given_back(took_s, MUCH, looks.now_s)
        pause_s = looks.until_due(MUCH) * LOOK_EVERY_S
        assert took_s * PAUSE_PER_S <= pause_s <= took_s * PAUSE_PER_S + LOOK_EVERY_S


def test_while_memory_is_short_a_piece_is_given_back_as_soon_as_it_is_free() -> None:
    """(3) A thread that waits for the lock of the C library waits for one piece, however much becomes free in all."""
    freed = FreedMemory(LEAST, 0.0, 0.0)
    message_bytes = 50 * PIECE_BYTES
    now_s = 0.0
    count = 0
    most_bytes = message_bytes
    while message_bytes > 0:
        now_s += SHORT_LOOK_EVERY_S
        message_bytes -= PIECE_BYTES // 4
        if freed.look_while_short(message_bytes, now_s):
            assert most_bytes - message_bytes <= PIECE_BYTES + PIECE_BYTES // 4
            most_bytes = message_bytes
            freed.given_back(0.0, MUCH, now_s)
            count += 1
    assert count >= 40


def test_while_memory_is_short_what_is_free_otherwise_is_given_back_as_well() -> None:
    """(3)"""
    freed = FreedMemory(LEAST, 0.0, 0.0)
    assert not freed.look_while_short(0, SHORT_EVERY_S * 0.9)
    assert freed.look_while_short(0, SHORT_EVERY_S)
    freed.given_back(0.0, MUCH, SHORT_EVERY_S)
    assert not freed.look_while_short(0, SHORT_EVERY_S * 1.9)


def test_while_memory_is_short_it_takes_a_tenth_of_the_time_at_most() -> None:
    """(4)"""
    freed = FreedMemory(LEAST, 0.0, 0.0)
    freed.given_back(0.3, MUCH, 10.0)
    freed.look_while_short(10 * PIECE_BYTES, 10.0)
    assert not freed.look_while_short(0, 10.0 + 0.3 * SHORT_PAUSE_PER_S * 0.9)
    assert freed.look_while_short(0, 10.0 + 0.3 * SHORT_PAUSE_PER_S)


def test_it_is_never_done_by_the_thread_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """(4)"""
    threads: list[int] = []

    async def main() -> None:
        def trim(pad: int) -> int:
            threads.append(threading.get_ident())
            trio.from_thread.run_sync(scope.cancel)
            return 1

        monkeypatch.setattr(freed_memory, "maybe_trim", lambda: trim)
        monkeypatch.setattr(freed_memory, "SHORT_EVERY_S", 0.0)
        with trio.CancelScope() as scope:
            await return_freed_memory(lambda: True, lambda: 0)

    trio.run(main)
    assert threads and threading.get_ident() not in threads
