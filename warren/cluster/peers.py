"""A leader's view of the other replicas: their promises, their silence, and how far they have synced.

A replica that answers a beacon promises not to stand for the grace time, counted from when it received it. The leader
counts its own, shorter limit from when it *sent* that beacon: however long the answer took, the limit ends first if
the two clocks run at nearly the same rate.

1. However late an answer comes, its promise counts from the beacon that it answers. An answer to a beacon that is no
   longer remembered promises nothing.
2. A replica is useful while it is heard and, if it lacks a part of the log, makes progress. It is never useful without
   a link.
3. A round trip ends with the first answer to a beacon. Acknowledgements repeat that answer until the next one, and do
   not count.
4. Each time a replica leaves the set it waits longer before it may join again, unless the previous time is long ago.

No I/O and no clock: times are arguments, in seconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from warren.cluster.record import Replica
from warren.cluster.timers import NEVER, Timers

BEACONS_KEPT: Final = 64
BACK_OFF_S: Final = 1.0
BACK_OFF_MAX_S: Final = 30.0
FORGIVEN_AFTER_S: Final = 300.0
ROUND_TRIPS: Final = 8  # how many count: a single answer may be late for other reasons than the link
LATE_S: Final = 0.5  # a disk is late if it has had more of the log for so long without progress


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
    """All replicas that a leader has heard of. The leader itself is one of them, for the progress of its disk."""

    def __init__(self, now_s: float, timers: Timers) -> None:
        self.beacon_at_s = now_s
        self._began_s = now_s
        self._timers = timers
        self._peers: dict[Replica, Peer] = {}
        self._beacons = 0
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

    # --- promises and silence -------------------------------------------------------------------------------------

    def send_beacon(self, now_s: float) -> int:
        """Return the number of a beacon that is sent now."""
        self._beacons += 1
        self.beacon_at_s = now_s + self._timers.beacon_s
        self._sent.append((self._beacons, now_s))
        return self._beacons

    def answered(self, replica: Replica, number: int, now_s: float) -> None:
        """Take the answer to a beacon; one that is too old is worth nothing."""
        peer = self.of(replica)
        peer.heard_s = now_s
        peer.is_lost = False
        sent_s = next((sent_s for sent, sent_s in self._sent if sent == number), -math.inf)
        if sent_s > peer.promised_s:
            peer.round_trips_s.append(now_s - sent_s)
        peer.promised_s = max(peer.promised_s, sent_s)

    def promised_until_s(self, replicas: Collection[Replica]) -> float:
        """Return until when none of these stands, as all of them have promised."""
        return min((self.of(replica).promised_s for replica in replicas), default=NEVER) + self._timers.limit_s

    def silence_s(self, replicas: Collection[Replica], now_s: float) -> float:
        """Return how long the quietest of these has been silent; 0 for none."""
        return max((now_s - self.of(replica).heard_s for replica in replicas), default=0.0)

    def is_slow(self, replica: Replica) -> bool:
        """Tell whether every one of the last round trips took long; False while too few are known."""
        trips = self.of(replica).round_trips_s
        return len(trips) == ROUND_TRIPS and min(trips) > self._timers.slow_s

    def is_quick(self, replica: Replica) -> bool:
        """Tell whether none of the last round trips took long; False while too few are known."""
        trips = self.of(replica).round_trips_s
        return len(trips) == ROUND_TRIPS and max(trips) <= self._timers.slow_s

    # --- how far they are -----------------------------------------------------------------------------------------

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
        """Expect progress of a replica from now on: its position did not matter before."""
        self.of(replica).progress_s = now_s

    def heard(self, replica: Replica, now_s: float) -> None:
        """Note that a replica accepts our frames. That is not a promise."""
        peer = self.of(replica)
        peer.heard_s = peer.progress_s = now_s

    def lost(self, replica: Replica) -> None:
        """Forget how far a replica is: its connection is gone, and it may come back with less."""
        peer = self.of(replica)
        peer.is_lost = True
        peer.synced_lsn = 0

    # --- what follows from that -----------------------------------------------------------------------------------

    def useful_until_s(self, replica: Replica) -> float:
        """Return until when a replica counts as there, unless it is heard and makes progress."""
        peer = self.of(replica)
        if peer.is_lost:
            return -math.inf
        is_behind = peer.synced_lsn < self._appended_lsn
        return min(peer.heard_s, peer.progress_s if is_behind else math.inf) + self._timers.suspect_s

    def is_useful(self, replica: Replica, now_s: float) -> bool:
        """Tell whether a replica counts as there."""
        return now_s < self.useful_until_s(replica)

    def is_late(self, replica: Replica, now_s: float) -> bool:
        """Tell whether a replica's disk holds others up."""
        peer = self.of(replica)
        return 0 < peer.synced_lsn < self._appended_lsn and now_s >= peer.progress_s + LATE_S

    def best(self, replicas: Collection[Replica], drained: Collection[str], now_s: float) -> Replica | None:
        """Return the useful one of these with most of the log; a drained one only if all useful ones are drained."""
        useful = [replica for replica in replicas if self.is_useful(replica, now_s)]
        useful = [replica for replica in useful if replica.node not in drained] or useful
        return min(useful, key=lambda replica: (-self.of(replica).synced_lsn, replica), default=None)

    def was_removed(self, replica: Replica, now_s: float) -> None:
        """Note that a replica has left the set. If it has left before, and lately, it waits longer to join again."""
        peer = self.of(replica)
        is_lately = now_s < peer.may_join_at_s + FORGIVEN_AFTER_S
        peer.back_off_s = min(2 * peer.back_off_s, BACK_OFF_MAX_S) if is_lately else BACK_OFF_S
        peer.may_join_at_s = now_s + peer.back_off_s
