"""A follower's messages over one connection, and their time: an end of a socket stands for the leader."""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import TypeVar
from unittest import mock

import pytest
import trio
import trio.testing

from warren.cluster.driver import passed_s
from warren.msgstore.files.file_system import OsFileSystem
from warren.msgstore.files.store_errors import StoreFullError
from warren.replication.cluster_state import ClusterState
from warren.replication.entries import (
    FROM_FOLLOWER,
    PREAMBLE,
    Ack,
    CheckpointPiece,
    Committed,
    Decoder,
    Entry,
    Objection,
    Position,
    SealedList,
    encoded,
)
from warren.replication.follower import Follower
from warren.replication.identity import Identity
from warren.replication.link_to_leader import LinkToLeader
from warren.replication.replica_store import EPOCH_STRIDE, HistoryLostError, ReplicaStore
from warren.replication.wire import Wire
from warren.server.setting_kinds import Endpoint

STORE = b"s" * 16
T = TypeVar("T")


class Metadata:
    """Stands for the follower and for its metadata."""

    def __init__(self) -> None:
        self.metadata = self
        self.began: list[bytes] = []
        self.received_count = 0

    def begin(self, store_id: bytes) -> None:
        self.began.append(store_id)

    def received(self) -> None:
        self.received_count += 1


def with_link(tmp_path: Path, test: Callable[[LinkToLeader, socket.socket], Awaitable[T]]) -> T:
    async def main() -> T:
        ours, theirs = socket.socketpair()
        theirs.settimeout(30)
        (tmp_path / "messages").mkdir()
        replica = ReplicaStore(OsFileSystem(str(tmp_path / "messages")))
        replica.open()
        link = LinkToLeader(Wire(ours), replica, 7, STORE, Metadata())  # type: ignore[arg-type]
        with theirs, trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.run, b"")
                found = await test(link, theirs)
                nursery.cancel_scope.cancel()
        replica.close()
        return found

    return trio.run(main)


class Leader:
    """Reads what the follower says."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._decoder = Decoder(FROM_FOLLOWER)

    async def next(self) -> Entry:
        while (entry := self._decoder.maybe_entry()) is None:
            data = await trio.to_thread.run_sync(self._sock.recv, 65536)
            assert data
            self._decoder.feed(data)
        return entry


def test_nothing_is_said_of_the_log_before_the_link_begins_and_a_beacon_is_answered_behind_it(tmp_path: Path) -> None:
    async def test(link: LinkToLeader, sock: socket.socket) -> None:
        link.answer(3)
        assert await trio.to_thread.run_sync(sock.recv, 65536) == PREAMBLE
        leader = Leader(sock)
        leader._decoder.feed(PREAMBLE)
        link.begin()
        kinds = [await leader.next() for _ in range(3)]
        assert [type(entry) for entry in kinds] == [Position, SealedList, Ack]
        assert kinds[2] == Ack(0, 0, 0, 3, 7)
        link.answer(4)
        assert await leader.next() == Ack(0, 0, 0, 4, 7)

    with_link(tmp_path, test)


def test_a_link_begins_with_its_preamble_however_soon_the_thread_says_where_the_log_is(tmp_path: Path) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        theirs.settimeout(30)
        (tmp_path / "messages").mkdir()
        replica = ReplicaStore(OsFileSystem(str(tmp_path / "messages")))
        replica.open()
        link = LinkToLeader(Wire(ours), replica, 7, STORE, Metadata())  # type: ignore[arg-type]
        link.begin()
        worker = link._worker
        start = worker.start

        def start_and_have_it_said() -> None:
            start()
            while not worker.has_begun:
                time.sleep(0.001)

        with theirs, trio.fail_after(30), mock.patch.object(worker, "start", start_and_have_it_said):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.run, b"")
                assert isinstance(await Leader(theirs).next(), Position)
                nursery.cancel_scope.cancel()
        replica.close()

    trio.run(main)


def test_an_epoch_is_refused_with_an_ack_of_a_greater_one(tmp_path: Path) -> None:
    async def test(link: LinkToLeader, sock: socket.socket) -> None:
        leader = Leader(sock)
        assert await trio.to_thread.run_sync(sock.recv, 65536) == PREAMBLE
        leader._decoder.feed(PREAMBLE)
        link.refuse(9)
        assert await leader.next() == Ack(0, 0, 0, 0, 9)
        assert await trio.to_thread.run_sync(sock.recv, 65536) == b""

    with_link(tmp_path, test)


@pytest.mark.parametrize("understands", [True, False])
def test_a_leader_that_understands_it_is_told_what_it_lacks(tmp_path: Path, understands: bool) -> None:
    async def test(link: LinkToLeader, sock: socket.socket) -> None:
        leader = Leader(sock)
        assert await trio.to_thread.run_sync(sock.recv, 65536) == PREAMBLE
        leader._decoder.feed(PREAMBLE)
        link.may_object = understands
        lost = HistoryLostError("its log ends at LSN 64", 6, 4096)
        link._object(lost)
        link.refuse(9)
        if understands:
            assert await leader.next() == Objection(6, 4096)
        assert await leader.next() == Ack(0, 0, 0, 0, 9)

    with_link(tmp_path, test)


def test_what_is_received_and_not_carried_out_is_counted(tmp_path: Path) -> None:
    async def test(link: LinkToLeader, sock: socket.socket) -> None:
        intake = link._intake
        link.begin()
        sock.sendall(PREAMBLE + b"".join([*encoded(Committed(100)), *encoded(Committed(200))]))
        while not intake._queued_bytes or intake.queued_bytes:
            assert intake.queued_bytes <= 16
            await trio.sleep(0.01)
        assert link._replica.done == 2

    with_link(tmp_path, test)


def test_bytes_are_queued_until_the_thread_has_carried_them_out(tmp_path: Path) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        (tmp_path / "messages").mkdir()
        with theirs:
            replica = ReplicaStore(OsFileSystem(str(tmp_path / "messages")))
            wire = Wire(ours)
            link = LinkToLeader(wire, replica, 7, STORE, Metadata())  # type: ignore[arg-type]
            link._intake.put(Committed(100), 8)
            assert link._intake.queued_bytes == 8
            wire.close()

    trio.run(main)


def test_how_long_the_disk_works_on_an_entry_is_known(tmp_path: Path) -> None:
    async def test(link: LinkToLeader, sock: socket.socket) -> None:
        goes_on = Event()
        link._replica.apply = lambda entry, epoch: goes_on.wait(30)  # type: ignore[method-assign,assignment]
        assert link.disk_began_s is None
        before_s = passed_s()
        link.begin()
        sock.sendall(PREAMBLE + b"".join(encoded(Committed(100))))
        while (began_s := link.disk_began_s) is None:
            await trio.sleep(0.01)
        assert before_s <= began_s <= passed_s()
        goes_on.set()
        while link.disk_began_s is not None:
            await trio.sleep(0.01)

    with_link(tmp_path, test)


def test_it_is_said_that_something_comes_however_large_the_entry_is(tmp_path: Path) -> None:
    async def test(link: LinkToLeader, sock: socket.socket) -> None:
        follower = link._follower
        assert isinstance(follower, Metadata)
        begun = b"".join(encoded(CheckpointPiece(1, 1 << 20, 0, bytes(1 << 20))))
        sock.sendall(PREAMBLE)
        at = 0
        while not follower.received_count:
            sock.sendall(begun[at : at + 100])
            at += 100
            await trio.sleep(0.01)
        assert at < len(begun)

    with_link(tmp_path, test)


def test_two_followers_of_one_leader_are_promoted_to_different_epochs(tmp_path: Path) -> None:
    state = ClusterState(b"i" * 16, epoch=7)
    epochs = set()
    for name in ("two", "three"):
        (tmp_path / name).mkdir()
        replica = ReplicaStore(OsFileSystem(str(tmp_path / name)))
        replica.open()
        follower = Follower(None, Identity(b"secret"), name, tmp_path, state, replica, Metadata())  # type: ignore[arg-type]
        epochs.add(follower.next_epoch())
        assert follower.next_epoch() in epochs, "what was said is what it takes"
        replica.close()
    assert len(epochs) == 2
    assert min(epochs) >= 7 + EPOCH_STRIDE


class Elections:
    """Names one leader after the other, each when a test has the next one lead; then the last one leads."""

    def __init__(self, addresses: list[Endpoint]) -> None:
        self._addresses = addresses
        self.change = trio.Event()

    async def leader_address(self) -> Endpoint | None:
        await trio.lowlevel.checkpoint()
        return self._addresses.pop(0)

    async def another_leads(self) -> None:
        await self.change.wait()
        self.change = trio.Event()


def test_a_leader_that_says_nothing_is_given_up_when_another_one_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(4)"""
    monkeypatch.setattr("warren.replication.introduction.CONNECT_S", 1000.0)
    replica = ReplicaStore(OsFileSystem(str(tmp_path)))
    replica.open()
    follower = Follower(None, Identity(b"s" * 32), "two", tmp_path, ClusterState(b"i" * 16), replica, Metadata())  # type: ignore[arg-type]

    async def main() -> None:
        listeners = [await trio.open_tcp_listeners(0, host="127.0.0.1") for _ in range(3)]
        elections = Elections([Endpoint(*listener.socket.getsockname()) for (listener,) in listeners])
        follower.obey(elections)  # type: ignore[arg-type]
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follower.run)
                for (listener,) in listeners:
                    async with await listener.accept() as stream:
                        await stream.receive_some()  # it waits for this leader to prove itself
                        elections.change.set()
                nursery.cancel_scope.cancel()

    trio.run(main)
    replica.close()


def test_a_leader_that_has_nothing_for_a_follower_is_asked_less_and_less(tmp_path: Path) -> None:
    replica = ReplicaStore(OsFileSystem(str(tmp_path)))
    replica.open()
    state = ClusterState(b"i" * 16)
    follower = Follower(None, Identity(b"secret"), "two", tmp_path, state, replica, Metadata())  # type: ignore[arg-type]
    asked_s: list[float] = []

    async def follow_once() -> bool:
        asked_s.append(trio.current_time())
        return len(asked_s) == 8  # then something has come

    follower._follow_once = follow_once  # type: ignore[method-assign]

    async def main() -> None:
        with trio.move_on_after(30):
            await follower.run()

    for election in (None, Elections([])):
        asked_s.clear()
        follower._election = election  # type: ignore[assignment]
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
        pauses_s = [round(later - earlier, 3) for earlier, later in pairwise(asked_s)]
        assert pauses_s[:9] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 0.2, 0.4]
    replica.close()


def test_a_follower_without_space_tries_again_less_and_less(tmp_path: Path) -> None:
    """(5)"""
    replica = ReplicaStore(OsFileSystem(str(tmp_path)))
    replica.open()
    state = ClusterState(b"i" * 16)
    follower = Follower(None, Identity(b"secret"), "two", tmp_path, state, replica, Metadata())  # type: ignore[arg-type]
    follower._election = Elections([])  # type: ignore[assignment]
    tried = 0

    async def follow_once() -> bool:
        nonlocal tried
        tried += 1
        raise StoreFullError("no space left")

    follower._follow_once = follow_once  # type: ignore[method-assign]

    async def main() -> None:
        with trio.move_on_after(60):
            await follower.run()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert tried == 16
    replica.close()
