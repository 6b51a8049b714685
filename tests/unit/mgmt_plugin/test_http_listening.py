"""Listening for HTTP: places for clients, addresses that cannot be bound, and TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import ClassVar

import pytest
import trio
import trio.testing
import trustme
from tls_peer import TlsPeer
from unit.mgmt_plugin.http_peers import (
    GET,
    LAST,
    Server,
    never,
    run,
    running,
)

from warren.mgmt_plugin.http import server as http_module
from warren.mgmt_plugin.http import slots as slots_module
from warren.mgmt_plugin.http.server import (
    Request,
    Response,
    serve_http,
)
from warren.server.start_errors import StartError

# --- listening --------------------------------------------------------------------------------------------------------


def test_idle_connections_make_room_for_new_ones() -> None:
    """Six hundred that ask nothing, or are silent after an answer, or do not end their heads: everybody is served."""

    async def test(server: Server) -> None:
        held = []
        for number in range(600):
            stream = await trio.open_tcp_stream(*server.address)
            held.append(stream)
            if number % 3 == 1:
                await stream.send_all(GET)
                assert b" 200 " in await stream.receive_some()
            elif number % 3 == 2:
                await stream.send_all(GET[:20])
        for _ in range(3):
            assert (await server.get())[0] == 200
            assert (await server.get("/health"))[0] == 200
        assert await held[0].receive_some() == b""  # the one that was idle for the longest time

    run(test)


def test_requests_of_users_keep_their_places_and_health_is_answered_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots_module, "TOTAL", 8)
    monkeypatch.setattr(slots_module, "PER_ADDRESS", 6)
    monkeypatch.setattr(slots_module, "RESERVED", 2)

    async def test(server: Server) -> None:
        resume = trio.Event()
        asked = 0

        async def respond(request: Request) -> Response:
            nonlocal asked
            if request.path == "/any":
                request.identified("alice")
                asked += 1
                await resume.wait()
            return Response(200, b"done")

        server.respond = respond
        async with trio.open_nursery() as nursery:
            answers: list[bytes] = []

            async def ask() -> None:
                answers.append(await server.exchange(LAST))

            for _ in range(6):
                nursery.start_soon(ask)
            while asked < 6:
                await trio.sleep(0)
            status, headers, _ = await server.get("/other")
            assert (status, headers["connection"], headers["retry-after"]) == (503, "close", "1")
            silent = [await trio.open_tcp_stream(*server.address) for _ in range(20)]
            assert (await server.get("/health"))[0] == 200
            resume.set()
        assert [answer.endswith(b"done") for answer in answers] == [True] * 6
        for stream in silent:
            await stream.aclose()
        assert (await server.get("/other"))[0] == 200

    run(test)


def test_connections_that_say_nothing_start_no_tasks() -> None:
    """(1)"""

    class Spawned(trio.abc.Instrument):
        names: ClassVar[list[str]] = []

        def task_spawned(self, task: trio.lowlevel.Task) -> None:
            self.names.append(task.name)

    async def test(server: Server) -> None:
        spawned = Spawned()
        trio.lowlevel.add_instrument(spawned)
        silent = [await trio.open_tcp_stream(*server.address) for _ in range(20)]
        assert (await server.get("/behind-them"))[0] == 200
        assert [name.rpartition(".")[2] for name in spawned.names].count("once") == 1
        for stream in silent:
            await stream.aclose()

    run(test)


def test_a_port_in_use_is_one_clear_line() -> None:
    async def test(server: Server) -> None:
        host, port = server.address
        with pytest.raises(StartError) as caught:
            await serve_http("https", host, port, never, None)
        assert str(caught.value) == f"cannot listen on {host}:{port} (https): the port is in use"

    run(test)


def test_a_host_that_does_not_exist_is_one_clear_line() -> None:
    async def main() -> None:
        with pytest.raises(StartError, match=r"^cannot listen on 192\.0\.2\.1:0 \(http\): this machine does not"):
            await serve_http("http", "192.0.2.1", 0, never, None)

    trio.run(main)


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    return context


def test_over_tls_requests_know_that_they_are(authority: trustme.CA, server_context: ssl.SSLContext) -> None:
    async def main() -> None:
        client = ssl.create_default_context()
        authority.configure_trust(client)
        with trio.fail_after(30):
            async with running(context=server_context) as server:
                plain = await trio.open_tcp_stream(*server.address)
                stream = trio.SSLStream(plain, client, server_hostname="localhost", https_compatible=True)
                await stream.send_all(LAST)
                answer = b"".join([bytes(chunk) async for chunk in stream])
                assert answer.startswith(b"HTTP/1.1 200 ")
                assert server.requests[0].is_tls

    trio.run(main)


def test_who_sends_tls_records_without_data_is_hung_up_on(
    server_context: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    """Each KeyUpdate takes the broker thirty microseconds, and asks for one in return."""

    def attack(address: tuple[str, int]) -> None:
        peer = TlsPeer(socket.create_connection(address, timeout=30))
        peer.sock.sendall(
            peer.key_updates(10) + peer.record(b"GET /any HTTP/1.1\r\n") + peer.record(b"Host: x\r\n\r\n")
        )
        assert peer.sock.recv(1)
        with contextlib.suppress(ConnectionError):
            peer.sock.sendall(peer.key_updates(1000))
            while peer.sock.recv(1 << 16):
                pass
        peer.close()

    async def main() -> None:
        with trio.fail_after(60):
            async with running(context=server_context) as server:
                await trio.to_thread.run_sync(attack, server.address)
                assert len(server.requests) == 1

    trio.run(main)
    assert not caplog.records


def test_peers_without_tls_and_peers_that_say_nothing_do_not_hold_others_up(
    authority: trustme.CA, server_context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        client = ssl.create_default_context()
        authority.configure_trust(client)
        with trio.fail_after(30):
            async with running(context=server_context) as server:
                silent = await trio.open_tcp_stream(*server.address)
                with contextlib.suppress(trio.BrokenResourceError):
                    assert b"HTTP/1.1 200" not in await server.exchange(LAST)
                plain = await trio.open_tcp_stream(*server.address)
                stream = trio.SSLStream(plain, client, server_hostname="localhost", https_compatible=True)
                await stream.send_all(LAST)
                assert b"HTTP/1.1 200" in b"".join([bytes(chunk) async for chunk in stream])
                # and the silent one ends when the time for a handshake is over
                assert await silent.receive_some() == b""

    monkeypatch.setattr(http_module, "TLS_TIMEOUT_S", 0.3)
    trio.run(main)
