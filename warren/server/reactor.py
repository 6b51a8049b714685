"""The reactor: one trio task serves all AMQP sockets through one epoll set.

A turn reads every ready socket once, feeds the engine, lets it hand out deliveries and confirms, and flushes what
became dirty. The engine never waits, so nothing here awaits but the end of a turn.

1. A turn stops reading after `TURN_BUDGET_S`; epoll's ready list is round-robin, so the rest comes first next time.
   One connection gives at most 256 KiB to a turn.
2. A paused connection is not watched for input. It is watched again when the engine says that it resumed.
3. A socket is closed only after its outbox is with the kernel and the peer had the chance to read it: we end our
   half, then wait for the peer's (at most `LINGER_S`). Closing with unread input would destroy what we sent last.
4. An exception that is not the peer's doing ends that connection with 541, is logged with its traceback and counted.
5. `wake` ends a wait in epoll at once, from any thread: what the threads of the message store have done becomes
   confirms and deliveries in that very turn.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final

import trio
from mypy_extensions import i64

from warren.channels.broker import Broker
from warren.channels.connection import AWAIT_TUNE_OK, ENDED, Connection
from warren.server.admission import Admission
from warren.server.histogram import Histogram
from warren.server.transport import TlsTransport, Transport

TURN_BUDGET_S: Final = 0.010
YIELD_EVERY_S: Final = 0.002
LURK_S: Final = 0.001
BUDGET_CHECK_EVENTS: Final = 8
LINGER_S: Final = 3.0
READ: Final = select.EPOLLIN | select.EPOLLRDHUP
WRITE: Final = select.EPOLLOUT


class Listener:
    """A listening socket; `tls` returns the context for new connections, so that it can be reloaded."""

    def __init__(self, sock: socket.socket, tls: Callable[[], ssl.SSLContext] | None) -> None:
        self.sock = sock
        self.tls = tls


class Reactor:
    """The sockets of one broker.

    `certificate_user` maps a verified certificate to a user name, `on_crash` is told of our own faults, `on_settled`
    runs when the engine has left notices or login requests, `is_alone` tells that no other task waits to run.
    `dispatch` runs when the message log has jobs, `on_wake` in the turn after a `wake`.
    """

    def __init__(
        self,
        broker: Broker,
        admission: Admission,
        certificate_user: Callable[[dict[str, object]], str | None],
        on_crash: Callable[[BaseException], None],
        on_settled: Callable[[], None],
        is_alone: Callable[[], bool],
        dispatch: Callable[[], None],
        on_wake: Callable[[], None],
        tls_handshake_timeout_s: float,
    ) -> None:
        self.broker = broker
        self.crashes = 0
        self.turn_times = Histogram()
        self._admission = admission
        self._certificate_user = certificate_user
        self._on_crash = on_crash
        self._on_settled = on_settled
        self._is_alone = is_alone
        self._dispatch = dispatch
        self._on_wake = on_wake
        self._tls_handshake_timeout_s = tls_handshake_timeout_s
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._listeners: dict[int, Listener] = {}
        self._idle_listeners: list[Listener] = []  # not watched until the next second
        self._transports: dict[int, Transport] = {}
        self._by_key: dict[int, Transport] = {}
        self._handshakes: dict[int, float] = {}  # TLS handshakes under way: fd -> deadline
        self._second_ends_s = 0.0
        self._stopped = False

    # --- from outside -----------------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Accept connections from `listener`."""
        self._listeners[listener.sock.fileno()] = listener
        self._epoll.register(listener.sock.fileno(), select.EPOLLIN)

    def stop_listening(self) -> None:
        """Close the listeners; connections go on."""
        for fd, listener in self._listeners.items():
            if listener not in self._idle_listeners:
                self._epoll.unregister(fd)
            listener.sock.close()
        self._listeners = {}
        self._idle_listeners = []

    def connection_count(self) -> int:
        return len(self._transports)

    async def run(self) -> None:
        """Serve until `stop`."""
        last_yield_s = time.monotonic()
        busy = False
        while not self._stopped:
            events = self._epoll.poll(0)
            if not events and not self.broker.has_work():
                if busy and self._is_alone():
                    # Requests come in answer to what was just sent: waiting here for a moment costs a third of
                    # the way through trio's scheduler and back.
                    events = self._epoll.poll(LURK_S)
                if not events:
                    busy = False
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                    last_yield_s = time.monotonic()
                    continue
            busy = True
            self.turn(events)
            now_s = time.monotonic()
            self.turn_times.observe(now_s - self.broker.now_s)  # since the turn began
            if now_s - last_yield_s > YIELD_EVERY_S:
                # Other tasks (timers, commits, HTTP) get their turn however busy the sockets are.
                await trio.lowlevel.checkpoint()
                last_yield_s = now_s

    def stop(self) -> None:
        """Close all sockets and end `run`."""
        self._stopped = True
        for transport in list(self._transports.values()):
            self._close(transport)
        self.stop_listening()
        self.wake()

    def close(self) -> None:
        """Release the descriptors; `run` has ended."""
        self._epoll.close()
        os.close(self._wake_fd)

    def tick(self, now_s: float) -> None:
        """Let time pass: heartbeats, deadlines, lingering sockets. Call about twice a second."""
        self.broker.tick(now_s)
        if now_s >= self._second_ends_s:
            self._second_ends_s = now_s + 1.0
            self._admission.next_second()
            for listener in self._idle_listeners:
                self._epoll.register(listener.sock.fileno(), select.EPOLLIN)
            self._idle_listeners = []
        for fd, deadline_s in list(self._handshakes.items()):
            if now_s >= deadline_s and fd in self._transports:
                self._close(self._transports[fd])
        for transport in list(self._transports.values()):
            if transport.linger_deadline_s and now_s >= transport.linger_deadline_s:
                self._close(transport)
        self.settle()

    # --- turns ------------------------------------------------------------------------------------------------------

    def turn(self, events: list[tuple[int, int]]) -> None:
        """Handle ready sockets, then settle."""
        start_s = time.monotonic()
        self.broker.now_s = start_s
        self.broker.log.now_ms = time.time_ns() // 1000000
        transports = self._transports
        countdown: i64 = BUDGET_CHECK_EVENTS
        for fd, mask in events:
            transport = transports.get(fd)
            if transport is None:
                self._other_event(fd)
                continue
            if mask & WRITE:
                self._flush(transport)
            if mask & ~WRITE:
                self._read(transport)
                countdown -= 1
                if countdown == 0:
                    if time.monotonic() - start_s > TURN_BUDGET_S:
                        break
                    countdown = BUDGET_CHECK_EVENTS
        self.settle()

    def settle(self) -> None:
        """Let the engine finish its turn, and send what it wrote. Call after every engine call made from outside."""
        broker = self.broker
        broker.end_turn()
        log = broker.log
        if log.commit_jobs or log.read_jobs or log.seal_jobs or log.checkpoint_jobs or log.unlink_jobs:
            self._dispatch()
        resumed = broker.take_resumed()
        for connection in resumed:
            transport = self._by_key.get(connection.key)
            if transport is not None:
                self._feed(transport, connection, b"")
        for outbox in broker.take_dirty():
            transport = self._by_key.get(outbox.key)
            if transport is not None:
                self._flush(transport)
        for connection in broker.take_ended():
            self._ended(connection)
        if broker.notices or broker.logins or broker.direct_outboxes:
            self._on_settled()
        if resumed or broker.has_work():
            self.wake()

    def wake(self) -> None:
        """Have another turn soon, whoever calls this: the only method for other threads."""
        try:
            os.eventfd_write(self._wake_fd, 1)
        except BlockingIOError:
            pass  # the counter is full: it is awake already

    def _other_event(self, fd: int) -> None:
        if fd == self._wake_fd:
            os.eventfd_read(fd)
            self._on_wake()
        elif fd in self._listeners:
            self._accept(self._listeners[fd])

    def _read(self, transport: Transport) -> None:
        connection = transport.connection
        if connection is None:
            self._handshake(transport)
            return
        try:
            data = transport.receive()
        except OSError:
            self._lost(transport)
            return
        if data is None:
            return
        if transport.linger_deadline_s:
            if not data:
                self._close(transport)
            return
        if not data:
            self._lost(transport)
            return
        self._feed(transport, connection, data)

    def _feed(self, transport: Transport, connection: Connection, data: bytes) -> None:
        try:
            connection.feed(data)
        except Exception as error:
            # A defect of ours, met by one connection: the others go on.
            self.crashes += 1
            self._on_crash(error)
            connection.broken()
        if transport.pre_auth and connection.state >= AWAIT_TUNE_OK:
            transport.pre_auth = False
            self._admission.leave(transport.address)
        self._watch(transport)

    def _flush(self, transport: Transport) -> None:
        if transport.connection is None:
            return
        try:
            done = transport.flush()
        except OSError:
            self._lost(transport)
            return
        wanted = transport.interest & ~WRITE if done else transport.interest | WRITE
        if wanted != transport.interest:
            self._set_interest(transport, wanted)
        if done and transport.connection.state == ENDED and not transport.linger_deadline_s:
            self._linger(transport)

    def _watch(self, transport: Transport) -> None:
        """Watch for input unless the connection is paused."""
        connection = transport.connection
        wanted = transport.interest | READ
        if connection is not None and connection.paused and not transport.linger_deadline_s:
            wanted &= ~READ
        if wanted != transport.interest:
            self._set_interest(transport, wanted)

    def _set_interest(self, transport: Transport, interest: int) -> None:
        if transport.fd in self._transports:
            transport.interest = interest
            self._epoll.modify(transport.fd, interest)

    # --- coming and going -------------------------------------------------------------------------------------------

    def _accept(self, listener: Listener) -> None:
        while True:
            if not self._admission.may_accept():
                self._epoll.unregister(listener.sock.fileno())
                self._idle_listeners.append(listener)
                return
            try:
                sock, peer = listener.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Out of descriptors, most likely: leave the rest in the backlog until the next second.
                self.broker.note("error", "accept.failed", {"error": str(error)})
                self._epoll.unregister(listener.sock.fileno())
                self._idle_listeners.append(listener)
                return
            address = str(peer[0])
            if not self._admission.enter(address):
                self.broker.note("warning", "connection.refused", {"peer": address, "reason": "too many logins"})
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if listener.tls is None:
                transport = Transport(sock, address)
            else:
                transport = TlsTransport(sock, address, listener.tls())
            self._begin(transport)
            if not transport.is_ready():
                self._handshakes[transport.fd] = self.broker.now_s + self._tls_handshake_timeout_s

    def _begin(self, transport: Transport) -> None:
        self._transports[transport.fd] = transport
        transport.interest = READ
        self._epoll.register(transport.fd, READ)
        if transport.is_ready():
            self._connect(transport)

    def adopt(self, sock: socket.socket, address: str) -> None:
        """Serve a connected socket whose other end is in this process."""
        sock.setblocking(False)
        transport = Transport(sock, address)
        transport.pre_auth = False  # nobody from outside: admission does not count it
        self._begin(transport)
        connection = transport.connection
        assert connection is not None
        connection.is_internal = True
        connection.peer = f"internal:{connection.key}"

    def _handshake(self, transport: Transport) -> None:
        assert isinstance(transport, TlsTransport)
        try:
            done = transport.handshake()
        except OSError as error:
            self.broker.note("warning", "tls.failed", {"peer": transport.address, "reason": str(error)})
            self._close(transport)
            return
        if not done:
            return
        del self._handshakes[transport.fd]
        self._connect(transport)
        # What the client sent right behind its handshake is decrypted here, not by another event.
        self._read(transport)

    def _connect(self, transport: Transport) -> None:
        certificate = transport.peer_certificate()
        user = self._certificate_user(certificate) if certificate is not None else None
        peer = _endpoint(transport.sock.getpeername)
        local = _endpoint(transport.sock.getsockname)
        connection = self.broker.connect(peer, local, transport.address, user)
        connection.is_tls = isinstance(transport, TlsTransport)
        transport.connection = connection
        self._by_key[connection.key] = transport

    def _ended(self, connection: Connection) -> None:
        transport = self._by_key.get(connection.key)
        if transport is not None:
            self._flush(transport)

    def _linger(self, transport: Transport) -> None:
        """Everything is sent: end our half and wait for the peer to end its own."""
        transport.linger_deadline_s = time.monotonic() + LINGER_S
        try:
            transport.finish_sending()
        except OSError:
            self._close(transport)
            return
        self._set_interest(transport, READ)

    def _lost(self, transport: Transport) -> None:
        connection = transport.connection
        if connection is not None:
            connection.lost()
        self._close(transport)

    def _close(self, transport: Transport) -> None:
        if self._transports.pop(transport.fd, None) is None:
            return
        self._handshakes.pop(transport.fd, None)
        connection = transport.connection
        if connection is not None:
            self._by_key.pop(connection.key, None)
            connection.lost()
        if transport.pre_auth:
            transport.pre_auth = False
            self._admission.leave(transport.address)
        self._epoll.unregister(transport.fd)
        transport.close()


def _endpoint(get: Callable[[], Any]) -> str:
    """Return ``host:port``; a peer that is already gone has none, nor has one in this process."""
    try:
        found = get()
    except OSError:
        return "?"
    if not isinstance(found, tuple):
        return "?"
    # Host and port come first; IPv6 adds a flow and a scope.
    host, port = found[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
