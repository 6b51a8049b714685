"""Deadlines of many messages in 16 bytes each: (time in ms, sequence number), the earliest first.

    run     deadlines added in ascending order, as those with one and the same delay are: a queue, in pieces
    heap    all others: a binary heap

1. A deadline is appended to the run if it is not before the run's last. The next one out is the earlier of both fronts.
2. Nothing is taken out of the middle. A message that is settled early leaves its deadline there. A caller that takes
   the earliest checks whether the message still waits. Equal times come out in the order of the sequence numbers.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Final

from librt.vecs import append, pop, vec
from mypy_extensions import i64

# From this size on memory is given back when only a quarter of the heap is used.
SHRUNK_FROM: Final = 4096
PIECE_ENTRIES: Final = 256


class _Piece:
    """A part of the run: entries from `at` to `end`.

    The first one grows. The later ones have their full size at once: growing, they would leave holes as large as
    themselves in memory.
    """

    def __init__(self) -> None:
        self.times = vec[i64]()
        self.numbers = vec[i64]()
        self.at: i64 = 0
        self.end: i64 = 0


class Deadlines:
    """Deadlines, earliest first."""

    def __init__(self) -> None:
        self._front = _Piece()
        self._behind: deque[_Piece] = deque()  # the pieces after the front, none of them empty
        self._run_length: i64 = 0
        self._last_ms: i64 = 0  # the last of the run
        self._last_number: i64 = 0
        self._times = vec[i64]()
        self._numbers = vec[i64]()
        self._most: i64 = 0  # the largest size of the heap since memory was given back

    def __len__(self) -> int:
        return int(self._run_length + i64(len(self._times)))

    def is_empty(self) -> bool:
        """Tell whether it is empty."""
        return self._run_length == 0 and len(self._times) == 0

    def _run_leads(self) -> bool:
        """Tell whether the earliest is in the run; not for an empty one."""
        if self._run_length == 0:
            return False
        if len(self._times) == 0:
            return True
        front = self._front
        time_ms: i64 = front.times[front.at]
        other: i64 = self._times[0]
        return time_ms < other or (time_ms == other and front.numbers[front.at] < self._numbers[0])

    def first_ms(self) -> i64:
        """Return the earliest time; not for an empty one."""
        if self._run_leads():
            return self._front.times[self._front.at]
        return self._times[0]

    def first_number(self) -> i64:
        """Return the sequence number that the earliest time belongs to."""
        if self._run_leads():
            return self._front.numbers[self._front.at]
        return self._numbers[0]

    def add(self, time_ms: i64, number: i64) -> None:
        """Add a deadline."""
        if self._run_length > 0 and (
            time_ms < self._last_ms or (time_ms == self._last_ms and number < self._last_number)
        ):
            self._add_to_heap(time_ms, number)
            return
        behind = self._behind
        piece = behind[-1] if behind else self._front
        if piece.end >= PIECE_ENTRIES:
            full = piece
            piece = _Piece()
            piece.times = full.times[:]
            piece.numbers = full.numbers[:]
            behind.append(piece)
        end: i64 = piece.end
        if end < i64(len(piece.times)):
            piece.times[end] = time_ms
            piece.numbers[end] = number
        else:
            piece.times = append(piece.times, time_ms)
            piece.numbers = append(piece.numbers, number)
        piece.end = end + 1
        self._run_length += 1
        self._last_ms = time_ms
        self._last_number = number

    def _add_to_heap(self, time_ms: i64, number: i64) -> None:
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
        if self._run_leads():
            self._remove_from_run()
        else:
            self._remove_from_heap()

    def _remove_from_run(self) -> None:
        front = self._front
        front.at += 1
        self._run_length -= 1
        if front.at == front.end:
            self._front = self._behind.popleft() if self._behind else _Piece()

    def _remove_from_heap(self) -> None:
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
        """Make everything due `ms` earlier; the order stays."""
        for piece in (self._front, *self._behind):
            _bring_forward(piece.times, ms)
        _bring_forward(self._times, ms)
        self._last_ms -= ms

    def latest_ms(self) -> i64:
        """Return the latest time; not for an empty one. Looks at half of the heap."""
        times = self._times
        at: i64 = len(times) // 2  # the entries without children
        latest: i64 = self._last_ms
        if self._run_length == 0:
            latest = times[at]
        while at < len(times):
            if times[at] > latest:
                latest = times[at]
            at += 1
        return latest

    def earliest(self, most: int) -> list[tuple[int, int]]:
        """Return (time, number) of the `most` earliest, in order, without looking at all the others."""
        found: list[tuple[int, int]] = []
        for piece in (self._front, *self._behind):
            entry = int(piece.at)
            while entry < piece.end and len(found) < most:
                found.append((int(piece.times[entry]), int(piece.numbers[entry])))
                entry += 1
        size = len(self._times)
        # Entries of the heap whose parents were taken already.
        frontier: list[tuple[int, int, int]] = []
        if size:
            frontier.append((int(self._times[0]), int(self._numbers[0]), 0))
        left = most
        while frontier and left > 0:
            left -= 1
            time_ms, number, at = heappop(frontier)
            found.append((time_ms, number))
            for child in (2 * at + 1, 2 * at + 2):
                if child < size:
                    heappush(frontier, (int(self._times[child]), int(self._numbers[child]), child))
        found.sort()
        return found[:most]

    def clear(self) -> None:
        """Remove all deadlines."""
        self._front = _Piece()
        self._behind.clear()
        self._run_length = 0
        self._times = vec[i64]()
        self._numbers = vec[i64]()
        self._most = 0


def _bring_forward(times: vec[i64], ms: i64) -> None:
    at: i64 = 0
    while at < len(times):
        times[at] -= ms
        at += 1
