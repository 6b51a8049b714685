"""An epoch that a member leads: whose acks commits need, the changes of the set, and until when it serves.

    wait        until the previous leader cannot serve: `Lead`
    recover     the beginning of the epoch is synced before another node hears of it. When the set has committed it:
                `Recovered`
    lead        serve while all others promise not to stand
    hand over   ``handover.py``; or the member ends the epoch, since another node leads

1. A commit needs the acks of every replica that may be recorded as in sync (`RecordView.possible`). It also needs those
   of a replica that is about to join. That replica is added once it has everything that the log had when its acks began
   to be required.
2. A leader serves for `limit_s` after it sent the last beacon that *all* other replicas that may be recorded as in sync
   have answered (``peers.py``). A set of one needs no answers, since no other replica can stand. A leader continues to
   serve while etcd is away.
3. When the record needs several changes, a handover comes first, and then the change that resumes commits. A proposal
   that is no longer wanted may still come into force. Writing the known record again, at a new revision, prevents that.
4. Silent replicas leave the set only if enough others remain to confirm. If not, all stay in it: this node may be the
   one that is cut off, and the others may elect a leader. A replica whose link is slow leaves only if enough others are
   known to be quick.
5. A leader whose disk hangs sends no beacons.

No I/O and no clock: times are arguments, in seconds.
"""

from __future__ import annotations

from warren.cluster.actions import Actions
from warren.cluster.asked_change import AskedChange
from warren.cluster.disk_watch import DiskWatch
from warren.cluster.events import (
    ChangeRequested,
    GiveWay,
    HandOver,
    Lead,
    RefuseCommand,
    RequireAcks,
    SendBeacon,
    Serve,
    StopServing,
)
from warren.cluster.handover import Handover
from warren.cluster.own_directory import OwnDirectory
from warren.cluster.peers import Peers
from warren.cluster.record import Record, Refusal, Replica, added, removed, required
from warren.cluster.record_view import RecordView
from warren.cluster.renewal import Renewal
from warren.cluster.timers import NEVER, Timers


class Leadership:
    """The epoch of `record`, which `me` leads; `leads_from_s`: from when on no earlier leader serves.

    `replicas` and `min_in_sync` are those of `Member`.
    """

    def __init__(
        self,
        me: Replica,
        record: Record,
        now_s: float,
        *,
        leads_from_s: float,
        view: RecordView,
        directory: OwnDirectory,
        replicas: int,
        min_in_sync: int | None,
        timers: Timers,
        actions: Actions,
    ) -> None:
        self._me = me
        self.epoch = record.epoch
        self.has_recovered = False
        self.peers = Peers(now_s, timers)
        self.disks = DiskWatch(me, now_s, timers)
        self.renewal = Renewal(me, record.epoch, directory.life, now_s, timers)
        self.handover = Handover(me, record.epoch, self.peers, timers)
        self._asked = AskedChange(timers)
        self._by = record.by
        self._leads_from_s = leads_from_s
        self._view = view
        self._directory = directory
        self._replicas = replicas
        self._min_in_sync = min_in_sync
        self._timers = timers
        self._actions = actions
        self._required: frozenset[Replica] = frozenset()
        self._joining: tuple[Replica, int] | None = None  # a replica, and the LSN that it has to reach to join
        self._is_told_to_lead = False
        self._is_told_to_serve = False
        self._serves_until_s = NEVER  # unless others promise more; set at every event, read at every turn

    # --- questions ------------------------------------------------------------------------------------------------

    def serves(self, now_s: float) -> bool:
        """Tell whether clients may be served at this moment."""
        return self._is_told_to_serve and now_s < self._serves_until_s

    def silence_s(self, now_s: float) -> float:
        """Return how long the quietest replica whose promise is needed has been silent; 0 when none is needed."""
        return self.peers.silence_s(self._others(), now_s)

    def wake_times(self) -> list[float]:
        """Return when time alone changes something."""
        times = [self.peers.beacon_at_s, self._leads_from_s, self._promised_until_s(), self.handover.until_s]
        times += [self.renewal.renews_at_s, self.doubt_at_s()]
        return times + [self.peers.useful_until_s(other) for other in self._required - {self._me}]

    def doubt_at_s(self) -> float:
        """Return when to read the record again: if the answers that it needs are missing, another node may lead."""
        is_asking = self._view.is_swapping or not self._view.is_read or self._promised_until_s() == NEVER
        return NEVER if is_asking else max(self._promised_until_s(), self._view.read_s + self._timers.suspect_s)

    def wanted(self, now_s: float) -> Record | None:
        """Return the record that the leader wants instead of the known one; None when that one is right."""
        record = self._record()
        if record is None:
            return None
        change = (
            self.handover.wanted(now_s, record)
            or self._without_silent(now_s, record)
            or self._without_slow(now_s, record)
            or self._with_joining(record)
            or self._asked.wanted(now_s, record)
            or self._with_required(record)
            or (self.renewal.wanted(now_s, record) if self._is_told_to_lead else None)
        )
        if change is None and self._view.unsettled:
            return record
        return change

    # --- events ---------------------------------------------------------------------------------------------------

    def recovered(self, now_s: float) -> None:
        """Note that the beginning of the epoch is committed."""
        if self._is_told_to_lead and not self.has_recovered:
            self.has_recovered = True
            self.disks.begin(now_s, self._by)

    def learn(self, now_s: float, record: Record) -> None:
        """Note a record of this epoch, or of an earlier one."""
        if record.epoch < self.epoch:
            self._actions.report(
                f"the record in etcd is of epoch {record.epoch}, an old one: was etcd restored from a backup?"
            )
            return
        joining = {self._joining[0]} if self._joining else set()
        for replica in self._required - record.in_sync - joining:
            self.peers.was_removed(replica, now_s)
        if joining & record.in_sync:
            self._joining = None

    def nearly_caught_up(self, now_s: float, replica: Replica) -> None:
        """Require the acks of a replica from now on, if it may join."""
        record = self._view.record
        if not self._is_told_to_lead or self._joining is not None or record is None:
            return
        if now_s < self.peers.of(replica).may_join_at_s or replica in self._required:
            return
        if self.peers.is_slow(replica) and self._has_enough_quick(now_s, record):
            return
        if isinstance(added(record, self._me, self.epoch, replica, self._replicas), Record):
            self._joining = (replica, self.peers.appended_lsn)
            self.peers.joins(replica, now_s)

    def transfer(self, now_s: float, node: str | None) -> None:
        """Hand leadership to another node, or say why not."""
        record = self._record()
        if record is None:
            target: Replica | Refusal = Refusal("this node does not lead")
        elif not self.has_recovered:
            target = Refusal("this node does not lead yet: it is recovering")
        else:
            target = self.handover.begin(now_s, record, node)
        self._actions.add(RefuseCommand(target.reason) if isinstance(target, Refusal) else HandOver(target))

    def ask(self, now_s: float, request: ChangeRequested) -> None:
        """Accept a command about a node, or say why not."""
        record = self._record()
        refusal = "this node does not lead"
        if record is not None:
            refusal = self._asked.ask(now_s, record, request, self.peers)
        if refusal:
            self._actions.add(RefuseCommand(refusal))

    # --- decisions ------------------------------------------------------------------------------------------------

    def decide(self, now_s: float) -> None:
        """Decide what follows from the time, and from a proposal that may come into force from now on."""
        self._maybe_begin(now_s)
        self._decide_serving(now_s)
        self._decide_acks()
        self._maybe_give_way(now_s)
        self._maybe_beacon(now_s)

    def stop_serving(self) -> None:
        """Serve nobody from now on."""
        if self._is_told_to_serve:
            self._is_told_to_serve = False
            self._actions.add(StopServing())

    def _record(self) -> Record | None:
        """Return the known record, if it is of this epoch."""
        record = self._view.record
        return record if record is not None and record.epoch == self.epoch else None

    def _without_silent(self, now_s: float, record: Record) -> Record | None:
        """Return the record without the silent and stuck replicas: as many as may leave, the longest silent first."""
        silent = [other for other in record.in_sync - {self._me} if not self.peers.is_useful(other, now_s)]
        if len(record.in_sync) - len(silent) < record.least:
            return None
        changed = self._without(record, sorted(silent, key=lambda other: (self.peers.useful_until_s(other), other)))
        return None if changed == record else changed

    def _without_slow(self, now_s: float, record: Record) -> Record | None:
        """Return the record without the replicas whose links make commits much slower than those of the others."""
        slow = sorted(other for other in record.in_sync - {self._me} if self.peers.is_slow(other))
        if not slow or not self._has_enough_quick(now_s, record):
            return None
        names = ", ".join(replica.node for replica in slow)
        self._actions.report(
            f"a round trip to {names} takes more than {self._timers.slow_s:g} s: confirms do not wait for it"
        )
        return self._without(record, slow)

    def _without(self, record: Record, replicas: list[Replica]) -> Record:
        for replica in replicas:
            shorter = removed(record, self._me, self.epoch, replica)
            record = record if isinstance(shorter, Refusal) else shorter
        return record

    def _has_enough_quick(self, now_s: float, record: Record) -> bool:
        """Tell whether this node and the others that are known to be quick are enough to confirm."""
        others = [other for other in record.in_sync - {self._me} if self.peers.is_useful(other, now_s)]
        return len([other for other in others if self.peers.is_quick(other)]) + 1 >= record.least

    def _with_joining(self, record: Record) -> Record | None:
        if self._joining is None:
            return None
        replica, lsn = self._joining
        if self.peers.of(replica).synced_lsn < lsn or replica not in self._required:
            return None
        life = self.renewal.life_of(record, replica)
        change = added(record, self._me, self.epoch, replica, self._replicas, life)
        return change if isinstance(change, Record) else None

    def _with_required(self, record: Record) -> Record | None:
        """Return the record with this node's own `min_in_sync`, once so many nodes are in sync."""
        if self._min_in_sync is None:
            return None
        change = required(record, self._me, self.epoch, self._min_in_sync)
        return None if isinstance(change, Refusal) or change == record else change

    def _maybe_begin(self, now_s: float) -> None:
        """Begin the epoch in the log: once it is there, no node serves from an earlier epoch."""
        if not self._is_told_to_lead and now_s >= self._leads_from_s:
            self._is_told_to_lead = True
            self._actions.add(Lead(self.epoch))

    def _decide_serving(self, now_s: float) -> None:
        self._drop_silent_joining(now_s)
        self._serves_until_s = self._promised_until_s()
        may = self.has_recovered and self.handover.drained_lsn is None and now_s < self._serves_until_s
        if not may:
            self.stop_serving()
        elif not self._is_told_to_serve:
            self._is_told_to_serve = True
            self._actions.add(Serve())

    def _drop_silent_joining(self, now_s: float) -> None:
        if self._joining is not None and not self.peers.is_useful(self._joining[0], now_s):
            self.peers.was_removed(self._joining[0], now_s)
            self._joining = None

    def _decide_acks(self) -> None:
        """Require the acks of all replicas that may be recorded as in sync, and of the one that is about to join."""
        required = self._others() | {self._me}
        if self._joining is not None:
            required |= {self._joining[0]}
        if required != self._required:
            self._required = required
            self._actions.add(RequireAcks(required))

    def _others(self) -> frozenset[Replica]:
        """Return the other replicas that may be recorded as in sync, and so may stand."""
        return frozenset().union(*(record.in_sync for record in self._view.possible)) - {self._me}

    def _promised_until_s(self) -> float:
        """Return until when no other node can lead, by the promises of all nodes that could."""
        return self.peers.promised_until_s(self._others())

    def _maybe_give_way(self, now_s: float) -> None:
        """Hand over to another node, if our disk holds commits up and its disk does not."""
        record = self._record()
        if not self.has_recovered or record is None:
            return
        target = self.disks.maybe_next(now_s, record, self.peers)
        if target is not None and self.handover.target is None:
            self._actions.add(GiveWay(target, self.disks.trouble()))

    def _maybe_beacon(self, now_s: float) -> None:
        if now_s >= self.peers.beacon_at_s and not self._directory.is_stuck(now_s):
            self._actions.add(SendBeacon(self.epoch, self.peers.send_beacon(now_s)))
