"""A node's decisions in a cluster: which node it follows, when it stands, leads and serves, and whose acks it needs.

It has no I/O and no clock: `Member.handle` takes an event with the node's time and returns the actions to carry out.

    FOLLOWING --grace is over, or our own record--> STANDING --our change is in force--> RECOVERING --> LEADING
        ^  |                                           |                                     |             |
        |  +-- a transfer names us ------------------- | ----------------------------------->|             |
        +------------------ another leads -------------+                                     +--> ENDED <--+

A leader hands over in steps, of which none leads back to serving:

    TransferRequested -> HandOver    the target is in sync and heard: clients are sent away, all is written
    Drained           -> wait        until the target has synced our log to its end; when it is silent, for another one
                      -> Swap        the record that names the target. Nobody else can lead by it
    the record        -> Restart     as a follower. If no node has taken over in `hand_over_s`, it restarts, too: the
                                     record may name it still, and it stands again, or another replica of the set does

A leader whose disk everybody waits for gives way (`GiveWay`) to a follower in sync whose disk is good (`disk_watch`):
not before it has led for a while, longer when another one has handed over to it, and never while no disk is better.

Confirms are safe whatever the clocks do:

1. A commit needs the acks of every replica that may be recorded as in sync (`RecordView.possible`), and of one that is
   about to be: a replica is added only when it has everything that was there when its acks began to be required.
2. A node acknowledges one epoch at a time, never one below what its log, the record or a leader has told it of. It
   stops before it stands, and before it leads.
3. A node leads an epoch only by a change of the record that this process made or saw made, and once in its life. A
   record that names it from an earlier life makes it stand again: unsynced writes of that life are gone.
   The beginning of an epoch is synced before another node hears of it (`Lead`).

Serving is exclusive as long as clocks run at nearly the same rate:

4. A leader serves for `limit_s` after it sent the last beacon that was answered by *all* others that may be recorded.
   A replica that has answered neither stands nor begins an epoch for `grace_s` after it received that beacon.
5. The exception is a process that is gone while its machine is there (`LinkRefused`): a replica stands at once. When
   that is wrong, two nodes may deliver for `limit_s`, and no confirm is lost.
6. A leader that hands over stops serving, and writing, before it proposes that. So the next leader has everything that
   the old one ever told a client, whether it was confirmed or not.

etcd is needed for changes only. While etcd is away, a leader continues if its whole set answers; a set of one needs no
answers, since no other replica can stand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from warren.cluster.disk_watch import LATE_S, DiskWatch
from warren.cluster.events import (
    Acknowledge,
    Action,
    AnswerBeacon,
    Appended,
    AskingEnded,
    AskPositions,
    BeaconAnswered,
    BeaconReceived,
    ChangeRequested,
    CommittedUpTo,
    DisksShort,
    DiskWaits,
    Drained,
    EpochRefused,
    Event,
    GiveWay,
    HandOver,
    Heard,
    KeepLives,
    Lead,
    LifeTold,
    LinkLost,
    LinkRefused,
    NearlyCaughtUp,
    Objected,
    Position,
    Positioned,
    PositionTold,
    Read,
    ReadFailed,
    RecordChanged,
    RecordRead,
    Recovered,
    RecoveryRequested,
    RefuseCommand,
    RefuseEpoch,
    Report,
    RequireAcks,
    Restart,
    SendBeacon,
    Serve,
    StopAcknowledging,
    StopServing,
    SwapDone,
    SwapRefused,
    SwapUnknown,
    Synced,
    Tick,
    TransferRequested,
)
from warren.cluster.peers import Peers
from warren.cluster.pre_vote import ASKING_S, PreVote, positions
from warren.cluster.record import (
    Ask,
    LeaderBy,
    Record,
    Refusal,
    Replica,
    added,
    asked,
    first,
    left,
    made_anew,
    named,
    recovered,
    removed,
    renewed,
    required,
    taken_over,
    transferred,
)
from warren.cluster.record_view import RecordView

NEVER: Final = math.inf
# The rates of two clocks may differ by this: far more than those of any working clocks.
CLOCK_RATE_ERROR: Final = 0.1


@dataclass(frozen=True, slots=True)
class Timers:
    """How long things may take. The grace time is longer than the limit, whichever of two clocks is the faster."""

    beacon_s: float = 0.25
    suspect_s: float = 1.0  # a replica that is silent, or makes no progress, for this long should leave the set
    limit_s: float = 1.6
    grace_s: float = 2.2
    refused_s: float = 0.3  # from the loss of the link, when connecting again is refused
    stagger_s: float = 0.2  # between the candidates
    ask_s: float = 0.5  # before its time to stand, a node asks the others
    ask_again_s: float = 0.5
    renew_s: float = 10.0  # between two records of how far is committed: etcd keeps each until it is compacted
    slow_s: float = 0.4  # a round trip that takes longer: commits do not wait for it, if enough others are quicker
    disk_s: float = 2.0
    retry_s: float = 0.25  # between two questions to etcd that fail
    hand_over_s: float = 3.0  # from when all is written until another replica leads
    command_s: float = 5.0  # for etcd to take an administrator's command
    tenure_s: float = 10.0  # before a leader gives way
    long_tenure_s: float = 30.0  # the same where another one has handed over to it, unless its disk has no space
    give_way_retry_s: float = 5.0

    def __post_init__(self) -> None:
        if not self.beacon_s < self.suspect_s < self.limit_s:
            raise ValueError("a replica has to be suspected after some beacons and before the limit of its leader")
        if self.limit_s * (1 + CLOCK_RATE_ERROR) >= self.grace_s * (1 - CLOCK_RATE_ERROR):
            raise ValueError("the grace time has to be longer than the limit of a leader, by any two clocks")


@dataclass(frozen=True, slots=True)
class Founding:
    """The values with which a node with an empty directory begins a store, where etcd has no record."""

    store: str
    min_in_sync: int


class Role(Enum):
    """See the drawing in the header."""

    FOLLOWING = auto()
    STANDING = auto()
    RECOVERING = auto()
    LEADING = auto()
    ENDED = auto()


class Member:
    """One node, for one life of its process.

    `position`: how far the log went that was found at the start. `replicas`: how many nodes should have a replica.
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
        self.role = Role.FOLLOWING
        self.epoch = 0  # the epoch that this node leads, or 0
        self._timers = timers or Timers()
        self._replicas = replicas
        self._min_in_sync = min_in_sync
        self._founding = founding
        self._recovery = recovery
        self._recovers_beyond: int | None = None
        self._position = position
        self._began_at = position
        self._lives = lives
        self._is_life_known = False  # it was compared with that on record
        self._restored = ""  # its directory is an older one than the record knows, and not caught up yet
        self._view = RecordView()
        self._actions: list[Action] = []
        self._is_reading = False
        self._read_s = now_s
        self._ask_at_s = now_s
        self._disk_since_s: float | None = None
        self._reported = ""
        # As a follower.
        self._followed: tuple[int, Replica] | None = None  # whose beacons were answered last
        self._is_acknowledging = False
        self._heard_s = now_s
        self._answered_s = now_s  # an earlier life of this process may have answered just before it ended
        self._lost_s: float | None = None
        self._is_refused = False
        self._pre_vote: PreVote | None = None
        self._pre_votes = 0
        self._asks_at_s = now_s  # not earlier
        self._stood: set[int] = set()  # the epochs that this life has stood for
        self._has_led = False
        # As a leader.
        self._peers = Peers(now_s)
        self._disks = DiskWatch(self.me, now_s)
        self._short: frozenset[str] = frozenset()  # nodes without space
        self._gives_way_at_s = NEVER  # not earlier
        self._is_slow_at_s = NEVER  # not earlier since its disk is slow
        self._beacon_at_s = now_s
        self._beacons = 0
        self._required: frozenset[Replica] = frozenset()
        self._joining: tuple[Replica, int] | None = None  # and the LSN that it has to reach
        self._lives_of: dict[Replica, str] = {}  # of those that have everything
        self._committed_lsn = 0
        self._renews_at_s = now_s  # not earlier
        self._target: Replica | None = None  # the next leader
        self._drained_lsn: int | None = None  # where our log ends for good
        self._hand_over_until_s = NEVER
        self._asked: tuple[Ask, str] | None = None
        self._asked_until_s = NEVER
        self._leads_from_s = NEVER
        self._is_told_to_lead = False
        self._is_told_to_serve = False
        self._serves_until_s = NEVER  # unless more is promised; decided with every event, asked at every turn

    # --- questions ------------------------------------------------------------------------------------------------

    @property
    def record(self) -> Record | None:
        """The record as this node knows it."""
        return None if self._view.known is None else self._view.known.record

    def serves(self, now_s: float) -> bool:
        """Whether clients may be served at this moment: after a pause, ask before handling the next event."""
        return self._is_told_to_serve and now_s < self._serves_until_s

    def silence_s(self, now_s: float) -> float:
        """Return how long the quietest replica whose promise a leader needs has been silent; 0 when it needs none."""
        return max((now_s - self._peers.of(other).heard_s for other in self._eligible() - {self.me}), default=0.0)

    def trouble_of_directory(self) -> str:
        """Return why the directory of a follower is not to be trusted; empty when it is."""
        return self._restored

    def trouble_of_disk(self) -> str:
        """Return how the disk of a leader holds everybody up; empty while it does not."""
        if not self._is_leader or not self._disks.is_worse():
            return ""
        if self.me.node in self._short:
            return "the disk of this node is full, or nearly"
        return "the disk of this node is slower than those of others: commits wait for it"

    def wake_at_s(self, now_s: float) -> float:
        """Return when `Tick` is due, if nothing happens before."""
        if self.role is Role.ENDED:
            return NEVER
        times = [self._ask_at_s]
        if self._is_leader:
            times += [self._beacon_at_s, self._leads_from_s, self._promised_until_s(), self._hand_over_until_s]
            times += [self._renews_at_s]
            times += [self._doubt_at_s()]
            times += [self._peers.useful_until_s(peer, self._timers.suspect_s) for peer in self._required - {self.me}]
        else:
            times += [self._stand_at_s(), self._ask_others_at_s(), self._doubt_at_s()]
            if self._pre_vote is not None:
                times += [self._pre_vote.asked_s + self._timers.ask_s, self._pre_vote.asked_s + ASKING_S]
        return min((time_s for time_s in times if time_s > now_s), default=NEVER)

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, now_s: float, event: Event) -> list[Action]:
        """Handle an event, and return the actions to carry out, in this order."""
        if self.role is Role.ENDED:
            return []
        self._actions = []
        match event:
            case RecordRead(found):
                self._is_reading = False
                self._read_s = now_s
                self._learned(now_s, self._view.read(found))
                if found is None and self.record is not None:
                    self._report("the record of this store is gone from etcd: nothing in the cluster can change")
            case ReadFailed(reason):
                self._is_reading = False
                self._ask_at_s = now_s + self._timers.retry_s
                if reason:
                    self._report(reason)
            case RecordChanged(found):
                self._learned(now_s, self._view.learn(found))
            case SwapDone(number, revision):
                self._learned(now_s, self._view.done(number, revision))
            case SwapRefused(number):
                self._view.refused(number)
            case SwapUnknown(number):
                self._view.unknown(number)
                self._ask_at_s = now_s + self._timers.retry_s
            case BeaconReceived():
                self._beacon_received(now_s, event)
            case BeaconAnswered(replica, epoch, number):
                if self._is_leader and epoch == self.epoch:
                    self._peers.answered(replica, number, now_s)
            case EpochRefused(replica, epoch):
                if self._is_leader and epoch > self.epoch:
                    self._end(f"{replica} knows of epoch {epoch}")
            case PositionTold(number, node, replica, standing):
                if self._pre_vote is not None and self._pre_vote.number == number:
                    self._pre_vote.take(node, replica, standing)
            case AskingEnded(number):
                if self._pre_vote is not None and self._pre_vote.number == number:
                    self._pre_vote.is_over = True
            case Objected(replica, committed):
                if self._is_leader:
                    self._end(f"{replica} has as committed what this node lacks, up to {committed}")
            case Heard(replica):
                self._heard(now_s, replica)
            case LinkLost(replica):
                self._link_lost(now_s, replica)
            case LinkRefused(replica):
                self._is_refused |= self._lost_s is not None and self._is_leader_of_record(replica)
            case Synced(replica, lsn):
                self._peers.synced(replica, lsn, now_s)
            case LifeTold(replica, life):
                self._lives_of[replica] = life
            case CommittedUpTo(lsn):
                self._committed_lsn = max(lsn, self._committed_lsn)
            case NearlyCaughtUp(replica):
                self._nearly_caught_up(now_s, replica)
            case Positioned(position):
                self._position = position
            case Appended(lsn):
                self._peers.appended(lsn, now_s)
            case DiskWaits(since_s):
                self._disk_since_s = since_s
            case DisksShort(nodes):
                self._short = nodes
            case Recovered():
                if self.role is Role.RECOVERING and self._is_told_to_lead:
                    self.role = Role.LEADING
                    self._gives_way_at_s = now_s + self._timers.tenure_s
                    by_transfer = self.record is not None and self.record.by is LeaderBy.TRANSFER
                    self._is_slow_at_s = now_s + self._timers.long_tenure_s if by_transfer else now_s
            case TransferRequested(node):
                self._transfer_requested(now_s, node)
            case ChangeRequested():
                self._change_requested(now_s, event)
            case RecoveryRequested():
                self._recovery_requested(now_s, event)
            case Drained(lsn):
                if self._target is not None:
                    self._drained_lsn = lsn
                    self._hand_over_until_s = now_s + self._timers.hand_over_s
            case Tick():
                pass
        self._decide(now_s)
        return self._actions

    def _learned(self, now_s: float, is_news: bool) -> None:
        record = self.record
        if not is_news or record is None:
            return
        if not self._is_leader:
            self._look_at_life(record)
        if self._is_leader:
            self._learned_as_leader(now_s, record)
            return
        if self._may_lead(record):
            self._lead(now_s, record)
            return
        self.role = Role.FOLLOWING
        if self._followed is None or record.epoch > self._followed[0]:
            # A new leader has the grace time to be heard for the first time.
            self._heard_s = now_s
            self._lost_s, self._is_refused = None, False
            self._stop_acknowledging()

    def _look_at_life(self, record: Record) -> None:
        """See at the start whether the directory is the one on record, and later whether it is caught up."""
        life = record.life_of(self.me)
        is_start, self._is_life_known = not self._is_life_known, True
        if life is None or not self._lives:
            if self.me in record.in_sync:
                self._restored = ""  # it was added, so it has everything. The record has no lives yet
        elif life == self._lives[-1]:
            self._restored = ""
            self._keep_lives(self._lives[-1:])
        elif self._restored:
            return
        elif life not in self._lives or (is_start and self._began_at < record.floor):
            self._restored = (
                f"the data directory of this node is older than it was: its log ended at {self._began_at}, and it had "
                f"all up to {Position(*record.floor)} at least. It was restored from a copy, or its disk lost what was "
                "synced. This node does not lead before another one has caught it up"
            )
            self._keep_lives(self._lives[-1:])
            self._report(self._restored)
        else:
            self._keep_lives(self._lives[self._lives.index(life) :])

    def _keep_lives(self, lives: tuple[str, ...]) -> None:
        if lives != self._lives:
            self._lives = lives
            self._actions.append(KeepLives(lives))

    def _learned_as_leader(self, now_s: float, record: Record) -> None:
        if record.epoch > self.epoch:
            self._end(f"{record.leader} leads epoch {record.epoch}")
        elif record.epoch < self.epoch:
            self._report(f"the record in etcd is of epoch {record.epoch}, an old one: was etcd restored from a backup?")
        else:
            for replica in self._required - record.in_sync - ({self._joining[0]} if self._joining else set()):
                self._peers.was_removed(replica, now_s)
            if self._joining is not None and self._joining[0] in record.in_sync:
                self._joining = None

    def _beacon_received(self, now_s: float, beacon: BeaconReceived) -> None:
        if beacon.leader == self.me:
            return
        if self._is_leader and beacon.epoch > self.epoch:
            self._end(f"{beacon.leader} leads epoch {beacon.epoch}")
        elif beacon.epoch < self._epoch_floor():
            self._actions.append(RefuseEpoch(beacon.leader, self._epoch_floor()))
        elif self._is_leader or self._view.is_swapping:
            return  # a candidate whose change may come into force at any moment promises nothing
        elif self._followed is not None and self._followed[0] == beacon.epoch and self._followed[1] != beacon.leader:
            self._report(f"{beacon.leader} and {self._followed[1]} say that they lead epoch {beacon.epoch}")
        else:
            self._follow(now_s, beacon)

    def _follow(self, now_s: float, beacon: BeaconReceived) -> None:
        self.role = Role.FOLLOWING
        if self._followed != (beacon.epoch, beacon.leader) or not self._is_acknowledging:
            self._followed = (beacon.epoch, beacon.leader)
            self._is_acknowledging = True
            self._actions.append(Acknowledge(beacon.leader, beacon.epoch))
        if self.record is None or self.record.epoch < beacon.epoch:
            self._view.is_read = False
        self._heard_s = self._answered_s = now_s
        self._lost_s, self._is_refused = None, False
        self._pre_vote = None
        self._actions.append(AnswerBeacon(beacon.leader, beacon.epoch, beacon.number))

    def _heard(self, now_s: float, replica: Replica) -> None:
        if self._is_leader:
            self._peers.heard(replica, now_s)
        elif self._is_acknowledging and self._followed is not None and self._followed[1] == replica:
            self._heard_s = now_s

    def _link_lost(self, now_s: float, replica: Replica) -> None:
        if self._is_leader:
            self._peers.lost(replica)
        elif self._is_leader_of_record(replica) and self._lost_s is None:
            self._lost_s = now_s

    def _nearly_caught_up(self, now_s: float, replica: Replica) -> None:
        if not self._is_told_to_lead or self._joining is not None or self.record is None:
            return
        if now_s < self._peers.of(replica).may_join_at_s or replica in self._required:
            return
        if self._is_slow(replica) and self._has_enough_quick(now_s, self.record):
            return
        if isinstance(added(self.record, self.me, self.epoch, replica, self._replicas), Record):
            self._joining = (replica, self._peers.appended_lsn)
            self._peers.joins(replica, now_s)

    # --- decisions ------------------------------------------------------------------------------------------------

    def _decide(self, now_s: float) -> None:
        """Act on the time: stop things first, then change the record or requirements, and ask etcd last."""
        if now_s >= self._hand_over_until_s and self.role is not Role.ENDED:
            self._end("no other node has taken over in time")
        if self.role is Role.ENDED:
            return
        if now_s >= self._doubt_at_s():
            self._view.is_read = False
        change = self._change_that_is_due(now_s)
        swap = None if change is None else self._view.propose(change)
        if self._is_leader:
            self._maybe_begin(now_s)
            self._decide_serving(now_s)
            self._decide_acks()
            self._maybe_give_way(now_s)
            self._maybe_beacon(now_s)
        if swap is not None:
            self._actions.append(swap)
        elif self._wants_to_read() and not self._is_reading and now_s >= self._ask_at_s:
            self._is_reading = True
            self._actions.append(Read())

    def _doubt_at_s(self) -> float:
        """Return when this node should read the record again, since a watch may have reported nothing.

        A node that may not stand, and hears of no leader, may have been added to the set, and be its last replica. A
        leader without the answers that it needs may have been deposed.
        """
        if not self._view.is_read:
            return NEVER
        if self._is_leader:
            is_asking = self._view.is_swapping or self._promised_until_s() == NEVER
            return NEVER if is_asking else max(self._promised_until_s(), self._read_s + self._timers.suspect_s)
        if self._stand_at_s() != NEVER:
            return NEVER
        return max(self._heard_s, self._read_s) + self._timers.grace_s

    def _wants_to_read(self) -> bool:
        return not self._view.is_read and not self._view.is_swapping

    def _change_that_is_due(self, now_s: float) -> Record | None:
        if self._view.is_swapping or not self._view.is_read or now_s < self._ask_at_s:
            return None
        if self._is_leader:
            return self._wanted_change(now_s)
        if self._recovers_beyond is not None:
            return self._recover(self._recovers_beyond)
        if self._restored and self.record is not None:
            change = left(self.record, self.me)
            return change if isinstance(change, Record) else None
        return self._maybe_stand(now_s)

    def _epoch_floor(self) -> int:
        """Return the least epoch that may be acknowledged."""
        record_epoch = 0 if self.record is None else self.record.epoch
        followed_epoch = 0 if self._followed is None else self._followed[0]
        return max(self.epoch, self._position.epoch, record_epoch, followed_epoch)

    def _is_leader_of_record(self, replica: Replica) -> bool:
        return self.record is not None and self.record.leader == replica

    def _stop_acknowledging(self) -> None:
        if self._is_acknowledging:
            self._is_acknowledging = False
            self._actions.append(StopAcknowledging())

    def _report(self, text: str) -> None:
        if text != self._reported:
            self._reported = text
            self._actions.append(Report(text))

    def _end(self, reason: str) -> None:
        self.role = Role.ENDED
        if self._is_told_to_serve:
            self._is_told_to_serve = False
            self._actions.append(StopServing())
        self._actions.append(Restart(reason))

    def _is_disk_stuck(self, now_s: float) -> bool:
        return self._disk_since_s is not None and now_s - self._disk_since_s >= self._timers.disk_s

    # --- as a follower --------------------------------------------------------------------------------------------

    def _maybe_stand(self, now_s: float) -> Record | None:
        """Return the record in which this node leads, when it is time to stand."""
        if self._is_disk_stuck(now_s):
            return None
        if self.record is None:
            return self._found() if now_s >= self._stand_at_s() else None
        vote = self._maybe_pre_vote(now_s, self.record)
        if vote is None or now_s < self._stand_at_s():
            return None
        reason = self._why_not_stand(self.record, vote)
        if reason:
            self._report(f"this node does not stand for election: {reason}")
            if vote.is_over:
                self._ask_others_again(now_s)
            return None
        life = self._lives[-1] if self._lives and self.record.lives else None
        change = taken_over(self.record, self.me, self._position.epoch, vote.answering(), life)
        if isinstance(change, Refusal):
            return None
        self._ask_others_again(now_s)
        self._stand(change)
        # This node wrote the frames that its log has of the recorded epoch, as its leader in an earlier life.
        self._has_led = self.record.leader == self.me and self._position.epoch == self.record.epoch
        return change

    def _ask_others_at_s(self) -> float:
        """Return when to ask the others, so that their answers are there when this node can stand."""
        return max(self._due_s() - self._timers.ask_s, self._asks_at_s)

    def _maybe_pre_vote(self, now_s: float, record: Record) -> PreVote | None:
        """Return the answers of the others, once they suffice for a decision; ask for them when that is due."""
        vote = self._pre_vote
        if vote is None or now_s >= vote.asked_s + ASKING_S:
            if now_s < self._ask_others_at_s():
                return None
            others = record.assigned - {self.me.node}
            self._pre_votes += 1
            vote = self._pre_vote = PreVote(self._pre_votes, others, now_s)
            if others:
                self._actions.append(AskPositions(vote.number, others))
        return vote if vote.is_ready(now_s, self._timers.ask_s) else None

    def _ask_others_again(self, now_s: float) -> None:
        self._pre_vote = None
        self._asks_at_s = now_s + self._timers.ask_again_s

    def _why_not_stand(self, record: Record, vote: PreVote) -> str:
        """Return why this node must not lead, by the answers of others; empty when it may."""
        ahead = vote.ahead(self._position)
        if ahead is not None:
            return (
                f"{ahead.replica.node} has as committed what is not here, up to {ahead.committed}, and the log of this "
                f"node ends at {self._position}: was its data directory restored from a copy?"
            )
        if not vote.reaches(record):
            known = positions(vote.told)
            return (
                f"a leader needs {record.least - 1} other node(s) to confirm anything, and {len(vote.reached)} answer"
                + (f" ({known})" if known else "")
            )
        return ""

    def _stand(self, change: Record) -> None:
        self._stop_acknowledging()
        self.role = Role.STANDING
        self._stood.add(change.epoch)

    def _found(self) -> Record | None:
        if self._founding is None and self._recovery is None and self._position.lsn == 0:
            self._report("etcd has no record of a store: the node that cluster_first_node names begins one")
            return None
        if self._founding is None or self._position.lsn > 0:
            self._report("etcd has no record of this store: `warren ctl cluster recover` makes one")
            return None
        self.role = Role.STANDING
        self._stood.add(1)
        return first(self._founding.store, self.me, self._founding.min_in_sync)

    def _stand_at_s(self) -> float:
        """Return when this node should stand if it hears nothing before: after the nodes whose logs go further."""
        due_s, vote = self._due_s(), self._pre_vote
        if self.record is None or vote is None or due_s == NEVER:
            return due_s
        rank = vote.rank(self.record, self.me, self._position)
        if rank and due_s < self._heard_s:  # even one that led before: the others wait for the grace time
            due_s = self._heard_s + self._timers.grace_s
        return due_s + rank * self._timers.stagger_s

    def _due_s(self) -> float:
        """Return when this node should stand as the first one; never for one outside the set."""
        if not self._view.is_read or self._view.is_swapping:
            return NEVER
        record = self.record
        if record is None:
            return -math.inf
        if not record.may_stand(self.me) or (self._followed is not None and self._followed[0] > record.epoch):
            return NEVER
        if self._restored:
            return NEVER
        if record.leader == self.me:
            return -math.inf
        if self._is_refused and self._lost_s is not None:
            return self._lost_s + self._timers.refused_s
        return self._heard_s + self._timers.grace_s

    def _recovery_requested(self, now_s: float, request: RecoveryRequested) -> None:
        reason = self._why_no_recovery(now_s)
        if not reason and not request.accepts_loss:
            record = self.record
            known = "no record" if record is None else f"{record.leader.node} as the leader of epoch {record.epoch}"
            reason = (
                f"etcd has {known}. This node's log has epoch {self._position.epoch} and ends at {self._position.lsn}: "
                "what another node confirmed beyond that is lost for good. Compare all nodes (`warren ctl cluster "
                "status` at each), stop the others, and say --accept-loss at the one with the greatest epoch, and "
                "among these the one that has synced most"
            )
        if reason:
            self._actions.append(RefuseCommand(reason))
        else:
            self._recovers_beyond = request.beyond

    def _why_no_recovery(self, now_s: float) -> str:
        if self._is_leader:
            return "this node leads: nothing has to be recovered"
        if self._is_acknowledging and self._followed is not None and now_s < self._heard_s + self._timers.grace_s:
            return f"{self._followed[1].node} leads, and answers: nothing has to be recovered"
        if self._recovery is None:
            return "this node has no messages: ask the one whose log goes furthest"
        if not self._view.is_read or self._view.is_swapping:
            return "etcd has not answered yet, or this node stands for election: ask again"
        if self._view.is_gone:
            return "etcd had a record when this node was started, and has lost it: start the node again, and ask again"
        return ""

    def _recover(self, beyond: int) -> Record:
        self._recovers_beyond = None
        assert self._recovery is not None
        epoch = self._epoch_floor() + beyond
        if self.record is None:
            change = made_anew(self._recovery.store, self.me, epoch, self._recovery.min_in_sync)
        else:
            change = recovered(self.record, self.me, epoch)
        self._stand(change)
        self._has_led = False
        return change

    def _may_lead(self, record: Record) -> bool:
        """Whether the record makes this process the leader of an epoch that was not led before."""
        if record.leader != self.me or record.epoch <= self._position.epoch:
            return False
        if self._restored:
            return False  # it was handed over to before its disk was put back
        if self._followed is not None and self._followed[0] >= record.epoch:
            return False
        # A transfer that was there at the first read may be one to an earlier life, which has led since.
        is_new = self._view.first_epoch is not None and record.epoch > self._view.first_epoch
        return is_new and (record.epoch in self._stood or record.by is LeaderBy.TRANSFER)

    def _lead(self, now_s: float, record: Record) -> None:
        self._stop_acknowledging()
        self.role = Role.RECOVERING
        self.epoch = record.epoch
        self._peers = Peers(now_s)
        self._disks = DiskWatch(self.me, now_s)
        self._beacon_at_s = now_s
        # The previous leader may serve for as long as our last answer allows, unless it is known that it does not.
        is_alone = record.by in (LeaderBy.FIRST, LeaderBy.TRANSFER) or self._is_refused or self._has_led
        self._leads_from_s = now_s if is_alone else self._answered_s + self._timers.grace_s

    # --- as a leader ----------------------------------------------------------------------------------------------

    @property
    def _is_leader(self) -> bool:
        return self.role in (Role.RECOVERING, Role.LEADING)

    def _wanted_change(self, now_s: float) -> Record | None:
        """Return the record that the leader wants instead of the known one; None when that one is right."""
        record = self.record
        if record is None or record.epoch != self.epoch:
            return None
        change = (
            self._without_silent(now_s, record)
            or self._without_slow(now_s, record)
            or self._with_joining(record)
            or self._with_asked(now_s, record)
            or self._with_required(record)
            or self._with_lives(now_s, record)
        )
        if self._drained_lsn is not None:
            change = self._transfer(now_s, record, self._drained_lsn) or change
        if change is None and self._view.unsettled:
            # The open proposal is no longer wanted, but may still be done: the same record at a new revision ends that.
            return record
        return change

    def _is_useful(self, replica: Replica, now_s: float) -> bool:
        return now_s < self._peers.useful_until_s(replica, self._timers.suspect_s)

    def _transfer_requested(self, now_s: float, node: str | None) -> None:
        target = self._next_leader(now_s, node)
        if isinstance(target, Refusal):
            self._actions.append(RefuseCommand(target.reason))
        else:
            self._target = target
            self._actions.append(HandOver(target))

    def _next_leader(self, now_s: float, node: str | None) -> Replica | Refusal:
        """Return the replica that can lead next; without a `node`, the one that has most of the log."""
        record = self.record
        if record is None or not self._is_leader or record.epoch != self.epoch:
            return Refusal("this node does not lead")
        if self.role is not Role.LEADING:
            return Refusal("this node does not lead yet: it recovers")
        if self._target is not None:
            return Refusal(f"this node hands over to {self._target.node} already")
        if node is None:
            return self._best(now_s, record) or Refusal("no other node is in sync and answers")
        target = named(record, node)
        if isinstance(target, Replica):
            change = transferred(record, self.me, self.epoch, target)
            if isinstance(change, Refusal):
                return change
            if node in record.drained:
                return Refusal(f"{node} is drained: revive it first")
            if not self._is_useful(target, now_s):
                return Refusal(f"{node} does not answer, or does not keep up")
        return target

    def _change_requested(self, now_s: float, request: ChangeRequested) -> None:
        """Accept a command about a node, or say why not. It is pursued until it is recorded, or its time is over."""
        record = self.record
        if record is None or not self._is_leader or record.epoch != self.epoch:
            reason = "this node does not lead"
        elif isinstance(change := asked(record, request.ask, request.node), Refusal):
            reason = change.reason
        elif change != record and request.ask is Ask.FORGET and self._is_there(now_s, record, request):
            reason = f"{request.node} runs, or did some seconds ago: stop it first, for good, and wait a moment"
        elif self._asked not in (None, (request.ask, request.node)):
            reason = "another change is under way: ask again"
        else:
            self._asked = (request.ask, request.node)
            self._asked_until_s = now_s + self._timers.command_s
            return
        self._actions.append(RefuseCommand(reason))

    def _is_there(self, now_s: float, record: Record, request: ChangeRequested) -> bool:
        replica = named(record, request.node)
        return request.is_there or (isinstance(replica, Replica) and self._is_useful(replica, now_s))

    def _with_asked(self, now_s: float, record: Record) -> Record | None:
        """Return the record with the change that an administrator asked for; None when it has that already."""
        if self._asked is None:
            return None
        change = asked(record, *self._asked)
        if isinstance(change, Record) and change != record and now_s < self._asked_until_s:
            return change
        self._asked = None
        return None

    def _best(self, now_s: float, record: Record, among: frozenset[Replica] | None = None) -> Replica | None:
        found = record.in_sync - {self.me} if among is None else among
        others = [other for other in found if self._is_useful(other, now_s)]
        others = [other for other in others if other.node not in record.drained] or others
        return min(others, key=lambda other: (-self._peers.of(other).synced_lsn, other), default=None)

    def _maybe_give_way(self, now_s: float) -> None:
        """Have another node lead, if our disk holds everybody up and its disk does not."""
        record = self.record
        if self.role is not Role.LEADING or record is None or record.epoch != self.epoch:
            return
        late = frozenset(replica for replica in record.in_sync if self._is_late(now_s, replica))
        self._disks.look(now_s, record.in_sync, late)
        if now_s < self._gives_way_at_s or self._target is not None:
            return
        if now_s < self._is_slow_at_s and self.me.node not in self._short:
            return
        better = frozenset(other for other in self._disks.much_better() - late if other.node not in record.drained)
        target = self._best(now_s, record, better)
        if target is not None:
            self._gives_way_at_s = now_s + self._timers.give_way_retry_s
            self._actions.append(GiveWay(target, self.trouble_of_disk()))

    def _is_late(self, now_s: float, replica: Replica) -> bool:
        peer = self._peers.of(replica)
        is_behind = 0 < peer.synced_lsn < self._peers.appended_lsn and now_s >= peer.progress_s + LATE_S
        return is_behind or replica.node in self._short

    def _transfer(self, now_s: float, record: Record, lsn: int) -> Record | None:
        """Return the record in which another one leads, once it has our log up to its end."""
        target = self._target
        if target not in record.in_sync or not self._is_useful(target, now_s):
            target = self._best(now_s, record)
        if target is None or self._peers.of(target).synced_lsn < lsn:
            return None
        change = transferred(record, self.me, self.epoch, target)
        return change if isinstance(change, Record) else None

    def _without_silent(self, now_s: float, record: Record) -> Record | None:
        """Return the record without those that are silent or stuck, longest first, as many as may go."""
        limit_s = self._timers.suspect_s
        silent = [peer for peer in record.in_sync - {self.me} if not self._is_useful(peer, now_s)]
        if len(record.in_sync) - len(silent) < record.least:
            return None  # nothing can be confirmed without them: those that are cut off together may elect a leader
        changed = record
        for replica in sorted(silent, key=lambda peer: (self._peers.useful_until_s(peer, limit_s), peer)):
            shorter = removed(changed, self.me, self.epoch, replica)
            changed = changed if isinstance(shorter, Refusal) else shorter
        return None if changed == record else changed

    def _without_slow(self, now_s: float, record: Record) -> Record | None:
        """Return the record without those over whose links a commit takes much longer than over the others'."""
        slow = sorted(peer for peer in record.in_sync - {self.me} if self._is_slow(peer))
        if not slow or not self._has_enough_quick(now_s, record):
            return None
        changed = record
        for replica in slow:
            shorter = removed(changed, self.me, self.epoch, replica)
            changed = changed if isinstance(shorter, Refusal) else shorter
        names = ", ".join(replica.node for replica in slow)
        self._report(f"a round trip to {names} takes more than {self._timers.slow_s:g} s: confirms do not wait for it")
        return changed

    def _is_slow(self, replica: Replica) -> bool:
        return self._peers.round_trips_s(replica)[0] > self._timers.slow_s

    def _has_enough_quick(self, now_s: float, record: Record) -> bool:
        """Tell whether commits are quick with this node and others that are known to be quick, and are enough."""
        others = [peer for peer in record.in_sync - {self.me} if self._is_useful(peer, now_s)]
        quick = [peer for peer in others if self._peers.round_trips_s(peer)[1] <= self._timers.slow_s]
        return len(quick) + 1 >= record.least

    def _with_joining(self, record: Record) -> Record | None:
        if self._joining is None:
            return None
        replica, lsn = self._joining
        if self._peers.of(replica).synced_lsn < lsn or replica not in self._required:
            return None
        life = self._lives_of.get(replica) if self._records_lives(record) else None
        change = added(record, self.me, self.epoch, replica, self._replicas, life)
        return change if isinstance(change, Record) else None

    def _with_required(self, record: Record) -> Record | None:
        """Return the record that requires as many nodes in sync as this node is told to, once so many are."""
        if self._min_in_sync is None:
            return None
        change = required(record, self.me, self.epoch, self._min_in_sync)
        return None if isinstance(change, Refusal) or change == record else change

    def _records_lives(self, record: Record) -> bool:
        """Tell whether all nodes that must read the record understand lives in it."""
        known = {replica.node for replica in self._lives_of} | {self.me.node}
        return bool(self._lives) and (bool(record.lives) or record.assigned <= known)

    def _with_lives(self, now_s: float, record: Record) -> Record | None:
        """Return the record with the current lives at once, and with how far is committed now and then."""
        if not self._is_told_to_lead or not self._committed_lsn or not self._records_lives(record):
            return None
        lives = {replica.node: life for replica, life in self._lives_of.items() if replica in record.in_sync}
        lives[self.me.node] = self._lives[-1]
        floor = (self.epoch, self._committed_lsn) if now_s >= self._renews_at_s else record.floor
        change = renewed(record, self.me, self.epoch, lives, floor)
        if isinstance(change, Refusal) or change == record:
            return None
        if change.floor != record.floor:
            self._renews_at_s = now_s + self._timers.renew_s
        return change

    def _maybe_begin(self, now_s: float) -> None:
        """Begin the epoch in the log: once it is there, no node serves from an earlier epoch."""
        if not self._is_told_to_lead and now_s >= self._leads_from_s:
            self._is_told_to_lead = True
            self._actions.append(Lead(self.epoch))

    def _decide_serving(self, now_s: float) -> None:
        self._drop_silent_joining(now_s)
        self._serves_until_s = self._promised_until_s()
        may = self.role is Role.LEADING and self._drained_lsn is None and now_s < self._serves_until_s
        if may != self._is_told_to_serve:
            self._is_told_to_serve = may
            self._actions.append(Serve() if may else StopServing())

    def _drop_silent_joining(self, now_s: float) -> None:
        if self._joining is not None and not self._is_useful(self._joining[0], now_s):
            self._peers.was_removed(self._joining[0], now_s)
            self._joining = None

    def _decide_acks(self) -> None:
        """Require the acks of all that may be recorded as in sync, and of the one that is about to be added."""
        required = self._eligible() | {self.me}
        if self._joining is not None:
            required |= {self._joining[0]}
        if required != self._required:
            self._required = required
            self._actions.append(RequireAcks(required))

    def _eligible(self) -> frozenset[Replica]:
        """Return the replicas that may be recorded as in sync, and so may stand."""
        return frozenset().union(*(record.in_sync for record in self._view.possible))

    def _promised_until_s(self) -> float:
        """Return until when no other node can lead, by the promises of all that could."""
        others = self._eligible() - {self.me}
        return min((self._peers.of(other).promised_s for other in others), default=NEVER) + self._timers.limit_s

    def _maybe_beacon(self, now_s: float) -> None:
        if now_s < self._beacon_at_s or self._is_disk_stuck(now_s):
            return
        self._beacons += 1
        self._beacon_at_s = now_s + self._timers.beacon_s
        self._peers.sent(self._beacons, now_s)
        self._actions.append(SendBeacon(self.epoch, self._beacons))
