"""Serve the sockets of all protocols in one trio task through one selector, which is epoll on Linux.

A turn reads every ready socket once, feeds the engine, lets it hand out deliveries and confirms, and flushes the
outboxes that became dirty. The engine never waits, so nothing here awaits except the end of a turn.

1. A turn ends its reading after `TURN_UNITS` of work (`channels.shared`) or `TURN_BUDGET_S`, its sending after
   `TURN_BUDGET_S`. The next turn begins with the sockets that this one did not reach, in their order: otherwise the
   ready list of epoll begins with the same sockets whenever all of it fits into one answer. So every socket is served
   once before any is served twice. A connection does at most `feed_units` at a time, fewer when more are ready. Data
   that it has read beyond that waits for its place among the others, like a connection whose pause is over, and it
   reads nothing more before.
2. A turn does steps of TLS handshakes for `HANDSHAKE_BUDGET_S`, at least one; addresses take turns in that
   (`server.network.handshakes`). Accepting for TLS waits while `HANDSHAKES_DUE_MAX` steps are due.
3. A paused connection is not watched for input. It is watched again when the engine says that it resumed. One that only
   waits for its next turn stays watched: anything else would cost two system calls for each turn.
4. A socket is closed only after its outbox is with the kernel and the peer had the chance to read it: we end our half,
   then wait for the peer's (at most `LINGER_S`). Closing with unread input would destroy what we sent last.
5. An exception that is not the peer's doing ends that connection with 541, is logged with its traceback and counted.
6. `wake` ends a wait at once, from any thread: results of the threads of the message store become confirms and
   deliveries in that very turn.
7. While `may_serve` is false, clients are not read, and nothing is handed out or sent to them: another node may serve
   by then. Watched descriptors (`watch`) and the message store continue, since they can allow clients again.
8. A peer that has not logged in and keeps silent loses its place to a newcomer, if there is no other place
   (`server.network.admission`). A peer whose machine is gone is noticed without heartbeats, and while the connection is
   not read (`server.network.dead_peers`).
"""

from __future__ import annotations

import socket
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import trio
from mypy_extensions import i64

from warren.amqp.outbox import Outbox
from warren.channels.broker import Broker, PeerMaker
from warren.channels.connection import Connection
from warren.channels.connection_states import CHECKING_LOGIN, ENDED, RUNNING
from warren.channels.peer import Peer
from warren.channels.shared import FEED_UNITS_MAX
from warren.msgstore.files.store import wall_time_ms
from warren.server.client_of_node import ClientOfNode
from warren.server.histogram import Histogram
from warren.server.network.admission import Admission, address_block
from warren.server.network.dead_peers import NEVER, DeadPeers, Keepalive
from warren.server.network.handshakes import Handshakes
from warren.server.network.readiness import READ, READABLE, WRITE, open_selector, open_wakeup
from warren.server.network.transport import (
    RECEIVE_BYTES,
    PassedOnTransport,
    TlsPassedOnTransport,
    TlsTransport,
    TlsWebSocketTransport,
    Transport,
    WebSocketTransport,
)
from warren.server.network.web_rules import WebRules, WebSocketEnd

TURN_BUDGET_S: Final = 0.010
TURN_UNITS: Final = 16384
FEED_UNITS_MIN: Final = 256
# The limit for one read of a connection: as much as it may handle, in frames as small as they come, yet enough for
# large ones.
UNIT_BYTES: Final = 64
RECEIVE_MIN_BYTES: Final = 65536
# The cost of an event, apart from the work of the engine and from its bytes.
EVENT_UNITS: Final = 8
BYTES_PER_UNIT: Final = 1024
CLOCK_EVERY_UNITS: Final = 2048
CLOCK_EVERY_SENDS: Final = 16
ACCEPTS_PER_TURN: Final = 32
# How long a listener rests after too many connections, and after accepting has failed.
ACCEPT_PAUSE_S: Final = 0.02
ACCEPT_FAILED_S: Final = 1.0
YIELD_EVERY_S: Final = 0.002
LURK_S: Final = 0.001
HELD_S: Final = 0.005  # between two looks while clients are held back
# A step of a TLS handshake takes 1 to 3 ms with RSA: one or two in a turn.
HANDSHAKE_BUDGET_S: Final = 0.001
HANDSHAKES_DUE_MAX: Final = 64
LINGER_S: Final = 3.0
UNSENT_S: Final = 30.0
# Not from the selector: the connection has more to handle, or its pause is over.
GO_ON: Final = 1 << 40


def feed_units(ready: int) -> int:
    """Return how many units of work each of `ready` sockets may do in a turn."""
    return min(max(TURN_UNITS // max(ready, 1), FEED_UNITS_MIN), FEED_UNITS_MAX)


class Listener:
    """A listening socket. `protocol` makes the peers, `tls` returns the context for new ones: it can be reloaded.

    With `web` the peers come over WebSockets.
    """

    def __init__(
        self,
        sock: socket.socket,
        tls: Callable[[], ssl.SSLContext] | None,
        protocol: PeerMaker = Connection,
        web: WebRules | None = None,
    ) -> None:
        self.sock = sock
        self.tls = tls
        self.protocol = protocol
        self.web = web

    def transport(self, sock: socket.socket, address: str) -> Transport:
        """Return the transport of a connection that was accepted here."""
        if self.tls is None:
            if self.web is None:
                return Transport(sock, address, self.protocol)
            return WebSocketTransport(sock, address, self.protocol, self.web)
        if self.web is None:
            return TlsTransport(sock, address, self.tls(), self.protocol)
        return TlsWebSocketTransport(sock, address, self.tls(), self.protocol, self.web)


class Reactor:
    """The sockets of one broker.

    `certificate_user` maps a verified certificate to a user name, `on_crash` receives our own faults, `on_settled` runs
    when the engine has left notices or login requests, `is_alone` tells whether no other task waits to run. `dispatch`
    runs when the message log has jobs, `on_wake` in the turn after a `wake`. `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        broker: Broker,
        admission: Admission,
        *,
        certificate_user: Callable[[dict[str, object]], str | None],
        on_crash: Callable[[BaseException], None],
        on_settled: Callable[[], None],
        is_alone: Callable[[], bool],
        dispatch: Callable[[], None],
        on_wake: Callable[[], None],
        tls_handshake_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        clock_ms: Callable[[], int] = wall_time_ms,
        keepalive: Keepalive = NEVER,
    ) -> None:
        self.broker = broker
        self._clock_ms = clock_ms
        self.crashes = 0
        self.turn_times = Histogram()
        self._admission = admission
        self._certificate_user = certificate_user
        self._on_crash = on_crash
        self._on_settled = on_settled
        self._is_alone = is_alone
        self._dispatch = dispatch
        self._on_wake = on_wake
        self._selector = open_selector()
        self._wakeup = open_wakeup()
        self._wake_fd = self._wakeup.fd
        self._ring = self._wakeup.ring
        self._heard = self._wakeup.heard
        self._selector.register(self._wake_fd, READABLE)
        self._is_closed = False
        self._watched: dict[int, Callable[[], None]] = {}
        self._listeners: dict[int, Listener] = {}
        self._idle_listeners: dict[Listener, float] = {}  # not watched until this time
        self._transports: dict[int, Transport] = {}
        self._ending: dict[int, Transport] = {}  # transports with a deadline for their end
        self._by_key: dict[int, Transport] = {}
        self._handshakes = Handshakes(tls_handshake_timeout_s)
        self._keepalive = keepalive
        self._dead_peers = DeadPeers(keepalive)
        self._clock = clock
        self._ready: dict[int, int] = {}  # fd -> events: not reached in the last turn, or to be continued
        self._accepting: list[Listener] = []  # have connections waiting, in this turn
        self._unsent: list[Outbox] = []  # to be sent in the next turn
        self._units: i64 = 0  # done in this turn
        self._feed_units: i64 = FEED_UNITS_MAX  # how much a connection may do in this turn
        self._receive_bytes: int = RECEIVE_BYTES  # and how much it may read
        self._stopped = False
        self.may_serve: Callable[[], bool] | None = None  # None: a broker by itself may always
        self.serves = False  # whether clients of other nodes are served: no listener shows that

    # --- from outside -----------------------------------------------------------------------------------------------

    def begin_serving(self) -> None:
        """Serve clients of other nodes, too."""
        self.serves = True

    def listen(self, listener: Listener) -> None:
        """Accept connections from `listener`."""
        self._listeners[listener.sock.fileno()] = listener
        self._selector.register(listener.sock.fileno(), READABLE)

    def stop_listening(self) -> None:
        """Close the listeners; connections stay open."""
        self.serves = False
        for fd, listener in self._listeners.items():
            if listener not in self._idle_listeners:
                self._selector.unregister(fd)
            self._ready.pop(fd, None)
            listener.sock.close()
        self._listeners = {}
        self._idle_listeners = {}

    def watch(self, fd: int, on_readable: Callable[[], None]) -> None:
        """Call `on_readable` in the turns in which there is something to read, before the engine ends the turn.

        `on_readable` must not raise.
        """
        self._watched[fd] = on_readable
        if not self._is_closed:
            self._selector.register(fd, READABLE)

    def unwatch(self, fd: int) -> None:
        """Stop watching; call this before the descriptor is closed. After `close` links end, too."""
        del self._watched[fd]
        if not self._is_closed:
            self._selector.unregister(fd)
        self._ready.pop(fd, None)

    def connection_count(self) -> int:
        return len(self._transports)

    async def run(self) -> None:
        """Serve until `stop`."""
        last_yield_s = self._clock()
        busy = False
        while not self._stopped:
            if self.may_serve is not None and not self.may_serve():
                self._hold()
                await trio.sleep(HELD_S)
                continue
            is_idle = not self._has_work()
            # Requests follow as answers to what was just sent: waiting here for a moment costs a third of the way
            # through trio's scheduler and back.
            events = self._selector.poll(LURK_S if is_idle and busy and self._is_alone() else 0)
            if not events and is_idle:
                busy = False
                if self._idle_listeners:
                    with trio.move_on_after(ACCEPT_PAUSE_S):
                        await trio.lowlevel.wait_readable(self._selector.fileno())
                    self._watch_listeners(self._clock())
                else:
                    await trio.lowlevel.wait_readable(self._selector.fileno())
                last_yield_s = self._clock()
                continue
            busy = True
            self._turn(events)
            now_s = self._clock()
            self.turn_times.observe(now_s - self.broker.now_s)  # since the turn began
            if now_s - last_yield_s > YIELD_EVERY_S:
                # Other tasks (timers, commits, HTTP) have a turn however busy the sockets are.
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
        self._is_closed = True
        self._selector.close()
        self._wakeup.close()

    def tick(self, now_s: float) -> None:
        """Handle passing time: heartbeats, deadlines, lingering sockets. Call about twice a second."""
        self.broker.log.now_ms = self._clock_ms()
        self.broker.tick(now_s)
        for fd in self._handshakes.overdue(now_s):
            self._close(self._transports[fd])
        for transport in list(self._ending.values()):
            deadline_s = transport.linger_deadline_s or transport.unsent_deadline_s
            if deadline_s and now_s >= deadline_s:
                self._close(transport)
        for fd in self._dead_peers.due(self._transports, now_s):
            self._end_if_dead(fd)
        self.settle()

    def _end_if_dead(self, fd: int) -> None:
        """End a connection whose peer no longer acknowledges what is sent to it."""
        transport = self._transports.get(fd)
        if transport is None or not self._keepalive.is_over(transport.sock):
            return
        connection = transport.connection
        if connection is not None and connection.state != ENDED:
            connection.give_up(f"its machine does not answer, timeout: {self._keepalive.timeout_s}s")

    # --- turns ------------------------------------------------------------------------------------------------------

    def turn(self, events: list[tuple[int, int]]) -> None:
        """Handle ready sockets, as `run` does; wake the reactor if work is left."""
        self._turn(events)
        if self._has_work():
            self.wake()

    def _turn(self, events: list[tuple[int, int]]) -> None:
        """Handle ready sockets, beginning with those that the last turn did not reach, then settle."""
        start_s = self._clock()
        self.broker.now_s = start_s
        self.broker.log.now_ms = self._clock_ms()
        if self._idle_listeners:
            self._watch_listeners(start_s)
        if self._ready:
            events = self._behind_the_ready(events)
        self._share_out(len(events))
        transports = self._transports
        self._units = 0
        check_at: i64 = CLOCK_EVERY_UNITS
        reached = 0
        try:
            for fd, mask in events:
                reached += 1
                transport = transports.get(fd)
                if transport is None:
                    self._other_event(fd)
                    continue
                self._units += EVENT_UNITS
                if mask & WRITE:
                    self._flush(transport)
                if mask & GO_ON:
                    self._go_on(transport)
                elif mask & ~WRITE:
                    self._read(transport)
                if self._units >= check_at:
                    if self._units >= TURN_UNITS or self._clock() - start_s > TURN_BUDGET_S:
                        self._ready = dict(events[reached:])
                        break
                    check_at = self._units + CLOCK_EVERY_UNITS
        except BaseException:
            self._ready = dict(events[reached:])  # this task restarts, and each event is told only once
            raise
        # After the last event: until here a closed descriptor cannot be reused by another connection.
        if self._accepting:
            self._accept_some()
        if self._handshakes.due_count:
            self._shake_hands()
        self._settle(goes_on=True)

    def _hold(self) -> None:
        """Handle only the descriptors through which clients may be served again."""
        for fd, _ in self._selector.poll(0):
            if fd == self._wake_fd or fd in self._watched:
                self._other_event(fd)

    def _behind_the_ready(self, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Take each socket that the last turn left once, then `events`."""
        ready = self._ready
        self._ready = {}
        for fd, mask in events:
            ready[fd] = ready.get(fd, 0) | mask
        if ready.pop(self._wake_fd, 0):
            self._other_event(self._wake_fd)
        return list(ready.items())

    def _share_out(self, ready: int) -> None:
        """Divide the work of a turn among `ready` sockets."""
        units = feed_units(ready)
        if units != self._feed_units:
            self._feed_units = units
            self._receive_bytes = min(max(units * UNIT_BYTES, RECEIVE_MIN_BYTES), RECEIVE_BYTES)
            self.broker.shared.feed_units = units

    def settle(self) -> None:
        """Let the engine finish its turn, and send its output. Call after every engine call from outside."""
        self._settle(goes_on=False)
        if self._has_work():
            self.wake()

    def _settle(self, *, goes_on: bool) -> None:
        if self.may_serve is not None and not self.may_serve():
            return
        broker = self.broker
        broker.end_turn(goes_on=goes_on)
        log = broker.log
        if log.commit_jobs or log.read_jobs or log.seal_jobs or log.checkpoint_jobs or log.unlink_jobs:
            self._dispatch()
        for connection in broker.take_resumed():
            transport = self._by_key.get(connection.key)
            if transport is not None:
                self._ready[transport.fd] = self._ready.get(transport.fd, 0) | GO_ON
        outboxes = broker.take_dirty()
        # Last bytes: when they are with the kernel, the socket is closed.
        for connection in broker.take_ended():
            transport = self._by_key.get(connection.key)
            if connection.is_unreachable and transport is not None:
                self._close(transport)
            else:
                outboxes.append(connection.outbox)
        if self._unsent:
            outboxes = self._unsent + outboxes
            self._unsent = []
        if outboxes:
            self._send(outboxes)
        if broker.notices or broker.logins:
            self._on_settled()

    def _has_work(self) -> bool:
        """Tell whether another turn is due though no socket is ready."""
        mine = len(self._ready) > 0 or len(self._unsent) > 0 or self._handshakes.due_count > 0
        return mine or self.broker.has_work()

    def _send(self, outboxes: list[Outbox]) -> None:
        """Send the contents of `outboxes`; leave the rest to the next turn if time is over."""
        start_s = self._clock() if len(outboxes) > CLOCK_EVERY_SENDS else 0.0
        countdown: i64 = CLOCK_EVERY_SENDS
        for sent, outbox in enumerate(outboxes):
            if countdown == 0:
                if self._clock() - start_s > TURN_BUDGET_S:
                    self._unsent = outboxes[sent:]
                    return
                countdown = CLOCK_EVERY_SENDS
            countdown -= 1
            if outbox.failure is not None:
                self._end_failed(outbox)
            transport = self._by_key.get(outbox.key)
            if transport is not None:
                self._flush(transport)

    def _end_failed(self, outbox: Outbox) -> None:
        """End a peer after a defect of ours while something was written for it; the others continue."""
        error = outbox.failure
        assert error is not None
        outbox.failure = None
        self.crashes += 1
        self._on_crash(error)
        connection = self.broker.connections.get(outbox.key)
        if connection is not None:
            connection.broken()
            self.wake()  # its unacked messages return to their queues

    def wake(self) -> None:
        """Have another turn soon: the only method that other threads may call."""
        try:
            self._ring()
        except BlockingIOError:
            pass  # it is awake already

    def _other_event(self, fd: int) -> None:
        if fd == self._wake_fd:
            self._heard()
            self._on_wake()
        elif fd in self._watched:
            self._watched[fd]()
        elif fd in self._listeners:
            self._accepting.append(self._listeners[fd])

    def _read(self, transport: Transport) -> None:
        connection = transport.connection
        if connection is None:
            self._handshakes.make_due(transport.fd)
            self._set_interest(transport, 0)
            self._admission.heard(transport.fd, self.broker.now_s, has_to_wait=True)
            return
        try:
            data = transport.receive(self._receive_bytes)
        except WebSocketEnd as end:
            # The last bytes of the WebSocket are sent like those of the protocol.
            self._over(connection, end.reason)
            return
        except OSError:
            self._lost(transport)
            return
        except Exception as error:
            # A defect of ours, or of the WebSocket parser, met by one connection: end only that one.
            self.crashes += 1
            self._on_crash(error)
            self._lost(transport)
            return
        self._units += transport.receiving_units
        if transport.is_behind():
            self.broker.resumed.append(connection)
        if data is None:
            if transport.pre_auth and transport.is_web:
                self._admission.heard(transport.fd, self.broker.now_s, has_to_wait=False)
            return
        if transport.linger_deadline_s:
            if not data:
                self._close(transport)
            return
        if not data:
            self._lost(transport)
            return
        self._feed(transport, connection, data)

    def _go_on(self, transport: Transport) -> None:
        connection = transport.connection
        if connection is not None:
            self._feed(transport, connection, b"")
            if transport.is_behind() and not connection.paused:
                self._read(transport)

    def _feed(self, transport: Transport, connection: Peer, data: bytes) -> None:
        try:
            connection.feed(data)
            self._units += self._feed_units - connection.units_left + len(data) // BYTES_PER_UNIT
        except Exception as error:
            # A defect of ours, met by one connection: end only that one.
            self.crashes += 1
            self._on_crash(error)
            connection.broken()
        switched = self.broker.take_switched()
        if switched is not None:
            transport.connection = switched[0]
            self._feed(transport, switched[0], switched[1])
            return
        if transport.pre_auth:
            self._count_step(transport, connection)
        self._watch(transport)

    def _count_step(self, transport: Transport, connection: Peer) -> None:
        """Note a step of a login, or its end: the peer has sent something, or gets something after a check of ours."""
        if connection.state >= RUNNING:
            transport.pre_auth = False
            self._admission.leave(transport.fd)
        else:
            has_to_wait = connection.state == CHECKING_LOGIN
            self._admission.heard(transport.fd, self.broker.now_s, has_to_wait=has_to_wait)

    def _flush(self, transport: Transport) -> None:
        connection = transport.connection
        if connection is None:
            return
        if transport.pre_auth and connection.state != CHECKING_LOGIN:
            self._count_step(transport, connection)
        try:
            done = transport.flush()
        except OSError:
            self._lost(transport)
            return
        wanted = transport.interest & ~WRITE if done else transport.interest | WRITE
        if wanted != transport.interest:
            self._set_interest(transport, wanted)
        if connection.state == ENDED and not transport.linger_deadline_s:
            if done:
                self._linger(transport)
            elif not transport.unsent_deadline_s:
                transport.unsent_deadline_s = self._clock() + UNSENT_S
                self._ending[transport.fd] = transport

    def _watch(self, transport: Transport) -> None:
        """Watch for input unless the connection is paused."""
        connection = transport.connection
        wanted = transport.interest | READ
        if connection is not None and connection.is_held_back() and not transport.linger_deadline_s:
            wanted &= ~READ
        if wanted != transport.interest:
            self._set_interest(transport, wanted)

    def _set_interest(self, transport: Transport, interest: int) -> None:
        if transport.fd in self._transports:
            transport.interest = interest
            self._selector.modify(transport.fd, interest)

    # --- coming and going -------------------------------------------------------------------------------------------

    def _accept_some(self) -> None:
        """Accept a few connections for each listener; the rest is ready again in the next turn."""
        listeners = self._accepting
        self._accepting = []
        for listener in listeners:
            self._accept(listener)

    def _accept(self, listener: Listener) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if listener.tls is not None and self._handshakes.due_count >= HANDSHAKES_DUE_MAX:
                return  # they wait in the backlog, where they cost nothing
            if not self._admission.may_accept(self.broker.now_s):
                self._rest(listener, ACCEPT_PAUSE_S)
                return
            try:
                sock, peer = listener.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Probably out of descriptors: leave the rest in the backlog for a while.
                self.broker.note("error", "accept.failed", {"error": str(error)})
                self._rest(listener, ACCEPT_FAILED_S)
                return
            address = str(peer[0])
            loser = self._admission.maybe_loser(address, sock.fileno(), self.broker.now_s)
            if loser is not None:
                sock = self._moved_to_place_of(loser, sock)
            if not self._admission.enter(address, sock.fileno(), self.broker.now_s):
                self.broker.note("warning", "connection.refused", {"peer": address, "reason": self._admission.refusal})
                sock.close()
                continue
            try:
                self._welcome(listener, sock, address)
            except Exception as error:
                # Probably out of memory: that ends this connection only.
                self.crashes += 1
                self._on_crash(error)
                transport = self._transports.get(sock.fileno())
                if transport is not None:
                    self._close(transport)
                else:
                    self._admission.leave(sock.fileno())
                    sock.close()

    def _moved_to_place_of(self, loser: int, sock: socket.socket) -> socket.socket:
        """Close a connection that makes room for `sock`, and return the new one, if need be with another number."""
        transport = self._transports[loser]
        reason = "it has not logged in, and others need its place"
        self.broker.note("warning", "connection.dropped", {"peer": transport.address, "reason": reason})
        self._close(transport)
        if not self._admission.is_high(sock.fileno()):
            return sock
        try:
            moved = sock.dup()
        except OSError:
            return sock  # with its number it is refused
        sock.close()
        return moved

    def _welcome(self, listener: Listener, sock: socket.socket, address: str) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._keepalive.start(sock)
        transport = listener.transport(sock, address)
        self._begin(transport)
        if not transport.is_ready():
            self._handshakes.begin(transport.fd, address_block(address), self._clock())

    def _rest(self, listener: Listener, pause_s: float) -> None:
        """Stop accepting from `listener` for a while."""
        # In this order: without memory for the first step the listener stays watched, so it is not lost.
        self._idle_listeners[listener] = self.broker.now_s + pause_s
        self._selector.unregister(listener.sock.fileno())

    def _watch_listeners(self, now_s: float) -> None:
        """Accept again from listeners that have rested."""
        for listener, until_s in list(self._idle_listeners.items()):
            if now_s >= until_s:
                self._selector.register(listener.sock.fileno(), READABLE)
                del self._idle_listeners[listener]

    def _begin(self, transport: Transport) -> None:
        self._transports[transport.fd] = transport
        transport.interest = READ
        self._selector.register(transport.fd, READ)
        if transport.is_ready():
            self._connect(transport)

    def adopt(self, sock: socket.socket, address: str) -> None:
        """Serve a connected socket whose other end is in this process."""
        sock.setblocking(False)
        transport = Transport(sock, address, Connection)
        transport.pre_auth = False  # not from outside: admission does not count it
        self._begin(transport)
        connection = transport.connection
        assert connection is not None
        connection.is_internal = True
        connection.peer = f"internal:{connection.key}"
        connection.local = "broker"

    def may_accept(self) -> bool:
        """Tell whether clients are served, and one more may be accepted at this moment."""
        return self.serves and self._admission.may_accept(self._clock())

    def pass_on(self, sock: socket.socket, client: ClientOfNode) -> None:
        """Serve a client of another node; its bytes come through `sock`, a connection of that node.

        Rules about addresses apply to the client's address. An excess client is closed.
        """
        sock.setblocking(False)
        if not self.serves:
            sock.close()
        else:
            self._keepalive.start(sock)
            self._pass_on_admitted(sock, client)
        self.settle()

    def _pass_on_admitted(self, sock: socket.socket, client: ClientOfNode) -> None:
        now_s = self._clock()
        loser = self._admission.maybe_loser(client.host, sock.fileno(), now_s)
        is_fixed = isinstance(sock, ssl.SSLSocket) and self._admission.is_high(sock.fileno())
        if loser is not None and not is_fixed:  # a socket of TLS cannot get another number
            sock = self._moved_to_place_of(loser, sock)
        if not self._admission.enter(client.host, sock.fileno(), now_s):
            self.broker.note("warning", "connection.refused", {"peer": client.peer, "reason": self._admission.refusal})
            sock.close()
        elif isinstance(sock, ssl.SSLSocket):
            self._begin(TlsPassedOnTransport(sock, client, Connection))
        else:
            self._begin(PassedOnTransport(sock, client, Connection))

    def _shake_hands(self) -> None:
        """Do steps of TLS handshakes, at least one and not for long: other sockets are served between them."""
        start_s = self._clock()
        while self._handshakes.due_count:
            transport = self._transports[self._handshakes.take_next()]
            try:
                self._handshake(transport)
            except Exception as error:
                # Probably an unreadable certificate: that ends this connection only.
                self.crashes += 1
                self._on_crash(error)
                self._close(transport)
            if self._clock() - start_s > HANDSHAKE_BUDGET_S:
                return

    def _handshake(self, transport: Transport) -> None:
        assert isinstance(transport, TlsTransport)
        try:
            done = transport.handshake()
        except OSError as error:
            self.broker.note("warning", "tls.failed", {"peer": transport.address, "reason": str(error)})
            self._close(transport)
            return
        self._set_interest(transport, READ)
        self._admission.heard(transport.fd, self.broker.now_s, has_to_wait=False)
        if not done:
            return
        self._handshakes.end(transport.fd)
        self._connect(transport)
        # Bytes that the client sent right after its handshake are decrypted here, not by another event.
        self._read(transport)

    def _connect(self, transport: Transport) -> None:
        if isinstance(transport, PassedOnTransport):
            client = transport.client
        else:
            certificate = transport.peer_certificate()
            client = ClientOfNode(
                endpoint_text(transport.sock.getpeername),
                sys.intern(endpoint_text(transport.sock.getsockname)),  # one text for all sockets of a listener
                isinstance(transport, TlsTransport),
                self._certificate_user(certificate) if certificate is not None else None,
            )
        connection = self.broker.join(transport.protocol, client.peer, client.local, transport.address, client.user)
        connection.is_tls = client.is_tls
        connection.is_web = transport.is_web
        connection.node_name = client.node
        transport.connection = connection
        self._by_key[connection.key] = transport

    def _linger(self, transport: Transport) -> None:
        """End our half, since everything is sent, and wait for the peer to end its own."""
        transport.linger_deadline_s = self._clock() + LINGER_S
        self._ending[transport.fd] = transport
        try:
            transport.finish_sending()
        except OSError:
            self._close(transport)
            return
        self._set_interest(transport, READ)

    def _over(self, connection: Peer, reason: str) -> None:
        """End a connection whose peer has closed its WebSocket, or has broken its rules."""
        if connection.state == ENDED:
            return
        if reason:
            connection.drop(reason)
        else:
            connection.lost()

    def _lost(self, transport: Transport) -> None:
        connection = transport.connection
        if connection is not None:
            connection.lost()
        self._close(transport)

    def _close(self, transport: Transport) -> None:
        if self._transports.pop(transport.fd, None) is None:
            return
        self._ending.pop(transport.fd, None)
        self._ready.pop(transport.fd, None)  # the next socket may get its number
        self._handshakes.end(transport.fd)
        connection = transport.connection
        if connection is not None:
            self._by_key.pop(connection.key, None)
            connection.lost()
        if transport.pre_auth:
            transport.pre_auth = False
            self._admission.leave(transport.fd)
        self._selector.unregister(transport.fd)
        transport.close()


def endpoint_text(get: Callable[[], Any]) -> str:
    """Return ``host:port``; a peer that is already gone, or in this process, does not have one."""
    try:
        found = get()
    except OSError:
        return "?"
    if not isinstance(found, tuple):
        return "?"
    # Host and port come first; IPv6 adds a flow and a scope.
    host, port = found[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
