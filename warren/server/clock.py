"""Tell the time by which everything expires: the wall clock at the start, plus the time that has passed since.

`start_ns` is another time to begin with: that of the leader from which this node takes over.

1. Time passes evenly and never goes back, however the wall clock is set. Passed time is measured by a clock that cannot
   be set and that keeps running while the machine sleeps.
2. The clock approaches the wall clock by `SLEW_PPM` millionths of the passing time. So a wait is wrong by a hundredth
   at most, and setting the wall clock back and forth has no effect. The next start takes over a large difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from warren.server.logs import get_logger

SLEW_PPM: Final = 10_000
# How far off the wall clock has to be for a line in the log.
TOLD_NS: Final = 2_000_000_000

# Time in which a difference should vanish, if the rate allows: longer than the time between two calls of `follow`.
_HORIZON_NS: Final = 4_000_000_000
_MILLION: Final = 1_000_000

log = get_logger("clock")


def passed_ns() -> int:
    """Return a time in ns that never goes back, and also advances while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class SteadyClock:
    """The time of one broker. `now_ms` may be called from any thread, `follow` from one."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = passed_ns,
        start_ns: int | None = None,
    ) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        # The time at a moment, that moment on `steady_ns`, and the change of speed since; replaced as a whole.
        self._line = (wall_ns() if start_ns is None else start_ns, steady_ns(), 0)
        self._is_off = False

    def now_ms(self) -> int:
        """Return the time in ms since the epoch."""
        return self._at(self._steady_ns()) // _MILLION

    def follow(self) -> None:
        """Look at the wall clock. Call about twice a second."""
        steady = self._steady_ns()
        now = self._at(steady)
        off = self._wall_ns() - now
        rate = off * _MILLION // _HORIZON_NS
        self._line = (now, steady, max(-SLEW_PPM, min(rate, SLEW_PPM)))
        if abs(off) >= TOLD_NS and not self._is_off:
            self._is_off = True
            log.warning(
                "the system clock was set, or is not the previous leader's; the broker's clock is slewed towards it "
                "by 1 %, or set at the next start",
                seconds=round(off / 1e9, 1),
            )
        elif abs(off) < TOLD_NS // 2 and self._is_off:
            self._is_off = False
            log.info("the broker's time agrees with the system clock again")

    def _at(self, steady: int) -> int:
        anchor, since, ppm = self._line
        elapsed = steady - since
        return anchor + elapsed + elapsed * ppm // _MILLION
