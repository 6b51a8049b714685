"""When the held messages of a lane are due, and which of them are taken all at once: a sweep.

1. A number that leaves before its time leaves its deadline here. A caller that takes numbers checks which are still
   held. Stale deadlines in front are removed at once, for a list of the earliest looks at them first. The others are
   removed when most deadlines are stale: a parked message has no time at which they would go.
2. While a sweep takes what there was when it was asked for, deadlines are counted, so stale ones stay.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.queues.deadlines import Deadlines
from warren.queues.held_memory import HeldMemory
from warren.queues.timers import NEVER

# This many stale deadlines are never worth looking for.
STALE_MIN: Final = 1024
# How long a message stays whose release has failed.
FAILED_PAUSE_MS: Final = 1000


class HeldTimes:
    """The deadlines of a lane whose messages are in `memory` or on disk."""

    def __init__(self, memory: HeldMemory) -> None:
        self.sweep_left: i64 = 0  # how many deadlines are still to be taken for a request for all
        self.sweep_purpose: i64 = 0
        self._sweeps_scan: bool = False  # and those that a scan of the disk finds, too
        self._memory = memory
        self._deadlines = Deadlines()
        self._tidy_above: i64 = 0  # with fewer deadlines it is not worth looking for stale ones again

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, time_ms: i64, number: i64) -> None:
        """Note when a message is due."""
        self._deadlines.add(time_ms, number)

    def found(self, time_ms: i64, number: i64, now_ms: i64) -> None:
        """Note a deadline that was read from disk."""
        if self._sweeps_scan:
            time_ms = now_ms
            self.sweep_left += 1
        self._deadlines.add(time_ms, number)

    def scanned(self) -> None:
        """Note that all deadlines are known again."""
        self._sweeps_scan = False

    def first_ms(self) -> i64:
        """Return when the earliest is due."""
        return NEVER if self._deadlines.is_empty() else self._deadlines.first_ms()

    def sweep(self, purpose: i64, now_ms: i64, *, is_scanning: bool) -> None:
        """Make everything that is held now due."""
        deadlines = self._deadlines
        if len(deadlines) > 0:
            ahead_ms: i64 = deadlines.latest_ms() - now_ms
            if ahead_ms > 0:
                deadlines.bring_forward(ahead_ms)
        self.sweep_left = len(deadlines)
        self.sweep_purpose = purpose
        self._sweeps_scan = is_scanning

    def take_due(self, now_ms: i64, most: i64, room: i64) -> list[int]:
        """Take at most `most` due numbers off, in order, or until those in memory have more than `room` bytes."""
        deadlines = self._deadlines
        messages = self._memory.messages
        if self.sweep_left and self.sweep_left < most:
            most = self.sweep_left
        numbers: list[int] = []
        while len(numbers) < most and not deadlines.is_empty() and deadlines.first_ms() <= now_ms and room > 0:
            number = int(deadlines.first_number())
            numbers.append(number)
            deadlines.remove_first()
            message = messages.get(number)
            if message is not None:
                room -= message.memory_bytes
        if self.sweep_left:
            self.sweep_left -= len(numbers)
        return numbers

    def put_off(self, numbers: list[int], now_ms: i64, *, is_sweep: bool) -> None:
        """Note the times again of numbers that were due; the release of the first has failed."""
        if is_sweep:
            self.sweep_left += len(numbers)
        for at, number in enumerate(numbers):
            self._deadlines.add(now_ms if at or is_sweep else now_ms + FAILED_PAUSE_MS, number)

    def forget_stale(self, held: i64) -> None:
        """Forget deadlines of messages that have left before their time, see (1); `held` messages are left."""
        if self.sweep_left:
            return
        deadlines = self._deadlines
        memory = self._memory
        while not deadlines.is_empty() and not memory.may_hold(deadlines.first_number()):
            deadlines.remove_first()
        count: i64 = len(deadlines)
        if count <= 2 * held + STALE_MIN or count <= self._tidy_above:
            return
        kept = Deadlines()
        while not deadlines.is_empty():
            number: i64 = deadlines.first_number()
            if memory.may_hold(number):
                kept.add(deadlines.first_ms(), number)
            deadlines.remove_first()
        self._deadlines = kept
        self._tidy_above = 2 * len(kept)  # some pages are not in memory: their messages are unknown

    def earliest(self, most: int) -> list[int]:
        """Return the numbers of the `most` earliest that may be held."""
        asked = most
        while True:
            listed = self._deadlines.earliest(asked)
            numbers = list(dict.fromkeys([number for _, number in listed if self._memory.may_hold(number)]))
            if len(numbers) >= most or len(listed) < asked:
                return numbers[:most]
            asked *= 2

    def clear(self) -> None:
        """Forget everything."""
        self._deadlines.clear()
        self.sweep_left = 0
        self._sweeps_scan = False
