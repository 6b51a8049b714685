"""A peer on a plain socket, spoken with pika's own codec, for what no well-behaved client would send.

1. `expect` returns the next method and fails on any other; heartbeats are skipped unless asked for.
2. Everything the broker sent is decoded by pika, so an undecodable frame fails the test.
"""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, Self, TypeVar

from pika import amqp_object, frame, spec

from ..broker import DEADLINE_S, Broker

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"

Closing = tuple[int | None, str, tuple[int | None, int | None]]

M = TypeVar("M", bound=amqp_object.Method)


class Ended(Exception):
    """The broker closed the socket."""


class WireClient:
    """One TCP connection to the broker and the frames on it; `opened` is a socket that is connected already."""

    def __init__(self, broker: Broker, opened: socket.socket | None = None) -> None:
        self._broker = broker
        self.socket = opened or socket.create_connection((broker.host, broker.port), timeout=DEADLINE_S)
        # Two small frames in a row would wait for a delayed acknowledgement of the first.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket without a word."""
        self.socket.close()

    # sending

    def send_bytes(self, octets: bytes) -> None:
        """Send octets as they are."""
        self.socket.sendall(octets)

    def send(self, channel_number: int, method: amqp_object.Method) -> None:
        """Send one method frame."""
        self.send_bytes(frame.Method(channel_number, method).marshal())

    def send_header(self, channel_number: int, body_size: int, properties: spec.BasicProperties | None = None) -> None:
        """Send a content header announcing `body_size` octets."""
        self.send_bytes(frame.Header(channel_number, body_size, properties or spec.BasicProperties()).marshal())

    def send_body(self, channel_number: int, fragment: bytes) -> None:
        """Send one body frame."""
        self.send_bytes(frame.Body(channel_number, fragment).marshal())

    # receiving

    def read_exactly(self, size: int) -> bytes:
        """Return the next `size` octets, not cut into frames."""
        while len(self._received) < size:
            self._read_more()
        octets, self._received = self._received[:size], self._received[size:]
        return octets

    def next_frame(self) -> frame.Frame | frame.ProtocolHeader:
        """Return the next frame, heartbeats included; raise Ended when the broker hung up."""
        while True:
            consumed, decoded = frame.decode_frame(self._received)
            if decoded is not None:
                self._received = self._received[consumed:]
                return decoded
            self._read_more()

    def _read_more(self) -> None:
        try:
            octets = self.socket.recv(65536)
        except ConnectionResetError:
            octets = b""
        if not octets:
            raise Ended
        self._received += octets

    def expect(self, kind: type[M], channel_number: int) -> M:
        """Return the next method, which must be of `kind` on `channel_number`."""
        while True:
            got = self.next_frame()
            if isinstance(got, frame.Heartbeat):
                continue
            assert isinstance(got, frame.Method), f"expected {kind.NAME}, got {got!r}"
            assert isinstance(got.method, kind), f"expected {kind.NAME}, got {got.method!r}"
            assert got.channel_number == channel_number
            return got.method

    def expect_connection_close(self) -> Closing:
        """Return code, text and failing (class id, method id) of the connection.close, and answer it."""
        close = self.expect(spec.Connection.Close, 0)
        self.send(0, spec.Connection.CloseOk())
        return close.reply_code, str(close.reply_text), (close.class_id, close.method_id)

    def expect_channel_close(self, channel_number: int) -> Closing:
        """Return code, text and failing (class id, method id) of the channel.close, and answer it."""
        close = self.expect(spec.Channel.Close, channel_number)
        self.send(channel_number, spec.Channel.CloseOk())
        return close.reply_code, str(close.reply_text), (close.class_id, close.method_id)

    def expect_end(self) -> None:
        """Expect the broker to hang up without another method."""
        try:
            while True:
                got = self.next_frame()
                assert isinstance(got, frame.Heartbeat), f"expected the end of the connection, got {got!r}"
        except Ended:
            return

    # the handshake, whole or in steps

    def start(self) -> spec.Connection.Start:
        """Send the protocol header; return connection.start."""
        self.send_bytes(PROTOCOL_HEADER)
        return self.expect(spec.Connection.Start, 0)

    def start_ok(
        self,
        capabilities: dict[str, bool] | None = None,
        mechanism: str = "PLAIN",
        response: bytes | None = None,
        properties: dict[str, Any] | None = None,
    ) -> None:
        """Answer connection.start, by default with the broker's user over PLAIN."""
        plain = b"\0" + self._broker.username.encode() + b"\0" + self._broker.password.encode()
        client_properties: dict[str, Any] = {"product": "a socket", **(properties or {})}
        if capabilities is not None:
            client_properties["capabilities"] = capabilities
        # pika writes the response as a long string from text, so the octets pass through latin-1
        text = plain if response is None else response
        self.send(0, spec.Connection.StartOk(client_properties, mechanism, text.decode("latin-1"), "en_US"))

    def tune(
        self, frame_max: int | None = None, channel_max: int | None = None, heartbeat: int = 0
    ) -> spec.Connection.Tune:
        """Answer connection.tune with its own values unless told otherwise; return what the broker offered."""
        offered = self.expect(spec.Connection.Tune, 0)
        self.send(
            0,
            spec.Connection.TuneOk(
                offered.channel_max if channel_max is None else channel_max,
                offered.frame_max if frame_max is None else frame_max,
                heartbeat,
            ),
        )
        return offered

    def open_vhost(self, vhost: str | None = None) -> None:
        """Send connection.open and expect open-ok."""
        self.send(0, spec.Connection.Open(self._broker.vhost if vhost is None else vhost))
        self.expect(spec.Connection.OpenOk, 0)

    def handshake(
        self,
        capabilities: dict[str, bool] | None = None,
        frame_max: int | None = None,
        channel_max: int | None = None,
        heartbeat: int = 0,
    ) -> None:
        """Go from the protocol header to an open connection."""
        self.start()
        self.start_ok(capabilities)
        self.tune(frame_max, channel_max, heartbeat)
        self.open_vhost()

    def open_channel(self, channel_number: int = 1) -> None:
        """Open a channel."""
        self.send(channel_number, spec.Channel.Open())
        self.expect(spec.Channel.OpenOk, channel_number)

    def declare_exclusive(self, queue: str, channel_number: int = 1) -> None:
        """Declare an exclusive queue, gone when the socket is."""
        self.send(channel_number, spec.Queue.Declare(queue=queue, exclusive=True))
        self.expect(spec.Queue.DeclareOk, channel_number)

    def end(self) -> None:
        """Close the connection as a polite client does."""
        self.send(0, spec.Connection.Close(200, "bye", 0, 0))
        self.expect(spec.Connection.CloseOk, 0)
