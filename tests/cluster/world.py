"""Three real `Member`s in a simulated world: clocks, links, disks, and etcd as one linearizable register, by one seed.

Replication is a toy that is obviously right: a message is the whole log of a leader, a follower cuts different entries
and appends missing ones, and an ack says how much of an epoch it has. Messages are lost, late and out of order.

Checked after every step (the letters are those of the design):

    C1  the log of each leader of a later epoch has all committed entries, now or from now on
    C2  committed entries do not change: two leaders do not commit different entries at the same place
    C3  an epoch has one leader process
    C8  after everything is healed, commits continue
    T   a leader by transfer has all entries that its predecessor wrote, committed or not
    C10 one process serves at a time, and none beyond the limit after the last beacon that all others answered
    F   a leader does not give way before its time, or to a node whose disk is as slow
    R   each node recorded as in sync, with this incarnation, has all committed entries; the set is never smaller than
        its minimum
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from warren.cluster.candidacy import Founding
from warren.cluster.events import (
    Acknowledge,
    Action,
    AnswerBeacon,
    Appended,
    AskingEnded,
    AskPositions,
    BeaconAnswered,
    BeaconReceived,
    CommittedUpTo,
    Drained,
    EpochRefused,
    Event,
    GiveWay,
    HandOver,
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
    RefuseEpoch,
    RequireAcks,
    Restart,
    SendBeacon,
    Standing,
    StopAcknowledging,
    Swap,
    SwapDone,
    SwapRefused,
    SwapUnknown,
    Synced,
    Tick,
    TransferRequested,
)
from warren.cluster.member import Member
from warren.cluster.record import LeaderBy, Record, RecordError, Replica, Versioned, decode, encode
from warren.cluster.timers import Timers

NODES: Final = ("a", "b", "c")
CLOCK_ERROR: Final = 0.05
ETCD_TIMEOUT_S: Final = 1.0
LIMIT_S: Final = 2.0
KINDS: Final = (
    *(
        "crash",
        "crash leader",
        "wipe",
        "copy",
        "restore",
        "restore",
        "pause",
        "pause leader",
        "cut",
        "cut one way",
        "isolate",
        "cut from etcd",
    ),
    *(
        "heal",
        "heal",
        "heal",
        "etcd down",
        "etcd up",
        "etcd up",
        "transfer",
        "transfer",
        "publish",
        "publish",
        "publish",
        "slow disk",
        "slow disk",
    ),
)
Entry = tuple[int, int]  # the epoch, and a number that no other entry has
Log = tuple[Entry, ...]


def _end_of(log: Log) -> Position:
    return Position(log[-1][0] if log else 0, len(log))


class Broken(AssertionError):
    """A promise was broken."""


@dataclass
class Register:
    """etcd: one key with the bytes of a record."""

    revision: int = 0
    found: Versioned | None = None
    is_up: bool = True

    def swap(self, revision: int, record: Record) -> bool:
        if revision != self.revision:
            return False
        self.revision += 1
        try:
            self.found = Versioned(self.revision, decode(encode(record)))
        except RecordError as error:
            raise Broken(f"R: {error}") from error
        return True


@dataclass(eq=False)
class Process:
    """One life of a node."""

    node: Node
    member: Member
    wakes_at: float = 0.0
    followed: tuple[int, Replica] | None = None
    epoch: int = 0  # that it leads
    log: Log = ()  # as a leader, with what is not synced yet
    required: frozenset[Replica] = frozenset()
    acked: dict[Replica, int] = field(default_factory=dict)
    committed: int = 0
    hands_over: bool = False  # its clients are sent away: it writes nothing more
    leads_since: float = 0.0
    syncs: bool = False  # its disk, at the moment
    to_ack: tuple[Replica, int, int] | None = None
    begins_at: int = 0  # where the entry is that begins the epoch
    sent: dict[int, float] = field(default_factory=dict)  # beacons, by the true time
    promised: dict[Replica, float] = field(default_factory=dict)


@dataclass(eq=False)
class Node:
    """A machine: its disk, its clock, and the process that runs on it, if any."""

    name: str
    incarnation: int
    rate: float
    offset_s: float
    disk: Log = ()
    known: int = 0  # how much of it is committed, by what is on the disk
    lives: tuple[str, ...] = ()  # on the disk, too
    copy: tuple[Log, int, tuple[str, ...]] | None = None
    is_restored: bool = False  # and its disk has not all of what was committed
    process: Process | None = None
    paused_until: float = 0.0
    slow_s: float = 0.0  # how long its disk needs for a sync
    was_slow_at: float = float("-inf")
    inbox: list[Callable[[], None]] = field(default_factory=list)

    @property
    def replica(self) -> Replica:
        return Replica(self.name, f"i{self.incarnation}")

    @property
    def standing(self) -> Standing:
        committed = self.disk[: self.known]
        return Standing(_end_of(self.disk), _end_of(committed))


class World:
    """All of it. `now` is the true time, which no node knows."""

    def __init__(
        self,
        seed: int,
        *,
        min_in_sync: int = 2,
        settings: Sequence[int | None] = (None,),
        timers: Timers | None = None,
        calm: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.calm = calm
        self.min_in_sync = min_in_sync
        self.settings = settings  # of which each process has one as its `min_in_sync`
        self.timers = timers or Timers(renew_s=1.0)
        self.etcd = Register()
        self.cut: set[tuple[str, str]] = set()
        self.cut_from_etcd: set[str] = set()
        self.committed: Log = ()
        self.committed_in: dict[int, Log] = {}
        self.begun: dict[int, tuple[Process, Log]] = {}
        self.commits = 0
        self.take_overs = 0
        self.transfers = 0
        self.restores = 0
        self.ways = 0  # that were given
        self.served_s: list[float] = []
        self._numbers = itertools.count(1)
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self.nodes = {
            name: Node(name, 0, 1 + self.random.uniform(-CLOCK_ERROR, CLOCK_ERROR), self.random.uniform(0, 1000))
            for name in NODES
        }
        for node in self.nodes.values():
            self.start(node)

    # --- time -----------------------------------------------------------------------------------------------------

    def later(self, delay_s: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + delay_s, next(self._order), work))

    def run(self, duration_s: float) -> None:
        end = self.now + duration_s
        while self._due and self._due[0][0] <= end:
            self.now, _, work = heapq.heappop(self._due)
            work()
            self.look()
        self.now = end

    def clock(self, node: Node) -> float:
        return node.offset_s + self.now * node.rate

    def latency(self) -> float:
        if not self.calm and self.random.random() < 0.02:
            return self.random.uniform(0.1, 4.0)
        return self.random.uniform(0.001, 0.02)

    # --- processes ------------------------------------------------------------------------------------------------

    def start(self, node: Node) -> None:
        if node.process is not None:
            return
        founding = Founding("store", self.min_in_sync) if node.name == "a" and node.incarnation == 0 else None
        node.lives = (*node.lives, f"{node.name}{next(self._numbers)}")
        member = Member(
            node.replica,
            self.clock(node),
            position=_end_of(node.disk),
            timers=self.timers,
            founding=founding,
            min_in_sync=self.settings[0] if len(self.settings) == 1 else self.random.choice(self.settings),
            lives=node.lives,
        )
        node.process = Process(node, member)
        self.tell(node.process, Tick())

    def crash(self, node: Node, *, wipe: bool = False) -> None:
        """End the process: synced bytes stay, unless the disk is lost with it."""
        if node.process is None:
            return
        node.process = None
        node.inbox.clear()
        node.paused_until = 0.0
        replica = node.replica
        if wipe:
            node.disk = ()
            node.known = 0
            node.lives = ()
            node.copy = None
            node.incarnation += 1
        for other in self.others(node):
            self.send(node, other, lambda peer: self.tell(peer, LinkLost(replica)))
        self.later(0.05, lambda: self._refuse(node, replica))

    def _refuse(self, node: Node, replica: Replica) -> None:
        if node.process is not None:
            return
        for other in self.others(node):
            if (node.name, other.name) not in self.cut and (other.name, node.name) not in self.cut:
                # Known at once: a later answer could come from another life.
                self.deliver(other, lambda peer: self._refused(peer, node, replica))

    def _refused(self, process: Process, node: Node, replica: Replica) -> None:
        if node.process is None:
            self.tell(process, LinkRefused(replica))

    def others(self, node: Node) -> list[Node]:
        return [other for other in self.nodes.values() if other is not node]

    def deliver(self, node: Node, work: Callable[[Process], None]) -> None:
        """Make the process that runs now do something, after its pause if it has one."""
        process = node.process
        if process is None:
            return

        def act() -> None:
            if node.process is process:
                work(process)

        if self.now < node.paused_until:
            node.inbox.append(act)
        else:
            act()

    def pause(self, node: Node, duration_s: float) -> None:
        node.paused_until = max(node.paused_until, self.now + duration_s)
        self.later(duration_s, lambda: self._wake(node))

    def _wake(self, node: Node) -> None:
        if self.now < node.paused_until:
            return
        self.look()  # before anything else, it may serve a client
        waiting, node.inbox = node.inbox, []
        for work in waiting:
            work()

    def send(self, source: Node, target: Node, work: Callable[[Process], None]) -> None:
        """Send a message: lost when the way is cut, or now and then; late now and then."""
        if (source.name, target.name) in self.cut or (not self.calm and self.random.random() < 0.01):
            return
        self.later(self.latency(), lambda: self.deliver(target, work))

    # --- members --------------------------------------------------------------------------------------------------

    def tell(self, process: Process, event: Event) -> None:
        member = process.member
        for action in member.handle(self.clock(process.node), event):
            self._carry_out(process, action)
        wake_at = member.wake_at_s(self.clock(process.node))
        if wake_at != process.wakes_at and wake_at != float("inf"):
            process.wakes_at = wake_at
            delay_s = max(0.0, (wake_at - self.clock(process.node)) / process.node.rate) + 1e-6
            self.later(delay_s, lambda: self.deliver(process.node, self._tick(process, wake_at)))

    def _tick(self, process: Process, wake_at: float) -> Callable[[Process], None]:
        def work(running: Process) -> None:
            if running is process and process.wakes_at == wake_at:
                process.wakes_at = 0.0
                self.tell(process, Tick())

        return work

    def _carry_out(self, process: Process, action: Action) -> None:
        node = process.node
        match action:
            case Read():
                self._read(process)
            case Swap(number, revision, record):
                self._swap(process, number, revision, record)
            case AskPositions(number, nodes):
                for name in sorted(nodes):
                    self._ask(process, number, self.nodes[name])
                ended = AskingEnded(number)
                self.later(1.0, lambda: self.deliver(node, lambda peer: self._if_same(peer, process, ended)))
            case SendBeacon(epoch, number):
                process.sent[number] = self.now
                beacon = BeaconReceived(node.replica, epoch, number)
                for other in self.others(node):
                    self.send(node, other, lambda peer: self.tell(peer, beacon))
                self._ship(process)
            case AnswerBeacon(leader, epoch, number):
                answer = BeaconAnswered(node.replica, epoch, number)
                self.send(node, self.nodes[leader.node], lambda peer: self._answered(peer, answer))
            case RefuseEpoch(leader, epoch):
                refusal = EpochRefused(node.replica, epoch)
                self.send(node, self.nodes[leader.node], lambda peer: self.tell(peer, refusal))
            case Acknowledge(leader, epoch):
                process.followed = (epoch, leader)
            case KeepLives(lives):
                node.lives = lives
            case StopAcknowledging():
                process.followed = None
            case Lead(epoch):
                self._begin(process, epoch)
            case RequireAcks(replicas):
                process.required = replicas
            case GiveWay(target):
                self._give_way(process, target)
            case HandOver():
                process.hands_over = True
                delay_s = self.random.choice((0.01, 0.3, 2.0)) * self.random.random()
                drained = Drained(len(process.log))
                self.later(delay_s, lambda: self.deliver(node, lambda peer: self._if_same(peer, process, drained)))
            case Restart():
                self.crash(node)
                self.later(self.random.uniform(0.05, 0.5), lambda: self.start(node))

    def _give_way(self, process: Process, target: Replica) -> None:
        if (self.now - process.leads_since) * process.node.rate < self.timers.tenure_s:
            raise Broken(f"F: {process.node.name} gives way too soon")
        if process.node.slow_s == 0.0 and process.node.was_slow_at < self.now - 10.0:
            raise Broken(f"F: {process.node.name} gives way, and its disk is good")
        self.ways += 1
        transfer = TransferRequested(target.node)
        self.deliver(process.node, lambda peer: self._if_same(peer, process, transfer))

    def _ask(self, process: Process, number: int, other: Node) -> None:
        node = process.node

        def answer(peer: Process) -> None:
            told = PositionTold(number, other.name, other.replica, other.standing)
            self.send(other, node, lambda back: self._if_same(back, process, told))

        self.send(node, other, answer)

    def _answered(self, process: Process, answer: BeaconAnswered) -> None:
        leads = process.member.leadership
        if leads is not None and answer.epoch == leads.epoch:
            sent = process.sent.get(answer.number, float("-inf"))
            process.promised[answer.replica] = max(sent, process.promised.get(answer.replica, sent))
        self.tell(process, answer)

    # --- etcd -----------------------------------------------------------------------------------------------------

    def _is_etcd_there(self, process: Process) -> bool:
        return self.etcd.is_up and process.node.name not in self.cut_from_etcd

    def _read(self, process: Process) -> None:
        node = process.node

        def answer() -> None:
            event: Event
            if self._is_etcd_there(process) and (self.calm or self.random.random() > 0.02):
                found = self.etcd.found
                event = RecordRead(found)
            else:
                event = ReadFailed()
            self.later(self.latency(), lambda: self.deliver(node, lambda peer: self._if_same(peer, process, event)))

        self.later(self.latency(), answer)

    def _if_same(self, running: Process, process: Process, event: Event) -> None:
        if running is process:
            self.tell(process, event)

    def _swap(self, process: Process, number: int, revision: int, record: Record) -> None:
        node = process.node
        answers: list[Event] = []

        def answer_once(event: Event) -> None:
            if not answers:
                answers.append(event)
                self.deliver(node, lambda peer: self._if_same(peer, process, event))

        def apply() -> None:
            if not self.etcd.is_up:
                return
            done = self.etcd.swap(revision, record)
            if done:
                self._record_changed()
            if (self.calm or self.random.random() > 0.15) and node.name not in self.cut_from_etcd:
                event = SwapDone(number, self.etcd.revision) if done else SwapRefused(number)
                self.later(self.latency(), lambda: answer_once(event))

        # Without an answer the outcome is unknown. The request may be carried out much later.
        self.later(ETCD_TIMEOUT_S / node.rate, lambda: answer_once(SwapUnknown(number)))
        if node.name in self.cut_from_etcd:
            return
        chance = 1.0 if self.calm else self.random.random()
        if chance < 0.1:
            return
        self.later(self.random.uniform(1.0, 6.0) if chance < 0.25 else self.latency(), apply)

    def _record_changed(self) -> None:
        found = self.etcd.found
        assert found is not None
        for node in self.nodes.values():
            self.watched(node, found)

    def watched(self, node: Node, found: Versioned) -> None:
        if self.calm or self.random.random() < 0.9:
            delay_s = self.random.choice((0.01, 0.01, 0.1, 3.0)) * self.random.random()
            self.later(delay_s, lambda: self.deliver(node, lambda peer: self.tell(peer, RecordChanged(found))))

    # --- logs -----------------------------------------------------------------------------------------------------

    def _begin(self, process: Process, epoch: int) -> None:
        log = process.node.disk
        if epoch in self.begun:
            raise Broken(f"C3: {process.node.name} begins epoch {epoch}, which was begun before")
        for earlier, committed in self.committed_in.items():
            # One that slept may begin an epoch which has ended: nobody follows it.
            if earlier < epoch and log[: len(committed)] != committed:
                raise Broken(f"C1: {process.node.name} begins epoch {epoch} without what was committed in {earlier}")
        self._look_at_transfer(process, epoch, log)
        self.begun[epoch] = (process, log)
        self.take_overs += 1
        process.epoch = epoch
        # The entry that begins the epoch is synced before anybody hears of it (`Lead`).
        process.log = process.node.disk = (*log, (epoch, next(self._numbers)))
        process.begins_at = len(process.log)
        process.leads_since = self.now
        self.tell(process, Synced(process.node.replica, process.begins_at))
        self.tell(process, Appended(process.begins_at))
        self._ship(process)
        self._maybe_commit(process)

    def _look_at_transfer(self, process: Process, epoch: int, log: Log) -> None:
        record = process.member.record
        assert record is not None
        if record.by is LeaderBy.TRANSFER and record.epoch == epoch and epoch - 1 in self.begun:
            before, _ = self.begun[epoch - 1]
            if log[: len(before.log)] != before.log:
                raise Broken(f"T: {process.node.name} takes over without all that {before.node.name} wrote")
            self.transfers += 1

    def append(self, process: Process) -> None:
        """Make a leader write something, send it, and sync it somewhat later."""
        if process.hands_over:
            return
        process.log = (*process.log, (process.epoch, next(self._numbers)))
        length = len(process.log)
        self.tell(process, Appended(length))
        self._ship(process)
        self._begin_sync(process)

    def _begin_sync(self, process: Process) -> None:
        """Make the disk sync what there is, one thing at a time."""
        length = len(process.log)
        if process.syncs or length <= len(process.node.disk):
            return
        process.syncs = True
        delay_s = self.random.uniform(0, 0.01) + process.node.slow_s
        self.later(delay_s, lambda: self.deliver(process.node, lambda peer: self._sync(peer, process, length)))

    def _sync(self, running: Process, process: Process, length: int) -> None:
        if running is not process:
            return
        process.syncs = False
        if length > len(process.node.disk):
            process.node.disk = process.log[:length]
            self.tell(process, Synced(process.node.replica, length))
            self._maybe_commit(process)
        self._begin_sync(process)

    def _ship(self, process: Process) -> None:
        if process.epoch == 0:
            return
        log, epoch, node, committed = process.log, process.epoch, process.node, process.committed
        for other in self.others(node):
            self.send(node, other, lambda peer: self._take(peer, node.replica, epoch, log, committed))

    def _take(self, process: Process, leader: Replica, epoch: int, log: Log, committed: int) -> None:
        """Follow a leader: the log that was sent has the entry that began its epoch, so what differs shows there."""
        if process.followed != (epoch, leader):
            return
        own = process.node.disk
        if own[: len(log)] != log:
            same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(own, log, strict=False)))
            is_behind = same == len(own)
            if not is_behind and own[same][0] == epoch:
                raise Broken(f"C3: {process.node.name} has other entries of epoch {epoch}")
            if same < process.node.known:
                objection = Objected(process.node.replica, process.node.standing.committed)
                self.send(process.node, self.nodes[leader.node], lambda peer: self._objected(peer, epoch, objection))
                return
            process.node.disk = log
            self.tell(process, Positioned(_end_of(log)))
        process.node.known = max(process.node.known, committed)
        self._ack(process, leader, epoch, len(log))

    def _ack(self, process: Process, leader: Replica, epoch: int, length: int) -> None:
        """Acknowledge, once the disk has synced: one thing at a time."""
        replica, target = process.node.replica, self.nodes[leader.node]

        def send() -> None:
            life = process.node.lives[-1]
            self.send(process.node, target, lambda peer: self._acked(peer, replica, epoch, length, life))

        def synced() -> None:
            process.syncs = False
            send()
            last, process.to_ack = process.to_ack, None
            if last is not None:
                self._ack(process, *last)
            self._begin_sync(process)  # it may lead by now

        if process.syncs:
            process.to_ack = leader, epoch, length
        elif process.node.slow_s:
            process.syncs = True
            self.later(process.node.slow_s, lambda: self.deliver(process.node, lambda _: synced()))
        else:
            send()

    def _objected(self, process: Process, epoch: int, objection: Objected) -> None:
        if process.epoch == epoch:
            self.tell(process, objection)

    def _acked(self, process: Process, replica: Replica, epoch: int, length: int, life: str) -> None:
        if process.epoch != epoch or life not in self.nodes[replica.node].lives[-1:]:
            return  # it came over the connection of a process that is gone
        process.acked[replica] = max(length, process.acked.get(replica, 0))
        self.tell(process, Synced(replica, length))
        if replica not in process.required and length + 8 >= len(process.log):
            self.tell(process, NearlyCaughtUp(replica))
        self._maybe_commit(process)
        if replica in process.required and length >= process.committed:
            self.tell(process, LifeTold(replica, life))

    def _maybe_commit(self, process: Process) -> None:
        node = process.node
        if process.epoch == 0 or node.process is not process or node.replica not in process.required:
            return
        own = len(node.disk)
        length = min(own if each == node.replica else process.acked.get(each, 0) for each in process.required)
        if length <= process.committed or length < process.begins_at:
            return
        process.committed = length
        self._commit(process, process.log[:length])
        self.tell(process, CommittedUpTo(length))
        if length >= process.begins_at:
            self.tell(process, Recovered())

    def _commit(self, process: Process, log: Log) -> None:
        shorter = min(len(log), len(self.committed))
        if log[:shorter] != self.committed[:shorter]:
            raise Broken(f"C2: {process.node.name} commits something else than was committed")
        for epoch, (later, begun) in self.begun.items():
            if epoch > process.epoch and later.node.process is later and begun[: len(log)] != log:
                raise Broken(f"C1: epoch {epoch} is led without what {process.node.name} commits in {process.epoch}")
        self.committed_in[process.epoch] = log
        if len(log) > len(self.committed):
            self.commits += len(log) - len(self.committed)
            self.committed = log

    # --- what holds -----------------------------------------------------------------------------------------------

    def serving(self) -> list[Process]:
        """Return the processes that would serve a client at this moment."""
        return [
            node.process
            for node in self.nodes.values()
            if node.process is not None
            and self.now >= node.paused_until
            and node.process.member.serves(self.clock(node))
        ]

    def look(self) -> None:
        """Check everything that holds at any moment."""
        serving = self.serving()
        if len(serving) > 1:
            raise Broken(f"C10: {[process.node.name for process in serving]} serve at the same time")
        found = self.etcd.found
        if found is None:
            return
        record = found.record
        for node in self.nodes.values():
            has_all = node.disk[: len(self.committed)] == self.committed
            node.is_restored = node.is_restored and not has_all
            if node.replica in record.in_sync and not has_all and not node.is_restored:
                raise Broken(f"R: {node.name} is in sync and lacks what was committed")
        for process in serving:
            self.served_s.append(self.now)
            if record.epoch != process.epoch:
                continue
            for other in record.in_sync - {process.node.replica}:
                if self.now - process.promised.get(other, float("-inf")) > LIMIT_S / (1 - CLOCK_ERROR):
                    raise Broken(f"C10: {process.node.name} serves beyond the limit, by the promise of {other}")

    # --- what happens ---------------------------------------------------------------------------------------------

    def leader(self) -> Process | None:
        """Return the process that leads the greatest epoch, if it is there."""
        leaders = [node.process for node in self.nodes.values() if node.process and node.process.epoch]
        return max(leaders, key=lambda process: process.epoch, default=None)

    def publish(self) -> None:
        """Make every process that leads write something: one that was deposed and does not know it, too."""
        for node in self.nodes.values():
            if node.process is not None and self.now >= node.paused_until and node.process.epoch:
                self.append(node.process)

    def may_wipe(self, node: Node) -> bool:
        """Whether enough other replicas are there that have everything."""
        found = self.etcd.found
        if found is None or (node.name == "a" and not node.disk):
            return False
        there = {each.replica for each in self.nodes.values() if each is not node and not self._is_old(each)}
        lost = {each for each in found.record.in_sync if each not in there and each != node.replica}
        return len(found.record.in_sync) >= 2 and not lost

    def _is_old(self, node: Node) -> bool:
        """Whether its disk is restored, or counts as that: until the record has the life in which it was caught up."""
        life = None if self.etcd.found is None else self.etcd.found.record.life_of(node.replica)
        return node.is_restored or (life is not None and life not in node.lives)

    def may_restore(self, node: Node) -> bool:
        """Whether the copy is older than the record knows, and another replica that is recorded has everything."""
        found = self.etcd.found
        if found is None or node.copy is None or any(map(self._is_old, self.nodes.values())):
            return False
        record, (disk, _, lives) = found.record, node.copy
        life = record.life_of(node.replica)
        is_told = life is not None and (life not in lives or _end_of(disk) < record.floor)
        good = [each for each in self.nodes.values() if each is not node and each.replica in record.in_sync]
        return bool(good) and (is_told or node.replica not in record.in_sync)

    def restore(self, node: Node) -> None:
        """Put the copy of its disk in the place of what is there."""
        assert node.copy is not None
        self.crash(node)
        node.disk, node.known, node.lives = node.copy
        node.is_restored = True
        self.restores += 1
        for other in self.others(node):
            if other.process is not None:
                other.process.acked.pop(node.replica, None)

    def _has_survivor(self) -> bool:
        """Whether a replica that is recorded is there: a change that was late may name one disk alone, lost since."""
        found = self.etcd.found
        good = [node for node in self.nodes.values() if not node.is_restored]
        return found is None or any(node.replica in found.record.in_sync for node in good)

    def disturb(self) -> None:
        """Do one thing that may happen."""
        choose = self.random
        node = self.nodes[choose.choice(NODES)]
        kind = choose.choice(KINDS)
        leader = self.leader()
        if kind.endswith("leader") and leader is not None:
            node = leader.node
        match kind:
            case "crash" | "crash leader":
                self.crash(node)
                self.later(choose.choice((0.1, 1.0, 6.0)) * choose.random(), lambda: self.start(node))
            case "wipe" if choose.random() < 0.4 and self.may_wipe(node):
                self.crash(node, wipe=True)
                self.later(choose.uniform(0.1, 3.0), lambda: self.start(node))
            case "copy":
                node.copy = (node.disk, node.known, node.lives)
            case "restore" if self.may_restore(node):
                self.restore(node)
                self.later(choose.choice((0.1, 1.0, 6.0)) * choose.random(), lambda: self.start(node))
            case "pause" | "pause leader":
                self.pause(node, choose.choice((0.3, 2.0, 5.0, 12.0)) * choose.random())
            case "cut":
                self.cut |= {(node.name, other.name) for other in self.others(node)[:1]}
                self.cut |= {(target, source) for source, target in self.cut}
            case "cut one way":
                self.cut.add((node.name, choose.choice(self.others(node)).name))
            case "isolate":
                for other in self.others(node):
                    self.cut |= {(node.name, other.name), (other.name, node.name)}
                if choose.random() < 0.5:
                    self.cut_from_etcd.add(node.name)
            case "heal":
                self.cut.clear()
                self.cut_from_etcd.clear()
            case "etcd down":
                self.etcd.is_up = False
            case "etcd up":
                self.etcd.is_up = True
            case "cut from etcd":
                self.cut_from_etcd.add(node.name)
            case "slow disk":
                self.slow_down({node}, choose.choice((1.0, 2.0, 3.0)))
            case "transfer" if leader is not None:
                target = choose.choice((None, *(other.name for other in self.others(leader.node))))
                self.deliver(leader.node, lambda process: self.tell(process, TransferRequested(target)))
            case _:
                self.publish()

    def slow_down(self, nodes: set[Node], slow_s: float) -> None:
        """Make the disks of these nodes slow, and no others."""
        for node in self.nodes.values():
            node.was_slow_at = self.now if node.slow_s else node.was_slow_at
            node.slow_s = slow_s if node in nodes else 0.0

    def heal(self) -> None:
        """End all trouble."""
        self.calm = True
        self.cut.clear()
        self.cut_from_etcd.clear()
        self.etcd.is_up = True
        self.slow_down(set(), 0.0)
        for node in self.nodes.values():
            if node.paused_until > self.now:
                node.paused_until = self.now
                self._wake(node)
            self.start(node)

    def live(self, steps: int) -> None:
        """Cause `steps` disturbances, then heal, and check that commits continue."""
        self.run(5.0)
        for _ in range(steps):
            self.disturb()
            self.publish()
            self.run(self.random.choice((0.05, 0.3, 1.0, 4.0)) * self.random.random())
        self.heal()
        self.run(15.0)
        if not self._has_survivor():
            return
        before = self.commits
        self.publish()
        self.run(10.0)
        if self.commits == before or not self.serving():
            raise Broken("C8: everything is healed, and nothing is committed or served")
