"""Actions of a hostile broker at the other end of a link: they must not make the links hold data without bound."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from link_peer import SETTINGS, Peer, answered, fails, play
from trio.testing import MockClock, memory_stream_pair

from warren.amqp import methods
from warren.amqp_client.client_errors import BrokerError
from warren.amqp_client.connection import ANSWERS_MAX, SEND_BYTES, Login
from warren.amqp_client.frames import NO_PROPERTIES
from warren.links import inbound as inbound_module
from warren.links.address_guard import AddressGuard
from warren.links.amqp_client import OUTBOX_BYTES, Channel, ClientSettings, LinkConnection, connect
from warren.links.amqp_uri import parse_uri
from warren.links.inbound import PROGRESS_BYTES, STALL_S, Inbound
from warren.links.starts import Ends


def test_a_peer_that_takes_tiny_frames_only_is_refused() -> None:
    async def main() -> None:
        ours, theirs = memory_stream_pair()

        async def open_local() -> trio.abc.Stream:
            return ours

        peer = Peer(theirs)
        peer.frame_max = 23

        async def serve() -> None:
            with pytest.raises(AssertionError, match="the client closed the connection"):
                await peer.log_in()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            with pytest.raises(BrokerError, match="takes frames of 23 bytes; 4096 are the least"):
                await connect(nursery, parse_uri("amqp://"), SETTINGS, "test", open_local)

    trio.run(main, clock=MockClock())


def test_a_large_message_is_sent_in_parts_and_not_copied_before() -> None:
    body = bytes(range(256)) * 40_000  # 10 MB

    async def client(connection: LinkConnection, channel: Channel) -> None:
        channel.publish("", "q", NO_PROPERTIES, body)
        pieces = list(connection._out)
        assert sum(isinstance(piece, memoryview) for piece in pieces) > 1000, "views of the body, not copies"
        await connection.flushed()
        await has_come.wait()

    received = bytearray()
    has_come = trio.Event()

    async def script(peer: Peer) -> None:
        await peer.expect(methods.BasicPublish)
        kind, _, _ = await peer.frame()
        assert kind == methods.FRAME_HEADER
        while len(received) < len(body):
            kind, _, payload = await peer.frame()
            assert kind == methods.FRAME_BODY
            received.extend(payload)
        has_come.set()

    assert SEND_BYTES <= OUTBOX_BYTES
    play(script, client)
    assert received == body


def test_a_peer_may_cancel_only_consumers_that_there_are() -> None:
    async def client(connection: LinkConnection, channel: Channel) -> None:
        assert await channel.consume("q") == "t"
        await channel.changed.wait()
        assert channel.cancelled == {"t"}
        assert "cancelled a consumer that it has not got" in str(await fails(channel))

    async def script(peer: Peer) -> None:
        await peer.expect(methods.BasicConsume)
        # In one piece: the cancel is there before the task that consumes has its turn.
        await peer.send(1, methods.BasicConsumeOk("t"), methods.BasicCancel("t", no_wait=True))
        await trio.testing.wait_all_tasks_blocked()
        await peer.send(1, methods.BasicCancel("another", no_wait=True))

    play(script, client)


def test_a_peer_that_asks_for_answers_and_takes_none_is_given_up() -> None:
    async def client(connection: LinkConnection, channel: Channel) -> None:
        assert f"asks for more than {ANSWERS_MAX} answers" in str(await fails(channel))

    async def script(peer: Peer) -> None:
        await peer.send(1, *[methods.ChannelFlow(active=True)] * (ANSWERS_MAX + 1))

    play(script, client)


def test_a_peer_that_stops_within_a_message_is_given_up() -> None:
    async def client(connection: LinkConnection, channel: Channel) -> None:
        began = trio.current_time()
        assert f"stopped within a message for {STALL_S:.0f} s" in str(await fails(channel))
        assert trio.current_time() - began == pytest.approx(STALL_S, abs=1)
        assert connection.partial_bytes == connection._inbound.held_bytes == 0

    async def script(peer: Peer) -> None:
        await peer.deliver(1, bytes(5000), announced=90_000)
        await trio.sleep_forever()

    play(script, client, clock=True)


def test_a_link_that_waits_for_its_turn_to_read_keeps_its_connection_and_a_trickle_does_not_hold_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both peers are alive. One sends a byte of its message every now and then while it holds too much."""
    monkeypatch.setattr(inbound_module, "HELD_MAX_BYTES", 1000)

    async def main() -> None:
        inbound = Inbound()
        settings = ClientSettings(AddressGuard(), max_message_bytes=100_000, inbound=inbound)
        streams: list[trio.abc.Stream] = []

        async with trio.open_nursery() as nursery:

            async def link(then: Callable[[Peer], Awaitable[None]]) -> Channel:
                ours, theirs = memory_stream_pair()
                streams.append(ours)
                open_local = answered(nursery, ours, theirs, then)
                connection = await connect(nursery, parse_uri("amqp://?heartbeat=5"), settings, "test", open_local)
                return await connection.open_channel()

            async def trickle(peer: Peer) -> None:
                await peer.deliver(1, bytes(2000), announced=100_000)
                while True:
                    await trio.sleep(1)
                    try:
                        await peer.stream.send_all(b"\x03\x00\x01\x00\x00\x00\x01x\xce")
                    except trio.BrokenResourceError:
                        return

            async def deliver(peer: Peer) -> None:
                await trio.sleep(1)
                await peer.deliver(1, bytes(600), announced=601)
                await peer.stream.send_all(b"\x03\x00\x01\x00\x00\x00\x01x\xce")
                while True:
                    await trio.sleep(1)
                    await peer.stream.send_all(methods.HEARTBEAT_FRAME)

            slow, other = await link(trickle), await link(deliver)
            assert "stopped within a message" in str(await fails(slow))
            while not other.deliveries:
                other.check()
                await other.changed.wait()
            assert inbound.held_bytes == 0
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                for stream in streams:
                    await trio.aclose_forcefully(stream)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_small_message_does_not_wait_for_large_ones_that_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers of one user can have the turns of large messages among themselves."""
    monkeypatch.setattr(inbound_module, "HELD_MAX_BYTES", 1000)

    async def main() -> None:
        inbound = Inbound()
        large, other, small = (LinkConnection(memory_stream_pair()[0], "a", Login(), 1, Ends()) for _ in range(3))
        inbound.grown(large, 2000)
        inbound.grown(other, 1500)
        assert inbound.progress_bytes(small) == 1
        for _ in range(4):
            assert not await inbound.turn(small)
            inbound.grown(small, 100)
        with trio.move_on_after(1) as waiting:
            await inbound.turn(small)
        assert waiting.cancelled_caught, "it has an equal share"
        assert not await inbound.turn(large)
        assert inbound.progress_bytes(large) == PROGRESS_BYTES and inbound.progress_bytes(small) == 1
        inbound.completed(large, 2000)
        assert not await inbound.turn(other)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_links_together_hold_little_more_than_the_limit_and_one_after_the_other_completes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``inbound.py`` (2)"""
    limit, count, size = 100_000, 8, 80_000
    monkeypatch.setattr(inbound_module, "HELD_MAX_BYTES", limit)
    inbound = Inbound()
    settings = ClientSettings(AddressGuard(), max_message_bytes=100_000, inbound=inbound)
    held: list[int] = []
    done: list[int] = []
    streams: list[trio.abc.Stream] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:

            async def link(number: int) -> None:
                ours, theirs = memory_stream_pair()
                streams.append(ours)

                async def open_local() -> trio.abc.Stream:
                    return ours

                peer = Peer(theirs)

                async def serve() -> None:
                    await peer.log_in()
                    await peer.serve_channel()
                    half = bytes(size // 2)
                    await peer.deliver(1, half, announced=size)
                    await trio.sleep(1)  # all of them have begun
                    room = peer.frame_max - 8
                    for at in range(0, len(half), room):
                        part = half[at : at + room]
                        await theirs.send_all(b"\x03\x00\x01" + len(part).to_bytes(4, "big") + part + b"\xce")

                nursery.start_soon(serve)
                connection = await connect(nursery, parse_uri("amqp://?heartbeat=0"), settings, "test", open_local)
                channel = await connection.open_channel()
                while not channel.deliveries:
                    held.append(inbound.held_bytes)
                    channel.check()
                    await channel.changed.wait()
                done.append(number)
                assert len(channel.take_deliveries()[0].body) == size

            for number in range(count):
                nursery.start_soon(link, number)
            while len(done) < count:
                held.append(inbound.held_bytes)
                await trio.sleep(0.1)
            for stream in streams:
                await trio.aclose_forcefully(stream)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert inbound.held_bytes == 0
    assert max(held) < count * size, "not all of them at once"
