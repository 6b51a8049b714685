"""Nodes that elect their leader, in one process: real links, directories and brokers; the record is one in memory.

A node that is killed is cancelled where it is, and its disk takes nothing more. Processes, and a real etcd, are in
``integration/clustering/test_election.py``.
"""

from __future__ import annotations

import errno
import math
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pika
import pika.exceptions
import pytest
import trio
from free_ports import free_port

from warren.cluster.etcd import EtcdError
from warren.cluster.events import RecordChanged
from warren.cluster.member import Member
from warren.cluster.record import LeaderBy, Record, Versioned, removed
from warren.cluster.registry import NodeEntry, Seen
from warren.msgstore.files.file_system import FileSystem, OsFileSystem
from warren.replication import cluster_port, cluster_state, node
from warren.replication.elected_node import ElectedNode, Election, Restart
from warren.replication.follower import Follower
from warren.replication.followers import Followers
from warren.replication.identity import Identity
from warren.replication.leader import Leader
from warren.replication.leader_clock import LeaderClock
from warren.replication.link_to_follower import LinkToFollower
from warren.replication.pre_vote import PositionPort
from warren.server.application import Application
from warren.server.catalogue.catalogue import Catalogue
from warren.server.recovered_messages import Recovered, messages_directory, recover_messages
from warren.server.replication import ClusterRefusal
from warren.server.settings import Settings
from warren.server.settings_reader import load_settings
from warren.server.supervision import Supervision
from warren.vhosts.metadata import VhostPut

PATIENCE_S = 300.0
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Etcd:
    """The record and the addresses of all nodes."""

    def __init__(self) -> None:
        self.found: Versioned | None = None
        self.entries: dict[str, NodeEntry] = {}
        self.running: set[str] = set()
        self.is_away = False
        self.late_renewals = 0
        self.disk_is_low = False
        self.namesake = ""
        self.seen: dict[str, Seen] = {}
        self._watchers: list[trio.MemorySendChannel[Versioned]] = []

    async def _answer(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_away:
            raise EtcdError("etcd is away")

    async def read(self) -> Versioned | None:
        await self._answer()
        return self.found

    async def swap(self, revision: int, record: Record) -> int | None:
        await self._answer()
        if revision != (0 if self.found is None else self.found.revision):
            return None
        self.found = Versioned(revision + 1, record)
        for watcher in self._watchers:
            watcher.send_nowait(self.found)
        return revision + 1

    async def changes(self) -> AsyncIterator[Versioned]:
        send, receive = trio.open_memory_channel[Versioned](math.inf)
        self._watchers.append(send)
        if self.found is not None:
            yield self.found
        async for found in receive:
            yield found

    async def announce(self, name: str, entry: NodeEntry) -> None:
        self.entries[name] = entry
        self.running.add(name)
        try:
            await trio.sleep_forever()
        finally:
            self.running.discard(name)

    async def is_registered(self, name: str) -> bool:
        await trio.lowlevel.checkpoint()
        return name in self.running

    async def look(self) -> None:
        await trio.sleep_forever()

    async def maybe_entry(self, name: str) -> NodeEntry | None:
        await trio.lowlevel.checkpoint()
        return self.entries.get(name)


class Disk:
    """That of a node, without space while a test says so."""

    def __init__(self, files: OsFileSystem) -> None:
        self.is_full = False
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def write(self, handle: int, chunks: Sequence[bytes | memoryview], offset: int) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left on device")
        return self._files.write(handle, chunks, offset)


class Node:
    """A node. `kill` ends its life; `live` begins another one in the same directory."""

    def __init__(self, directory: Path, name: str, etcd: Etcd) -> None:
        self.name = f"rabbit@{name}"
        self.etcd = etcd
        self.lives = 0
        self.redelivered = 0  # of what was drained
        self.ahead_ns = 0  # its wall clock, for what it knows of its leader's
        self.ended: list[bool] = []  # for each life: whether another one should follow
        self.epoch = 0
        self.amqp_port = 0
        self.application: Application | None = None
        self.leader: Leader | None = None
        self.commands: ElectedNode
        self.status: Callable[[], dict[str, Any]]  # while it follows
        self.member: Member | None = None  # while it leads
        self.disk: Disk | None = None  # while it leads
        self.recover: Callable[..., Recovered] = recover_messages
        self._directory = directory / name
        self._directory.mkdir()
        self._copy = directory / f"copy of {name}"
        self._cluster_port = free_port()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    def _settings(self) -> Settings:
        flags = {
            "data_dir": str(self._directory),
            "amqp": "127.0.0.1:0",
            "http": "off",
            "prometheus": "off",
            "cluster_listen": f"127.0.0.1:{self._cluster_port}",
            "cluster_secret_file": "secret",
            "etcd": "http://127.0.0.1:1",
            "node_name": self.name,
        }
        return load_settings(flags, {})

    async def live(self) -> None:
        """Follow and lead, and restart when a process would."""
        self._ended = trio.Event()
        with trio.CancelScope() as self._scope:
            while True:
                with trio.CancelScope() as life:

                    def restart(restarts: bool, life: trio.CancelScope = life) -> None:
                        self.ended.append(restarts)
                        life.cancel()

                    await self._one_life(restart)
        self.amqp_port = 0
        self._ended.set()

    async def _one_life(self, restart: Restart) -> None:
        self.lives += 1
        self.epoch = self.amqp_port = 0
        settings = self._settings()
        identity = Identity(b"what the nodes of this test share")
        state = cluster_state.read(settings.data_dir).with_new_life()
        cluster_state.write(settings.data_dir, state)
        replica, metadata = node._opened(settings)
        follower = Follower(None, identity, self.name, settings.data_dir, state, replica, metadata)
        election = Election(
            settings, self.name, state, follower.own_position(), replica.store_id, self.etcd, self.etcd, restart
        )
        assert settings.cluster_listen is not None
        port = await cluster_port.bound(settings.cluster_listen)
        cluster_port.listen(settings.cluster_listen, port)
        positions = PositionPort(identity, follower.me, election.node.standing)
        follower.leader_clock = LeaderClock(lambda: time.time_ns() + self.ahead_ns)
        self.commands = election.node
        self.status = lambda: election.describe(follower.status())
        follower.obey(election.node)
        election.node.follower = follower
        async with trio.open_nursery() as nursery:
            nursery.start_soon(election.drive)
            nursery.start_soon(election.announce)
            try:
                async with trio.open_nursery() as following:
                    following.start_soon(positions.run, port)
                    following.start_soon(follower.run)
                    await follower.life.over.wait()
                    following.cancel_scope.cancel()
                assert follower.failure == ""
                replica.promote(force=True)
            except BaseException:
                cluster_port.close(port)
                raise
            finally:
                replica.close()
                metadata.close()
            leader = partial(self._leader, settings, identity, state, election)
            await self._lead(settings, leader, port, election, follower.next_epoch(), nursery)
            nursery.cancel_scope.cancel()

    async def _lead(
        self,
        settings: Settings,
        leader: Callable[[FileSystem], Leader],
        port: list[trio.socket.SocketType],
        election: Election,
        epoch: int,
        nursery: trio.Nursery,
    ) -> None:
        files = self.disk = Disk(OsFileSystem(str(messages_directory(settings.data_dir))))
        self.leader = leader(files)
        self.leader.reception.bound = port
        self.member = election.member
        await nursery.start(self.leader.listen, Supervision(), election.store_id(), epoch)
        recovered = await trio.to_thread.run_sync(
            lambda: self.recover(settings, files, 100, epoch, election.store_id()), abandon_on_cancel=True
        )
        catalogue = Catalogue.open(settings.catalogue_url())
        self.application = Application(
            settings, catalogue, files, replication=self.leader, recovered=recovered, clock=self.leader.clock
        )

        def serving() -> None:
            self.epoch = epoch
            assert self.application is not None
            self.amqp_port = next(
                int(url.rpartition(":")[2]) for url in self.application.places() if url[:5] == "amqp:"
            )

        try:
            await self.application.run(serving)
        finally:
            self.epoch = self.amqp_port = 0
            self.application.join(10)

    def _leader(
        self,
        settings: Settings,
        identity: Identity,
        state: cluster_state.ClusterState,
        election: Election,
        files: FileSystem,
    ) -> Leader:
        assert settings.cluster_listen is not None
        make = partial(Leader, settings.cluster_listen, identity, self.name, settings.data_dir, state, files)
        return election.leader(make)

    async def kill(self) -> None:
        """End this life at once."""
        self._scope.cancel()
        await self._ended.wait()

    def lose(self) -> None:
        """Lose its directory."""
        shutil.rmtree(self._directory)
        self._directory.mkdir()

    def keep_copy(self) -> None:
        """Copy its directory."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._directory, self._copy)

    def restore(self) -> None:
        """Put the copy in the place of its directory."""
        shutil.rmtree(self._directory)
        shutil.copytree(self._copy, self._directory)

    def has_in_sync(self, *names: str) -> bool:
        """Tell whether these and no others are on record beside this node, and have taken note of it."""
        if self.leader is None or not self.epoch:
            return False
        members = self.leader.in_sync.members
        on_record = {node.name for node in members} - {self.name}
        noted = {replica.node.name for replica in self.leader.in_sync.replicas() if replica.is_noted}
        return on_record == {f"rabbit@{name}" for name in names} and on_record <= noted

    def has_written_all(self) -> bool:
        """Tell whether the next commit of this leader waits for none before it, and nothing is written by itself."""
        assert self.application is not None
        log = self.application._messages._log
        return self.application._writer.waiting() == 0 and log.is_idle() and log.durable_lsn >= log.next_lsn

    async def publish(self, bodies: Sequence[bytes], properties: pika.BasicProperties = PERSISTENT) -> None:
        """Publish to a queue, each message confirmed before the next one."""
        await trio.to_thread.run_sync(self._publish, bodies, properties)

    def _publish(self, bodies: Sequence[bytes], properties: pika.BasicProperties) -> None:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.amqp_port)) as connection:
            channel = connection.channel()
            channel.queue_declare("orders", durable=True)
            channel.confirm_delivery()
            for body in bodies:
                channel.basic_publish("", "orders", body, properties)

    async def drained(self) -> list[bytes]:
        """Take all messages out of the queue."""
        return await trio.to_thread.run_sync(self._drained)

    def _drained(self) -> list[bytes]:
        found = []
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.amqp_port)) as connection:
            channel = connection.channel()
            while (message := channel.basic_get("orders", auto_ack=True))[0] is not None:
                found.append(message[2] or b"")
                self.redelivered += message[0].redelivered
        return found


def elect(tmp_path: Path, test: Callable[[Etcd, list[Node], trio.Nursery], Awaitable[None]]) -> None:
    """Run three nodes, the first of which leads at first, with all in sync; then the test."""

    async def main() -> None:
        etcd = Etcd()
        nodes = [Node(tmp_path, name, etcd) for name in ("one", "two", "three")]
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(nodes[0].live)
                await until(lambda: nodes[0].epoch == 1)
                for each in nodes[1:]:
                    nursery.start_soon(each.live)
                await until(lambda: nodes[0].has_in_sync("two", "three"))
                await test(etcd, nodes, nursery)
                nursery.cancel_scope.cancel()

    trio.run(main)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await trio.sleep(0.01)


async def leader_of(nodes: Sequence[Node]) -> Node:
    await until(lambda: any(each.epoch for each in nodes))
    (found,) = [each for each in nodes if each.epoch]
    return found


def bodies(first: int, count: int) -> list[bytes]:
    return [f"message {number}".encode() for number in range(first, first + count)]


def test_what_was_confirmed_is_there_when_a_leader_is_killed_and_when_the_next_one_is(tmp_path: Path) -> None:
    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        one, two, three = nodes
        await one.publish(bodies(0, 20))
        await one.kill()
        second = await leader_of([two, three])
        third = two if second is three else three
        await second.publish(bodies(20, 20))
        nursery.start_soon(one.live)
        await until(lambda: second.has_in_sync("one", third.name.partition("@")[2]))
        await second.kill()
        last = await leader_of([one, third])
        assert await last.drained() == bodies(0, 40)

    elect(tmp_path, test)


@pytest.mark.long
def test_a_leader_hands_over_to_who_is_named_and_follows_with_nothing_lost(tmp_path: Path) -> None:
    """Also what nobody has confirmed: the channel below has no confirms."""

    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        one, two, three = nodes
        await one.publish(bodies(0, 20))
        parameters = pika.ConnectionParameters("127.0.0.1", one.amqp_port)
        connection = await trio.to_thread.run_sync(pika.BlockingConnection, parameters)
        channel = await trio.to_thread.run_sync(connection.channel)
        for body in bodies(20, 20):
            channel.basic_publish("", "orders", body, PERSISTENT)
        # The answer follows the publishes.
        await trio.to_thread.run_sync(lambda: channel.queue_declare("orders", passive=True))
        assert one.leader is not None
        with pytest.raises(ClusterRefusal, match="not a node of this cluster"):
            await one.leader.transfer("rabbit@four")
        assert await one.leader.transfer("rabbit@three") == "rabbit@three"
        closed = await trio.to_thread.run_sync(partial(_closing_of, connection))
        assert (closed.reply_code, "connect again" in closed.reply_text) == (320, True)
        await until(lambda: bool(three.epoch))
        assert (three.epoch, one.lives, two.lives) == (2, 2, 1)
        assert await three.drained() == bodies(0, 40)
        assert three.redelivered == 0, "nothing was delivered, and that is known after an orderly end"
        await until(lambda: three.has_in_sync("one", "two"))

    elect(tmp_path, test)


@pytest.mark.long
def test_a_leader_whose_disk_is_full_gives_way_to_one_that_has_what_it_could_not_write(tmp_path: Path) -> None:
    """(4)"""

    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        one, two, three = nodes
        await one.publish(bodies(0, 20))
        assert one.member is not None and one.disk is not None and one.leader is not None
        assert one.member.leadership is not None
        assert one.leader.status()["trouble"] == ""
        one.member.leadership.disks.gives_way_at_s = 0.0  # it has led for long
        parameters = pika.ConnectionParameters("127.0.0.1", one.amqp_port)
        connection = await trio.to_thread.run_sync(pika.BlockingConnection, parameters)
        channel = await trio.to_thread.run_sync(connection.channel)
        one.disk.is_full = True
        for body in bodies(20, 5):
            channel.basic_publish("", "orders", body, PERSISTENT)
        troubles: set[str] = set()

        def is_given_way() -> bool:
            if one.leader is not None and one.epoch:
                troubles.add(one.leader.status()["trouble"])
            return bool(two.epoch or three.epoch)

        await until(is_given_way)
        assert any("disk" in trouble for trouble in troubles), troubles
        closed = await trio.to_thread.run_sync(partial(_closing_of, connection))
        assert (closed.reply_code, "connect again" in closed.reply_text) == (320, True)
        leader = await leader_of([two, three])
        assert leader.epoch == 2 and etcd.found is not None and etcd.found.record.by is LeaderBy.TRANSFER
        found = await leader.drained()
        assert found[:20] == bodies(0, 20) and found[20:] == bodies(20, len(found) - 20)
        await until(lambda: leader.has_in_sync(*({"one", "two", "three"} - {leader.name.partition("@")[2]})))

    elect(tmp_path, test)


def test_a_leader_does_not_hand_over_while_etcd_cannot_have_it_on_record(tmp_path: Path) -> None:
    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        one = nodes[0]
        assert one.leader is not None and etcd.found is not None
        await one.publish(bodies(0, 10))
        etcd.is_away = True
        with pytest.raises(ClusterRefusal, match="etcd does not answer: etcd is away"):
            await one.leader.transfer(None)
        etcd.is_away = False
        found, etcd.found = etcd.found, None
        with pytest.raises(ClusterRefusal, match="not have the record that makes this node the leader"):
            await one.leader.transfer(None)
        etcd.found = found
        assert one.lives == 1 and one.commands.target is None
        await one.publish(bodies(10, 10))  # its clients were not sent away

    elect(tmp_path, test)


def test_a_follower_is_in_sync_while_it_is_connected_and_on_record(tmp_path: Path) -> None:
    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        one, two, three = nodes
        await one.publish(bodies(0, 10))
        assert one.leader is not None and etcd.found is not None
        assert two.status()["in_sync"] and three.status()["in_sync"]
        record = etcd.found.record
        out = next(replica for replica in record.in_sync if replica.node == two.name)
        without = removed(record, record.leader, record.epoch, out)
        assert isinstance(without, Record)
        two.commands._tell(RecordChanged(Versioned(etcd.found.revision + 1, without)))
        assert two.status()["connected"] and not two.status()["in_sync"]
        etcd.is_away = True  # nobody takes over
        await one.kill()
        await until(lambda: not three.status()["connected"])
        assert not three.status()["in_sync"], "a leader that it does not see may have gone on without it"

    elect(tmp_path, test)


def test_a_follower_knows_how_many_have_to_be_in_sync_and_which_are(tmp_path: Path) -> None:
    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        # The second one joined when one was enough.
        names = ["rabbit@one", "rabbit@three", "rabbit@two"]
        await until(lambda: all(each.status()["in_sync_nodes"] == names for each in nodes[1:]))
        assert [each.status()["min_in_sync"] for each in nodes[1:]] == [2, 2]

    elect(tmp_path, test)


@pytest.mark.long
def test_one_that_is_told_to_stop_hands_over_first(tmp_path: Path) -> None:
    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        one = nodes[0]
        await one.publish(bodies(0, 20))
        assert one.application is not None and etcd.found is not None
        one.application.stop()
        leader = await leader_of(nodes[1:])
        assert etcd.found.record.by is LeaderBy.TRANSFER
        assert one.ended == [False], "its process is over"
        assert await leader.drained() == bodies(0, 20)

    elect(tmp_path, test)


def test_a_node_that_is_gone_is_forgotten_and_joins_again_with_an_empty_directory_only(tmp_path: Path) -> None:
    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        one, two, three = nodes
        leader = one.leader
        assert leader is not None and etcd.found is not None
        with pytest.raises(ClusterRefusal, match="runs"):
            await leader.forget("rabbit@three")
        await three.kill()
        await until(lambda: one.has_in_sync("two"))
        await two.kill()
        # One of three is left, and two would have to be in sync.
        await until(lambda: leader.gate.trouble() != "")
        await leader.forget("rabbit@three")
        await leader.forget("rabbit@two")
        await one.publish(bodies(0, 10))
        assert leader.status()["forgotten"] == ["rabbit@three", "rabbit@two"]
        assert etcd.found.record.assigned == {"rabbit@one"}

        refusals: list[str] = []
        why_not_taken = one.commands.why_not_taken

        def listen(node: str, *, is_empty: bool) -> str:
            refusals.append(reason := why_not_taken(node, is_empty=is_empty))
            return reason

        one.commands.why_not_taken = listen  # type: ignore[method-assign]
        nursery.start_soon(three.live)
        await until(lambda: bool(refusals))
        assert "rabbit@three was forgotten" in refusals[0] and "empty data directory" in refusals[0]
        await three.kill()
        three.lose()
        nursery.start_soon(three.live)
        await until(lambda: one.has_in_sync("three"))
        assert leader.status()["forgotten"] == ["rabbit@two"]

    elect(tmp_path, test)


def test_a_node_that_is_drained_hands_over_and_is_not_elected_until_it_is_revived(tmp_path: Path) -> None:
    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        one, two, three = nodes
        assert one.leader is not None
        await one.leader.drain("rabbit@two")
        with pytest.raises(ClusterRefusal, match="revive it first"):
            await one.leader.transfer("rabbit@two")
        await one.leader.drain("rabbit@one")  # which leads
        await until(lambda: bool(three.epoch))
        assert three.leader is not None
        await until(lambda: three.has_in_sync("one", "two"))
        assert three.leader.status()["drained"] == ["rabbit@one", "rabbit@two"]
        await three.leader.revive("rabbit@one")
        await three.kill()
        assert await leader_of([one, two]) is one

    elect(tmp_path, test)


@pytest.mark.long
def test_a_store_of_which_etcd_lost_the_record_is_recovered_by_an_administrator(tmp_path: Path) -> None:
    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        one, two, three = nodes
        await one.publish(bodies(0, 20))
        for each in nodes:
            await each.kill()
        etcd.found = None
        nursery.start_soon(two.live)
        await until(lambda: two.lives > 1)
        refusals: set[str] = set()

        def is_told_of_the_loss() -> bool:
            try:
                two.commands.recover(accepts_loss=False)
            except ClusterRefusal as refusal:
                refusals.add(str(refusal))
            return any("lost for good" in reason for reason in refusals)

        await until(is_told_of_the_loss)
        assert etcd.found is None
        two.commands.recover(accepts_loss=True)
        await until(lambda: bool(two.epoch))
        assert two.epoch > 1000, "beyond all that may have been begun"
        nursery.start_soon(one.live)
        nursery.start_soon(three.live)
        await until(lambda: two.has_in_sync("one", "three"))
        assert await two.drained() == bodies(0, 20)
        with pytest.raises(ClusterRefusal, match="leads"):
            two.commands.recover(accepts_loss=True)
        with pytest.raises(ClusterRefusal, match="rabbit@two leads, and answers"):
            three.commands.recover(accepts_loss=True)

    elect(tmp_path, test)


def _closing_of(connection: pika.BlockingConnection) -> pika.exceptions.ConnectionClosedByBroker:
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closing:
        connection.process_data_events(time_limit=30)
    return closing.value


@pytest.mark.long
def test_etcd_may_be_away_while_all_are_there(tmp_path: Path) -> None:
    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        etcd.is_away = True
        await nodes[0].publish(bodies(0, 20))
        await trio.sleep(4.0)  # longer than any promise
        assert await nodes[0].drained() == bodies(0, 20)
        assert [each.lives for each in nodes] == [1, 1, 1]

    elect(tmp_path, test)


@pytest.mark.long
def test_a_leader_that_nobody_hears_ends_its_life_and_nothing_is_lost(tmp_path: Path) -> None:
    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        one = nodes[0]
        await one.publish(bodies(0, 20))
        assert one.leader is not None
        one.leader.send_beacon = lambda number: None  # type: ignore[method-assign]
        await until(lambda: one.lives == 2)
        leader = await leader_of(nodes)
        assert leader.epoch > 1
        assert await leader.drained() == bodies(0, 20)

    elect(tmp_path, test)


@pytest.mark.long
def test_who_is_elected_is_heard_and_answered_while_it_recovers(tmp_path: Path) -> None:
    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        one, two, three = nodes
        answered: list[bool] = []
        connected: list[tuple[Followers, LinkToFollower]] = []
        add = Followers.add

        def noted(followers: Followers, follower: LinkToFollower) -> None:
            connected.append((followers, follower))
            add(followers, follower)

        def recover_late(node: Node, *arguments: Any) -> Recovered:
            give_up_s = time.monotonic() + 30
            while not answered and time.monotonic() < give_up_s:
                member = node.member
                assert member is not None and member.record is not None and member.leadership is not None
                others = member.record.in_sync - {member.me}
                if others and all(member.leadership.peers.of(other).promised_s > 0 for other in others):
                    answered.append(True)
                time.sleep(0.01)
            return recover_messages(*arguments)

        two.recover = partial(recover_late, two)
        three.recover = partial(recover_late, three)
        await one.publish(bodies(0, 20))
        with patch.object(Followers, "add", noted):
            await one.kill()
            leader = await leader_of([two, three])
            assert answered
            other = two if leader is three else three
            await until(lambda: leader.has_in_sync(other.name.removeprefix("rabbit@")))
        assert leader.leader is not None
        came = [follower for to, follower in connected if to is leader.leader.followers]
        assert len(came) == 1, "who came while it recovered has not to come again"
        assert await leader.drained() == bodies(0, 20)

    elect(tmp_path, test)


def test_a_leader_that_was_silent_for_a_moment_holds_its_clients_and_goes_on_with_them(tmp_path: Path) -> None:
    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        one = nodes[0]
        etcd.is_away = True  # nobody else can lead meanwhile, however slow this machine is
        leader = one.leader
        assert leader is not None and leader.may_serve()
        parameters = pika.ConnectionParameters("127.0.0.1", one.amqp_port)
        connection = await trio.to_thread.run_sync(pika.BlockingConnection, parameters)
        channel = await trio.to_thread.run_sync(connection.channel)
        send, leader.send_beacon = leader.send_beacon, lambda number: None  # type: ignore[method-assign]
        await until(lambda: not leader.may_serve())
        answers: list[object] = []

        async def declare() -> None:
            answers.append(await trio.to_thread.run_sync(channel.queue_declare, "late"))

        nursery.start_soon(declare)
        await trio.sleep(0.3)  # far longer than an answer takes
        assert answers == []
        leader.send_beacon = send  # type: ignore[method-assign]
        await until(lambda: bool(answers))
        await trio.to_thread.run_sync(connection.close)
        assert [each.lives for each in nodes] == [1, 1, 1]

    elect(tmp_path, test)


@pytest.mark.long
@pytest.mark.parametrize("leads", [True, False])
def test_a_node_whose_directory_is_a_restored_one_does_not_lead_and_is_caught_up(tmp_path: Path, leads: bool) -> None:
    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        one, two, _ = nodes
        await one.publish(bodies(0, 10))
        old = one if leads else two
        others = [each for each in nodes if each is not old]
        await old.kill()
        old.keep_copy()
        leader = await leader_of(others)
        nursery.start_soon(old.live)
        await until(lambda: leader.has_in_sync(*(each.name[7:] for each in nodes if each is not leader)))
        if leads:
            await leader.commands.transfer(one.name)
            await until(lambda: one.epoch > 0 and one.has_in_sync("two", "three"))
        await (await leader_of(nodes)).publish(bodies(10, 30))
        for each in nodes:
            await each.kill()
        old.restore()
        nursery.start_soon(old.live)
        with trio.move_on_after(4.0):  # longer than the grace time
            await until(lambda: bool(old.epoch))
        assert not old.epoch
        assert "the data directory of this node is older than it was" in old.status()["trouble"]
        told: list[str] = []
        original = Followers.add

        def add(self: Followers, link: LinkToFollower) -> None:
            told.append(link.trouble)
            original(self, link)

        with patch.object(Followers, "add", add):
            for each in others:
                nursery.start_soon(each.live)
            leader = await leader_of(nodes)
            assert leader in others
            await until(lambda: any("older than it was" in trouble for trouble in told))
        await until(lambda: old.status()["trouble"] == "")
        await until(lambda: leader.has_in_sync(*(each.name[7:] for each in nodes if each is not leader)))
        assert await leader.drained() == bodies(0, 40)

    elect(tmp_path, test)


@pytest.mark.long
def test_a_node_whose_clock_is_hours_ahead_takes_over_and_expires_nothing_early(tmp_path: Path) -> None:
    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        one, *others = nodes
        for each in others:
            await each.kill()
            each.ahead_ns = 5 * 3600 * 10**9
            nursery.start_soon(each.live)
        await until(lambda: one.has_in_sync("two", "three"))
        await one.publish(bodies(0, 10), pika.BasicProperties(delivery_mode=2, expiration="3600000"))
        await until(lambda: all((each.status()["clock_skew_ms"] or 0) > 17_000_000 for each in others))
        await one.kill()
        leader = await leader_of(others)
        assert leader.application is not None
        assert abs(leader.application._clock.now_ms() - time.time() * 1000) < 60_000
        assert await leader.drained() == bodies(0, 10)

    elect(tmp_path, test)


@pytest.mark.long
def test_what_only_a_deposed_leader_had_is_cut_off_when_it_follows(tmp_path: Path) -> None:
    async def test(etcd: Etcd, nodes: list[Node], nursery: trio.Nursery) -> None:
        one, two, three = nodes
        await one.publish(bodies(0, 10))
        assert one.leader is not None and one.application is not None
        # SQL takes the queue, and the log notes that. A commit of that note could wait at the gate without the others,
        # and nothing is written after it then.
        await until(one.has_written_all)
        await two.kill()
        await three.kill()
        # Written here, and committed by nobody. Publishers are blocked by now.
        end_lsn = one.leader.shipping.end_lsn()
        one.application._broker.administer(VhostPut("only here", ""))
        one.application._settle()
        await until(lambda: one.leader is not None and one.leader.shipping.end_lsn() > end_lsn)
        await one.kill()
        nursery.start_soon(two.live)
        nursery.start_soon(three.live)
        # One that is elected and gives way before it has begun leaves the deposed one in the set, to be elected again.
        await leader_of([two, three])
        nursery.start_soon(one.live)

        def settled() -> list[Node]:
            # The first that was elected may give way to the other one.
            others = {each: [other.name[7:] for other in nodes if other is not each] for each in (two, three)}
            return [each for each, names in others.items() if each.has_in_sync(*names)]

        await until(lambda: bool(settled()))
        (leader,) = settled()
        await leader.kill()
        last = await leader_of([each for each in nodes if each is not leader])
        assert await last.drained() == bodies(0, 10)
        assert last.application is not None
        assert list(last.application._broker.vhosts) == ["/"]

    elect(tmp_path, test)
