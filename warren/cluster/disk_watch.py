"""The time that a leader has waited for its own disk, and not for that of another replica of its set.

A replica is *late* while it has had the log for `LATE_S` without carrying out more of it, or while its disk is short
of space. Each other replica is *better* while the leader is late and that replica is not. The watch adds up the time
in which a replica is better, and subtracts half of the other time.

1. A replica is much better when its sum reaches `MUCH_S`. One pause of two seconds does not reach it. A disk that needs
   two seconds for each sync reaches it after four.
2. When all disks are slow no replica is better: another leader would not help.
3. The sum of a replica that leaves the set starts again at zero.

No I/O and no clock: times are arguments, in seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from warren.cluster.record import Replica

LATE_S: Final = 0.5
MUCH_S: Final = 2.0
SOME_S: Final = 0.5
TAKEN_OFF: Final = 0.5  # seconds for each second
LOOK_MAX_S: Final = 0.5  # events in a longer pause between two looks are unknown


class DiskWatch:
    """The disks of a set, while `me` leads it."""

    def __init__(self, me: Replica, now_s: float) -> None:
        self._me = me
        self._looked_s = now_s
        self._better_s: dict[Replica, float] = {}

    def look(self, now_s: float, members: Collection[Replica], late: Collection[Replica]) -> None:
        """Note the members of the set, and which of them are late at the moment."""
        passed_s = min(now_s - self._looked_s, LOOK_MAX_S)
        self._looked_s = now_s
        is_late = self._me in late
        self._better_s = {
            other: min(self._better_s.get(other, 0.0) + passed_s, MUCH_S)
            if is_late and other not in late
            else max(self._better_s.get(other, 0.0) - passed_s * TAKEN_OFF, 0.0)
            for other in members
            if other != self._me
        }

    def much_better(self) -> frozenset[Replica]:
        """Return the replicas that would lead much better."""
        return frozenset(other for other, better_s in self._better_s.items() if better_s >= MUCH_S)

    def is_worse(self) -> bool:
        """Tell whether others have waited for the disk of this leader, for a moment at least."""
        return any(better_s >= SOME_S for better_s in self._better_s.values())
