"""How a leader hands over to another replica of its set. No step leads back to serving.

    TransferRequested -> HandOver    the target is in sync and heard: disconnect the clients, write everything
    Drained           -> wait        until the target has synced our log to its end; if it falls silent, another target
                      -> Swap        to the record that names the target. No other node can lead by that record
    the record        -> Restart     as a follower. If no node takes over within `hand_over_s`, this node restarts too.
                                     If the record still names it, it stands again, or another replica of the set does

1. A leader stops serving and writing before it proposes another leader. So the next leader has everything that the
   previous one ever sent to a client, whether it was confirmed or not.
2. The next leader has synced the whole log of this one.
3. A drained node is not chosen by name. Without a name, it is chosen only if all other useful nodes are drained, too.

No I/O and no clock: times are arguments, in seconds.
"""

from __future__ import annotations

from warren.cluster.peers import Peers
from warren.cluster.record import Record, Refusal, Replica, named, transferred
from warren.cluster.timers import NEVER, Timers


class Handover:
    """The handover of the epoch that `me` leads. It has no target until it is requested."""

    def __init__(self, me: Replica, epoch: int, peers: Peers, timers: Timers) -> None:
        self.target: Replica | None = None  # the next leader
        self.drained_lsn: int | None = None  # where our log ends for good
        self.until_s = NEVER
        self._me = me
        self._epoch = epoch
        self._peers = peers
        self._timers = timers

    def begin(self, now_s: float, record: Record, node: str | None) -> Replica | Refusal:
        """Choose the target, and return it: the replica of `node`; without one, that which has most of the log."""
        if self.target is not None:
            return Refusal(f"this node is already handing over to {self.target.node}")
        target = self._chosen(now_s, record, node)
        if isinstance(target, Replica):
            self.target = target
        return target

    def drained(self, now_s: float, lsn: int) -> None:
        """Note that nothing is written any longer, and where the log ends."""
        if self.target is not None:
            self.drained_lsn = lsn
            self.until_s = now_s + self._timers.hand_over_s

    def wanted(self, now_s: float, record: Record) -> Record | None:
        """Return the record in which another one leads, once it has our log up to its end."""
        if self.drained_lsn is None:
            return None
        target = self.target
        if target not in record.in_sync or not self._peers.is_useful(target, now_s):
            target = self._best(now_s, record)
        if target is None or self._peers.of(target).synced_lsn < self.drained_lsn:
            return None
        change = transferred(record, self._me, self._epoch, target)
        return change if isinstance(change, Record) else None

    def _chosen(self, now_s: float, record: Record, node: str | None) -> Replica | Refusal:
        if node is None:
            return self._best(now_s, record) or Refusal("no other node is in sync and answers")
        target = named(record, node)
        if isinstance(target, Replica):
            change = transferred(record, self._me, self._epoch, target)
            if isinstance(change, Refusal):
                return change
            if node in record.drained:
                return Refusal(f"{node} is drained: revive it first")
            if not self._peers.is_useful(target, now_s):
                return Refusal(f"{node} does not answer, or does not keep up")
        return target

    def _best(self, now_s: float, record: Record) -> Replica | None:
        return self._peers.best(record.in_sync - {self._me}, record.drained, now_s)
