"""A leader's view of the other replicas: their promises, their silence, and how far they have synced.

A replica that answers a beacon promises not to stand for the grace time, counted from when it received it. The leader
counts its own, shorter limit from when it *sent* that beacon: however long the answer took, the limit ends first if
the two clocks run at nearly the same rate.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from warren.cluster.record import Replica

BEACONS_KEPT: Final = 64
BACK_OFF_S: Final = 1.0
BACK_OFF_MAX_S: Final = 30.0
FORGIVEN_AFTER_S: Final = 300.0
ROUND_TRIPS: Final = 8  # that count: one that comes after much else says nothing of the link


@dataclass(slots=True)
class Peer:
    """Another replica. `promised_s`: when the last beacon was sent that it has answered."""

    heard_s: float
    promised_s: float = -math.inf
    synced_lsn: int = 0
    progress_s: float = -math.inf
    is_lost: bool = False
    back_off_s: float = 0.0
    may_join_at_s: float = -math.inf
    round_trips_s: deque[float] = field(default_factory=lambda: deque(maxlen=ROUND_TRIPS))


class Peers:
    """All other replicas that a leader has heard of."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._peers: dict[Replica, Peer] = {}
        self._sent: deque[tuple[int, float]] = deque(maxlen=BEACONS_KEPT)
        self._appended_lsn = 0

    @property
    def appended_lsn(self) -> int:
        """How far the leader's log goes."""
        return self._appended_lsn

    def of(self, replica: Replica) -> Peer:
        """Return the entry of a replica; one that was never heard counts as heard when the epoch began."""
        if replica not in self._peers:
            self._peers[replica] = Peer(self._began_s, progress_s=self._began_s)
        return self._peers[replica]

    def sent(self, number: int, now_s: float) -> None:
        """Remember when a beacon was sent."""
        self._sent.append((number, now_s))

    def answered(self, replica: Replica, number: int, now_s: float) -> None:
        """Take the answer to a beacon; one that is too old is worth nothing."""
        peer = self.of(replica)
        peer.heard_s = now_s
        peer.is_lost = False
        sent_s = next((sent_s for sent, sent_s in self._sent if sent == number), -math.inf)
        peer.promised_s = max(peer.promised_s, sent_s)
        if sent_s > -math.inf:
            peer.round_trips_s.append(now_s - sent_s)

    def round_trips_s(self, replica: Replica) -> tuple[float, float]:
        """Return how long a beacon and its answer take lately, at least and at most; NaN while that is not known."""
        trips = self.of(replica).round_trips_s
        return (min(trips), max(trips)) if len(trips) == ROUND_TRIPS else (math.nan, math.nan)

    def appended(self, lsn: int, now_s: float) -> None:
        """Note how far the leader's log goes; replicas that had everything until now must make progress from now on."""
        for peer in self._peers.values():
            if peer.synced_lsn >= self._appended_lsn:
                peer.progress_s = now_s
        self._appended_lsn = lsn

    def synced(self, replica: Replica, lsn: int, now_s: float) -> None:
        """Take a replica's acknowledgement."""
        peer = self.of(replica)
        if lsn > peer.synced_lsn:
            peer.synced_lsn = lsn
            peer.progress_s = now_s

    def joins(self, replica: Replica, now_s: float) -> None:
        """A replica has to make progress from now on: how far it was did not matter before."""
        self.of(replica).progress_s = now_s

    def heard(self, replica: Replica, now_s: float) -> None:
        """Note that it accepts our frames. That is not a promise."""
        peer = self.of(replica)
        peer.heard_s = peer.progress_s = now_s

    def lost(self, replica: Replica) -> None:
        """The connection is gone. How far it was says nothing of how far it is when it comes back."""
        peer = self.of(replica)
        peer.is_lost = True
        peer.synced_lsn = 0

    def useful_until_s(self, replica: Replica, suspect_s: float) -> float:
        """Return until when a replica counts as there, unless it is heard and makes progress."""
        peer = self.of(replica)
        if peer.is_lost:
            return -math.inf
        is_behind = peer.synced_lsn < self._appended_lsn
        return min(peer.heard_s, peer.progress_s if is_behind else math.inf) + suspect_s

    def was_removed(self, replica: Replica, now_s: float) -> None:
        """A replica has left the set: if it did so lately it has to wait longer before it may join again."""
        peer = self.of(replica)
        is_lately = now_s < peer.may_join_at_s + FORGIVEN_AFTER_S
        peer.back_off_s = min(2 * peer.back_off_s, BACK_OFF_MAX_S) if is_lately else BACK_OFF_S
        peer.may_join_at_s = now_s + peer.back_off_s
