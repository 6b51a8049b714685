"""The client of links against a peer that the test plays: its requests, accepted and refused answers."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from link_peer import SETTINGS, Peer, Script, answered, fails, play, silence
from tls_peer import TlsPeer
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair

from warren.amqp import methods
from warren.amqp.codec import frame, method_frame
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.field_table import EMPTY_TABLE, Table
from warren.amqp_client.channel import ClientChannel
from warren.amqp_client.client_errors import BrokerError, PeerClosed
from warren.amqp_client.connection import ClientConnection, Login
from warren.amqp_client.frames import NO_PROPERTIES
from warren.links.address_guard import AddressGuard, networks
from warren.links.amqp_client import (
    INBOX_BYTES,
    READ_MAX_BYTES,
    READ_MIN_BYTES,
    Channel,
    ClientSettings,
    LinkConnection,
    connect,
)
from warren.links.amqp_uri import parse_uri
from warren.server import host_names
from warren.server.network.tls_records import EMPTY_MAX
from warren.server.network.tls_session import TlsSession
from warren.server.threads import LIMITS, NAMES


def handshake(script: Script, uri: str = "amqp://u:s3cret@") -> None:
    async def main() -> None:
        ours, theirs = memory_stream_pair()

        async def open_local() -> trio.abc.Stream:
            return ours

        failure: BrokerError | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(script, Peer(theirs))
            try:
                await connect(nursery, parse_uri(uri), SETTINGS, "test", open_local)
            except BrokerError as error:
                failure = error
            nursery.cancel_scope.cancel()
            await trio.aclose_forcefully(ours)
        if failure is not None:
            raise failure

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_it_logs_in_with_plain_and_says_its_name() -> None:
    seen: list[methods.ConnectionStartOk] = []

    async def script(peer: Peer) -> None:
        seen.append(await peer.log_in())

    handshake(script)
    (ok,) = seen
    assert (ok.mechanism, ok.response) == ("PLAIN", b"\0u\0s3cret")
    assert ok.client_properties["connection_name"] == "test"
    capabilities = ok.client_properties["capabilities"]
    assert isinstance(capabilities, dict) and capabilities["connection.blocked"] is True


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "closed the connection without giving a reason"),
        (b"AMQP\x00\x01\x00\x00", "does not speak AMQP"),
        (frame(1, 0, b"\x00\x0a\x00\x0a\x00"), "malformed"),
    ],
)
def test_a_handshake_that_goes_wrong_ends_with_a_reason(answer: bytes, text: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.stream.send_all(answer)
        if not answer:
            await peer.stream.aclose()

    with pytest.raises(BrokerError) as failure:
        handshake(script)
    assert text in str(failure.value)
    assert "s3cret" not in str(failure.value)


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("amqp://a..b", "cannot resolve a..b:5672: not a host name"),
        ("amqp://" + "%C3%A9" * 64, "not a host name"),
        ("amqps://127.0.0.1:{port}?server_name_indication=", "its server name is not a host name"),
        ("amqps://127.0.0.1:{port}?server_name_indication=.h", "its server name is not a host name"),
        ("amqps://127.0.0.1:{port}?server_name_indication=" + "%C3%A9" * 64, "its server name is not a host name"),
    ],
)
def test_a_name_that_is_none_is_an_error_of_that_uri_and_no_fault_of_the_link(uri: str, text: str) -> None:
    settings = ClientSettings(AddressGuard(networks(["127.0.0.0/8"])), resolve=host_names.resolve)

    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with listener, trio.open_nursery() as nursery:
            port = listener.socket.getsockname()[1]
            with pytest.raises(BrokerError, match=text):
                await connect(nursery, parse_uri(uri.format(port=port)), settings, "test")

    trio.run(main)


def test_names_that_are_not_answered_take_no_threads_that_others_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections to other nodes and to etcd resolve names in trio's threads."""
    answered, asked = threading.Event(), threading.Semaphore(0)
    look_up = socket.getaddrinfo

    def getaddrinfo(host: str | bytes, port: int, *rest: int, **more: int) -> Any:
        if isinstance(host, str):
            return look_up(host, port, *rest, **more)
        asked.release()
        answered.wait()
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    settings = ClientSettings(AddressGuard(), resolve=host_names.resolve)
    count = trio.to_thread.current_default_thread_limiter

    async def main() -> None:
        gone = 0
        async with trio.open_nursery() as nursery:

            async def link(name: str) -> None:
                nonlocal gone
                with pytest.raises(BrokerError, match="cannot resolve"):
                    await connect(nursery, parse_uri(f"amqp://{name}.example"), settings, "test")
                gone += 1

            for number in range(100):
                nursery.start_soon(link, f"host{number}")
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(LIMITS[NAMES]):
                asked.acquire(timeout=60)
            try:
                assert count().borrowed_tokens == 0
                assert not asked.acquire(blocking=False)
            finally:
                answered.set()
        assert gone == 100

    trio.run(main)


def test_names_of_one_vhost_that_are_not_answered_delay_those_of_another_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The links of the first vhost are there again as soon as they have failed."""
    answers, asked = threading.Semaphore(0), threading.Semaphore(0)
    looked: list[bytes] = []

    def getaddrinfo(host: str | bytes, port: int, *rest: int, **more: int) -> Any:
        if isinstance(host, bytes):
            looked.append(host)
            asked.release()
            answers.acquire()
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    async def look_up(vhost: str, host: str) -> None:
        with pytest.raises(OSError, match="unknown"):
            await host_names.resolve(vhost, host, 5672)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(10 * LIMITS[NAMES]):
                nursery.start_soon(look_up, "hostile", "slow.example")
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(LIMITS[NAMES]):
                assert asked.acquire(timeout=60)
            nursery.start_soon(look_up, "other", "quick.example")
            await trio.testing.wait_all_tasks_blocked()
            answers.release(2)
            for _ in range(2):
                assert await trio.to_thread.run_sync(partial(asked.acquire, timeout=60))
            assert sorted(looked[LIMITS[NAMES] :]) == [b"quick.example", b"slow.example"]
            answers.release(10 * LIMITS[NAMES])

    trio.run(main)


def test_of_very_many_mechanisms_a_reason_names_a_few() -> None:
    async def script(peer: Peer) -> None:
        await peer.stream.receive_some()
        await peer.send(0, methods.ConnectionStart(0, 9, {}, b" ".join([b"STRANGE"] * 10_000), b"en_US"))

    with pytest.raises(BrokerError, match=r"offers STRANGE STRANGE .* to use PLAIN") as refusal:
        handshake(script)
    assert len(str(refusal.value)) < 300


def test_a_peer_that_says_nothing_is_given_up_after_the_connection_timeout() -> None:
    with pytest.raises(BrokerError, match="did not accept a connection in 1500 ms"):
        handshake(silence, "amqp://?connection_timeout=1500")


def test_a_peer_that_wants_a_certificate_of_the_link_is_quoted() -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    settings = ClientSettings(AddressGuard(networks(["127.0.0.0/8"])))

    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        session = TlsSession(context)
        with listening.accept()[0] as sock:
            with contextlib.suppress(ssl.SSLError):
                while not session.handshake(sock.recv(1 << 16)):
                    sock.sendall(session.outgoing())
            sock.sendall(session.outgoing())
            while sock.recv(1 << 16):
                pass

    async def main() -> None:
        uri = parse_uri(f"amqps://127.0.0.1:{listening.getsockname()[1]}?verify=verify_none")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, serve)
            with pytest.raises(BrokerError, match=r"was lost during the handshake: .*CERTIFICATE_REQUIRED"):
                await connect(nursery, uri, settings, "test")

    with listening:
        trio.run(main)


def test_a_peer_that_asks_for_new_keys_again_and_again_is_given_up(tmp_path: Path) -> None:
    certificate = tmp_path / "server.pem"
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(certificate)
    settings = ClientSettings(AddressGuard(networks(["127.0.0.0/8"])))
    listening = socket.create_server(("127.0.0.1", 0))
    left = threading.Event()

    def serve() -> None:
        peer = TlsPeer(listening.accept()[0], certificate)
        peer.sock.sendall(peer.key_updates(2 * EMPTY_MAX))
        left.wait()
        peer.close()

    async def main() -> None:
        uri = parse_uri(f"amqps://127.0.0.1:{listening.getsockname()[1]}?verify=verify_none&connection_timeout=20000")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, serve)
            try:
                with pytest.raises(BrokerError, match="was lost"):
                    await connect(nursery, uri, settings, "test")
            finally:
                left.set()

    with listening:
        trio.run(main)


def test_a_message_in_many_frames_is_put_together_and_acked() -> None:
    body = bytes(range(256)) * 100

    async def script(peer: Peer) -> None:
        await peer.deliver(7, body)
        await peer.deliver(8, b"")
        ack = await peer.expect(methods.BasicAck)
        assert ack == methods.BasicAck(8, True)
        await peer.send(1, methods.ChannelClose(406, "PRECONDITION_FAILED - seen", 60, 80))

    async def client(connection: LinkConnection, channel: Channel) -> None:
        while len(channel.deliveries) < 2:
            await channel.changed.wait()
        first, second = channel.take_deliveries()
        assert (first.delivery_tag, first.exchange, first.routing_key, first.body) == (7, "x", "k", body)
        assert (second.delivery_tag, second.body, connection.inbox_bytes) == (8, b"", 0)
        channel.ack(8, multiple=True)
        error = await fails(channel)
        assert isinstance(error, PeerClosed) and (error.scope, error.reply_code) == ("channel", 406)
        connection.check()

    play(script, client)


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"capabilities": {"basic.nack": True}}, methods.BasicNack(7, multiple=False, requeue=True)),
        ({"capabilities": {"basic.nack": False}}, methods.BasicReject(7, requeue=True)),
        ({"capabilities": "all"}, methods.BasicReject(7, requeue=True)),
        ({}, methods.BasicReject(7, requeue=True)),
    ],
)
def test_a_message_that_goes_back_has_not_failed(properties: Table, said: object) -> None:
    """A basic.reject counts towards the delivery limit of a quorum queue, which drops the message there."""
    connection = ClientConnection("a broker", Login(), 1000)
    connection.server_properties = properties
    ClientChannel(connection, 1).requeue(7)
    assert connection.take_output() == method_frame(1, said)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (frame(9, 1, b""), "unknown type 9"),
        (frame(1, 1, b"\x00\x63\x00\x63"), "malformed"),
        (method_frame(0, methods.ConnectionTune(0, 0, 0)), "connection.tune unasked"),
    ],
)
def test_a_peer_that_breaks_the_protocol_is_left_with_a_reason(sent: bytes, text: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.stream.send_all(sent)

    async def client(connection: LinkConnection, channel: Channel) -> None:
        assert text in str(await fails(channel))

    play(script, client)


def test_no_more_is_read_than_fits_until_deliveries_are_taken() -> None:
    count = INBOX_BYTES // 90_000 + 20
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        for tag in range(1, count + 1):
            await peer.deliver(tag, bytes(90_000))
            sent = tag

    async def client(connection: LinkConnection, channel: Channel) -> None:
        while connection.inbox_bytes <= INBOX_BYTES:
            await channel.changed.wait()
        await trio.testing.wait_all_tasks_blocked()
        held = connection.inbox_bytes
        assert held <= INBOX_BYTES + 5 * 100_000
        taken = len(channel.take_deliveries())
        while taken < count:
            await channel.changed.wait()
            taken += len(channel.take_deliveries())
        assert connection.inbox_bytes == 0

    play(script, client)
    assert sent == count


class Measured(trio.abc.Stream):
    """A stream that remembers how much was asked for at a time."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.asked: list[int] = []

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        assert max_bytes is not None
        self.asked.append(max_bytes)
        return await self._stream.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


def test_of_small_frames_less_is_read_at_a_time_for_each_takes_a_while() -> None:
    async def main() -> None:
        plain, theirs = memory_stream_pair()
        ours = Measured(plain)

        async def open_local() -> trio.abc.Stream:
            return ours

        peer = Peer(theirs)
        peer.frame_max = 131072
        settings = ClientSettings(AddressGuard())

        async def log_in() -> None:
            await peer.log_in()
            await peer.serve_channel()

        async def delivered(channel: Channel) -> None:
            while not channel.take_deliveries():
                await channel.changed.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(log_in)
            connection = await connect(nursery, parse_uri("amqp://u:p@?heartbeat=0"), settings, "test", open_local)
            channel = await connection.open_channel()
            assert set(ours.asked) == {READ_MIN_BYTES}
            await peer.deliver(1, bytes(1 << 20))
            await delivered(channel)
            assert ours.asked[-1] == READ_MAX_BYTES
            await theirs.send_all(methods.HEARTBEAT_FRAME * (1 << 16))
            await peer.deliver(2, b"")
            await delivered(channel)
            assert ours.asked[-1] == READ_MIN_BYTES
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(ours)

    trio.run(main)


def test_publishing_waits_while_the_peer_is_blocked() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(0, methods.ConnectionBlocked("low on memory"))
        await trio.testing.wait_all_tasks_blocked()
        await peer.send(0, methods.ConnectionUnblocked())

    async def client(connection: LinkConnection, channel: Channel) -> None:
        while connection.blocked_reason is None:
            await connection.changed.wait()
        assert connection.blocked_reason == "low on memory"
        await connection.writable()
        assert connection.blocked_reason is None

    play(script, client)


def test_the_close_of_the_connection_reaches_every_call_with_code_and_text() -> None:
    text = "CONNECTION_FORCED - amqp://u:s3cret@h is gone"

    async def script(peer: Peer) -> None:
        await peer.expect(methods.QueueDeclare)
        await peer.send(0, methods.ConnectionClose(320, text, 0, 0))
        await peer.expect(methods.ConnectionCloseOk)

    async def client(connection: LinkConnection, channel: Channel) -> None:
        with pytest.raises(PeerClosed) as failure:
            await channel.declare_queue(QueueDeclaration("q", durable=True))
        assert str(failure.value) == "this broker closed the connection: 320 CONNECTION_FORCED - amqp://h is gone"
        for call in (lambda: channel.publish("", "q", NO_PROPERTIES, b""), lambda: channel.ack(1)):
            with pytest.raises(PeerClosed):
                call()
        with pytest.raises(PeerClosed):
            await connection.writable()
        await connection.close()

    play(script, client)


def test_what_is_being_sent_and_close_ok_reach_a_peer_that_closes_and_reads_late() -> None:
    async def main() -> None:
        ours, theirs = lockstep_stream_pair()  # bytes that are sent wait for their reader

        async def script(peer: Peer) -> None:
            await peer.send(0, methods.ConnectionClose(320, "gone", 0, 0))
            await trio.testing.wait_all_tasks_blocked()
            await peer.expect(methods.BasicPublish)
            for kind in (methods.FRAME_HEADER, methods.FRAME_BODY):
                assert (await peer.frame())[0] == kind
            await peer.expect(methods.ConnectionCloseOk)

        async with trio.open_nursery() as nursery:
            open_local = answered(nursery, ours, theirs, script)
            async with trio.open_nursery() as link:
                connection = await connect(link, parse_uri("amqp://"), SETTINGS, "test", open_local)
                channel = await connection.open_channel()
                channel.publish("", "q", NO_PROPERTIES, b"body")
                while connection.failure is None:
                    await connection.changed.wait()
                assert isinstance(connection.failure, PeerClosed)
                await connection.close()
                link.cancel_scope.cancel()

    trio.run(main)


def test_a_link_that_is_cancelled_sends_its_acks_and_says_goodbye() -> None:
    heard: list[object] = []

    async def main() -> None:
        ours, theirs = memory_stream_pair()

        async def open_local() -> trio.abc.Stream:
            return ours

        async def serve() -> None:
            peer = Peer(theirs)
            await peer.log_in()
            await peer.serve_channel()
            heard.append(await peer.expect(methods.BasicAck))
            heard.append(await peer.expect(methods.ConnectionClose))
            await peer.send(0, methods.ConnectionCloseOk())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            began = trio.current_time()
            async with trio.open_nursery() as link:
                connection = await connect(link, parse_uri("amqp://"), SETTINGS, "test", open_local)
                channel = await connection.open_channel()
                try:
                    channel.ack(7)
                    link.cancel_scope.cancel()
                    await trio.sleep_forever()
                finally:
                    await connection.close()
                    heard.append("closed")
            assert trio.current_time() == began, "nobody waited for an answer that could not be read"

    trio.run(main, clock=MockClock())
    assert heard[0] == methods.BasicAck(7, False)
    assert heard[2:] == ["closed"], "who closes it comes to close others"


def test_a_peer_that_falls_silent_is_given_up_after_two_heartbeats() -> None:
    async def client(connection: LinkConnection, channel: Channel) -> None:
        began = trio.current_time()
        assert "missed heartbeats" in str(await fails(channel))
        assert 10 < trio.current_time() - began < 16

    async def listen(peer: Peer) -> None:
        await peer.frame()

    play(listen, client, "amqp://?heartbeat=5", clock=True)


def test_heartbeats_of_the_peer_keep_the_connection_and_ours_go_out() -> None:
    heard = 0

    async def script(peer: Peer) -> None:
        nonlocal heard
        for _ in range(10):
            await peer.stream.send_all(methods.HEARTBEAT_FRAME)
            await trio.sleep(4)
            heard += (await peer.stream.receive_some()).count(methods.HEARTBEAT_FRAME)

    async def client(connection: LinkConnection, channel: Channel) -> None:
        await trio.sleep(39)
        connection.check()

    play(script, client, "amqp://?heartbeat=5", clock=True)
    assert heard >= 10


def test_a_request_that_is_never_answered_fails() -> None:
    async def listen(peer: Peer) -> None:
        while True:
            await peer.frame()

    async def client(connection: LinkConnection, channel: Channel) -> None:
        with pytest.raises(BrokerError, match=r"did not answer basic\.qos in 60 s"):
            await channel.qos(5)

    play(listen, client, clock=True)


def test_arguments_are_an_encoded_table() -> None:
    async def script(peer: Peer) -> None:
        declare = await peer.expect(methods.QueueDeclare)
        assert (declare.durable, declare.passive, declare.arguments) == (True, False, EMPTY_TABLE)
        await peer.send(1, methods.QueueDeclareOk("q", 5, 0))

    async def client(connection: LinkConnection, channel: Channel) -> None:
        assert (await channel.declare_queue(QueueDeclaration("q", durable=True))).message_count == 5

    play(script, client)
