"""The broker at the other end of a link, played by a test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from struct import pack
from typing import Any

import trio
from trio.testing import MockClock, memory_stream_pair

from warren.amqp import methods
from warren.amqp.codec import decode_method, frame, method_frame
from warren.amqp_client.client_errors import BrokerError
from warren.amqp_client.frames import NO_PROPERTIES
from warren.links.address_guard import AddressGuard
from warren.links.amqp_client import Channel, ClientSettings, LinkConnection, connect
from warren.links.amqp_uri import parse_uri

SETTINGS = ClientSettings(AddressGuard(), max_message_bytes=100_000)
START = methods.ConnectionStart(0, 9, {"cluster_name": "peer"}, b"AMQPLAIN PLAIN", b"en_US")


class Peer:
    """The broker's side of one connection."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._buffer = b""
        self.frame_max = 4096

    async def send(self, channel: int, *sent: Any) -> None:
        await self.stream.send_all(b"".join(method_frame(channel, method) for method in sent))

    async def frame(self) -> tuple[int, int, bytes]:
        """Return type, channel and payload of the next frame that is not a heartbeat."""
        while True:
            while len(self._buffer) < 8 or len(self._buffer) < 8 + int.from_bytes(self._buffer[3:7], "big"):
                data = await self.stream.receive_some()
                assert data, "the client closed the connection"
                self._buffer += data
            size = int.from_bytes(self._buffer[3:7], "big")
            kind, channel = self._buffer[0], int.from_bytes(self._buffer[1:3], "big")
            payload, self._buffer = self._buffer[7 : 7 + size], self._buffer[8 + size :]
            if kind != methods.FRAME_HEARTBEAT:
                return kind, channel, payload

    async def expect(self, wanted: type[Any]) -> Any:
        _, _, payload = await self.frame()
        method = decode_method(payload, 0, len(payload))
        assert isinstance(method, wanted), method
        return method

    async def log_in(self) -> methods.ConnectionStartOk:
        """Play the handshake up to open-ok."""
        while len(self._buffer) < 8:
            self._buffer += await self.stream.receive_some()
        assert self._buffer[:8] == methods.PROTOCOL_HEADER
        self._buffer = self._buffer[8:]
        await self.send(0, START)
        ok: methods.ConnectionStartOk = await self.expect(methods.ConnectionStartOk)
        await self.send(0, methods.ConnectionTune(100, self.frame_max, 60))
        await self.expect(methods.ConnectionTuneOk)
        await self.expect(methods.ConnectionOpen)
        await self.send(0, methods.ConnectionOpenOk(""))
        return ok

    async def serve_channel(self) -> None:
        await self.expect(methods.ChannelOpen)
        await self.send(1, methods.ChannelOpenOk(b""))

    async def deliver(self, tag: int, body: bytes, announced: int | None = None) -> None:
        """Send a message on channel 1, its body cut to the frame size."""
        header = pack(">HHQ", 60, 0, len(body) if announced is None else announced) + NO_PROPERTIES
        parts = [frame(1, 1, method_payload(methods.BasicDeliver("t", tag, False, "x", "k"))), frame(2, 1, header)]
        room = self.frame_max - 8
        parts += [frame(3, 1, body[at : at + room]) for at in range(0, len(body), room)]
        await self.stream.send_all(b"".join(parts))


def method_payload(method: Any) -> bytes:
    return method_frame(0, method)[7:-1]


Client = Callable[[LinkConnection, Channel], Awaitable[None]]
Script = Callable[[Peer], Awaitable[None]]


def answered(
    nursery: trio.Nursery, ours: trio.abc.Stream, theirs: trio.abc.Stream, script: Script
) -> Callable[[], Awaitable[trio.abc.Stream]]:
    """Make a peer follow `script` over `theirs` once a channel is open; return a function that opens `ours`."""

    async def open_local() -> trio.abc.Stream:
        return ours

    async def serve() -> None:
        peer = Peer(theirs)
        await peer.log_in()
        await peer.serve_channel()
        await script(peer)

    nursery.start_soon(serve)
    return open_local


def play(script: Script, client: Client, uri: str = "amqp://u:s3cret@?heartbeat=0", *, clock: bool = False) -> None:
    """Run `client` with an open channel against a peer that follows `script` once the channel is open."""

    async def main() -> None:
        ours, theirs = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            open_local = answered(nursery, ours, theirs, script)
            connection = await connect(nursery, parse_uri(uri), SETTINGS, "test", open_local)
            channel = await connection.open_channel()
            try:
                await client(connection, channel)
            finally:
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):  # or what `client` raises would be lost in the cancellation
                    await trio.aclose_forcefully(ours)

    trio.run(main, clock=MockClock(autojump_threshold=0) if clock else None)


async def silence(peer: Peer) -> None:
    await trio.sleep_forever()


async def fails(channel: Channel) -> BrokerError:
    """Wait until the channel has failed and return why."""
    while True:
        try:
            channel.check()
        except BrokerError as error:
            return error
        await channel.changed.wait()
