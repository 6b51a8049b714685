"""Deadlines of many messages in 16 bytes each: a binary heap of (time in ms, sequence number).

Nothing is ever taken out of the middle: whoever settles a message early leaves its deadline behind, and whoever takes
the earliest looks whether the message still waits. Equal times come out in the order of the sequence numbers.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from librt.vecs import append, pop, vec
from mypy_extensions import i64

# From so many on memory is given back when only a quarter of it is used.
SHRUNK_FROM: Final = 4096


class Deadlines:
    """A heap, earliest first."""

    def __init__(self) -> None:
        self._times = vec[i64]()
        self._numbers = vec[i64]()
        self._most: i64 = 0  # how many there were, since memory was given back

    def __len__(self) -> int:
        return len(self._times)

    def first_ms(self) -> i64:
        """Return the earliest time; there is one."""
        return self._times[0]

    def first_number(self) -> i64:
        """Return the sequence number that the earliest time belongs to."""
        return self._numbers[0]

    def add(self, time_ms: i64, number: i64) -> None:
        """Add a deadline."""
        times = append(self._times, time_ms)
        numbers = append(self._numbers, number)
        at: i64 = len(times) - 1
        if at >= self._most:
            self._most = at + 1
        while at > 0:
            parent: i64 = (at - 1) >> 1
            above: i64 = times[parent]
            if above < time_ms or (above == time_ms and numbers[parent] <= number):
                break
            times[at] = above
            numbers[at] = numbers[parent]
            at = parent
        times[at] = time_ms
        numbers[at] = number
        self._times = times
        self._numbers = numbers

    def remove_first(self) -> None:
        """Take the earliest deadline out."""
        times = self._times
        numbers = self._numbers
        times, time_ms = pop(times)
        numbers, number = pop(numbers)
        size: i64 = len(times)
        if size > 0:
            at: i64 = 0
            while True:
                child: i64 = 2 * at + 1
                if child >= size:
                    break
                right: i64 = child + 1
                if right < size and (
                    times[right] < times[child] or (times[right] == times[child] and numbers[right] < numbers[child])
                ):
                    child = right
                below: i64 = times[child]
                if below > time_ms or (below == time_ms and numbers[child] >= number):
                    break
                times[at] = below
                numbers[at] = numbers[child]
                at = child
            times[at] = time_ms
            numbers[at] = number
        if self._most >= SHRUNK_FROM and size * 4 < self._most:
            times = times[:size]
            numbers = numbers[:size]
            self._most = size
        self._times = times
        self._numbers = numbers

    def bring_forward(self, ms: i64) -> None:
        """Make everything due so much earlier; the order stays."""
        times = self._times
        at: i64 = 0
        while at < len(times):
            times[at] -= ms
            at += 1

    def latest_ms(self) -> i64:
        """Return the latest time; there is one. Looks at half of them."""
        times = self._times
        at: i64 = len(times) // 2  # what has no children
        latest: i64 = times[at]
        while at < len(times):
            if times[at] > latest:
                latest = times[at]
            at += 1
        return latest

    def earliest(self, most: int) -> list[tuple[int, int]]:
        """Return (time, number) of at most so many of the earliest, in order, without looking at all the others."""
        found: list[tuple[int, int]] = []
        size = len(self._times)
        # Entries of the heap whose parents are found already.
        frontier: list[tuple[int, int, int]] = []
        if size:
            frontier.append((int(self._times[0]), int(self._numbers[0]), 0))
        while frontier and len(found) < most:
            time_ms, number, at = heappop(frontier)
            found.append((time_ms, number))
            for child in (2 * at + 1, 2 * at + 2):
                if child < size:
                    heappush(frontier, (int(self._times[child]), int(self._numbers[child]), child))
        return found

    def clear(self) -> None:
        """Forget all."""
        self._times = vec[i64]()
        self._numbers = vec[i64]()
        self._most = 0
