"""Clients of a node that does not lead: bytes passed on or not, and the answers to clients. On real sockets."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
import trio
import trustme

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.gateway.answers import HELD_BYTES_MAX
from warren.gateway.clients import LEAVING, LINGER_S, PASSED, SHAKING, SILENT_S, UNSENT_S, WAITING, Client, Clients
from warren.gateway.ends import RECEIVE_BYTES, End
from warren.server.following import Passage
from warren.server.network.acceptor import Listener
from warren.server.network.admission import Admission
from warren.server.network.handshakes import Handshakes
from warren.server.network.readiness import GONE, Selector

OPEN_OK = method_frame(0, m.ConnectionOpenOk(""))
HEADER = b"AMQP\x00\x00\x09\x01"
LEADER = "the leader"


class Gateway:
    """Clients of a gateway, and the leader's ends of them; everything is at hand and in small buffers."""

    def __init__(self, tls: ssl.SSLContext | None = None, waiting_max: int = 100, below: int = 1 << 30) -> None:
        self.now_s = 100.0
        self.begun: list[Client] = []
        self.users: list[dict[str, object]] = []
        self.user_fault: Exception | None = None
        self.clients = Clients(
            Admission(waiting_max, waiting_max, 10_000, below),
            Handshakes(5.0),
            below,
            self._user,
            self.begun.append,
            lambda: self.now_s,
        )
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setblocking(False)
        self.address = self._listening.getsockname()
        self.clients.listen(Listener(self._listening, None if tls is None else lambda: tls))
        self._nodes = socket.create_server(("127.0.0.1", 0))

    def _user(self, certificate: dict[str, object]) -> str:
        if self.user_fault is not None:
            raise self.user_fault
        self.users.append(certificate)
        return "robot"

    def client(self) -> socket.socket:
        """Connect a client."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
        client.connect(self.address)
        client.setblocking(False)
        return client

    def connect(self, client: Client) -> socket.socket:
        """Connect a client to the leader; return the leader's end."""
        ours = socket.create_connection(self._nodes.getsockname())
        ours.setblocking(False)
        leader, _ = self._nodes.accept()
        leader.setblocking(False)
        self.clients.connected(client, Passage(ours, LEADER))
        return leader

    def close(self) -> None:
        self.clients.end_all("the end of the test")
        self._nodes.close()


@contextmanager
def gateway(tls: ssl.SSLContext | None = None, waiting_max: int = 100, below: int = 1 << 30) -> Iterator[Gateway]:
    made = Gateway(tls, waiting_max, below)
    try:
        yield made
    finally:
        made.close()


def run(work: Callable[[], Awaitable[None]], served: Gateway) -> None:
    async def both() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(served.clients.run)
                await work()
                nursery.cancel_scope.cancel()

    trio.run(both)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await trio.sleep(0.001)


async def received(sock: socket.socket, size: int) -> bytes:
    """Return the next bytes, fewer at the end."""
    data = bytearray()
    while len(data) < size:
        await trio.lowlevel.wait_readable(sock)
        more = sock.recv(min(1 << 16, size - len(data)))
        if not more:
            break
        data += more
    return bytes(data)


async def rest(sock: socket.socket) -> bytes:
    return await received(sock, 1 << 40)


async def joined(served: Gateway) -> tuple[socket.socket, socket.socket]:
    """Return both ends of a client that is passed on."""
    client = served.client()
    await until(lambda: served.begun)
    return client, served.connect(served.begun.pop())


def test_bytes_go_both_ways_and_nothing_is_read_before_there_is_a_leader() -> None:
    with gateway() as served:

        async def work() -> None:
            client = served.client()
            client.send(HEADER)
            await until(lambda: served.begun)
            assert served.clients.count(WAITING) == 1
            (waiting,) = served.begun
            assert waiting.facts.peer == f"127.0.0.1:{client.getsockname()[1]}"
            assert waiting.facts.local == f"127.0.0.1:{served.address[1]}"
            leader = served.connect(waiting)
            assert await received(leader, 8) == HEADER
            leader.send(OPEN_OK)
            assert await received(client, len(OPEN_OK)) == OPEN_OK
            assert served.clients.count(PASSED) == 1

        run(work, served)


@pytest.mark.parametrize("reader", ["client", "leader"])
def test_whoever_does_not_read_costs_a_bounded_buffer_and_misses_nothing(reader: str) -> None:
    with gateway() as served:

        async def work() -> None:
            client, leader = await joined(served)
            (passed,) = served.clients._all()
            assert passed.leader is not None
            source, sink, end = (leader, client, passed.end) if reader == "client" else (client, leader, passed.leader)
            frame = b"\x03\x00\x01\x00\x00\x40\x00" + bytes(range(256)) * 64 + b"\xce"
            data = frame * 2000
            sent = 0
            idle = 0
            while idle < 20:  # until nothing more is taken
                try:
                    sent += source.send(data[sent : sent + (1 << 18)])
                    idle = 0
                except BlockingIOError:
                    idle += 1
                    await trio.sleep(0.005)
                assert sum(map(len, end._waiting)) <= RECEIVE_BYTES + HELD_BYTES_MAX
            assert sent < len(data)
            got: list[bytes] = []

            async def read() -> None:
                got.append(await received(sink, len(data)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                while sent < len(data):
                    await trio.lowlevel.wait_writable(source)
                    sent += source.send(data[sent : sent + (1 << 18)])
            assert got[0] == data

        run(work, served)


def test_the_end_of_a_client_is_the_end_of_the_leaders_connection() -> None:
    with gateway() as served:

        async def work() -> None:
            client, leader = await joined(served)
            client.send(b"last words")
            client.shutdown(socket.SHUT_WR)
            assert await rest(leader) == b"last words"
            leader.send(OPEN_OK)
            leader.close()
            assert await rest(client) == OPEN_OK, "it has ended first: there is nothing to tell it"
            await until(lambda: served.clients.count(WAITING, PASSED, LEAVING) == 0)

        run(work, served)


def test_the_end_of_a_client_that_is_hung_up_while_the_leader_is_full_is_passed_on_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with gateway() as served:

        async def work() -> None:
            client, leader = await joined(served)
            (passed,) = served.clients._all()
            assert passed.leader is not None
            data = bytes(range(256)) * 100_000
            sent = 0
            while not passed.leader.is_full:
                with suppress(BlockingIOError):
                    sent += client.send(data[sent : sent + (1 << 18)])
                await trio.sleep(0)
            assert sent < len(data)
            client.shutdown(socket.SHUT_WR)
            served.clients._heard(passed, passed.end, GONE)  # as `poll` of a BSD tells it
            finish = passed.leader.finish
            ends: list[object] = []

            def finished() -> None:
                ends.append(finish)
                assert len(ends) == 1
                finish()

            monkeypatch.setattr(passed.leader, "finish", finished)
            assert await rest(leader) == data[:sent]
            leader.send(OPEN_OK)
            leader.close()
            assert await rest(client) == OPEN_OK

        run(work, served)


def test_the_loss_of_a_client_is_that_of_the_leaders_connection() -> None:
    with gateway() as served:

        async def work() -> None:
            client, leader = await joined(served)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.close()
            assert await rest(leader) == b""
            await until(lambda: served.clients.count(PASSED) == 0)

        run(work, served)


def test_a_client_whose_leader_is_gone_is_told_behind_a_whole_frame() -> None:
    with gateway() as served:

        async def work() -> None:
            client, leader = await joined(served)
            leader.send(OPEN_OK + b"\x03\x00\x01\x00\x00\x40\x00 a part of a body")
            leader.close()
            said = await rest(client)
            assert said.startswith(OPEN_OK + method_frame(0, m.ConnectionClose(320, "", 0, 0))[:3])
            assert b"CONNECTION_FORCED - the connection to the leader has ended: connect again" in said
            assert b"a part" not in said
            client.send(b"close-ok, perhaps")
            client.close()
            await until(lambda: served.clients.count(LEAVING) == 0)

        run(work, served)


def test_a_client_that_the_leader_has_sent_away_is_told_nothing_more() -> None:
    with gateway() as served:

        async def work() -> None:
            client, leader = await joined(served)
            word = method_frame(0, m.ConnectionClose(320, "CONNECTION_FORCED - shutdown", 0, 0))
            leader.send(word)
            assert await received(client, len(word)) == word
            client.send(method_frame(0, m.ConnectionCloseOk()))
            assert await received(leader, 12) == method_frame(0, m.ConnectionCloseOk())
            leader.close()
            assert await rest(client) == b""

        run(work, served)


def test_clients_of_a_leader_that_was_replaced_are_sent_away_and_closed_in_time() -> None:
    with gateway() as served:

        async def work() -> None:
            client, leader = await joined(served)
            leader.send(OPEN_OK)
            assert await received(client, len(OPEN_OK)) == OPEN_OK
            served.clients.tick(LEADER)
            served.clients.tick(None)  # no leader is known: existing connections continue
            assert served.clients.count(PASSED) == 1
            served.clients.tick("another one")
            assert await rest(leader) == b""
            assert b"another node is the leader now" in await rest(client)
            assert served.clients.count(LEAVING) == 1
            served.now_s += LINGER_S
            served.clients.tick("another one")
            assert served.clients.count(LEAVING) == 0, "though the client does not end"

        run(work, served)


def test_clients_of_a_leader_of_which_nothing_is_heard_are_sent_away() -> None:
    with gateway() as served:

        async def work() -> None:
            client, leader = await joined(served)
            leader.send(OPEN_OK)
            assert await received(client, len(OPEN_OK)) == OPEN_OK
            served.clients.tick(LEADER, SILENT_S - 0.1)
            served.clients.tick(None, SILENT_S - 0.1)
            assert served.clients.count(PASSED) == 1
            served.clients.tick(LEADER, SILENT_S)
            assert await rest(leader) == b""
            assert b"connect again, to another node" in await rest(client)

        run(work, served)


def test_a_client_that_does_not_take_its_last_words_is_closed_in_time() -> None:
    with gateway() as served:

        async def work() -> None:
            _client, leader = await joined(served)
            (passed,) = served.clients._all()
            frame = b"\x03\x00\x01\x00\x00\x40\x00" + bytes(1 << 14) + b"\xce"
            while not passed.end.is_full:
                try:
                    leader.send(frame)
                except BlockingIOError:
                    pass
                await trio.sleep(0)
            leader.close()
            served.clients.tick("another one")
            assert served.clients.count(LEAVING) == 1
            served.now_s += UNSENT_S
            served.clients.tick("another one")
            assert served.clients.count(LEAVING) == 0

        run(work, served)


def test_a_client_that_leaves_while_it_waits_is_not_waited_for() -> None:
    with gateway() as served:

        async def work() -> None:
            client = served.client()
            await until(lambda: served.begun)
            client.close()
            await until(lambda: served.clients.count(WAITING) == 0)
            (gone,) = served.begun
            assert gone.waits.cancel_called
            leader = served.connect(gone)
            assert await rest(leader) == b""

        run(work, served)


def test_a_client_that_is_turned_away_knows_why() -> None:
    with gateway() as served:

        async def work() -> None:
            client = served.client()
            client.send(HEADER)
            await until(lambda: served.begun)
            served.clients.turned_away(served.begun[0], "nobody leads")
            assert b"CONNECTION_FORCED - nobody leads" in await rest(client)

        run(work, served)


def test_so_many_may_wait_and_who_is_passed_on_is_not_one_of_them() -> None:
    with gateway(waiting_max=2) as served:

        async def work() -> None:
            first, second = served.client(), served.client()
            await until(lambda: len(served.begun) == 2)
            third = served.client()
            assert await rest(third) == b""
            leader = served.connect(served.begun[0])
            fourth = served.client()
            await until(lambda: len(served.begun) == 3)
            for sock in (first, second, fourth, leader):
                sock.close()
            await until(lambda: served.clients.count(WAITING, PASSED, LEAVING) == 0)
            assert served.clients._admission.unauthenticated == 0

        run(work, served)


def test_descriptors_for_files_are_left_alone() -> None:
    with gateway() as served:

        async def work() -> None:
            client = served.client()
            await until(lambda: served.begun)
            served.clients._descriptors_below = 0
            leader = served.connect(served.begun[0])
            assert await rest(leader) == b""
            assert b"too many clients" in await rest(client)

        run(work, served)


def test_tls_of_a_client_ends_here_and_its_certificate_names_a_user() -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    ours = ssl.create_default_context()
    authority.configure_trust(ours)
    authority.issue_cert("robot").configure_cert(ours)
    with gateway(context) as served:

        async def work() -> None:
            stream = trio.SSLStream(
                await trio.open_tcp_stream(*served.address), ours, server_hostname="localhost", https_compatible=True
            )
            await stream.do_handshake()
            await until(lambda: served.begun)
            (waiting,) = served.begun
            assert waiting.facts.is_tls
            assert waiting.facts.user == "robot"
            leader = served.connect(waiting)
            leader.send(OPEN_OK)
            assert await stream.receive_some() == OPEN_OK
            large = b"\x03\x00\x01\x00\x03\x00\x00" + bytes(3 << 16) + b"\xce"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, HEADER + large)
                assert await received(leader, 8 + len(large)) == HEADER + large
            leader.setblocking(True)
            await trio.to_thread.run_sync(leader.sendall, large)
            got = b""
            while len(got) < len(large):
                got += await stream.receive_some()
            assert got == large
            leader.close()
            assert b"connect again" in await stream.receive_some()
            assert await stream.receive_some() == b""

        run(work, served)


def test_a_client_whose_certificate_is_met_by_a_fault_of_ours_is_hung_up_on_and_the_others_go_on() -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    anonymous = ssl.create_default_context()
    authority.configure_trust(anonymous)
    named = ssl.create_default_context()
    authority.configure_trust(named)
    authority.issue_cert("robot").configure_cert(named)
    with gateway(context) as served:
        served.user_fault = ZeroDivisionError()

        async def connected(client: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
            plain = await trio.open_tcp_stream(*served.address)
            stream = trio.SSLStream(plain, client, server_hostname="localhost", https_compatible=True)
            await stream.do_handshake()
            return stream

        async def work() -> None:
            unlucky = await connected(named)
            assert await unlucky.receive_some() == b""
            assert served.clients.count(SHAKING, WAITING, LEAVING) == 0
            await connected(anonymous)
            await until(lambda: served.begun)

        run(work, served)


def test_a_client_without_tls_where_it_is_spoken_is_hung_up_on() -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    with gateway(context) as served:

        async def work() -> None:
            client = served.client()
            client.send(HEADER)
            await rest(client)
            await until(lambda: served.clients.count(SHAKING, LEAVING) == 0)
            assert not served.begun

        run(work, served)


class FullSelector:
    """A selector that watches no more descriptors while `is_full`, as a system whose watches are used up."""

    def __init__(self, inner: Selector) -> None:
        self.is_full = False
        self.poll, self.fileno, self.close = inner.poll, inner.fileno, inner.close
        self.modify, self.unregister = inner.modify, inner.unregister
        self._inner = inner

    def register(self, fd: int, eventmask: int, /) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._inner.register(fd, eventmask)


@pytest.mark.parametrize("is_secret", [False, True])
def test_a_client_that_the_system_does_not_watch_is_closed_and_the_others_go_on(*, is_secret: bool) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) if is_secret else None
    with gateway(tls) as served:
        full = FullSelector(served.clients._selector)
        served.clients._selector = full

        async def work() -> None:
            full.is_full = True
            client = served.client()
            with suppress(ConnectionResetError):
                assert await rest(client) == b""
            assert served.clients._admission.unauthenticated == 0
            full.is_full = False
            with served.client():
                await until(lambda: served.clients.count(SHAKING, WAITING) == 1)
            served.now_s += 100
            served.clients.tick(LEADER)

        run(work, served)


def test_a_listener_that_the_system_does_not_watch_again_is_tried_again() -> None:
    with gateway() as served:
        full = FullSelector(served.clients._selector)
        served.clients._selector = full
        (listener,) = served.clients._listeners.values()
        served.clients._rest(listener)
        served.now_s += 1
        full.is_full = True
        served.clients.tick(LEADER)
        full.is_full = False
        served.clients.tick(LEADER)

        async def work() -> None:
            with served.client():
                await until(lambda: served.begun)

        run(work, served)


def test_a_leader_that_the_system_does_not_watch_is_let_go() -> None:
    with gateway() as served:
        full = FullSelector(served.clients._selector)
        served.clients._selector = full

        async def work() -> None:
            client = served.client()
            await until(lambda: served.begun)
            waiting = served.begun.pop()
            full.is_full = True
            with pytest.raises(OSError, match="No space"):
                served.connect(waiting)
            full.is_full = False
            served.clients.turned_away(waiting, "an internal error")
            assert b"an internal error" in await rest(client)
            client.close()
            await until(lambda: not served.clients.count(LEAVING))

        run(work, served)


@pytest.mark.parametrize("by", ["client", "leader"])
def test_a_client_whose_bytes_meet_a_fault_of_ours_is_closed_and_misses_none(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gateway() as served:

        async def work() -> None:
            client, leader = await joined(served)
            other, others = await joined(served)
            leader.send(OPEN_OK)
            assert await received(client, len(OPEN_OK)) == OPEN_OK
            sender, receiver = (client, leader) if by == "client" else (leader, client)

            def offer(end: End, data: bytes | memoryview) -> None:
                monkeypatch.undo()
                raise MemoryError

            monkeypatch.setattr(End, "offer", offer)
            sender.send(OPEN_OK)
            with suppress(ConnectionResetError):
                assert await rest(receiver) == b""
            other.send(HEADER)
            assert await received(others, len(HEADER)) == HEADER

        run(work, served)


def test_when_the_gateway_ends_its_clients_are_told() -> None:
    with gateway() as served:
        ends: list[socket.socket] = []

        async def work() -> None:
            client, leader = await joined(served)
            leader.send(OPEN_OK)
            assert await received(client, len(OPEN_OK)) == OPEN_OK
            waiting = served.client()
            await until(lambda: served.begun)
            ends.extend([client, waiting, leader])

        run(work, served)
        served.clients.end_all("this node begins to lead")
        for sock in ends:
            sock.setblocking(True)
        assert b"this node begins to lead" in ends[0].recv(4096)
        assert b"this node begins to lead" in ends[1].recv(4096)
        assert ends[2].recv(4096) == b""
        for sock in ends:
            sock.close()
        served.clients = Clients(Admission(1, 1, 1), Handshakes(1.0), 1, served._user, served.begun.append)
