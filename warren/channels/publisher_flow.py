"""When publishers have to wait: memory, disk or replicas are short, or the disk is slower than the publishers.

1. ``Shared.stopped`` and ``large_stopped`` say whether they have to; nothing else sets these.
2. When they need not wait any longer, they resume one after the other (`jobs.Resuming`).
"""

from __future__ import annotations

from mypy_extensions import i64

from warren.channels.jobs import Resuming
from warren.channels.shared import Shared
from warren.msgstore.log.message_log import ALL_WAIT, NO_WAIT
from warren.queues.long_work import LongWork


class PublisherFlow:
    """Stops the publishers of a broker, and lets them continue. `alarm_reason`: the text for clients, or empty."""

    def __init__(self, shared: Shared, work: LongWork, resuming: Resuming) -> None:
        self.alarm_reason: str = ""
        self._shared = shared
        self._log = shared.log
        self._work = work
        self._resuming = resuming
        self._alarms: set[str] = set()
        self._pressure: i64 = NO_WAIT  # of the log, whose disk may be slower than the publishers

    def has_alarm(self, resource: str) -> bool:
        """Tell whether `resource` is short."""
        return resource in self._alarms

    def note_alarm(self, resource: str, short: bool) -> None:
        """Note that `resource` is `short`, or no longer; `check` follows."""
        if short:
            self._alarms.add(resource)
        else:
            self._alarms.discard(resource)
        self.alarm_reason = " & ".join([f"low on {name}" for name in sorted(self._alarms, reverse=True)])

    def look_at_log(self) -> None:
        """Find out whether the disk keeps up; once in each turn."""
        pressure: i64 = self._log.pressure()
        if pressure != self._pressure:
            self._pressure = pressure
            self.check()

    def check(self) -> None:
        """Stop the publishers, or let them continue."""
        shared = self._shared
        own = self._log.own
        own.disk_is_short = "disk" in self._alarms
        own.memory_is_short = "memory" in self._alarms
        was_stopped, were_large_stopped = shared.stopped, shared.large_stopped
        shared.stopped = self._pressure == ALL_WAIT or len(self._alarms) > 0
        shared.large_stopped = self._pressure != NO_WAIT or len(self._alarms) > 0
        if (was_stopped and not shared.stopped) or (were_large_stopped and not shared.large_stopped):
            self.resume()

    def resume(self) -> None:
        """Resume publishers. Those that are blocked for another reason find that out by themselves."""
        if self._shared.stopped:
            return
        if self._resuming.is_to_begin():
            self._work.begin(self._resuming)
