"""A client of STOMP without loop and socket, on the `Engine`: frames in and frames out, taken apart by hand."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from engine import Client, Engine
from peer_frames import PASSWORD, USER

from warren.channels.connection import Connection
from warren.channels.origin import Origin
from warren.stomp.peer import StompPeer


class Reply(NamedTuple):
    """A frame of the broker."""

    command: str
    headers: dict[str, str]
    body: bytes


def maybe_first_frame(data: bytes) -> tuple[Reply, bytes] | None:
    """Take the first frame apart as the specification says, without the escapes; None when it is not whole."""
    data = data.lstrip(b"\n")
    head, empty_line, rest = data.partition(b"\n\n")
    command, *lines = head.decode().split("\n")
    headers = dict(line.split(":", 1) for line in reversed(lines)) if empty_line else {}
    size = int(headers["content-length"]) if "content-length" in headers else rest.find(b"\0")
    if not empty_line or size < 0 or len(rest) <= size:
        return None
    assert rest[size : size + 1] == b"\0", f"no end: {data[:200]!r}"
    return Reply(command, headers, rest[:size]), rest[size + 1 :]


def split_frames(data: bytes) -> list[Reply]:
    """Take whole frames apart; heart-beats are left out."""
    found: list[Reply] = []
    while data.lstrip(b"\n"):
        first = maybe_first_frame(data)
        assert first is not None, f"half a frame: {data[:200]!r}"
        found.append(first[0])
        data = first[1]
    return found


def frame(command: str, headers: dict[str, Any] | None = None, body: bytes = b"") -> bytes:
    """Return a frame as a client sends it."""
    lines = [f"{name.replace('_', '-')}:{value}" for name, value in (headers or {}).items()]
    return "\n".join([command, *lines, "", ""]).encode() + body + b"\0"


class StompClient:
    """One client. `send` lets the broker come to rest, and returns what it said to that."""

    def __init__(self, harness: Engine, *, certificate_user: str | None = None) -> None:
        self.harness = harness
        origin = Origin("127.0.0.1:50001", "127.0.0.1:61613", "127.0.0.1", certificate_user)
        joined = harness.broker.join(StompPeer, origin)
        assert isinstance(joined, StompPeer)
        self.peer = joined
        self.client = Client(cast(Connection, joined))
        harness.clients[joined.key] = self.client

    @property
    def ended(self) -> bool:
        return self.client.ended

    def hang_up(self) -> None:
        """Cut the socket without a word."""
        self.harness.hang_up(self.client)

    def feed(self, data: bytes, *, settle: bool = True) -> list[Reply]:
        self.peer.feed(data)
        if settle:
            self.harness.settle()
        return self.take()

    def take(self) -> list[Reply]:
        """Return what has come since."""
        return split_frames(self.client.take())

    def send(self, command: str, body: bytes = b"", /, **headers: Any) -> list[Reply]:
        return self.feed(frame(command, headers, body))

    def connect(self, version: str = "1.2", **headers: Any) -> Reply:
        """Log in; return what came back."""
        given = {"accept-version": version, "host": "/", "login": USER, "passcode": PASSWORD, **headers}
        (reply,) = self.feed(frame("CONNECT", given))
        return reply

    def refused(self, command: str, body: bytes = b"", /, **headers: Any) -> Reply:
        """Send something that is wrong; return the ERROR."""
        reply = self.send(command, body, **headers)[-1]
        assert reply.command == "ERROR", reply
        assert self.ended
        return reply


def stomp_client(harness: Engine, version: str = "1.2", **headers: Any) -> StompClient:
    """Return a client that has logged in."""
    client = StompClient(harness)
    reply = client.connect(version, **headers)
    assert reply.command == "CONNECTED", reply
    return client
