"""When a leader gives way: its own disk holds commits up, and the disk of another replica of its set does not.

A replica is *late* while its disk makes no progress with the log that it has (`Peers.is_late`), or is short of space.
Another replica is *better* while the leader is late and that replica is not. The watch adds up the time in which a
replica is better, and subtracts half of the time in which it is not.

1. A replica is much better when its sum reaches `MUCH_S`. One pause of two seconds does not reach it. A disk that needs
   two seconds for each sync reaches it after four.
2. When all disks are slow, no replica is better: another leader would not help.
3. The sum of a replica that leaves the set starts again at zero.
4. A leader gives way to a replica that is much better, and not drained. It has to lead for `tenure_s` before; for
   `long_tenure_s` if another node has handed over to it and its disk has space. It tries again every
   `give_way_retry_s` until the handover begins.

No I/O and no clock: times are arguments, in seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from warren.cluster.peers import Peers
from warren.cluster.record import LeaderBy, Record, Replica
from warren.cluster.timers import NEVER, Timers

MUCH_S: Final = 2.0
SOME_S: Final = 0.5
TAKEN_OFF: Final = 0.5  # seconds, for each second in which the replica is not better
LOOK_MAX_S: Final = 0.5  # a longer pause between two looks counts as this: nothing is known of its rest


class DiskWatch:
    """The disks of a set, while `me` leads it."""

    def __init__(self, me: Replica, now_s: float, timers: Timers) -> None:
        self.short: frozenset[str] = frozenset()  # nodes without space
        self.gives_way_at_s = NEVER  # not earlier
        self._is_slow_at_s = NEVER  # not earlier, if the reason is a slow disk
        self._me = me
        self._timers = timers
        self._looked_s = now_s
        self._better_s: dict[Replica, float] = {}

    def begin(self, now_s: float, by: LeaderBy) -> None:
        """Note that the leader has recovered its log; `by`: how it came to lead."""
        self.gives_way_at_s = now_s + self._timers.tenure_s
        self._is_slow_at_s = now_s + self._timers.long_tenure_s if by is LeaderBy.TRANSFER else now_s

    def trouble(self) -> str:
        """Return how the leader's disk holds everybody up; empty while it does not."""
        if not any(better_s >= SOME_S for better_s in self._better_s.values()):
            return ""
        if self._me.node in self.short:
            return "the disk of this node is full, or nearly"
        return "the disk of this node is slower than those of others: commits wait for it"

    def maybe_next(self, now_s: float, record: Record, peers: Peers) -> Replica | None:
        """Look at all disks; return the replica to give way to, if that is due."""
        late = frozenset(each for each in record.in_sync if peers.is_late(each, now_s) or each.node in self.short)
        self.look(now_s, record.in_sync, late)
        if now_s < self.gives_way_at_s or (now_s < self._is_slow_at_s and self._me.node not in self.short):
            return None
        better = [other for other in self.much_better() - late if other.node not in record.drained]
        target = peers.best(better, (), now_s)
        if target is not None:
            self.gives_way_at_s = now_s + self._timers.give_way_retry_s
        return target

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
