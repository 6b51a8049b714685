"""Timers: one for each queue or exchange that has to do something later.

A timer knows its earliest time; an owner of many deadlines (``queues.deadlines``) sets one timer for the earliest.
Times are wall time in ms since the epoch: they mean the same after a restart.

1. A timer has at most one valid entry, that of its ``entry`` number. Its earlier entries are stale, and do not refer to
   it: a timer ten years ahead that was cancelled must not keep its queue in memory until then.
2. Stale entries are at most about as many as valid ones.
3. `run_due` calls each due timer once, in the order of the times, unless it is cancelled or moved meanwhile.
4. It calls `DUE_MAX` at most, and no more once they have done `WORKED_MAX` things, or one has failed: the next run
   calls the rest. One that has failed is called again after `FAILED_MS`.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from mypy_extensions import i64, mypyc_attr

NEVER: Final = 1 << 62
# This many stale entries are never worth tidying up.
STALE_MIN: Final = 64
DUE_MAX: Final = 512
WORKED_MAX: Final = 1024
# Longer than a task has to run without a failure (`server.supervision`): a lasting defect does not end the process.
FAILED_MS: Final = 15_000


@mypyc_attr(allow_interpreted_subclasses=True)  # for tests
class Timer:
    """An object with a time at which it wants to be called."""

    def __init__(self) -> None:
        self.at_ms: i64 = NEVER
        self.entry: i64 = 0  # its number in the queue of timers, 0: none

    def due(self, now_ms: i64) -> None:
        """Act: the time has come, and `at_ms` is `NEVER` again. Set it again from here."""
        raise AssertionError("overridden")


class TimerQueue:
    """The timers of a broker. `on_earlier` is told when the next one is sooner than it was."""

    def __init__(self) -> None:
        self.on_earlier: Callable[[], None] | None = None
        self._times: list[tuple[int, int]] = []  # a heap: when, and the number of the entry
        self._timers: dict[int, Timer] = {}  # by entry, the valid ones
        self._serial: i64 = 0
        self.worked: i64 = 0  # in this `run_due`: a timer that does much when it is called adds to it

    def __len__(self) -> int:
        """Return how many entries there are, stale ones included."""
        return len(self._times)

    def at(self, time_ms: i64, timer: Timer) -> None:
        """Call `timer` at `time_ms`, or earlier if it has an earlier time already."""
        if time_ms >= timer.at_ms:
            return
        if timer.entry:
            del self._timers[int(timer.entry)]
        self._serial += 1
        serial = int(self._serial)
        timer.at_ms = time_ms
        timer.entry = self._serial
        self._timers[serial] = timer
        heappush(self._times, (int(time_ms), serial))
        self._tidy()
        if self.on_earlier is not None and self._times[0][1] == serial:
            self.on_earlier()

    def cancel(self, timer: Timer) -> None:
        """Forget `timer`."""
        timer.at_ms = NEVER
        if timer.entry:
            del self._timers[int(timer.entry)]
            timer.entry = 0
            self._tidy()

    def _tidy(self) -> None:
        if len(self._times) > 2 * len(self._timers) + STALE_MIN:
            self._times = [time for time in self._times if time[1] in self._timers]
            heapify(self._times)

    def next_ms(self) -> int:
        """Return the time of the next timer; `NEVER` without timers."""
        times = self._times
        while times and times[0][1] not in self._timers:
            heappop(times)
        return times[0][0] if times else int(NEVER)

    def run_due(self, now_ms: i64) -> None:
        """Call those whose time has come, once each. If they are too many, `next_ms` is in the past afterwards."""
        times = self._times
        due: list[tuple[int, int]] = []
        while times and times[0][0] <= now_ms and len(due) < DUE_MAX:
            due.append(heappop(times))
        self.worked = 0
        due.reverse()
        try:
            while due and self.worked < WORKED_MAX:
                timer = self._timers.pop(due.pop()[1], None)
                if timer is not None:
                    self.worked += 1
                    timer.at_ms = NEVER
                    timer.entry = 0
                    try:
                        timer.due(now_ms)
                    except Exception:
                        self.at(now_ms + FAILED_MS, timer)
                        raise
        finally:
            for entry in due:
                heappush(self._times, entry)  # another list than `times` if a timer has tidied up
