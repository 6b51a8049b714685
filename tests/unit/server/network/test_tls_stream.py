"""TLS around a stream: results of reads, ends, failures, and alerts of TLS."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme
from tls_peer import TlsPeer

from warren.server.network.tls_stream import WRITE_BYTES, TlsStream

RECORD_BYTES = 16384
HANDSHAKE_RECORD = b"\x16"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


@pytest.fixture(scope="module")
def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture
def certificate(authority: trustme.CA, tmp_path: Path) -> Path:
    """Return a file with the certificate and key of a server."""
    path = tmp_path / "server.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(path)
    return path


@pytest.fixture
def tls_1_2(authority: trustme.CA) -> ssl.SSLContext:
    """Return the context of a TLS 1.2 client, with which a server may renegotiate."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


async def connected(client: ssl.SSLContext, certificate: Path) -> tuple[TlsStream, trio.SocketStream, TlsPeer]:
    """Return a client after its handshake, and its server's lower stream and maker of records."""
    ours, theirs = socket.socketpair()
    connecting = TlsStream(trio.SocketStream(trio.socket.from_stdlib_socket(ours)), client, "localhost")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connecting.do_handshake)
        peer = await trio.to_thread.run_sync(TlsPeer, theirs, certificate)
    return connecting, trio.SocketStream(trio.socket.from_stdlib_socket(theirs)), peer


def run_with_pair(
    server: ssl.SSLContext, client: ssl.SSLContext, test: Callable[[TlsStream, TlsStream], Awaitable[None]]
) -> None:
    """Run `test` with both ends of a connection in memory, the client's first, after their handshakes."""

    async def main() -> None:
        below, above = trio.testing.memory_stream_pair()
        connecting, accepting = TlsStream(below, client, "localhost"), TlsStream(above, server)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connecting.do_handshake)
                nursery.start_soon(accepting.do_handshake)
            await test(connecting, accepting)

    trio.run(main)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_ends_say_what_they_like(
    server_context: ssl.SSLContext, authority: trustme.CA, version: ssl.TLSVersion
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    said = [rng.randbytes(rng.choice((1, 100, 20_000, WRITE_BYTES + 1))) for _ in range(50)]
    client_context = ssl.create_default_context()
    authority.configure_trust(client_context)
    client_context.maximum_version = version

    async def test(connecting: TlsStream, accepting: TlsStream) -> None:
        async def say(stream: TlsStream) -> None:
            for each in said:
                await stream.send_all(each)

        async def hear(stream: TlsStream) -> None:
            heard = bytearray()
            while len(heard) < sum(map(len, said)):
                heard += await stream.receive_some(rng.choice((None, 7, 1 << 18)))
            assert heard == b"".join(said)

        async with trio.open_nursery() as nursery:
            for stream in (connecting, accepting):
                nursery.start_soon(say, stream)
                nursery.start_soon(hear, stream)

    run_with_pair(server_context, client_context, test)


def test_a_read_gives_all_records_that_have_come(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    async def test(connecting: TlsStream, accepting: TlsStream) -> None:
        size = 64 * RECORD_BYTES
        await accepting.send_all(bytes(size))
        reads = 0
        while size > 0:
            size -= len(await connecting.receive_some())
            reads += 1
        assert reads < 32

    run_with_pair(server_context, client_context, test)


def test_a_read_gives_no_more_than_was_asked_for(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    async def test(connecting: TlsStream, accepting: TlsStream) -> None:
        await accepting.send_all(b"abcde")
        assert await connecting.receive_some(2) == b"ab"
        assert await connecting.receive_some(2) == b"cd"
        assert await connecting.receive_some(2) == b"e"
        with pytest.raises(ValueError, match="at least 1"):
            await connecting.receive_some(0)

    run_with_pair(server_context, client_context, test)


def test_the_end_is_heard_though_the_connection_below_stays_open(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    async def main() -> None:
        below, above = trio.testing.memory_stream_pair()
        accepting = TlsStream(above, server_context)
        peer = trio.SSLStream(below, client_context, server_hostname="localhost", https_compatible=True)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(accepting.do_handshake)
                nursery.start_soon(peer.do_handshake)
            await peer.send_all(b"the last word")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.unwrap)  # waits for an answer
                await trio.testing.wait_all_tasks_blocked()
                assert await accepting.receive_some() == b"the last word"
                assert await accepting.receive_some() == b""
                assert await accepting.receive_some() == b""
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_who_closes_says_so_and_says_nothing_more(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    async def test(connecting: TlsStream, accepting: TlsStream) -> None:
        await connecting.send_all(b"bye")
        await connecting.aclose()
        assert await accepting.receive_some() == b"bye"
        assert await accepting.receive_some() == b""
        await accepting.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await accepting.send_all(b"too late")
        with pytest.raises(trio.ClosedResourceError):
            await accepting.receive_some()

    run_with_pair(server_context, client_context, test)


def test_a_client_that_does_not_trust_the_server_says_why(server_context: ssl.SSLContext) -> None:
    failures: dict[str, trio.BrokenResourceError] = {}

    async def shake_hands(name: str, stream: TlsStream) -> None:
        try:
            await stream.do_handshake()
            await stream.receive_some()
        except trio.BrokenResourceError as error:
            failures[name] = error
            await stream.aclose()

    async def main() -> None:
        below, above = trio.testing.memory_stream_pair()
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(shake_hands, "client", TlsStream(below, ssl.create_default_context(), "localhost"))
                nursery.start_soon(shake_hands, "server", TlsStream(above, server_context))

    trio.run(main)
    assert isinstance(failures["client"].__cause__, ssl.SSLCertVerificationError)
    assert "unknown ca" in str(failures["server"]).lower()


def test_behind_a_send_that_was_cancelled_nothing_is_said(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    """A part of a record may be under way: the peer could not understand bytes after it."""

    async def main() -> None:
        below, above = trio.testing.lockstep_stream_pair()
        accepting = TlsStream(above, server_context)
        connecting = TlsStream(below, client_context, "localhost")
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(accepting.do_handshake)
                await connecting.do_handshake()
                nursery.start_soon(connecting.receive_some)  # reads the server's data after the handshake
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(accepting.send_all, b"nobody reads this")
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
            for use in (accepting.send_all(b"more"), accepting.receive_some()):
                with pytest.raises(trio.BrokenResourceError):
                    await use
            await accepting.aclose()  # in a stream in lockstep a word would wait for a reader
            assert scope.cancelled_caught

    trio.run(main)


def test_a_server_that_negotiates_anew_is_answered_though_nothing_else_is_to_be_said(
    tls_1_2: ssl.SSLContext, certificate: Path
) -> None:
    """RabbitMQ does so with TLS 1.2 after many records."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(30)

    def ask() -> bytes:
        peer = TlsPeer(theirs, certificate)
        peer.sock.sendall(peer.renegotiation())
        answer = peer.sock.recv(1)
        peer.close()
        return answer

    async def hear(connecting: TlsStream) -> None:
        await connecting.do_handshake()
        with pytest.raises(trio.BrokenResourceError):  # the peer has hung up
            await connecting.receive_some()

    async def main() -> None:
        below = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        async with below, trio.open_nursery() as nursery:
            nursery.start_soon(hear, TlsStream(below, tls_1_2, "localhost"))
            assert await trio.to_thread.run_sync(ask) == HANDSHAKE_RECORD

    trio.run(main)


@pytest.mark.parametrize("is_heard", [False, True])
def test_what_is_sent_while_a_server_negotiates_anew_waits_for_that(
    tls_1_2: ssl.SSLContext, certificate: Path, is_heard: bool
) -> None:
    async def hear(connecting: TlsStream) -> None:
        assert await connecting.receive_some() == b"the answer"

    async def main() -> None:
        with trio.fail_after(30):
            connecting, far, peer = await connected(tls_1_2, certificate)
            async with connecting, far, trio.open_nursery() as nursery:
                await far.send_all(peer.record(b"the question") + peer.renegotiation())
                assert await connecting.receive_some() == b"the question"
                if is_heard:
                    nursery.start_soon(hear, connecting)
                    await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(connecting.send_all, b"what it is about")
                await trio.testing.wait_all_tasks_blocked()
                heard = b""
                while not heard:
                    heard, words = peer.heard(await far.receive_some())
                    await far.send_all(words)
                assert heard == b"what it is about"
                await far.send_all(peer.record(b"the answer"))
                if not is_heard:
                    await hear(connecting)
        peer.close()

    trio.run(main)


def test_a_server_that_never_ends_its_negotiation_is_not_listened_to_for_ever(
    tls_1_2: ssl.SSLContext, certificate: Path
) -> None:
    """Nothing reads the answers of the peer, and a sender would keep all of them."""

    async def talk(far: trio.SocketStream, peer: TlsPeer) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            while True:
                await far.send_all(peer.record(bytes(RECORD_BYTES)))

    async def main() -> None:
        with trio.fail_after(30):
            connecting, far, peer = await connected(tls_1_2, certificate)
            async with far, trio.open_nursery() as nursery:
                await far.send_all(peer.record(b"the question") + peer.renegotiation())
                assert await connecting.receive_some() == b"the question"
                nursery.start_soon(talk, far, peer)
                with pytest.raises(trio.BrokenResourceError, match="does not continue"):
                    await connecting.send_all(b"what it is about")
                await connecting.aclose()
        peer.close()

    trio.run(main)
