"""The time of a broker under test: that of this machine, until a test moves it forward or stops it.

It stands in for the two clocks of `warren.server.clock.SteadyClock`, and both do the same:

1. Time passes as it does elsewhere, plus the steps of `advance`. It never goes back except by `reset`, which is for a
   broker that is down.
2. While it is stopped only `advance` moves it. After that it continues from there.

Any thread may ask; one at a time changes it.
"""

from __future__ import annotations

import time

from warren.server.clock import SteadyClock, passed_ns

_NS_PER_MS = 1_000_000


class MovableClock:
    """A clock. Begins with the time of this machine."""

    def __init__(self) -> None:
        # How far it is ahead of this machine, and the machine's time when it was stopped; replaced as a whole.
        self._state: tuple[int, int | None] = (0, None)

    def steady(self) -> SteadyClock:
        """Return the clock for a broker that starts now."""
        return _UnfollowedClock(self._wall_ns, self._steady_ns)

    def now_ms(self) -> int:
        """Return the time in ms since the epoch."""
        return self._wall_ns() // _NS_PER_MS

    @property
    def ahead_ns(self) -> int:
        """The sum of the steps of `advance`, less the time that was stopped."""
        return self._state[0]

    @property
    def is_moved(self) -> bool:
        """Whether it shows another time than this machine."""
        return self._state != (0, None)

    def advance(self, ns: int) -> None:
        """Advance the clock by `ns`."""
        ahead_ns, stopped_ns = self._state
        self._state = (ahead_ns + ns, stopped_ns)

    def stop(self) -> None:
        """Stop time: it no longer passes by itself."""
        ahead_ns, stopped_ns = self._state
        self._state = (ahead_ns, passed_ns() if stopped_ns is None else stopped_ns)

    def resume(self) -> None:
        """Start the clock again, from where it stands."""
        ahead_ns, stopped_ns = self._state
        if stopped_ns is not None:
            self._state = (ahead_ns - (passed_ns() - stopped_ns), None)

    def reset(self) -> None:
        """Show the time of this machine."""
        self._state = (0, None)

    def _steady_ns(self) -> int:
        ahead_ns, stopped_ns = self._state
        return (passed_ns() if stopped_ns is None else stopped_ns) + ahead_ns

    def _wall_ns(self) -> int:
        return time.time_ns() + self._steady_ns() - passed_ns()


class _UnfollowedClock(SteadyClock):
    """A clock that follows nothing: a change of one of its two clocks changes the other as well.

    A clock that follows compares the two. It would mistake an interruption between its two readings for a difference,
    and an hour that is passed over would be seconds too long.
    """

    def follow(self) -> None:
        return
