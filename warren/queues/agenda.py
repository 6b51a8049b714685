"""What is to happen at a time: one appointment for each queue or exchange that has to do something later.

An appointment knows its earliest time; whoever has many deadlines (``queues.deadlines``) makes one appointment for the
earliest. Times are wall time in ms since the epoch: they mean the same after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from mypy_extensions import i64

NEVER: i64 = 1 << 62


class Appointment:
    """Something with a time at which it wants to be called."""

    def __init__(self) -> None:
        self.at_ms: i64 = NEVER

    def due(self, now_ms: i64) -> None:
        """The time has come; `at_ms` is `NEVER` again. Make the next appointment from here."""
        raise AssertionError("overridden")


class Agenda:
    """The appointments of a broker. `on_earlier` is told when the next one is sooner than it was."""

    def __init__(self) -> None:
        self.on_earlier: Callable[[], None] | None = None
        self._entries: list[tuple[int, int, Appointment]] = []  # a heap; those that were moved are left behind
        self._serial: int = 0

    def at(self, time_ms: i64, appointment: Appointment) -> None:
        """Have `appointment` called at `time_ms`, or earlier if it has an earlier time already."""
        if time_ms >= appointment.at_ms:
            return
        appointment.at_ms = time_ms
        self._serial += 1
        heappush(self._entries, (int(time_ms), self._serial, appointment))
        if self.on_earlier is not None and self._entries[0][2] is appointment:
            self.on_earlier()

    def cancel(self, appointment: Appointment) -> None:
        """Forget `appointment`."""
        appointment.at_ms = NEVER

    def next_ms(self) -> int:
        """Return the time of the next appointment; `NEVER` when there is none."""
        entries = self._entries
        while entries and entries[0][2].at_ms != entries[0][0]:
            heappop(entries)
        return entries[0][0] if entries else int(NEVER)

    def keep(self, now_ms: i64) -> None:
        """Call everybody whose time has come, once."""
        entries = self._entries
        called: list[Appointment] = []
        while entries and entries[0][0] <= now_ms:
            time_ms, _, appointment = heappop(entries)
            if appointment.at_ms == time_ms:
                appointment.at_ms = NEVER
                called.append(appointment)
        for appointment in called:
            appointment.due(now_ms)
