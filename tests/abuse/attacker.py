"""A peer that sends what it likes as fast as it can, and reads only as much as it must.

It is made for load, so it parses no more than frame headers; `compat.pika_client.wire` is the careful one.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterable, Iterator
from typing import Any

from peer_frames import content_header

from warren.amqp import methods as m
from warren.amqp.codec import frame, method_frame
from warren.amqp.field_table import encode_table
from warren.amqp.methods import METHOD_IDS, PROTOCOL_HEADER
from warren.amqp_client import frames
from warren.amqp_client.blocking import closed_by_peer

DEADLINE_S = 60.0
FRAME_MAX_BYTES = 131072
READ_BYTES = 1 << 18


def login_frames(user: str, password: str, vhost: str, heartbeat_s: int = 0) -> bytes:
    """Return all that a client sends up to connection.open, in one piece."""
    response = b"\x00" + user.encode() + b"\x00" + password.encode()
    calls = [
        m.ConnectionStartOk({"product": "attacker"}, "PLAIN", response, "en_US"),
        m.ConnectionTuneOk(2047, FRAME_MAX_BYTES, heartbeat_s),
        m.ConnectionOpen(vhost, "", False),
    ]
    return PROTOCOL_HEADER + b"".join(method_frame(0, call) for call in calls)


def publish_frames(
    exchange: str, key: str, body: bytes, properties: dict[str, Any] | None = None, channel: int = 1
) -> bytes:
    """Return a whole publish; a field table among `properties` is encoded here."""
    encoded = {
        name: encode_table(value) if isinstance(value, dict) else value for name, value in (properties or {}).items()
    }
    room = FRAME_MAX_BYTES - m.FRAME_OVERHEAD_BYTES
    header = frame(m.FRAME_HEADER, channel, content_header(encoded, len(body)))
    parts = [frames.body_frame(channel, body[at : at + room]) for at in range(0, len(body), room)]
    return b"".join([frames.publish_method(channel, exchange, key), header, *parts])


def _piece(source: Iterator[bytes]) -> bytes:
    """Join parts until they are worth a system call; empty at the end."""
    parts = []
    size = 0
    for part in source:
        parts.append(part)
        size += len(part)
        if size >= READ_BYTES:
            break
    return b"".join(parts)


class Attacker:
    """One AMQP connection, logged in, with channel 1 open."""

    def __init__(
        self, port: int, vhost: str, user: str = "mallory", password: str = "mallory", *, heartbeat_s: int = 0
    ) -> None:
        self._unread = bytearray()
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self.sock.sendall(login_frames(user, password, vhost, heartbeat_s))
        self.open(1)

    def close(self) -> None:
        """Hang up without a word."""
        self.sock.close()

    def open(self, *channels: int) -> None:
        """Open channels; returns when the last is open."""
        self.pump(method_frame(channel, m.ChannelOpen("")) for channel in channels)
        self.read_until(m.ChannelOpenOk, channels[-1])

    def send(self, data: bytes) -> None:
        """Send, and read nothing."""
        self.sock.sendall(data)

    def pump(self, parts: Iterable[bytes]) -> None:
        """Send all `parts`, and read what comes meanwhile."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
            self.sock.setblocking(False)
            source = iter(parts)
            pending = memoryview(b"")
            try:
                while True:
                    if len(pending) < READ_BYTES:
                        pending = memoryview(bytes(pending) + _piece(source))
                    if not pending:
                        return
                    ready = selector.select(DEADLINE_S)
                    assert ready, "the broker takes nothing"
                    for _, mask in ready:
                        if mask & selectors.EVENT_READ:
                            self._receive()
                        if mask & selectors.EVENT_WRITE:
                            pending = pending[self.sock.send(pending[: 1 << 20]) :]
            finally:
                self.sock.settimeout(DEADLINE_S)

    def barrier(self, channel: int = 1) -> None:
        """Wait until everything sent so far has been handled, and its replies are here."""
        self.pump([method_frame(channel, m.BasicQos(0, 0, False))])
        self.read_until(m.BasicQosOk, channel)

    def ask(self, *calls: Any, channel: int = 1) -> None:
        """Send methods, and wait until they have been handled."""
        self.pump([*(method_frame(channel, call) for call in calls)])
        self.barrier(channel)

    def _receive(self) -> None:
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise ConnectionError("the broker hung up")
        self._unread += data

    def read_until(self, kind: type[Any], channel: int) -> None:
        """Take frames up to a method of this kind.

        Raises:
            ConnectionError: the broker hung up, or closes the channel or connection, and why.
        """
        wanted = METHOD_IDS[kind]
        while True:
            at = 0
            for found in frames.frames(self._unread, 0, len(self._unread)):
                at = found.end
                if found.kind != m.FRAME_METHOD:
                    continue
                closed = closed_by_peer("the broker", self._unread, found)
                if closed is not None:
                    raise ConnectionError(str(closed))
                if found.channel == channel and frames.method_id(self._unread, found) == wanted:
                    del self._unread[:at]
                    return
            del self._unread[:at]
            self._receive()
