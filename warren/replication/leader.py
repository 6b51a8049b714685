"""The leader's end: feeds its followers, lets a commit pass once all required nodes have it, and hands over.

    committer   shipping -> wire of each follower -> own write and sync -> the gate
    reactor     acknowledgements are read in its turns -> the gate -> confirms, in that very turn
    loop        a task for each follower: handshake, catching up, sending what the kernel did not take at once; beacons,
                the alarm, and changes of the set
    thread      files that are read for catching up; the record of the set

    Reception    the cluster port: what connects there proves itself, and is let in as a follower or a client
    Followers    the links of the followers that are connected
    CommitGate   whether a commit is reported
    SetRecord    the set on disk, where nodes are not elected
    Shipping     the entries for the followers, from the committer

1. The decisions are made elsewhere, without I/O: proofs in ``handshake``, the nodes that must have a commit in
   ``in_sync``, the place where a follower can continue in ``shipping``. One follower is handled in
   ``link_to_follower``.
2. A set takes effect when it is on disk (``set_record.py``). Where nodes are elected a `Member` decides instead, and
   etcd has the set (``elected_set.py``).
3. The beginning of this life is synced here before anything of the log is compared with, or sent to, a follower.
   Otherwise this node, ended and started again, would know nothing of it, and could follow the previous epoch. An
   elected leader is heard of earlier, while it recovers (`listen`): the nodes that wait for it answer its beacons.
4. A leader that hands over ends only when another node has taken over, or when it was told to stop and no other node
   in sync is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from warren.cluster.events import Position, Standing
from warren.cluster.record import Ask
from warren.msgstore.files.file_system import FileSystem
from warren.msgstore.files.store import Store
from warren.msgstore.log.epoch_table import EpochTable
from warren.msgstore.log.message_log import MessageLog
from warren.replication import members
from warren.replication.catching_up import CatchUps
from warren.replication.cluster_state import ClusterState
from warren.replication.commit_gate import CommitGate
from warren.replication.cut_copies import Quarantine
from warren.replication.elected_set import ElectedSet
from warren.replication.entries import Beacon, Catalogue
from warren.replication.followers import Followers
from warren.replication.format_level import understood
from warren.replication.handshake import Node
from warren.replication.identity import Identity
from warren.replication.in_sync import InSyncSet
from warren.replication.leader_mender import LeaderMender
from warren.replication.link_to_follower import LinkToFollower
from warren.replication.reception import Electorate, Reception
from warren.replication.set_record import SetRecord
from warren.replication.shipping import ShippedStore, Shipping
from warren.server.clock import SteadyClock
from warren.server.logs import get_logger
from warren.server.replication import ClusterRefusal, Host
from warren.server.setting_kinds import Endpoint
from warren.server.store_threads import Gate, StoreFiles
from warren.server.supervision import ESSENTIAL, Supervision

BEACON_S: Final = 0.25
WATCH_S: Final = 0.1
PROGRESS_S: Final = 0.005  # how often it is looked how far a handing over has come
CARRIED_OUT_S: Final = 1.0  # for the next leader to have the checkpoint of a clean stop; its log is waited for longer
ALONE_S: Final = 0.5  # that a node which was told to stop waits for others
ALARM: Final = "replicas"

log = get_logger("replication")


class Commands(Electorate, Protocol):
    """An elected leader's part in a hand-over; `target` is the next leader, once it is settled.

    `gives_way`: since that node's disk is better.
    """

    target: Node | None
    gives_way: bool

    def trouble_of_disk(self) -> str:
        """Return how the disk of this node holds everybody up; empty while it does not."""

    def told_to_stop(self) -> None:
        """React to the order that the process stop."""

    async def transfer(self, node: str | None) -> str:
        """Hand leadership to another node, and return which one; raises ClusterRefusal."""

    async def change(self, ask: Ask, node: str) -> None:
        """Record a command about a node in etcd; raises ClusterRefusal."""

    def drained(self, lsn: int) -> None:
        """Note that all is written and shipped, up to there."""


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
        self.may_serve = may_serve
        self.me = state.me(name)
        self.elected = elected
        self.commands: Commands | None = None  # of one that was elected
        self.in_sync = elected or InSyncSet(self.me, state.in_sync, state.min_in_sync, time.monotonic())
        self.catch_ups = CatchUps()
        self.followers = Followers(self.in_sync, self.catch_ups)
        self.reception = Reception(endpoint, identity, self)
        self.gate: Gate
        self.gate = self._gate = CommitGate(self.in_sync)
        self.urls: list[str] = []  # of its management API, as others reach it
        self.is_stopping = False
        self.clock = SteadyClock()  # a node that takes over gets another one
        self.shipping = Shipping(fs, EpochTable())  # until `files` is called
        self.file_system = fs
        self._quarantine = Quarantine(fs)
        self._mender = LeaderMender(fs, self.followers.askable, self.store_id)
        self._record = SetRecord(directory, state, self.in_sync, self.followers)
        self._beacons = 0
        self._log: MessageLog | None = None
        self._host: Host | None = None
        self._store_id = b""
        self.describe = _with_members  # adds the state of the cluster to the status

    # --- for the broker ---------------------------------------------------------------------------------------------

    def files(self, store: Store, log: MessageLog) -> StoreFiles:
        """Return the store that the threads use instead of `store`."""
        self._gate.store, self._log = store, log
        store.commits_alone = False
        log.is_replicated = True
        self.shipping = Shipping(self.file_system, log.epochs)
        self._record.begin(int(log.epoch), self.me)
        return ShippedStore(store, self.shipping)

    def trouble_of_disk(self) -> str:
        """Return how the disk of this node holds everybody up; empty while it does not."""
        return "" if self.commands is None else self.commands.trouble_of_disk()

    def is_disk_low(self) -> bool:
        """Tell whether publishers are blocked, since this node's disk is short of space."""
        return self._host is not None and self._host.broker.has_alarm("disk")

    def metadata_applied(self, first: int, records: Sequence[bytes | None]) -> None:
        """Send applied records to the followers, for their SQL. A record that is lost is empty."""
        after_lsn, level = int(self.log.durable_lsn), self.followers.level()
        self.shipping.publish(
            Catalogue(after_lsn, first, tuple(understood(record or b"", level) for record in records))
        )

    def stopping(self) -> None:
        """Note that the broker was told to stop."""
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
        """Hand over to another node, if one should lead and has carried out all entries; it ends this process."""
        if self.elected is None or self.commands is None or self.commands.target is None:
            return
        node = self.commands.target
        if self.gives_way():
            end_lsn = self.shipping.end()
        else:
            with trio.move_on_after(CARRIED_OUT_S):
                while (link := self.followers.maybe_link(node)) is not None and not link.has_carried_out_all():
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
                log.warning("no other node in sync can take over; this one ends")
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
                "a transfer needs nodes that elect their leader (etcd). Stop this leader, and then "
                "promote a follower: warren ctl --url … cluster promote"
            )
        return await self.commands.transfer(node)

    async def forget(self, node: str) -> None:
        """Count a node no longer that is gone for good; raises ClusterRefusal."""
        await self._change(Ask.FORGET, node)

    async def drain(self, node: str) -> None:
        """Bar a node from leading until it is revived; raises ClusterRefusal."""
        await self._change(Ask.DRAIN, node)

    async def revive(self, node: str) -> None:
        """Allow a node to lead again; raises ClusterRefusal."""
        await self._change(Ask.REVIVE, node)

    async def _change(self, ask: Ask, node: str) -> None:
        if self.commands is None:
            raise ClusterRefusal("without election (etcd) there is no record of the nodes")
        await self.commands.change(ask, node)

    async def run(self, host: Host, *, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
        """Serve followers."""
        self._host = host
        tasks = host.tasks
        async with trio.open_nursery() as nursery:
            if self.reception.place is None:
                await nursery.start(tasks.begin, "cluster port", self.reception.run, tasks)
            assert self.reception.place is not None
            nursery.start_soon(tasks.keep, "in-sync set", self._watch, ESSENTIAL)
            record = partial(self._record.run, self._decide)
            nursery.start_soon(tasks.keep, "record of the in-sync set", record, ESSENTIAL)
            task_status.started(self.reception.place)

    async def listen(
        self, tasks: Supervision, store_id: bytes, epoch: int, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Take followers before the log of that store is recovered, for that epoch. For ever.

        Raises:
            StartError: the address cannot be bound.
        """
        self._store_id = store_id
        self._record.begin(epoch, self.me)
        await self.reception.run(tasks, task_status=task_status)

    def mender(self) -> LeaderMender:
        """Return the mender of the files of its store."""
        return self._mender

    def readers(self) -> list[str]:
        """Return where sealed chunks can be read of followers in sync, by the names of these."""
        return self.followers.readers()

    def status(self) -> dict[str, Any]:
        """Return the answer for ``/api/cluster/status``."""
        end_lsn = self.shipping.end_lsn()
        status: dict[str, Any] = {
            "role": "leader",
            "node": self.me.name,
            "epoch": self.epoch(),
            "committed_lsn": self.in_sync.committed_lsn,
            "end_lsn": end_lsn,
            "min_in_sync": self.in_sync.min_in_sync,
            "in_sync": sorted(node.name for node in self.in_sync.members),
            "short": self._gate.is_short(),
            "trouble": self._gate.trouble() or self.trouble_of_disk(),
            "mended": self._mender.mended,
            **self._quarantine.usage(),
            "format_level": self.followers.level(),
            "http": self.urls,
            "followers": self.followers.rows(end_lsn, time.monotonic()),
        }
        return self.describe(status)

    # --- for those that connect, and its followers ------------------------------------------------------------------

    @property
    def host(self) -> Host:
        """The broker around it."""
        assert self._host is not None
        return self._host

    @property
    def maybe_host(self) -> Host | None:
        """The same, None before it serves."""
        return self._host

    @property
    def log(self) -> MessageLog:
        """Its message log."""
        assert self._log is not None
        return self._log

    @property
    def electorate(self) -> Electorate | None:
        """None for a leader that was not elected."""
        return self.commands

    @property
    def has_begun(self) -> bool:
        """Whether the beginning of this life is synced here."""
        return self._gate.has_begun

    def epoch(self) -> int:
        """Return the epoch of this life."""
        return self._record.epoch

    def store_id(self) -> bytes:
        """Return which store this is."""
        return self._store_id or self.log.store_id

    def left(self, link: LinkToFollower) -> None:
        """Note that the connection of a follower has ended."""
        self.followers.remove(link, time.monotonic())
        self._decide()

    def moved(self) -> None:
        """Notify the reactor, if there is one yet, that the gate may have opened."""
        if self._host is not None:
            self._host.gate_moved()

    # --- for its member ---------------------------------------------------------------------------------------------

    def stop_broker(self) -> None:
        """Stop the broker around it."""
        self.host.stop()

    def own_standing(self) -> Standing | None:
        """Return how far the log goes in this life, and up to where it is committed; None before that has begun."""
        if not self.has_begun or not self.in_sync.committed_lsn:
            return None
        epoch = self.epoch()
        return Standing(Position(epoch, self.shipping.written_lsn()), Position(epoch, self.in_sync.committed_lsn))

    def send_beacon(self, number: int) -> None:
        """Say to all followers that this node leads."""
        self.followers.send(Beacon(number, self.in_sync.committed_lsn, self.clock.now_ms(), self.epoch()))

    # --- the set ----------------------------------------------------------------------------------------------------

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
        for link in self.followers.all():
            link.note_progress(now_s)
        if self.elected is not None:
            self._tell_progress(self.elected)
        for replica in self.in_sync.joiners(now_s):
            self.followers.link(replica).caught_up()
        for replica in self.in_sync.stragglers(now_s):
            self.followers.link(replica).end("it does not keep up")
        proposal = self.in_sync.proposal(now_s)
        if proposal is not None:
            self._record.propose(proposal)
        self.host.broker.set_alarm(ALARM, self._gate.is_short())
        self.host.gate_moved()
        self.host.settle()


def _with_members(status: dict[str, Any]) -> dict[str, Any]:
    """Add a row for each node that this leader knows."""
    return status | {"members": members.of_leader(status, status["in_sync"], {}, time.time())}
