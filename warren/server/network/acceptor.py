"""Accept connections: from listeners, from other nodes, and from inside the process, until each is an open socket.

1. A turn accepts at most `ACCEPTS_PER_TURN` connections of each listener, after its last event: until then a closed
   descriptor cannot be reused by another connection.
2. A turn does steps of TLS handshakes for `HANDSHAKE_BUDGET_S`, at least one; addresses take turns in that
   (`server.network.handshakes`). Accepting for TLS waits while `HANDSHAKES_DUE_MAX` steps are due.
3. A peer that has not logged in and keeps silent loses its place to a newcomer, if there is no other place
   (`server.network.admission`).
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Final

from warren.channels.broker import Broker, PeerMaker
from warren.channels.connection import Connection
from warren.server.client_of_node import ClientOfNode
from warren.server.network.admission import Admission, address_block
from warren.server.network.poller import Poller
from warren.server.network.readiness import READ, READABLE
from warren.server.network.sockets import Sockets
from warren.server.network.transport import (
    PassedOnTransport,
    TlsPassedOnTransport,
    TlsTransport,
    TlsWebSocketTransport,
    Transport,
    WebSocketTransport,
)
from warren.server.network.web_rules import WebRules

ACCEPTS_PER_TURN: Final = 32
# How long a listener rests after too many connections, and after accepting has failed.
ACCEPT_PAUSE_S: Final = 0.02
ACCEPT_FAILED_S: Final = 1.0
# A step of a TLS handshake takes 1 to 3 ms with RSA: one or two in a turn.
HANDSHAKE_BUDGET_S: Final = 0.001
HANDSHAKES_DUE_MAX: Final = 64


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


class Acceptor:
    """The listeners of a reactor, and the handshakes of what they have accepted.

    `on_crash` receives our own faults, `read` reads a socket that is ready.
    """

    def __init__(
        self,
        broker: Broker,
        poller: Poller,
        sockets: Sockets,
        admission: Admission,
        *,
        on_crash: Callable[[BaseException], None],
        read: Callable[[Transport], None],
        clock: Callable[[], float],
    ) -> None:
        self.serves = False  # whether clients of other nodes are served: no listener shows that
        self.accepting: list[Listener] = []  # have connections waiting, in this turn
        self.resting: dict[Listener, float] = {}  # not watched until this time
        self._listeners: dict[int, Listener] = {}
        self._broker = broker
        self._poller = poller
        self._sockets = sockets
        self._handshakes = sockets.handshakes
        self._admission = admission
        self._on_crash = on_crash
        self._read = read
        self._clock = clock

    # --- from outside -----------------------------------------------------------------------------------------------

    def begin_serving(self) -> None:
        """Serve clients of other nodes, too."""
        self.serves = True

    def listen(self, listener: Listener) -> None:
        """Accept connections from `listener`."""
        self._listeners[listener.sock.fileno()] = listener
        self._poller.selector.register(listener.sock.fileno(), READABLE)

    def stop(self) -> None:
        """Close the listeners; connections stay open."""
        self.serves = False
        for fd, listener in self._listeners.items():
            if listener not in self.resting:
                self._poller.forget(fd)
            listener.sock.close()
        self._listeners = {}
        self.resting = {}

    def may_accept(self) -> bool:
        """Tell whether clients are served, and one more may be accepted at this moment."""
        return self.serves and self._admission.may_accept(self._clock())

    def adopt(self, sock: socket.socket, address: str) -> None:
        """Serve a connected socket whose other end is in this process."""
        sock.setblocking(False)
        transport = Transport(sock, address, Connection)
        transport.pre_auth = False  # not from outside: admission does not count it
        self._sockets.begin(transport)
        peer = transport.peer
        assert peer is not None
        peer.origin.is_internal = True
        peer.origin.peer = f"internal:{peer.key}"
        peer.origin.local = "broker"

    def pass_on(self, sock: socket.socket, client: ClientOfNode) -> None:
        """Serve a client of another node; its bytes come through `sock`, a connection of that node.

        Rules about addresses apply to the client's address. An excess client is closed. The caller settles.
        """
        sock.setblocking(False)
        if not self.serves:
            sock.close()
            return
        self._sockets.keepalive.start(sock)
        now_s = self._clock()
        loser = self._admission.maybe_loser(client.host, sock.fileno(), now_s)
        is_fixed = isinstance(sock, ssl.SSLSocket) and self._admission.is_high(sock.fileno())
        if loser is not None and not is_fixed:  # a socket of TLS cannot get another number
            sock = self._moved_to_place_of(loser, sock)
        if not self._admitted(sock, client.host, client.peer, now_s):
            return
        kind = TlsPassedOnTransport if isinstance(sock, ssl.SSLSocket) else PassedOnTransport
        try:
            self._sockets.begin(kind(sock, client, Connection))
        except Exception as error:
            self._drop(sock, error)

    # --- listeners --------------------------------------------------------------------------------------------------

    def has_waiting(self, fd: int) -> None:
        """Schedule accepting at a listener where a connection waits. Ignores other descriptors."""
        listener = self._listeners.get(fd)
        if listener is not None:
            self.accepting.append(listener)

    def accept_some(self) -> None:
        """Accept a few connections for each listener; the rest is ready again in the next turn."""
        listeners = self.accepting
        self.accepting = []
        for listener in listeners:
            self._accept(listener)

    def _accept(self, listener: Listener) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if listener.tls is not None and self._handshakes.due_count >= HANDSHAKES_DUE_MAX:
                return  # they wait in the backlog, where they cost nothing
            now_s = self._broker.now_s
            if not self._admission.may_accept(now_s):
                self._rest(listener, ACCEPT_PAUSE_S)
                return
            try:
                sock, peer = listener.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Probably out of descriptors: leave the rest in the backlog for a while.
                self._broker.note("error", "accept.failed", {"error": str(error)})
                self._rest(listener, ACCEPT_FAILED_S)
                return
            address = str(peer[0])
            loser = self._admission.maybe_loser(address, sock.fileno(), now_s)
            if loser is not None:
                sock = self._moved_to_place_of(loser, sock)
            if not self._admitted(sock, address, address, now_s):
                continue
            try:
                self._welcome(listener, sock, address)
            except Exception as error:
                self._drop(sock, error)

    def _drop(self, sock: socket.socket, error: Exception) -> None:
        """Close a connection that cannot be served, probably for lack of memory: that ends this one only."""
        self._on_crash(error)
        transport = self._sockets.by_fd.get(sock.fileno())
        if transport is not None:
            self._sockets.close(transport)
        elif sock.fileno() >= 0:
            self._admission.leave(sock.fileno())
            sock.close()

    def _moved_to_place_of(self, loser: int, sock: socket.socket) -> socket.socket:
        """Close a connection that makes room for `sock`, and return the new one, if need be with another number."""
        transport = self._sockets.by_fd[loser]
        reason = "not logged in yet, and others need the connection slot"
        self._broker.note("warning", "connection.dropped", {"peer": transport.address, "reason": reason})
        self._sockets.close(transport)
        if not self._admission.is_high(sock.fileno()):
            return sock
        try:
            moved = sock.dup()
        except OSError:
            return sock  # with its number it is refused
        sock.close()
        return moved

    def _admitted(self, sock: socket.socket, address: str, peer: str, now_s: float) -> bool:
        """Count a connection as one that has not logged in; close it and return False if there is no place for it."""
        if self._admission.enter(address, sock.fileno(), now_s):
            return True
        self._broker.note("warning", "connection.refused", {"peer": peer, "reason": self._admission.refusal})
        sock.close()
        return False

    def _welcome(self, listener: Listener, sock: socket.socket, address: str) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets.keepalive.start(sock)
        transport = listener.transport(sock, address)
        self._sockets.begin(transport)
        if not transport.is_ready():
            self._handshakes.begin(transport.fd, address_block(address), self._clock())

    def _rest(self, listener: Listener, pause_s: float) -> None:
        """Stop accepting from `listener` for a while."""
        # In this order: without memory for the first step the listener stays watched, so it is not lost.
        self.resting[listener] = self._broker.now_s + pause_s
        self._poller.forget(listener.sock.fileno())

    def watch_again(self, now_s: float) -> None:
        """Accept again from listeners that have rested; one that the system cannot watch now rests again."""
        for listener, until_s in list(self.resting.items()):
            if now_s < until_s:
                continue
            try:
                self._poller.selector.register(listener.sock.fileno(), READABLE)
            except (OSError, MemoryError) as error:
                self._broker.note("error", "accept.failed", {"error": str(error)})
                self.resting[listener] = now_s + ACCEPT_FAILED_S
                continue
            del self.resting[listener]

    # --- handshakes -------------------------------------------------------------------------------------------------

    def heard(self, transport: Transport) -> None:
        """Schedule the next step of a TLS handshake. Its socket is not watched until the step is done."""
        self._handshakes.make_due(transport.fd)
        self._sockets.set_interest(transport, 0)
        self._admission.heard(transport.fd, self._broker.now_s, has_to_wait=True)

    def shake_hands(self) -> None:
        """Do steps of TLS handshakes, at least one and not for long: other sockets are served between them."""
        start_s = self._clock()
        while self._handshakes.due_count:
            transport = self._sockets.by_fd[self._handshakes.take_next()]
            try:
                self._handshake(transport)
            except Exception as error:
                # Probably an unreadable certificate: that ends this connection only.
                self._on_crash(error)
                self._sockets.close(transport)
            if self._clock() - start_s > HANDSHAKE_BUDGET_S:
                return

    def _handshake(self, transport: Transport) -> None:
        assert isinstance(transport, TlsTransport)
        try:
            done = transport.handshake()
        except OSError as error:
            self._broker.note("warning", "tls.failed", {"peer": transport.address, "reason": str(error)})
            self._sockets.close(transport)
            return
        self._sockets.set_interest(transport, READ)
        self._admission.heard(transport.fd, self._broker.now_s, has_to_wait=False)
        if not done:
            return
        self._handshakes.end(transport.fd)
        self._sockets.connect(transport)
        # Bytes that the client sent right after its handshake are decrypted here, not by another event.
        self._read(transport)
