"""A client's connection over a blocking socket: one request after the other on channel 1.

1. The handshake goes in steps (`greet`, `advance`), so that many connections can be opened in waves.
2. Bytes received beyond the awaited reply stay in `leftover`; the next owner of the socket starts with them.
3. Heartbeats are agreed on, and not sent: the owner of the connection does that if it asks for them.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final, Self, TypeVar

from warren.amqp import methods
from warren.amqp.codec import decode_method, method_frame
from warren.amqp.errors import AmqpError
from warren.amqp_client import frames
from warren.amqp_client.channel import method_name
from warren.amqp_client.client_errors import BrokerError, PeerClosed
from warren.amqp_client.connection import ClientConnection, Login, State

CHANNEL: Final = 1
REPLY_TIMEOUT_S: Final = 60.0
CLOSE_TIMEOUT_S: Final = 5.0
_MESSAGE_MAX_BYTES: Final = 1 << 31
_RECEIVE_BYTES: Final = 65536

M = TypeVar("M")


def open_socket(host: str, port: int, *, timeout_s: float = REPLY_TIMEOUT_S, source: str = "") -> socket.socket:
    """Connect to a broker; `source`: the own address that the connection comes from, "" for the usual one.

    Raises:
        BrokerError: that failed.
    """
    try:
        sock = socket.create_connection((host, port), timeout_s, (source, 0) if source else None)
    except ConnectionRefusedError:
        raise BrokerError(f"nothing listens on {host}:{port}") from None
    except OSError as error:
        raise BrokerError(f"cannot reach {host}:{port}: {error.strerror or error}") from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class BlockingConnection(ClientConnection):
    """A connection over `sock`, whose timeout is the patience of each call. Use it as a context manager, or `close`."""

    def __init__(self, sock: socket.socket, where: str, login: Login) -> None:
        super().__init__(where, login, _MESSAGE_MAX_BYTES)
        self.sock = sock
        self.leftover = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Say connection.close, wait for the answer, close the socket. Never raises: the peer may be gone already."""
        try:
            self.sock.settimeout(CLOSE_TIMEOUT_S)
            self.leftover.clear()
            self.say_goodbye()
            self.wait_for(methods.ConnectionCloseOk, tolerant=True)
        except (BrokerError, OSError):
            pass  # the socket is closed below whatever the peer says
        finally:
            self.sock.close()

    def abort(self) -> None:
        """Close the socket without a word."""
        self.sock.close()

    # --- the handshake ------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Log in, open the vhost and channel 1. Raises BrokerError when the broker refuses (403 login, 530 vhost)."""
        for step in HANDSHAKE:
            step(self)

    def advance(self) -> None:
        """Await the next method of the handshake, and answer it."""
        state = self.state
        while self.state is state:
            self.receive(self._read())
        if self.state is State.OPEN:
            self.leftover += self._carry
            self._carry = b""

    def open_channel(self) -> None:
        """Ask for channel 1."""
        self.send(method_frame(CHANNEL, methods.ChannelOpen("")))

    def await_channel(self) -> None:
        """Await channel 1."""
        self.wait_for(methods.ChannelOpenOk)

    # --- requests and replies -----------------------------------------------------------------------------------

    def send(self, data: bytes | memoryview) -> None:
        """Send all of `data`. Raises BrokerError when the peer is gone."""
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise BrokerError(f"lost {self.where} while sending: {error.strerror or error}") from None

    def call(self, method: Any, *replies: type[M]) -> M:
        """Send one method on channel 1, and return its reply, one of `replies`. Raises as `wait_for`."""
        self.send(method_frame(CHANNEL, method))
        return self.wait_for(*replies)

    def call_pipelined(self, requests: Iterable[Any], reply: type[Any], *, window: int = 500) -> None:
        """Send many requests with up to ``2 * window`` replies outstanding, and await all replies."""
        left = iter(requests)
        awaited = 0
        while chunk := list(islice(left, window)):
            self.send(b"".join(method_frame(CHANNEL, method) for method in chunk))
            for _ in range(awaited):
                self.wait_for(reply)
            awaited = len(chunk)
        for _ in range(awaited):
            self.wait_for(reply)

    def wait_for(self, *replies: type[M], tolerant: bool = False) -> M:
        """Return the next method, which must be one of `replies`; `tolerant` drops everything before it.

        Raises:
            PeerClosed: the broker closed channel or connection. BrokerError: silence, disconnection, another method.
        """
        while True:
            found, data = self.take_frame()
            what = f"a frame of type {found.kind}"
            if found.kind == methods.FRAME_METHOD:
                method = _decode(self.where, data)
                if isinstance(method, replies):
                    return method
                if not tolerant:
                    closed = closed_by_peer(self.where, data, found)
                    if closed is not None:
                        raise closed
                    what = method_name(method)
            if not tolerant and found.kind != methods.FRAME_HEARTBEAT:
                due = " or ".join(methods.METHODS[methods.METHOD_IDS[reply]].name for reply in replies)
                raise BrokerError(f"{self.where} sent {what} where {due} was due")

    def take_content(self) -> bytes:
        """Return the body whose content header comes next."""
        _, data = self.take_frame()
        missing = int.from_bytes(data[11:19], "big")
        body = bytearray()
        while len(body) < missing:
            _, data = self.take_frame()
            body += data[methods.FRAME_HEAD_BYTES : -1]
        return bytes(body)

    def take_frame(self) -> tuple[frames.Frame, bytes]:
        """Return the next frame, and a copy of its bytes in which it begins at 0. Raises BrokerError."""
        while True:
            try:
                found = frames.maybe_frame(self.leftover, 0, len(self.leftover))
            except frames.FrameFormatError as error:
                raise BrokerError(f"{self.where} does not speak AMQP: {error}") from None
            if found is not None:
                data = bytes(self.leftover[: found.end])
                del self.leftover[: found.end]
                return found, data
            self.receive_more()

    def receive_more(self) -> None:
        """Wait for something, and add it to `leftover`. Raises BrokerError on silence and disconnection."""
        self.leftover += self._read()

    def _read(self) -> bytes:
        try:
            data = self.sock.recv(_RECEIVE_BYTES)
        except TimeoutError:
            raise BrokerError(f"{self.where} did not answer in time") from None
        except OSError as error:
            raise BrokerError(f"lost {self.where}: {error.strerror or error}") from None
        if not data:
            raise self.eof()
        return data


HANDSHAKE: Final = (
    BlockingConnection.greet,
    BlockingConnection.advance,
    BlockingConnection.advance,
    BlockingConnection.advance,
    BlockingConnection.open_channel,
    BlockingConnection.await_channel,
)


def closed_by_peer(where: str, buffer: bytes | bytearray, found: frames.Frame) -> PeerClosed | None:
    """Return the error that a connection.close or channel.close frame announces, or None for any other method."""
    if frames.method_id(buffer, found) not in (methods.CONNECTION_CLOSE, methods.CHANNEL_CLOSE):
        return None
    said = _decode(where, bytes(buffer[found.start : found.end]))
    scope = "connection" if isinstance(said, methods.ConnectionClose) else "channel"
    return PeerClosed(where, scope, said.reply_code, said.reply_text)


def _decode(where: str, data: bytes) -> Any:
    """Return the method in a frame."""
    try:
        return decode_method(data, methods.FRAME_HEAD_BYTES, len(data) - 1)
    except AmqpError as error:
        raise BrokerError(f"{where} sent something malformed: {error.explanation}") from None
