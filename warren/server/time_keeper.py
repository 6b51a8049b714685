"""The two tasks by which time passes in a broker: a beat for what is repeated, and the engine's timers.

The engine reads no clock. It tells when its next timer is due, and is told the time then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

import trio

from warren.channels.broker import Broker
from warren.queues.timers import NEVER
from warren.server.beats import next_beat
from warren.server.clock import SteadyClock
from warren.server.cyclic_collector import QUIET, collect_lately

CLOCK_CHECK_S: Final = 1.0
COLLECT_S: Final = 60.0


class TimeKeeper:
    """Tells a broker the time. `beat` gets monotonic seconds twice a second; `settle` ends a turn of the engine."""

    def __init__(
        self, broker: Broker, clock: SteadyClock, beat: Callable[[float], None], settle: Callable[[], None]
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._beat = beat
        self._settle = settle
        self._sooner = trio.Event()
        broker.timers.on_earlier = lambda: self._sooner.set()

    async def beat(self) -> None:
        """Do the repeated work of the engine. For ever."""
        now_s = last_collect_s = time.monotonic()
        used_s = time.process_time()
        while True:
            await next_beat()
            before_s, now_s = now_s, time.monotonic()
            used_before_s, used_s = used_s, time.process_time()
            self._clock.follow()
            self._beat(now_s)
            # Only tracebacks and libraries make cycles: rarely enough to wait for a quiet moment.
            if now_s - last_collect_s > COLLECT_S and not self._broker.has_work():
                last_collect_s = now_s
                collect_lately(now_s, quiet=used_s - used_before_s < QUIET * (now_s - before_s))

    async def run_timers(self) -> None:
        """Run the engine's timers when they are due: expire, release, delete. For ever."""
        timers = self._broker.timers
        while True:
            self._sooner = trio.Event()
            now_ms = self._clock.now_ms()
            next_ms = timers.next_ms()
            if next_ms <= now_ms:
                self._broker.keep_time(now_ms)
                self._settle()
                await trio.lowlevel.checkpoint()
                continue
            # Not longer, for this clock may be a little faster than trio's.
            with trio.move_on_after(min((next_ms - now_ms) / 1000, CLOCK_CHECK_S) if next_ms < NEVER else math.inf):
                await self._sooner.wait()
