"""A node of a cluster that elects its leader: what it does when its `Member` says so.

    start      the data directory is opened as a follower's, whatever it was before
    following  whom the record names, where the registry has it
    leading    from `lead` on: the same process recovers the directory and is a broker, as after a promotion by hand; it
               sends beacons, and is answered, while it recovers
    the end    `restart`: the process begins anew, in the same place, with nothing in memory

1. The driver runs beside all of that, from the start to the end. So the member hears and says everything in one order.
2. A process leads once. What it has in memory when another one leads may never have been committed: it is given up as
   by ``kill -9``, without a farewell to clients, who would take that for an orderly end.
3. Clients are served while the member says so (`may_serve`). When it says that they may not be, nothing more is sent
   to them, and nothing read of them. They are held so until it says that they may be served again, but not for longer
   than others are silent for `GIVE_UP_S`: then the process restarts, for another node may lead that they can reach. One
   that was told to stop ends at once.
4. The id of the store is in the record. A node whose directory is of another store takes no part (``etcd_record.py``).
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from typing import Final, Protocol

import trio

from warren import __version__
from warren.cluster.driver import Driver, RecordStore, passed_s
from warren.cluster.etcd import Etcd, EtcdSettings
from warren.cluster.etcd_record import EtcdRecord
from warren.cluster.events import (
    BeaconReceived,
    DiskWaits,
    Event,
    Heard,
    LinkLost,
    LinkRefused,
    Position,
    Positioned,
)
from warren.cluster.member import Founding, Member
from warren.cluster.record import LeaderBy, Replica
from warren.cluster.registry import NodeEntry, Registry
from warren.replication.cluster_state import ClusterState
from warren.replication.elected_set import ElectedSet, recorded
from warren.replication.follower import Follower
from warren.replication.handshake import STORE_ID_BYTES, Node
from warren.replication.leader import Leader
from warren.replication.replica_store import NO_STORE
from warren.server.logs import get_logger
from warren.server.settings import DEFAULT_ORIGIN, Endpoint, Settings

# A leader serves for 2 s without answers, and nobody stands before 3 s are over.
GIVE_UP_S: Final = 5.0
WATCH_S: Final = 0.25
_EVERYWHERE: Final = ("0.0.0.0", "::")

# Ends this life of the node at once, and begins another one if it is to go on.
Restart = Callable[[bool], None]

log = get_logger("replication")


class Directory(Protocol):
    """Where the nodes are, see ``registry.py``."""

    async def announce(self, name: str, entry: NodeEntry) -> None: ...

    async def maybe_entry(self, name: str) -> NodeEntry | None: ...


class ElectedNode:
    """The node `me`: what a `Driver` carries out, and what a `Follower` asks."""

    def __init__(self, me: Node, registry: Directory, restart: Restart) -> None:
        self.me = me
        self.in_sync = ElectedSet(me, self._tell, time.monotonic())
        self.follower: Follower | None = None
        self.leader: Leader | None = None
        self.driver: Driver | None = None
        self._registry = registry
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
        is_stopping = self.leader is not None and self.leader.is_stopping
        if is_stopping or self.driver.silence_s() >= GIVE_UP_S:
            self.restart("the other nodes may have elected another leader: too few of them answer")
        elif not self._holds:
            self._holds = True
            log.warning("clients are held back: another node that may lead does not answer")
        return False

    # --- what the driver carries out --------------------------------------------------------------------------------

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

    def restart(self, reason: str) -> None:
        if self.leader is not None and self.leader.is_stopping:
            log.warning("this node does not lead any more; it ends at once", reason=reason)
            self._restart(False)
        else:
            log.warning("this node does not lead any more; it begins anew as a follower", reason=reason)
            self._restart(True)

    def report(self, text: str) -> None:
        log.warning("cluster", reason=text)

    # --- what the follower asks -------------------------------------------------------------------------------------

    async def leader_address(self) -> Endpoint | None:
        """Return where the leader is that the record names; None when it names none, or this node."""
        assert self.driver is not None
        record = self.driver.member.record
        if record is None or record.leader.node == self.me.name:
            return None
        entry = await self._registry.maybe_entry(record.leader.node)
        return None if entry is None else _endpoint(entry.cluster)

    def heard(self, leader: Node, epoch: int, beacon: int, own: Position) -> None:
        """A leader has said that it leads."""
        self._tell(Positioned(own))
        self._tell(BeaconReceived(recorded(leader), epoch, beacon, {}))

    def received(self, leader: Node) -> None:
        """Something has come from a leader."""
        self._tell(Heard(recorded(leader)))

    def lost(self, leader: Node, own: Position) -> None:
        """The link to a leader has ended."""
        self._tell(Positioned(own))
        self._tell(LinkLost(recorded(leader)))

    def refused(self) -> None:
        """Nobody listens where the leader of the record was."""
        assert self.driver is not None
        if self.driver.member.record is not None:
            self._tell(LinkRefused(self.driver.member.record.leader))

    async def watch_disk(self) -> None:
        """Have the member know of a disk that hangs, for as long as this node follows."""
        while self.leader is None:
            if self.follower is not None:
                self._tell(DiskWaits(self.follower.disk_began_s))
            await trio.sleep(WATCH_S)
        self._tell(DiskWaits(None))  # what it did as a follower is done


class Election:
    """A node's part in the election: its member, driver and registration.

    `position` and `store_id` are those of its directory; `store` is where the record is, `registry` where nodes are.
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
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._restart = restart
        me = state.me(name)
        self.node = ElectedNode(me, registry, restart)
        founding = None
        if store_id == NO_STORE:
            founding = Founding(secrets.token_hex(STORE_ID_BYTES), least(settings))
        self.member = Member(recorded(me), passed_s(), position=position, replicas=settings.replicas, founding=founding)
        self.node.driver = self._driver = Driver(self.member, store, self.node)

    def entry(self) -> NodeEntry:
        """Return what other nodes are told of this one."""
        listen = self._settings.cluster_listen
        assert listen is not None
        host = socket.getfqdn() if listen.host in _EVERYWHERE else listen.host
        return NodeEntry(self.node.me.incarnation.hex(), str(Endpoint(host, listen.port)), __version__)

    async def drive(self) -> None:
        """Take part, for ever. A fault of ours is the end of this process: nobody knows what was not carried out."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._driver.run)
                nursery.start_soon(self.node.watch_disk)
        except Exception as error:
            log.error("internal error, the process begins anew", exception=error)
            self._restart(True)

    async def announce(self) -> None:
        """Have other nodes find this one, for ever."""
        await self._registry.announce(self.node.me.name, self.entry())

    def store_id(self) -> bytes:
        """Return the id of the store that this node leads."""
        assert self.member.record is not None
        return bytes.fromhex(self.member.record.store)

    def is_first(self) -> bool:
        """Tell whether this node begins the store."""
        record = self.member.record
        return record is not None and record.by is LeaderBy.FIRST

    def leader(self, make: Callable[..., Leader]) -> Leader:
        """Return the leader that this node is; `make` gets what an elected one is made with."""
        leader = make(elected=self.node.in_sync, may_serve=self.node.may_serve)
        self.node.leader = leader
        return leader


def by_etcd(settings: Settings, name: str, state: ClusterState, position: Position, store_id: bytes) -> Election:
    """Return a node's part in the election by etcd."""
    etcd = Etcd(EtcdSettings(settings.etcd.split(",")))
    own_store = "" if store_id == NO_STORE else store_id.hex()
    record = EtcdRecord(etcd, settings.cluster_name, lambda: own_store)
    registry = Registry(etcd, settings.cluster_name)
    return Election(settings, name, state, position, store_id, record, registry, begin_anew)


def least(settings: Settings) -> int:
    """Return how many nodes have to be in sync: what was set, or the majority."""
    if settings.origins.get("min_in_sync", DEFAULT_ORIGIN) == DEFAULT_ORIGIN:
        return settings.replicas // 2 + 1
    return settings.min_in_sync


def begin_anew(goes_on: bool) -> None:
    """Replace this process by a new one: same id, same arguments, no memory. All files and sockets are closed.

    One that was told to stop does not go on, and ends.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if not goes_on:
        os._exit(0)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _endpoint(text: str) -> Endpoint | None:
    host, _, port = text.rpartition(":")
    return Endpoint(host.strip("[]"), int(port)) if host and port.isdecimal() and 0 < int(port) < 65536 else None
