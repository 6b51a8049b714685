"""Which leader a member follows, what it has promised to it, and whether that leader is still there.

1. A node acknowledges one epoch at a time. It stops when the record names a later epoch, before it stands for election,
   and before it leads.
2. The answer to a beacon is a promise not to stand, and not to begin an epoch, for the grace time after the beacon was
   received. A process that starts keeps such a promise: its earlier life may have given it just before it ended.
3. A leader counts as gone when nothing was heard of it for the grace time. If its link was lost and connecting again is
   refused, its machine runs and its process does not: then it counts as gone `refused_s` after the loss.
4. A leader of a new record counts as heard when the record is learnt: it has the grace time to send its first beacon.

No I/O and no clock: times are arguments, in seconds.
"""

from __future__ import annotations

from warren.cluster.actions import Actions
from warren.cluster.events import Acknowledge, AnswerBeacon, BeaconReceived, StopAcknowledging
from warren.cluster.record import Record, Replica
from warren.cluster.timers import Timers


class Following:
    """A node's relation to the leader that it follows."""

    def __init__(self, now_s: float, timers: Timers, actions: Actions) -> None:
        self.heard_s = now_s
        self.is_acknowledging = False
        self._followed: tuple[int, Replica] | None = None  # whose beacons were answered last
        self._answered_s = now_s
        self._lost_s: float | None = None
        self._is_refused = False
        self._timers = timers
        self._actions = actions

    @property
    def epoch(self) -> int:
        """The greatest epoch that was followed in this life; 0 before any."""
        return 0 if self._followed is None else self._followed[0]

    @property
    def is_refused(self) -> bool:
        """Whether the leader's machine refuses connections: its process is gone."""
        return self._is_refused

    def rival(self, beacon: BeaconReceived) -> Replica | None:
        """Return the leader that this node follows in the epoch of a beacon, if another one has sent the beacon."""
        if self._followed is None or self._followed[0] != beacon.epoch or self._followed[1] == beacon.leader:
            return None
        return self._followed[1]

    def answering(self, now_s: float) -> Replica | None:
        """Return the leader that is followed, while it is there."""
        if not self.is_acknowledging or self._followed is None or now_s >= self.heard_s + self._timers.grace_s:
            return None
        return self._followed[1]

    def gone_at_s(self) -> float:
        """Return when the leader counts as gone, unless it is heard before."""
        if self._is_refused and self._lost_s is not None:
            return self._lost_s + self._timers.refused_s
        return self.heard_s + self._timers.grace_s

    def released_at_s(self) -> float:
        """Return when the promise of the last answer is over."""
        return self._answered_s + self._timers.grace_s

    def answer(self, now_s: float, beacon: BeaconReceived) -> None:
        """Follow the sender of a beacon, and answer."""
        if self._followed != (beacon.epoch, beacon.leader) or not self.is_acknowledging:
            self._followed = (beacon.epoch, beacon.leader)
            self.is_acknowledging = True
            self._actions.add(Acknowledge(beacon.leader, beacon.epoch))
        self._answered_s = now_s
        self._is_there(now_s)
        self._actions.add(AnswerBeacon(beacon.leader, beacon.epoch, beacon.number))

    def learn(self, now_s: float, record: Record) -> None:
        """Note the leader on record."""
        if record.epoch > self.epoch:
            self._is_there(now_s)
            self.stop()

    def hear(self, now_s: float, replica: Replica) -> None:
        """Note that bytes come from a node."""
        if self.is_acknowledging and self._followed is not None and self._followed[1] == replica:
            self.heard_s = now_s

    def lose(self, now_s: float) -> None:
        """Note that the link with the leader on record was lost."""
        if self._lost_s is None:
            self._lost_s = now_s

    def refuse(self) -> None:
        """Note that the leader on record refuses connections. Ignored while its link is there."""
        self._is_refused |= self._lost_s is not None

    def stop(self) -> None:
        """Stop acknowledging."""
        if self.is_acknowledging:
            self.is_acknowledging = False
            self._actions.add(StopAcknowledging())

    def _is_there(self, now_s: float) -> None:
        self.heard_s = now_s
        self._lost_s, self._is_refused = None, False
