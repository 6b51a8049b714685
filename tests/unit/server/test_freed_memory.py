"""When free memory is given back to the system. The numbers in parentheses are those of ``freed_memory.py``."""

from __future__ import annotations

from warren.server.freed_memory import KEPT_BYTES, LOOK_EVERY_S, PAUSE_PER_S, QUIET_LOOKS, QUIET_SHARE, FreedMemory

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
    # What it takes at its least is found out later, when it started with much.
    assert not looks.look(LEAST - 2)
    assert looks.look(MUCH - 1)


def test_it_takes_a_thousandth_of_the_time_at_most() -> None:
    """(2)"""
    looks = Looks()
    looks.until_due(MUCH)
    for took_s in (0.3, 0.03, 0.0):
        looks.freed.given_back(took_s, looks.now_s)
        pause_s = looks.until_due(MUCH) * LOOK_EVERY_S
        assert took_s * PAUSE_PER_S <= pause_s <= took_s * PAUSE_PER_S + LOOK_EVERY_S
