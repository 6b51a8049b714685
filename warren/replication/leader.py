"""The leader's end: accepts followers, feeds them, and lets a commit pass once all required nodes have it.

    committer   shipping -> wire of each follower -> own write and sync -> the gate
    reactor     acknowledgements are read in its turns -> the gate -> confirms, in that very turn
    loop        a task for each follower: handshake, catching up, sending what the kernel did not take at once; beacons,
                the alarm, and changes of the set
    thread      files that are read for catching up; the record of the set

1. The decisions are made elsewhere, without I/O: proofs in ``handshake``, the nodes that must have a commit in
   ``in_sync``, the place where a follower can continue in ``shipping``. One follower is handled in
   ``link_to_follower``.
2. A set takes effect when it is on disk. While it is being written, all nodes in the old and in the new one are asked.
   Where nodes are elected a `Member` decides instead, and etcd has the set (``elected_set.py``).
3. A follower that has left the set is disconnected, and told why: it must catch up again, and takes note that it may
   lack messages that were confirmed since.
4. A peer that connects has `HANDSHAKE_S` to prove that it knows the secret, unless others need its place
   (``newcomers.py``). Until then it is told nothing of the store.
5. The beginning of this life is synced here before anything of the log is compared with, or sent to, a follower.
   Otherwise this node, ended and started again, would know nothing of it, and could follow the previous epoch. An
   elected leader is heard of earlier, while it recovers (`listen`): the nodes that wait for it answer its beacons.
6. A client of a follower comes over a connection of its own, which belongs to the broker from the handshake on. While
   clients are not served none is taken: followers may have to connect first, and nothing waits in their way.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from warren.cluster.events import Position, Standing
from warren.cluster.record import Ask
from warren.msgstore.files.file_system import FileSystem
from warren.msgstore.files.store import Store
from warren.msgstore.log.epoch_table import EpochTable
from warren.msgstore.log.jobs import CommitJob
from warren.msgstore.log.message_log import MessageLog
from warren.replication import cluster_port, cluster_state, members
from warren.replication.advertised import told_urls
from warren.replication.catching_up import CatchingUp
from warren.replication.cluster_state import ClusterState
from warren.replication.cut_copies import Quarantine
from warren.replication.elected_set import ElectedSet
from warren.replication.entries import (
    PREAMBLE,
    Beacon,
    Catalogue,
    encoded,
)
from warren.replication.format_level import (
    ANSWERS_FROM,
    LEVEL,
    LEVEL_TOLD,
    told_level,
    told_life,
    told_trouble,
    told_version,
    understood,
)
from warren.replication.handshake import NONCE_BYTES, LeaderSide, Node, Refused
from warren.replication.identity import Identity
from warren.replication.in_sync import InSyncSet, Replica
from warren.replication.leader_mender import LeaderMender
from warren.replication.link_to_follower import LinkToFollower
from warren.replication.newcomers import Newcomer, Newcomers
from warren.replication.passage import accepted, some
from warren.replication.pre_vote import answer, is_question
from warren.replication.questions import Questions
from warren.replication.shipping import ShippedStore, Shipping
from warren.replication.wire import Wire
from warren.server.client_of_node import ClientOfNode
from warren.server.clock import SteadyClock
from warren.server.logs import get_logger
from warren.server.replication import ClusterRefusal, Host
from warren.server.setting_kinds import Endpoint
from warren.server.store_threads import Gate, StoreFiles
from warren.server.supervision import ESSENTIAL, Supervision
from warren.server.threads import REPLICATION, in_thread

BEACON_S: Final = 0.25
WATCH_S: Final = 0.1
HANDSHAKE_S: Final = 5.0
REMEMBERED_MAX: Final = 64  # nodes that catch up
RECORD_RETRY_S: Final = 1.0
PROGRESS_S: Final = 0.005  # how often it is looked how far a handing over has come
CARRIED_OUT_S: Final = 1.0  # for the next leader to have the checkpoint of a clean stop; its log is waited for longer
ALONE_S: Final = 0.5  # that a node which was told to stop waits for others
ALARM: Final = "replicas"
REPEAT_S: Final = 60.0  # between log lines for the same refusal

log = get_logger("replication")


class Commands(Protocol):
    """An elected leader's part in a hand-over; `target` is the next leader, once it is settled.

    `gives_way`: since that node's disk is better.
    """

    target: Node | None
    gives_way: bool

    def trouble_of_disk(self) -> str:
        """Return how the disk of this node holds everybody up; empty while it does not."""

    def told_to_stop(self) -> None:
        """The process was told to stop."""

    async def transfer(self, node: str | None) -> str:
        """Have another node lead, and return which one; raises ClusterRefusal."""

    async def change(self, ask: Ask, node: str) -> None:
        """Have etcd record a command about a node; raises ClusterRefusal."""

    def standing(self) -> tuple[str, Standing]:
        """Return which store this is, how far its log goes, and up to where that is committed."""

    def why_not_taken(self, node: str, *, is_empty: bool) -> str:
        """Return why a node cannot follow this one, empty if it can; `is_empty`: its directory is."""

    def drained(self, lsn: int) -> None:
        """All is written and shipped, up to there."""


class Leader:
    """A leader called `name`; see ``server.replication.Replication``. `fs` is where its store is.

    One that was elected has its set from outside (`elected`), and serves while `may_serve` says so.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        identity: Identity,
        name: str,
        directory: Path,
        state: ClusterState,
        fs: FileSystem,
        elected: ElectedSet | None = None,
        may_serve: Callable[[], bool] = lambda: True,
    ) -> None:
        self.gate: Gate = self
        self.may_serve = may_serve
        self.me = state.me(name)
        self.elected = elected
        self.commands: Commands | None = None  # of one that was elected
        self.in_sync = elected or InSyncSet(self.me, state.in_sync, state.min_in_sync, time.monotonic())
        self.urls: list[str] = []  # of its management API, as others reach it
        self.bound: list[trio.socket.SocketType] = []  # its cluster port, if that was bound before
        self.is_stopping = False
        self.has_begun = False  # the beginning of this life is synced here
        self.clock = SteadyClock()  # a node that takes over gets another one
        self.shipping = Shipping(fs, EpochTable())  # until `files` is called
        self._fs = fs
        self._quarantine = Quarantine(fs)
        self._mender = LeaderMender(fs, self.askable, self.store_id)
        self.identity = identity
        self._endpoint = endpoint
        self._directory = directory
        self._state = state
        self._followers: dict[Node, LinkToFollower] = {}
        self._newcomers = Newcomers()
        self._proposed = trio.Event()
        self._proposal: frozenset[Node] | None = None
        self._beacons = 0
        self._catching_up: dict[bytes, CatchingUp] = {}  # by incarnation
        self._refusals: dict[str, float] = {}  # when they were logged last
        self._store: Store | None = None
        self._log: MessageLog | None = None
        self._host: Host | None = None
        self._tasks: Supervision | None = None
        self._store_id = b""
        self._place: tuple[str, int] | None = None  # where it listens
        self.describe = _with_members  # adds the state of the cluster to the status

    # --- for the broker ---------------------------------------------------------------------------------------------

    def files(self, store: Store, log: MessageLog) -> StoreFiles:
        """Return the store that the threads use instead of `store`."""
        self._store, self._log = store, log
        store.commits_alone = False
        log.is_replicated = True
        self.shipping = Shipping(self._fs, log.epochs)
        self._state = replace(self._state, epoch=int(log.epoch), leader=self.me)
        return ShippedStore(store, self.shipping)

    def is_open(self, job: CommitJob) -> bool:
        """Tell whether all required nodes have the commit."""
        assert self._store is not None
        end_lsn = int(job.end_lsn())
        self.has_begun |= job.sync
        if not self.in_sync.has(end_lsn, synced=job.sync, now_s=time.monotonic()):
            return False
        if job.sync:
            self._store.commit_reached(end_lsn)
        job.committed_lsn = self._store.committed_lsn
        return True

    def waits(self, job: CommitJob) -> bool:
        """Tell whether a required node has yet to acknowledge the commit."""
        return self.has_begun and self.in_sync.lacks(int(job.end_lsn()), synced=job.sync)

    def trouble_of_disk(self) -> str:
        """Return how the disk of this node holds everybody up; empty while it does not."""
        return "" if self.commands is None else self.commands.trouble_of_disk()

    def is_disk_low(self) -> bool:
        """Tell whether publishers are blocked, since this node's disk is short of space."""
        return self._host is not None and self._host.broker.has_alarm("disk")

    def trouble(self) -> str:
        """Return why commits wait."""
        return "too few replicas have what is written (min_in_sync)" if self._is_short() else ""

    def metadata_applied(self, first: int, records: Sequence[bytes | None]) -> None:
        """Have the followers' SQL follow. A record that is lost is empty."""
        after_lsn, level = int(self.log.durable_lsn), self._format_level()
        self.shipping.publish(
            Catalogue(after_lsn, first, tuple(understood(record or b"", level) for record in records))
        )

    def _format_level(self) -> int:
        """Return the level of the oldest connected node."""
        return min([LEVEL, *(follower.level for follower in self._followers.values())])

    def stopping(self) -> None:
        """The broker was told to stop."""
        self.is_stopping = True
        if self.commands is not None:
            self.commands.told_to_stop()

    def is_handing_over(self) -> bool:
        """Tell whether another node should lead when the broker has stopped."""
        return self.commands is not None and self.commands.target is not None

    def gives_way(self) -> bool:
        """Tell whether it hands over since its own disk is not to be waited for."""
        return self.is_handing_over() and self.commands is not None and self.commands.gives_way

    async def hand_over(self) -> None:
        """Have another node lead, if one should, once that has carried out all entries so far; it ends this process."""
        if self.elected is None or self.commands is None or self.commands.target is None:
            return
        node = self.commands.target
        if self.gives_way():
            end_lsn = self.shipping.end()
        else:
            with trio.move_on_after(CARRIED_OUT_S):
                while (follower := self._followers.get(node)) is not None and not follower.has_carried_out_all():
                    await trio.sleep(PROGRESS_S)
            end_lsn = self.shipping.end_lsn()
        self.commands.drained(end_lsn)
        alone_s = time.monotonic()
        while True:
            self._tell_progress(self.elected)
            now_s = time.monotonic()
            if not self.is_stopping or any(
                replica.node in self.in_sync.members and self.in_sync.answers(replica, now_s)
                for replica in self.in_sync.replicas()
            ):
                alone_s = now_s
            elif now_s - alone_s >= ALONE_S:
                log.warning("no other node in sync is there to take over; this one ends")
                return
            await trio.sleep(PROGRESS_S)

    def _tell_progress(self, elected: ElectedSet) -> None:
        shipping = self.shipping
        elected.tell_progress(shipping.end_lsn(), shipping.commit_began_s, shipping.written_lsn())

    async def transfer(self, node: str | None) -> str:
        """Stop the broker, to have another node lead.

        Raises:
            ClusterRefusal: no other node can.
        """
        if self.commands is None:
            raise ClusterRefusal(
                "leadership is handed over where nodes elect their leader (etcd). Here stop this leader, and then "
                "promote a follower: warren ctl --url … cluster promote"
            )
        return await self.commands.transfer(node)

    async def forget(self, node: str) -> None:
        """Count a node no longer that is gone for good; raises ClusterRefusal."""
        await self._change(Ask.FORGET, node)

    async def drain(self, node: str) -> None:
        """Have a node not lead until it is revived; raises ClusterRefusal."""
        await self._change(Ask.DRAIN, node)

    async def revive(self, node: str) -> None:
        """Let a node lead again; raises ClusterRefusal."""
        await self._change(Ask.REVIVE, node)

    async def _change(self, ask: Ask, node: str) -> None:
        if self.commands is None:
            raise ClusterRefusal("there is no record of the nodes where they do not elect their leader (etcd)")
        await self.commands.change(ask, node)

    async def run(self, host: Host, *, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
        """Serve followers."""
        self._host = host
        tasks = host.tasks
        async with trio.open_nursery() as nursery:
            if self._place is None:
                await nursery.start(tasks.begin, "cluster port", self._listen, tasks)
            assert self._place is not None
            nursery.start_soon(tasks.keep, "in-sync set", self._watch, ESSENTIAL)
            nursery.start_soon(tasks.keep, "record of the in-sync set", self._record, ESSENTIAL)
            task_status.started(self._place)

    async def listen(
        self, tasks: Supervision, store_id: bytes, epoch: int, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Take followers before the log of that store is recovered, for that epoch. For ever.

        Raises:
            StartError: the address cannot be bound.
        """
        self._store_id = store_id
        self._state = replace(self._state, epoch=epoch, leader=self.me)
        await self._listen(tasks, task_status=task_status)

    async def _listen(self, tasks: Supervision, *, task_status: trio.TaskStatus[None]) -> None:
        self._tasks = tasks
        listeners = self.bound or await cluster_port.bound(self._endpoint)
        try:
            cluster_port.listen(self._endpoint, listeners)
            async with trio.open_nursery() as nursery:
                for listener in listeners:

                    async def accept(listener: trio.socket.SocketType = listener) -> None:
                        await self._accept(listener, nursery)

                    nursery.start_soon(tasks.keep, "cluster listener", accept, ESSENTIAL)
                self._place = listeners[0].getsockname()[:2]
                task_status.started()
        finally:
            cluster_port.close(listeners)

    def mender(self) -> LeaderMender:
        """Return the mender of the files of its store."""
        return self._mender

    def askable(self) -> list[Questions]:
        """Return the links of followers in sync that answer questions. Any thread."""
        there = list(self._followers.items())
        return [
            follower.questions
            for node, follower in there
            if node in self.in_sync.members and follower.level >= ANSWERS_FROM
        ]

    def readers(self) -> list[str]:
        """Return where sealed chunks can be read of followers in sync, by the names of these."""
        there = [node for node in self._followers if node in self.in_sync.members]
        return [url for node in sorted(there, key=str) for url in self._followers[node].urls]

    def status(self) -> dict[str, Any]:
        """Return the answer for ``/api/cluster/status``."""
        now_s = time.monotonic()
        end_lsn = self.shipping.end_lsn()
        rows = [self._row(replica, end_lsn, now_s) for replica in self.in_sync.replicas()]
        status: dict[str, Any] = {
            "role": "leader",
            "node": self.me.name,
            "epoch": self._state.epoch,
            "committed_lsn": self.in_sync.committed_lsn,
            "end_lsn": end_lsn,
            "min_in_sync": self.in_sync.min_in_sync,
            "in_sync": sorted(node.name for node in self.in_sync.members),
            "short": self._is_short(),
            "trouble": self.trouble() or self.trouble_of_disk(),
            "mended": self._mender.mended,
            **self._quarantine.usage(),
            "format_level": self._format_level(),
            "http": self.urls,
            "followers": rows,
        }
        return self.describe(status)

    def _row(self, replica: Replica, end_lsn: int, now_s: float) -> dict[str, Any]:
        follower = self._followers.get(replica.node)
        catching_up = self._catching_up.get(replica.node.incarnation)
        is_current = replica.synced_lsn >= self.in_sync.committed_lsn
        return {
            "node": replica.node.name,
            "id": replica.node.incarnation.hex(),
            "address": None if follower is None else follower.address,
            "connected": replica.is_connected,
            "in_sync": replica.node in self.in_sync.members,
            "catching_up": replica.is_connected and not replica.is_noted,
            "waits_s": 0.0 if catching_up is None else round(catching_up.waits_s(now_s), 3),
            "trouble": _trouble_of(replica, follower, catching_up),
            "version": None if follower is None else follower.version,
            "format_level": None if follower is None else follower.level,
            "received_lsn": replica.received_lsn,
            "synced_lsn": replica.synced_lsn,
            "lag_bytes": max(0, end_lsn - replica.synced_lsn) if replica.is_connected else None,
            "lag_s": 0.0 if is_current and replica.is_connected else round(now_s - replica.current_s, 3),
            "silent_s": None if replica.is_awaited else round(now_s - replica.heard_s, 3),
        }

    # --- shared with the followers ----------------------------------------------------------------------------------

    @property
    def host(self) -> Host:
        """The broker around it."""
        assert self._host is not None
        return self._host

    @property
    def log(self) -> MessageLog:
        """Its message log."""
        assert self._log is not None
        return self._log

    @property
    def file_system(self) -> FileSystem:
        """Where its store is."""
        return self._fs

    def stop_broker(self) -> None:
        """Have the broker around it stop."""
        self.host.stop()

    def epoch(self) -> int:
        """Return the epoch of this life."""
        return self._state.epoch

    def own_standing(self) -> Standing | None:
        """Return how far the log goes in this life, and up to where it is committed; None before that has begun."""
        if not self.has_begun or not self.in_sync.committed_lsn:
            return None
        epoch = self.epoch()
        return Standing(Position(epoch, self.shipping.written_lsn()), Position(epoch, self.in_sync.committed_lsn))

    def store_id(self) -> bytes:
        """Return which store this is."""
        return self._store_id or self.log.store_id

    def connected(self, node: Node) -> Node | None:
        """Return the node that keeps `node` from connecting: itself, or another one of that name."""
        now_s = time.monotonic()
        for other, follower in self._followers.items():
            same = other.name == node.name or other.incarnation == node.incarnation
            if same and self.in_sync.answers(follower.replica, now_s):
                return other
            if same:
                follower.end("it has connected again")
        return None

    def add(self, follower: LinkToFollower) -> None:
        """Register a follower that has proved its identity."""
        self._followers[follower.node] = follower

    def remove(self, follower: LinkToFollower) -> None:
        """Its connection has ended."""
        if self._followers.get(follower.node) is follower:
            del self._followers[follower.node]
            self.in_sync.disconnected(follower.replica, time.monotonic())
            self.in_sync.forget_strangers()
        self._decide()

    def catching_up(self, node: Node) -> CatchingUp:
        """Return the memory of a node that begins to catch up."""
        found = self._catching_up.setdefault(node.incarnation, CatchingUp())
        if len(self._catching_up) > REMEMBERED_MAX:
            del self._catching_up[next(iter(self._catching_up))]
        return found

    def has_caught_up(self, node: Node) -> None:
        """Note that a node gets messages as they are written."""
        self._catching_up.pop(node.incarnation, None)

    def moved(self) -> None:
        """The gate may have opened. In a turn of the reactor, if there is one yet."""
        if self._host is not None:
            self._host.gate_moved()

    # --- the set ----------------------------------------------------------------------------------------------------

    def send_beacon(self, number: int) -> None:
        """Say to all followers that this node leads."""
        beacon = Beacon(number, self.in_sync.committed_lsn, self.clock.now_ms(), self.epoch())
        for follower in list(self._followers.values()):
            follower.wire.put(encoded(beacon))

    async def _watch(self) -> None:
        """Send beacons, unless a member does; look for silent followers, and set the alarm. For ever."""
        beacon_s = 0.0
        while True:
            now_s = time.monotonic()
            if self.elected is None and now_s - beacon_s >= BEACON_S:
                beacon_s = now_s
                self._beacons += 1
                self.send_beacon(self._beacons)
            self._decide()
            await trio.sleep(WATCH_S)

    def _decide(self) -> None:
        """Act on the nodes that are connected now, and on those that are not."""
        if self._host is None:
            return  # nothing can be committed yet
        now_s = time.monotonic()
        for follower in list(self._followers.values()):
            follower.note_progress(now_s)
        if self.elected is not None:
            self._tell_progress(self.elected)
        for replica in self.in_sync.joiners(now_s):
            self._followers[replica.node].caught_up()
        for replica in self.in_sync.stragglers(now_s):
            self._followers[replica.node].end("it does not keep up")
        proposal = self.in_sync.proposal(now_s)
        if proposal is not None:
            self._proposal = proposal
            self._proposed.set()
        self.host.broker.set_alarm(ALARM, self._is_short())
        self.host.gate_moved()
        self.host.settle()

    def _is_short(self) -> bool:
        return self.in_sync.is_short(time.monotonic())

    async def _record(self) -> None:
        """Write each set that is proposed, until it is on disk. For ever."""
        while True:
            await self._proposed.wait()
            members = self._proposal
            assert members is not None
            state = cluster_state.recorded(self._state, members)
            await self._write(state)
            self._proposed = trio.Event()
            self._proposal = None
            self._state = state
            before = self.in_sync.members
            left = self.in_sync.recorded(members, time.monotonic())
            for node in members - before:
                log.info("a follower is in sync: confirms wait for it", node=str(node), in_sync=len(members))
            for replica in left:
                log.warning(
                    "a follower has left the in-sync set: confirms no longer wait for it",
                    node=str(replica.node),
                    reason=self._why_gone(replica),
                    in_sync=len(members),
                )
                follower = self._followers.get(replica.node)
                if follower is not None:
                    follower.end("it has left the in-sync set: nothing was heard from it, or it did not keep up")
            self._decide()

    async def _write(self, state: ClusterState) -> None:
        while True:
            try:
                await in_thread(REPLICATION, cluster_state.write, self._directory, state)
                return
            except OSError as error:
                self._say_once(
                    "the in-sync set cannot be recorded; it stays as it is", reason=error.strerror or str(error)
                )
            await trio.sleep(RECORD_RETRY_S)

    def _why_gone(self, replica: Replica) -> str:
        follower = self._followers.get(replica.node)
        if follower is None:
            return "its connection has ended" if not replica.is_awaited else "it has not come back"
        if follower.stopped:
            return follower.stopped
        return "it does not answer, or does not get on"

    # --- coming -----------------------------------------------------------------------------------------------------

    async def _accept(self, listener: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        while True:
            try:
                sock, address = await listener.accept()
            except OSError:
                await trio.sleep(1.0)
                continue
            plain = socket.socket(fileno=sock.detach())
            assert self._tasks is not None
            nursery.start_soon(self._tasks.once, "follower", self._serve, plain, str(address[0]))

    async def _serve(self, sock: socket.socket, address: str) -> None:
        follower: LinkToFollower | None = None
        with sock:
            try:
                is_met = False
                with self._newcomers.enter(address, HANDSHAKE_S) as newcomer:
                    follower = await self._meet(sock, address, newcomer)
                    is_met = True
                if not is_met:
                    why = "others needed its place" if newcomer.lost_place else f"no handshake within {HANDSHAKE_S:g} s"
                    self._say_once("a follower was refused", reason=why, address=address)
            except Refused as refused:
                self._say_once("a follower was refused", reason=refused.reason, address=address)
            except OSError as error:
                reason = error.strerror or str(error)
                self._say_once("a follower was refused", reason=reason, address=address)
            if follower is not None:
                try:
                    await follower.serve()
                finally:
                    self.remove(follower)
        if follower is not None:
            await follower.forget()

    async def _meet(self, sock: socket.socket, address: str, newcomer: Newcomer) -> LinkToFollower | None:
        """Go through the handshake; return the follower, None for a client that one passes on.

        Raises:
            Refused: the peer is not a follower, or is not accepted.
            OSError: the connection, or its TLS, has failed.
        """
        wire = await accepted(sock, self.identity.accepting)
        side = LeaderSide(self.identity.secret, self.me, secrets.token_bytes(NONCE_BYTES), self.identity.certificate)
        try:
            while not (challenge := side.challenge()):
                side.feed(await some(wire))
            newcomer.has_spoken = True
            wire.put([challenge])
            while (about := side.proved()) is None:
                side.feed(await some(wire))
            assert side.follower is not None
            if side.client is not None:
                self._take_client(wire, side, side.client)
                return None
            if self.commands is not None and is_question(about):
                wire.put([side.welcome(answer(*self.commands.standing()))])
                wire.close()
                return None
            self._check(side, about)
        except Refused as refused:
            wire.put([refused.tell])
            raise
        store_id = self.store_id().hex()
        wire.put(
            [
                side.welcome(
                    {"store": store_id, "epoch": self.epoch(), "min_in_sync": self.in_sync.min_in_sync} | LEVEL_TOLD
                )
            ]
        )
        wire.put([PREAMBLE])
        follower = LinkToFollower(self, wire, side.follower, address, about.get("applied"))
        follower.urls = told_urls(about.get("http"))
        follower.replica.life = told_life(about.get("life"))
        follower.trouble = told_trouble(about.get("trouble"))
        follower.level, follower.version = told_level(about.get("level")), told_version(about.get("version"))
        self.add(follower)
        follower.feed(side.rest())
        return follower

    def _take_client(self, wire: Wire, side: LeaderSide, table: Mapping[str, Any]) -> None:
        """Serve a client of a follower, if clients are served.

        Raises:
            Refused: its description makes no sense.
        """
        try:
            assert side.follower is not None
            client = ClientOfNode.of_table(table, side.follower.name)
        except ValueError as error:
            raise Refused(str(error), side.refusal(str(error))) from None
        if self._host is None or not self._host.may_accept():
            wire.put([side.refusal("it does not take clients yet, or not so many at a time")])
            wire.close()
            return
        wire.put([side.welcome({})])
        self.host.pass_on(wire.detach(), client)

    def _check(self, side: LeaderSide, about: Mapping[str, Any]) -> None:
        """See whether a follower that knows the secret can be taken.

        Raises:
            Refused: it cannot.
        """
        node = side.follower
        assert node is not None
        reason = ""
        theirs = about.get("store")
        if node.name == self.me.name:
            reason = f"the leader is called {node.name}, too: give one of them another node_name"
        elif node.incarnation == self.me.incarnation:
            reason = "the follower's data directory is a copy of the leader's with cluster.json: remove that file"
        elif theirs not in ("", self.store_id().hex()):
            reason = (
                "its data directory holds another store: begin with an empty one, or follow the leader of that store"
            )
        elif self.commands is not None and (why := self.commands.why_not_taken(node.name, is_empty=theirs == "")):
            reason = why
        else:
            other = self.connected(node)
            if other == node:
                reason = f"{node.name} is connected already, with a data directory of the same origin"
            elif other is not None:
                reason = f"another node with the name {other.name}, or a copy of its directory, is connected already"
        if reason:
            raise Refused(reason, side.refusal(reason))

    def _say_once(self, event: str, **fields: str) -> None:
        """Log a warning, the same one again only after a while."""
        now_s = time.monotonic()
        key = f"{event} {fields}"
        if now_s - self._refusals.get(key, -REPEAT_S) >= REPEAT_S:
            if len(self._refusals) > 1000:
                self._refusals.clear()
            self._refusals[key] = now_s
            log.warning(event, **fields)


def _trouble_of(replica: Replica, follower: LinkToFollower | None, catching_up: CatchingUp | None) -> str:
    """Return why a follower was given up, or the trouble of its directory until it has caught up."""
    if catching_up is not None and catching_up.given_up:
        return catching_up.given_up
    return "" if follower is None or replica.is_noted else follower.trouble


def _with_members(status: dict[str, Any]) -> dict[str, Any]:
    """Add a row for each node that this leader knows."""
    return status | {"members": members.of_leader(status, status["in_sync"], {}, time.time())}
