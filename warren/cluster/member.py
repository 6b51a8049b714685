"""A node's decisions in a cluster: which node it follows, when it stands, leads and serves, and whose acks it needs.

It has no I/O and no clock: `Member.handle` takes an event with the node's time and returns the actions to carry out.

    FOLLOWING --grace is over, or our own record--> STANDING --our change is in force--> RECOVERING --> LEADING
        ^  |                                           |                                     |             |
        |  +-- a transfer names us ------------------- | ----------------------------------->|             |
        +------------------ another leads -------------+                                     +--> ENDED <--+

The parts, each with the rules that it keeps:

    RecordView     the record as this node knows it, and its own changes that may still come into force
    OwnDirectory   how far its log goes, and whether its data directory is a restored copy
    Following      whom it follows and acknowledges, what it has promised, and whether that leader is there
    Candidacy      when and how it may lead
    Leadership     an epoch that it leads: acks, the set, service, and handing over

A member ties these together, and keeps the rules between them:

1. A process leads at most one epoch. A leader ends, and serves nobody from then on, when it hears of a greater epoch or
   of committed frames that it lacks, or when its handover takes too long.
2. A node knows the epochs of its log, of the record and of the leaders that it has followed. It never answers a beacon
   of an epoch below the greatest of these. While a change of its own is under way, it answers no beacon at all: the
   change may come into force at any moment.
3. Each event is handled in the same order. First, everything stops that has to stop. Then a change of the record is
   chosen, and its requirements take effect before the proposal is sent (`Leadership.decide`). etcd is asked last.
4. The beginning of an epoch is synced before another node hears of it (`Lead`).

Confirms are safe whatever the clocks do: ``leadership.py`` (1), ``following.py`` (1) and ``candidacy.py`` (1). Serving
is exclusive as long as clocks run at nearly the same rate: ``leadership.py`` (2), ``following.py`` (2) and
``handover.py`` (1). etcd is needed for changes only.
"""

from __future__ import annotations

from enum import Enum, auto

from warren.cluster.actions import Actions
from warren.cluster.candidacy import Candidacy, Founding
from warren.cluster.events import (
    Action,
    Appended,
    AskingEnded,
    BeaconAnswered,
    BeaconReceived,
    ChangeRequested,
    CommittedUpTo,
    DisksShort,
    DiskWaits,
    Drained,
    EpochRefused,
    Event,
    Heard,
    LifeTold,
    LinkLost,
    LinkRefused,
    NearlyCaughtUp,
    Objected,
    Position,
    Positioned,
    PositionTold,
    ReadFailed,
    RecordChanged,
    RecordRead,
    Recovered,
    RecoveryRequested,
    RefuseCommand,
    RefuseEpoch,
    Restart,
    SwapDone,
    SwapRefused,
    SwapUnknown,
    Synced,
    Tick,
    TransferRequested,
)
from warren.cluster.following import Following
from warren.cluster.leadership import Leadership
from warren.cluster.own_directory import OwnDirectory
from warren.cluster.record import Record, Replica
from warren.cluster.record_view import RecordView
from warren.cluster.timers import NEVER, Timers


class Role(Enum):
    """See the drawing in the header."""

    FOLLOWING = auto()
    STANDING = auto()
    RECOVERING = auto()
    LEADING = auto()
    ENDED = auto()


class Member:
    """One node, for one life of its process.

    `position`: how far the log went at the start. `replicas`: how many nodes should have a replica.
    `founding`: None for a node that may not begin a store. `recovery`: None for a node without a store to recover.
    `min_in_sync`: how many nodes in sync this node requires as a leader, or `MAJORITY`; None: as many as the record.
    `lives`: those that its directory knows, the one of this process last; empty for a directory without a store.
    """

    def __init__(
        self,
        me: Replica,
        now_s: float,
        *,
        position: Position,
        timers: Timers | None = None,
        replicas: int = 3,
        min_in_sync: int | None = None,
        founding: Founding | None = None,
        recovery: Founding | None = None,
        lives: tuple[str, ...] = (),
    ) -> None:
        self.me = me
        self.leadership: Leadership | None = None
        self._timers = timers or Timers()
        self._replicas = replicas
        self._min_in_sync = min_in_sync
        self._has_ended = False
        self._actions = Actions()
        self._view = RecordView(now_s, self._timers.retry_s)
        self._directory = OwnDirectory(me, position, lives, self._timers, self._actions)
        self._following = Following(now_s, self._timers, self._actions)
        self._candidacy = Candidacy(
            me,
            now_s,
            view=self._view,
            directory=self._directory,
            following=self._following,
            founding=founding,
            recovery=recovery,
            timers=self._timers,
            actions=self._actions,
        )

    # --- questions ------------------------------------------------------------------------------------------------

    @property
    def record(self) -> Record | None:
        """The record as this node knows it."""
        return self._view.record

    @property
    def role(self) -> Role:
        """See the drawing in the header."""
        if self._has_ended:
            return Role.ENDED
        if self.leadership is not None:
            return Role.LEADING if self.leadership.has_recovered else Role.RECOVERING
        return Role.STANDING if self._candidacy.is_standing else Role.FOLLOWING

    def serves(self, now_s: float) -> bool:
        """Tell whether clients may be served at this moment. After a pause, ask this before handling the next event."""
        return self.leadership is not None and self.leadership.serves(now_s)

    def silence_s(self, now_s: float) -> float:
        """Return how long the quietest replica whose promise a leader needs has been silent; 0 when it needs none."""
        return 0.0 if self.leadership is None else self.leadership.silence_s(now_s)

    def trouble_of_directory(self) -> str:
        """Return why the directory of a follower is not to be trusted; empty when it is."""
        return self._directory.trouble

    def trouble_of_disk(self) -> str:
        """Return how the disk of a leader holds commits up; empty while it does not."""
        return "" if self.leadership is None or self._has_ended else self.leadership.disks.trouble()

    def wake_at_s(self, now_s: float) -> float:
        """Return when `Tick` is due, if nothing happens before."""
        if self._has_ended:
            return NEVER
        part = self._candidacy if self.leadership is None else self.leadership
        return min((time_s for time_s in (self._view.ask_at_s, *part.wake_times()) if time_s > now_s), default=NEVER)

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, now_s: float, event: Event) -> list[Action]:
        """Handle an event, and return the actions to carry out, in this order."""
        if self._has_ended:
            return []
        leads = self.leadership
        match event:
            case RecordRead(found):
                self._learned(now_s, self._view.read(found, now_s))
                if self._view.is_gone:
                    self._actions.report(
                        "the record of this store is gone from etcd: nothing in the cluster can change"
                    )
                elif self._view.is_refuted:
                    self._actions.report(
                        "etcd has an older record than this node knows: nothing in the cluster can change"
                    )
            case ReadFailed(reason):
                self._view.read_failed(now_s)
                if reason:
                    self._actions.report(reason)
            case RecordChanged(found):
                self._learned(now_s, self._view.learn(found))
            case SwapDone(number, revision):
                self._learned(now_s, self._view.done(number, revision))
            case SwapRefused(number):
                self._view.refused(number)
            case SwapUnknown(number):
                self._view.unknown(number, now_s)
            case DiskWaits(since_s):
                self._directory.disk_since_s = since_s
            case BeaconReceived():
                self._beacon_received(now_s, event)
            case Tick():
                pass
            case _ if leads is not None:
                self._handle_as_leader(now_s, leads, event)
            case _:
                self._handle_as_follower(now_s, event)
        self._decide(now_s)
        return self._actions.take()

    def _handle_as_leader(self, now_s: float, leads: Leadership, event: Event) -> None:
        match event:
            case BeaconAnswered(replica, epoch, number):
                if epoch == leads.epoch:
                    leads.peers.answered(replica, number, now_s)
            case EpochRefused(replica, epoch):
                if epoch > leads.epoch:
                    self._end(f"{replica} knows of epoch {epoch}")
            case Objected(replica, committed):
                self._end(f"{replica} has committed data that this node lacks, up to {committed}")
            case Heard(replica):
                leads.peers.heard(replica, now_s)
            case LinkLost(replica):
                leads.peers.lost(replica)
            case Synced(replica, lsn):
                leads.peers.synced(replica, lsn, now_s)
            case Appended(lsn):
                leads.peers.appended(lsn, now_s)
            case LifeTold(replica, life):
                leads.renewal.told(replica, life)
            case CommittedUpTo(lsn):
                leads.renewal.committed(lsn)
            case NearlyCaughtUp(replica):
                leads.nearly_caught_up(now_s, replica)
            case DisksShort(nodes):
                leads.disks.short = nodes
            case Recovered():
                leads.recovered(now_s)
            case TransferRequested(node):
                leads.transfer(now_s, node)
            case ChangeRequested():
                leads.ask(now_s, event)
            case Drained(lsn):
                leads.handover.drained(now_s, lsn)
            case RecoveryRequested():
                self._actions.add(RefuseCommand("this node leads: nothing needs recovery"))
            case _:
                pass  # an event for followers

    def _handle_as_follower(self, now_s: float, event: Event) -> None:
        match event:
            case Positioned(position):
                self._directory.position = position
            case Heard(replica):
                self._following.hear(now_s, replica)
            case LinkLost(replica):
                if self._is_leader_of_record(replica):
                    self._following.lose(now_s)
            case LinkRefused(replica):
                if self._is_leader_of_record(replica):
                    self._following.refuse()
            case PositionTold(number, node, replica, standing):
                self._candidacy.told(number, node, replica, standing)
            case AskingEnded(number):
                self._candidacy.asked_all(number)
            case RecoveryRequested():
                self._candidacy.recover(now_s, event)
            case TransferRequested() | ChangeRequested():
                self._actions.add(RefuseCommand("this node does not lead"))
            case _:
                pass  # an event for leaders: too early, or about an earlier life

    def _learned(self, now_s: float, is_news: bool) -> None:
        record = self.record
        if not is_news or record is None:
            return
        if self.leadership is not None:
            if record.epoch > self.leadership.epoch:
                self._end(f"{record.leader} leads epoch {record.epoch}")
            else:
                self.leadership.learn(now_s, record)
            return
        self._directory.compare(record)
        if self._candidacy.may_lead(record):
            self._lead(now_s, record)
        else:
            self._candidacy.follows()
            self._following.learn(now_s, record)

    def _beacon_received(self, now_s: float, beacon: BeaconReceived) -> None:
        leads = self.leadership
        floor = self._candidacy.known_epoch() if leads is None else leads.epoch
        if beacon.leader == self.me:
            return
        if leads is not None and beacon.epoch > leads.epoch:
            self._end(f"{beacon.leader} leads epoch {beacon.epoch}")
        elif beacon.epoch < floor:
            self._actions.add(RefuseEpoch(beacon.leader, floor))
        elif leads is not None or self._view.is_swapping:
            return  # a candidate whose change may come into force at any moment promises nothing
        elif (rival := self._following.rival(beacon)) is not None:
            self._actions.report(f"{beacon.leader} and {rival} say that they lead epoch {beacon.epoch}")
        else:
            self._candidacy.hears()
            self._following.answer(now_s, beacon)
            if self.record is None or self.record.epoch < beacon.epoch:
                self._view.is_read = False

    def _lead(self, now_s: float, record: Record) -> None:
        self._following.stop()
        self.leadership = Leadership(
            self.me,
            record,
            now_s,
            leads_from_s=self._candidacy.leads_from_s(now_s, record),
            view=self._view,
            directory=self._directory,
            replicas=self._replicas,
            min_in_sync=self._min_in_sync,
            timers=self._timers,
            actions=self._actions,
        )

    # --- decisions ------------------------------------------------------------------------------------------------

    def _decide(self, now_s: float) -> None:
        """Act on the time: first stop things, then change the record or requirements, then ask etcd."""
        leads = self.leadership
        if leads is not None and now_s >= leads.handover.until_s and not self._has_ended:
            self._end("no other node has taken over in time")
        if self._has_ended:
            return
        part = self._candidacy if leads is None else leads
        if now_s >= part.doubt_at_s():
            self._view.is_read = False
        change = part.wanted(now_s) if self._view.may_propose(now_s) else None
        swap = None if change is None else self._view.propose(change)
        if leads is not None:
            leads.decide(now_s)
        ask = swap or self._view.maybe_read(now_s)
        if ask is not None:
            self._actions.add(ask)

    def _is_leader_of_record(self, replica: Replica) -> bool:
        return self.record is not None and self.record.leader == replica

    def _end(self, reason: str) -> None:
        self._has_ended = True
        if self.leadership is not None:
            self.leadership.stop_serving()
        self._actions.add(Restart(reason))
