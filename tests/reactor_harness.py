"""A reactor whose turns are run one by one, and sockets that are scripts."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable
from typing import cast

from engine_harness import CAPABILITIES, PASSWORD, USER, Harness

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.methods import PROTOCOL_HEADER
from warren.server.network.admission import Admission
from warren.server.network.dead_peers import NEVER, Keepalive
from warren.server.network.reactor import RECEIVE_MIN_BYTES, Reactor

# The bytes of a client until it has a channel, step by step.
LOGIN_STEPS = [
    PROTOCOL_HEADER
    + method_frame(
        0,
        m.ConnectionStartOk(
            {"capabilities": dict.fromkeys(CAPABILITIES, True)}, "PLAIN", f"\0{USER}\0{PASSWORD}".encode(), "en_US"
        ),
    ),
    method_frame(0, m.ConnectionTuneOk(2047, 131072, 0)),
    method_frame(0, m.ConnectionOpen("/", "", False)),
    method_frame(1, m.ChannelOpen("")),
]
LOGIN = b"".join(LOGIN_STEPS)


class Peer:
    """A socket and its other end: `inbox` has the bytes for the broker, `received` those that it sent.

    The reactor watches a separate descriptor, which is readable while the inbox has bytes.
    """

    def __init__(self, greeting: bytes = LOGIN) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.inbox = b""
        self.repeated = b""  # bytes that repeat for ever, after the inbox
        self.received = b""
        self.reads = 0
        self.takes_bytes = 1 << 30
        self.is_torn = False
        self.say(greeting)

    def say(self, data: bytes) -> None:
        self.inbox += data
        os.eventfd_write(self.fd, 1)

    def repeat(self, data: bytes) -> None:
        self.repeated = data * (-(-RECEIVE_MIN_BYTES * 4 // len(data)))
        os.eventfd_write(self.fd, 1)

    def taken(self) -> bytes:
        received, self.received = self.received, b""
        return received

    # --- what the broker calls --------------------------------------------------------------------------------------

    def recv(self, limit_bytes: int) -> bytes:
        self.reads += 1
        if not self.inbox and self.repeated:
            self.inbox = self.repeated
        if not self.inbox:
            raise BlockingIOError
        data, self.inbox = self.inbox[:limit_bytes], self.inbox[limit_bytes:]
        if not self.inbox and not self.repeated:
            os.eventfd_read(self.fd)
        return data

    def send(self, data: bytes) -> int:
        if self.is_torn:
            raise ConnectionResetError
        size = min(self.takes_bytes, len(data))
        if size == 0:
            raise BlockingIOError
        self.takes_bytes -= size
        self.received += bytes(data[:size])
        return size

    def fileno(self) -> int:
        return self.fd

    def setblocking(self, blocking: bool) -> None:
        assert not blocking

    def setsockopt(self, *option: int) -> None:
        assert option == (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", self.fd

    getsockname = getpeername

    def shutdown(self, how: int) -> None:
        assert how == socket.SHUT_WR

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class TlsPeer(Peer):
    """One that speaks TLS, and logs in when the handshake is done."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self.is_ready = False
        super().__init__(b"")
        self._go_on()

    def _go_on(self) -> None:
        if not self.is_ready:
            try:
                self._tls.do_handshake()
                self.is_ready = True
                self._tls.write(LOGIN)
            except ssl.SSLWantReadError:
                pass
        self.say(self._outgoing.read())

    def send(self, data: bytes) -> int:
        self._incoming.write(data)
        self._go_on()
        return len(data)


class Queueing:
    """A listening socket before which connections stand in a queue that does not end."""

    def __init__(self, make: Callable[[], Peer] = Peer) -> None:
        self.fd = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.accepted: list[Peer] = []
        self._make = make

    def accept(self) -> tuple[Peer, tuple[str, int]]:
        self.accepted.append(self._make())
        return self.accepted[-1], ("127.0.0.1", 1)

    def fileno(self) -> int:
        return self.fd

    def close(self) -> None:
        os.close(self.fd)


class Place:
    """A reactor whose turns are run one by one."""

    def __init__(self, accepts_per_s: int = 10000, keepalive: Keepalive = NEVER) -> None:
        self.harness = Harness()
        self.broker = self.harness.broker
        self.crashes: list[BaseException] = []
        self.now_s = 0.0
        self.step_s = 0.0  # the advance of the clock at each look
        self.reactor = Reactor(
            self.broker,
            Admission(10000, 10000, accepts_per_s),
            certificate_user=lambda _: None,
            on_crash=self.crashes.append,
            on_settled=self.settled,
            is_alone=lambda: False,
            dispatch=lambda: None,
            on_wake=lambda: None,
            tls_handshake_timeout_s=5.0,
            clock=self.clock,
            keepalive=keepalive,
        )

    def clock(self) -> float:
        self.now_s += self.step_s
        return self.now_s

    def settled(self) -> None:
        requests = self.broker.logins[:]
        self.broker.logins.clear()
        self.broker.notices.clear()
        for request in requests:
            request.accept(request.user)

    def connect(self, count: int) -> list[Peer]:
        """Return `count` peers that are logged in and have channel 1."""
        peers = [Peer() for _ in range(count)]
        for peer in peers:
            self.reactor.acceptor.adopt(cast(socket.socket, peer), "127.0.0.1")
        ok = method_frame(1, m.ChannelOpenOk(b""))
        while not all(peer.received.endswith(ok) for peer in peers):
            self.turn()
        for peer in peers:
            peer.taken()
            peer.reads = 0
        return peers

    def turn(self) -> None:
        """Run the turn that follows when the last one is over."""
        self.reactor.turn(self.reactor._selector.poll(0))
        assert self.crashes == []

    def turns_until(self, done: Callable[[], bool]) -> int:
        """Run turns until `done`; return how many."""
        for count in range(1, 10000):
            self.turn()
            if done():
                return count
        raise AssertionError("never")
