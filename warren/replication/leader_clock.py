"""A follower's knowledge of its leader's clock, and the time that it uses when it leads itself.

1. Expiry uses the time of the leader. A node that takes over continues that time, as the beacons have told it, and is
   slewed towards its own wall clock by 1 % (``server/clock.py``). So a node whose clock is hours ahead expires nothing
   early when it takes over: a wait is wrong by a hundredth at most.
2. Clocks that differ by less than `SKEW_MS` count as the same. A larger difference is reported (`skew_ms`).
3. A beacon may come late, after much else. Of the last ones, the one with the shortest travel time counts.
4. Beacons of another leader take the place of those of the previous one, from the first on.

A node that has heard no leader in this life uses its own wall clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

from warren.server.clock import SteadyClock, passed_ns

SKEW_MS: Final = 500
# Beacons come four times a second.
BEACONS: Final = 40
_MILLION: Final = 1_000_000


class LeaderClock:
    """The clock of the leader that is followed, by that of this node."""

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = passed_ns) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._ahead_ns: deque[int] = deque(maxlen=BEACONS)  # of this node's steady clock, by each of the last beacons
        self._epoch = 0

    def told(self, epoch: int, time_ms: int) -> None:
        """Note the time that the leader of `epoch` has sent in a beacon."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._ahead_ns.clear()
        self._ahead_ns.append(time_ms * _MILLION - self._steady_ns())

    def skew_ms(self) -> int | None:
        """Return by how much the wall clock here is ahead of the leader's time; None when that is not known."""
        leaders_ns = self._maybe_now_ns()
        return None if leaders_ns is None else (self._wall_ns() - leaders_ns) // _MILLION

    def is_off(self) -> bool:
        """Tell whether the clocks differ enough to need an operator."""
        skew_ms = self.skew_ms()
        return skew_ms is not None and abs(skew_ms) > SKEW_MS

    def continued(self) -> SteadyClock:
        """Return the clock of this node as the next leader."""
        start_ns = self._maybe_now_ns() if self.is_off() else None
        return SteadyClock(self._wall_ns, self._steady_ns, start_ns)

    def _maybe_now_ns(self) -> int | None:
        return self._steady_ns() + max(self._ahead_ns) if self._ahead_ns else None
