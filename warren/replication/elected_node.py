"""A node of a cluster that elects its leader: it carries out the decisions of its `Member`.

    start      the data directory is opened as a follower's, whatever it was before
    following  the node that the record names, at the address that the registry has
    leading    from `lead` on: the same process recovers the directory and is a broker, as after a promotion by hand; it
               sends beacons, and is answered, while it recovers
    handing    the broker stops as it does when it is told to, and finally makes another node lead
    over
    the end    `restart`: the process restarts, in the same place, with nothing in memory

1. The driver runs beside all of that, from the start to the end. So the member hears and says everything in one order.
2. A process leads once. Its memory may hold messages that were never committed when another node leads. So it is given
   up as by ``kill -9``, without a farewell to clients, which would look like an orderly end.
3. Clients are served while the member says so (`may_serve`). Otherwise nothing more is sent to them, and nothing read
   from them. They are held so until the member allows serving again, but only until others have been silent for
   `GIVE_UP_S`: then the process restarts, since another node that they can reach may lead. A process that was told to
   stop ends at once.
4. A leader that was told to stop hands over first, if another one can lead, and ends then. A leader that hands over
   because an administrator asks for it starts again. One whose disk holds everybody up gives way (`give_way`): it hands
   over what was shipped, and waits neither for its own disk nor for unwritten messages. To clients that is the end of a
   process.
5. The id of the store is in the record. A node whose directory is of another store takes no part (``etcd_record.py``).
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import trio

from warren import __version__
from warren.cluster.candidacy import Founding
from warren.cluster.driver import Driver, RecordStore, ToldPosition, passed_s
from warren.cluster.etcd import Etcd, Traffic
from warren.cluster.etcd_record import EtcdRecord
from warren.cluster.events import (
    BeaconReceived,
    ChangeRequested,
    DisksShort,
    DiskWaits,
    Drained,
    Event,
    Heard,
    LinkLost,
    LinkRefused,
    Position,
    Positioned,
    RecoveryRequested,
    Standing,
    TransferRequested,
)
from warren.cluster.member import Member
from warren.cluster.record import MAJORITY, Ask, LeaderBy, Replica, asked
from warren.cluster.registry import NodeEntry, Registry
from warren.replication import members
from warren.replication.advertised import advertised, fault
from warren.replication.cluster_state import ClusterState
from warren.replication.elected_set import ElectedSet, node_of, recorded
from warren.replication.election_counts import ElectionCounts
from warren.replication.etcd_access import etcd_settings
from warren.replication.follower import Follower
from warren.replication.format_level import LEVEL
from warren.replication.handshake import STORE_ID_BYTES, Node
from warren.replication.leader import Leader
from warren.replication.neighbours import Directory, Neighbours
from warren.replication.replica_store import NO_STORE
from warren.server import standard_streams
from warren.server.logs import get_logger
from warren.server.replication import ClusterRefusal
from warren.server.setting_kinds import Endpoint
from warren.server.settings import DEFAULT_ORIGIN, Settings

# A leader serves for 2 s without answers, and other nodes stand after 3 s at the earliest.
GIVE_UP_S: Final = 4.0
WATCH_S: Final = 0.25
REPEAT_S: Final = 60.0  # between log lines for the same problem
REASONS_MAX: Final = 4  # that are logged at once when they come
# This number of failed requests in a row for each member of etcd is a lasting problem.
FAILURES: Final = 3
# For etcd to take an administrator's command: a little longer than the member tries.
COMMAND_S: Final = 6.0
COMMAND_POLL_S: Final = 0.02
# How far the epoch of a recovery is beyond the last one that is known: at least the first, and less than both together.
# Other nodes may have begun epochs that are no longer known, or be recovered as well.
EPOCHS_BEYOND: Final = 1000
EPOCHS_APART: Final = 1 << 20

# Ends this life of the node at once; with True, the process starts again.
Restart = Callable[[bool], None]

log = get_logger("replication")


class ElectedNode:
    """The node `me`: carries out the actions for a `Driver`, and answers the questions of a `Follower`."""

    def __init__(self, me: Node, registry: Directory, restart: Restart) -> None:
        self.me = me
        self.in_sync = ElectedSet(me, self._tell, time.monotonic())
        self.follower: Follower | None = None
        self.leader: Leader | None = None
        self.driver: Driver | None = None
        self.target: Node | None = None  # the next leader
        self.gives_way = False  # to it, and does not wait for the disk
        self._way_to: tuple[Replica, str] | None = None  # the next leader, and why
        self._gives_way = trio.Event()
        self._refusal = ""
        self._addressed: Replica | None = None  # the leader that was asked for last
        self._registry = registry
        self._neighbours = Neighbours(registry)
        self._restart = restart
        self._serves = False
        self._holds = False

    def _tell(self, event: Event) -> None:
        assert self.driver is not None
        self.driver.tell(event)
        if self.driver.member.record is not None:
            self.in_sync.learn(self.driver.member.record, time.monotonic())

    def may_serve(self) -> bool:
        """Tell whether clients may be served at this moment."""
        if not self._serves:
            return False
        assert self.driver is not None
        if self.driver.serves():
            self._holds = False
            return True
        if self.target is not None:
            return False  # the member decides then
        is_stopping = self.leader is not None and self.leader.is_stopping
        if is_stopping or self.driver.silence_s() >= GIVE_UP_S:
            self.restart("the other nodes may have elected another leader: too few of them answer")
        elif not self._holds:
            self._holds = True
            log.warning("clients are held back: another node that may lead does not answer")
        return False

    def trouble_of_disk(self) -> str:
        """Return how the disk of this leader holds everybody up; empty while it does not."""
        return "" if self.driver is None else self.driver.member.trouble_of_disk()

    def leads(self) -> bool:
        """Tell whether this node leads, and serves clients at this moment."""
        return self._serves and self.driver is not None and self.driver.serves()

    def is_led(self) -> bool:
        """Tell whether a leader is known here."""
        return self.leads() or (self.follower is not None and self.follower.current_leader() is not None)

    # --- for the driver ---------------------------------------------------------------------------------------------

    async def ask_positions(self, nodes: frozenset[str], told: ToldPosition) -> None:
        if self.follower is not None:
            await self._neighbours.ask_positions(nodes, told, self.follower.position_of)

    def send_beacon(self, epoch: int, number: int) -> None:
        if self.leader is not None:
            self.leader.send_beacon(number)

    def answer_beacon(self, leader: Replica, epoch: int, number: int) -> None:
        if self.follower is not None:
            self.follower.answer(epoch, number)

    def refuse_epoch(self, leader: Replica, epoch: int) -> None:
        if self.follower is not None:
            self.follower.refuse(epoch)

    def acknowledge(self, leader: Replica, epoch: int) -> None:
        log.info("this node follows", leader=leader.node, epoch=epoch)  # the answer to its beacon comes next

    def keep_lives(self, lives: tuple[str, ...]) -> None:
        assert self.follower is not None
        try:
            self.follower.keep_lives(lives)
        except OSError as error:
            self.restart(f"the state of this node cannot be written: {error.strerror or error}")

    def stop_acknowledging(self) -> None:
        if self.follower is not None:
            self.follower.stop_acknowledging()

    def lead(self, epoch: int) -> None:
        log.info("this node was elected: it leads from now on", epoch=epoch)
        assert self.follower is not None
        self.follower.elected(epoch)

    def require_acks(self, replicas: frozenset[Replica]) -> None:
        self.in_sync.require(replicas, time.monotonic())

    def serve(self) -> None:
        self._serves = True

    def stop_serving(self) -> None:
        self.may_serve()

    def hand_over(self, target: Replica) -> None:
        log.info("this node hands over, and disconnects its clients", target=target.node)
        self.target = node_of(target)
        assert self.leader is not None
        self.leader.stop_broker()

    def give_way(self, target: Replica, reason: str) -> None:
        self._way_to = target, reason
        self._gives_way.set()

    def refuse_command(self, reason: str) -> None:
        self._refusal = reason

    def restart(self, reason: str) -> None:
        if self.leader is not None and self.leader.is_stopping:
            log.warning("this node no longer leads; it ends immediately", reason=reason)
            self._restart(False)
        else:
            log.warning("this node no longer leads; it restarts as a follower", reason=reason)
            self._restart(True)

    def report(self, text: str) -> None:
        log.warning("cluster", reason=text)

    # --- for the leader ---------------------------------------------------------------------------------------------

    async def transfer(self, node: str | None) -> str:
        """Hand leadership to `node`, or to any, and return which one leads. The broker stops.

        Raises:
            ClusterRefusal: no node can lead, or etcd could not record it: this node would be gone without a successor.
        """
        assert self.driver is not None
        trouble = await self.driver.trouble_of_record()
        if self.leader is not None and self.leader.is_stopping:
            raise ClusterRefusal("this node was told to stop")
        if trouble:
            raise ClusterRefusal(f"no node can take over now: {trouble}")
        self._refusal = ""
        self._tell(TransferRequested(node))
        if self._refusal or self.target is None:
            raise ClusterRefusal(self._refusal)
        return self.target.name

    async def keep_giving_way(self) -> None:
        """Hand over when the member says so, if etcd can have that on record. For ever."""
        while True:
            await self._gives_way.wait()
            self._gives_way = trio.Event()
            assert self._way_to is not None
            target, reason = self._way_to
            log.warning("this node gives way to another one", target=target.node, reason=reason)
            self.gives_way = True
            try:
                await self.transfer(target.node)
            except ClusterRefusal as refusal:
                self.gives_way = False
                log.warning("this node leads on", reason=str(refusal))

    async def change(self, ask: Ask, node: str) -> None:
        """Record an administrator's command about a node in etcd. A leader that is drained hands over then.

        Raises:
            ClusterRefusal: it is not so, and why.
        """
        assert self.driver is not None
        member = self.driver.member
        is_there = ask is Ask.FORGET and (self._is_connected(node) or await self._registry.is_registered(node))
        self._refusal = ""
        self._tell(ChangeRequested(ask, node, is_there))
        if self._refusal:
            raise ClusterRefusal(self._refusal)
        with trio.move_on_after(COMMAND_S):
            while member.record is None or asked(member.record, ask, node) != member.record:
                await trio.sleep(COMMAND_POLL_S)
            if ask is Ask.DRAIN and node == self.me.name:
                await self._leave()
            return
        raise ClusterRefusal("etcd did not confirm in time, and may still do it: see `warren ctl cluster status`")

    async def _leave(self) -> None:
        try:
            await self.transfer(None)
        except ClusterRefusal as refusal:
            raise ClusterRefusal(f"{self.me.name} is drained, but still leads: {refusal}") from None

    def _is_connected(self, node: str) -> bool:
        return any(replica.node.name == node and replica.is_connected for replica in self.in_sync.replicas())

    def why_not_taken(self, node: str, *, is_empty: bool) -> str:
        """Return why a node cannot follow this one: it was forgotten. One that comes back empty is welcome."""
        assert self.driver is not None
        record = self.driver.member.record
        if record is None or node not in record.forgotten:
            return ""
        if is_empty:
            self._tell(ChangeRequested(Ask.READMIT, node))
            return ""
        return (
            f"{node} was forgotten (warren ctl cluster forget): to have it join again, start it with an empty data "
            "directory"
        )

    def told_to_stop(self) -> None:
        """Hand leadership to another node, if one can lead: this process will end."""
        if self.target is None:
            self._refusal = ""
            self._tell(TransferRequested())
            if self._refusal:
                log.warning("nobody takes over from this node before it stops", reason=self._refusal)

    def drained(self, lsn: int) -> None:
        """Report that the broker has stopped, and that its log ends there."""
        self._tell(Drained(lsn))

    def recover(self, *, accepts_loss: bool) -> str:
        """Make this node's data the truth, and have this node lead; return a text for the administrator.

        Raises:
            ClusterRefusal: not so, and why.
        """
        self._refusal = ""
        self._tell(RecoveryRequested(accepts_loss, EPOCHS_BEYOND + secrets.randbelow(EPOCHS_APART)))
        if self._refusal:
            raise ClusterRefusal(self._refusal)
        log.warning("an administrator made this node the leader: data that only other nodes had is lost")
        return self.me.name

    # --- for the follower -------------------------------------------------------------------------------------------

    def trouble_of_directory(self) -> str:
        """Return why this node's directory is not to be trusted; empty when it is."""
        return "" if self.driver is None else self.driver.member.trouble_of_directory()

    async def leader_address(self) -> Endpoint | None:
        """Return the address of the recorded leader; None without one, or if it is this node."""
        assert self.driver is not None
        record = self.driver.member.record
        self._addressed = None if record is None else record.leader
        if record is None or record.leader.node == self.me.name:
            return None
        return await self._neighbours.address(record.leader.node)

    def standing(self) -> tuple[str, Standing]:
        """Return which store this node has, how far its log goes, and up to where that is committed."""
        assert self.follower is not None
        found = None if self.leader is None else self.leader.own_standing()
        if found is None:
            return self.follower.store(), self.follower.standing()
        assert self.leader is not None
        return self.leader.store_id().hex(), found

    async def another_leads(self) -> None:
        """Wait until the record names another leader than at the last `leader_address`."""
        assert self.driver is not None
        await self.driver.another_leads(self._addressed)

    def heard(self, leader: Node, epoch: int, beacon: int, own: Position) -> None:
        """Report that a leader has announced itself."""
        self._tell(Positioned(own))
        self._tell(BeaconReceived(recorded(leader), epoch, beacon))

    def received(self, leader: Node) -> None:
        """Report that something has come from a leader."""
        self._tell(Heard(recorded(leader)))

    def lost(self, leader: Node, own: Position) -> None:
        """Report that the link to a leader has ended."""
        self._tell(Positioned(own))
        self._tell(LinkLost(recorded(leader)))

    def refused(self) -> None:
        """Report that the process of the recorded leader does not listen."""
        assert self.driver is not None
        record = self.driver.member.record
        if record is not None and record.leader == self._addressed:
            self._tell(LinkRefused(record.leader))

    async def watch_disk(self) -> None:
        """Report to the member a disk that hangs, as a follower, and disks without space, as a leader. For ever.

        Tell other nodes whether this one's is short of space.
        """
        while self.leader is None:
            if self.follower is not None:
                self._tell(DiskWaits(self.follower.disk_began_s))
                self._registry.disk_is_low = self.follower.space.is_low()
            await trio.sleep(WATCH_S)
        self._tell(DiskWaits(None))  # its jobs as a follower are done
        while True:
            self._registry.disk_is_low = self.leader.is_disk_low()
            short = {name for name, other in self._registry.seen.items() if other.entry.disk_is_low} - {self.me.name}
            self._tell(DisksShort(frozenset(short | ({self.me.name} if self._registry.disk_is_low else set()))))
            await trio.sleep(WATCH_S)


class Election:
    """A node's part in the election: its member, driver and registration.

    `position` and `store_id` are those of its directory; `store` is where the record is, `registry` where nodes are,
    `traffic` the outcomes of the requests to both.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        state: ClusterState,
        position: Position,
        store_id: bytes,
        store: RecordStore,
        registry: Directory,
        restart: Restart,
        traffic: Traffic | None = None,
    ) -> None:
        self._traffic = traffic or Traffic()
        self._counts = ElectionCounts(passed_s())
        # Problems by their subject: when each of the reasons was logged last.
        self._said: dict[str, dict[str, float]] = {}
        self._settings = settings
        self._registry = registry
        self._restart = restart
        me = state.me(name)
        self.node = ElectedNode(me, registry, restart)
        founding = recovery = None
        may_begin = settings.cluster_first_node in ("", name)
        if store_id == NO_STORE and may_begin:
            founding = Founding(secrets.token_hex(STORE_ID_BYTES), least(settings))
        elif store_id != NO_STORE:
            recovery = Founding(store_id.hex(), least(settings))
        self.member = Member(
            recorded(me),
            passed_s(),
            position=position,
            replicas=settings.replicas,
            min_in_sync=MAJORITY if _is_default(settings) else settings.min_in_sync,
            founding=founding,
            recovery=recovery,
            lives=state.lives,
        )
        self.node.driver = self._driver = Driver(self.member, store, self.node)

    def entry(self) -> NodeEntry:
        """Return this node's report for other nodes."""
        address = advertised(self._settings, socket.getfqdn())
        return NodeEntry(self.node.me.incarnation.hex(), str(address), __version__, level=LEVEL)

    async def drive(self) -> None:
        """Take part, for ever. A fault of ours ends this process: it is then unknown which actions were carried out."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._driver.run)
                nursery.start_soon(self.node.watch_disk)
                nursery.start_soon(self.node.keep_giving_way)
        except Exception as error:
            log.error("internal error, the process starts again", exception=error)
            self._restart(True)

    async def announce(self) -> None:
        """Register the address of this node for others, for ever."""
        await self._registry.announce(self.node.me.name, self.entry())

    async def look(self) -> None:
        """Watch the other nodes, for ever."""
        await self._registry.look()

    async def count(self) -> None:
        """Update the counts, and log problems of etcd or the addresses, for ever."""
        while True:
            record = self.member.record
            epoch = None if record is None else record.epoch
            self._counts.look(passed_s(), epoch, is_led=self.node.is_led())
            self._say_what_is_wrong()
            await trio.sleep(WATCH_S)

    def _trouble_of_etcd(self) -> str:
        members = len(self._settings.etcd.split(","))
        return self._traffic.failure if self._traffic.in_row >= FAILURES * members else ""

    def _trouble_of_clock(self) -> str:
        follower = self.node.follower
        if follower is None or self.node.leader is not None or not follower.leader_clock.is_off():
            return ""
        seconds = (follower.leader_clock.skew_ms() or 0) / 1000
        leader = "its leader" if follower.leader is None else follower.leader.name
        where = "ahead of" if seconds > 0 else "behind"
        return f"the clock of {self.node.me.name} is {abs(seconds):.0f} s {where} that of {leader}"

    def _fault_of_address(self) -> str:
        seen = self._registry.seen
        own = seen.get(self.node.me.name)
        if own is None:
            return ""
        others = [other.entry.cluster for name, other in seen.items() if name != self.node.me.name]
        return fault(own.entry.cluster, others, self._settings.etcd.split(","))

    def _say_what_is_wrong(self) -> None:
        trouble, wrong = self._trouble_of_etcd(), self._fault_of_address()
        if self._is_news("etcd", trouble):
            if trouble:
                log.error("etcd does not answer", reason=trouble)
            else:
                log.info("etcd answers again")
        if self._is_news("address", wrong) and wrong:
            log.error("other nodes cannot reach this one", reason=wrong)
        skew = self._trouble_of_clock()
        if self._is_news("clock", skew) and skew:
            log.warning("the clocks of nodes differ: check NTP", reason=skew)
        namesake = self._registry.namesake
        if self._is_news("name", namesake) and namesake:
            log.error("another process has the name of this node", at=namesake)

    def _is_news(self, about: str, reason: str) -> bool:
        """Tell whether to log a problem: when it begins or has another reason, each minute, and when it is over.

        The same reason from another member of etcd is not a new one.
        """
        if not reason:
            return self._said.pop(about, None) is not None
        now_s = passed_s()
        said = self._said.setdefault(about, {})
        words = reason.partition(": ")[2] or reason
        is_new = words not in said and len(said) < REASONS_MAX
        is_news = is_new or now_s - max(said.values()) >= REPEAT_S
        if is_news:
            said[words] = now_s
            if len(said) > REASONS_MAX:
                del said[next(iter(said))]
        return is_news

    def describe(self, status: dict[str, Any]) -> dict[str, Any]:
        """Add the state of the cluster to the status of this node: its name, its members, and the election."""
        record = self.member.record
        assigned = frozenset[str]() if record is None else record.assigned
        seen = self._registry.seen
        if status["role"] == "leader":
            rows = members.of_leader(status, assigned, seen, time.time())
        else:
            in_sync = [] if record is None else [replica.node for replica in record.in_sync]
            # By itself it knows only that nothing was missing when it last heard of a leader.
            is_on_record = record is not None and recorded(self.node.me) in record.in_sync
            status = status | {"in_sync": status["in_sync"] and status["connected"] and is_on_record}
            if record is not None:
                status["min_in_sync"] = record.least  # the leader's report may be from before others joined
            status["in_sync_nodes"] = sorted(in_sync)
            if trouble := self.member.trouble_of_directory():
                status["trouble"] = trouble
            rows = members.of_follower(status, in_sync, assigned, seen, time.time())
        drained = frozenset[str]() if record is None else record.drained
        rows = [row | {"being_drained": row["node"] in drained} for row in rows]
        traffic = self._traffic
        election = {
            "leads": self.node.leads(),
            "epoch": 0 if record is None else record.epoch,
            "takeovers": self._counts.takeovers,
            "leaderless_s": round(self._counts.leaderless_s, 3),
            "late_renewals": self._registry.late_renewals,
            "record_age_s": None if traffic.watched_s is None else round(time.monotonic() - traffic.watched_s, 3),
            "etcd": {
                "requests": traffic.requests,
                "failures": traffic.failures,
                "seconds": round(traffic.seconds, 6),
                "trouble": self._trouble_of_etcd(),
            },
        }
        replicas = self._settings.replicas
        return status | {
            "cluster": self._settings.cluster_name,
            "drained": sorted(drained),
            "forgotten": [] if record is None else sorted(record.forgotten),
            "replicas": replicas,
            "members": rows,
            "election": election,
        }

    def store_id(self) -> bytes:
        """Return the id of the store that this node leads."""
        assert self.member.record is not None
        return bytes.fromhex(self.member.record.store)

    def is_first(self) -> bool:
        """Tell whether this node begins the store."""
        record = self.member.record
        return record is not None and record.by is LeaderBy.FIRST

    def leader(self, make: Callable[..., Leader]) -> Leader:
        """Return the leader that this node is; `make` gets the arguments for an elected one."""
        leader = make(elected=self.node.in_sync, may_serve=self.node.may_serve)
        leader.describe = self.describe
        if self.node.follower is not None:
            leader.clock = self.node.follower.leader_clock.continued()
        self.node.leader = leader
        leader.commands = self.node
        return leader

    def begins_anew(self) -> bool:
        """Tell whether this process continues as a follower after its broker has stopped."""
        leader = self.node.leader
        return self.node.target is not None and leader is not None and not leader.is_stopping


def by_etcd(settings: Settings, name: str, state: ClusterState, position: Position, store_id: bytes) -> Election:
    """Return a node's part in the election by etcd.

    Raises:
        StartError: a file of a certificate or a password cannot be used.
    """
    etcd = Etcd(etcd_settings(settings))
    own_store = "" if store_id == NO_STORE else store_id.hex()
    record = EtcdRecord(etcd, settings.cluster_name, lambda: own_store)
    registry = Registry(etcd, settings.cluster_name)
    return Election(settings, name, state, position, store_id, record, registry, restart_or_exit, etcd.traffic)


def least(settings: Settings) -> int:
    """Return the number of nodes in sync that a new store requires: the setting, or the majority of all that may join.

    Once nodes have joined, the leader requires the majority of these (`record.required`).
    """
    return settings.replicas // 2 + 1 if _is_default(settings) else settings.min_in_sync


def _is_default(settings: Settings) -> bool:
    return settings.origins.get("min_in_sync", DEFAULT_ORIGIN) == DEFAULT_ORIGIN


def restart_or_exit(restarts: bool) -> None:
    """Replace this process by a new one: same id, same arguments, no memory. All files and sockets are closed.

    A process that was told to stop ends instead.
    """
    standard_streams.finish()
    if not restarts:
        os._exit(0)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
