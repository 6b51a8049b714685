"""The sockets of clients that are open: how each becomes a peer of the broker, and every way it is closed.

1. A socket is closed only after its outbox is with the kernel and the peer had the chance to read it: we end our half,
   then wait for the peer's (at most `LINGER_S`). Closing with unread input would destroy what we sent last.
2. A peer that has ended and takes nothing of its last bytes is closed after `UNSENT_S`.
3. A socket leaves all lists when it is closed, before another one can get its number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from warren.channels.broker import Broker
from warren.channels.connection_states import ENDED
from warren.channels.ending import give_up
from warren.channels.origin import Origin
from warren.server.network.admission import Admission
from warren.server.network.dead_peers import DeadPeers, Keepalive
from warren.server.network.handshakes import Handshakes
from warren.server.network.poller import Poller
from warren.server.network.readiness import READ
from warren.server.network.transport import PassedOnTransport, TlsTransport, Transport

LINGER_S: Final = 3.0
UNSENT_S: Final = 30.0


class Sockets:
    """The open sockets. `certificate_user` maps a verified certificate to a user name.

    `on_closed` gets the key of a peer whose socket is closed.
    """

    def __init__(
        self,
        broker: Broker,
        poller: Poller,
        admission: Admission,
        *,
        certificate_user: Callable[[dict[str, object]], str | None],
        on_closed: Callable[[int], None],
        tls_handshake_timeout_s: float,
        keepalive: Keepalive,
        clock: Callable[[], float],
    ) -> None:
        self.by_fd: dict[int, Transport] = {}
        self.by_key: dict[int, Transport] = {}  # of their peers
        self.handshakes = Handshakes(tls_handshake_timeout_s)
        self.keepalive = keepalive
        self._broker = broker
        self._poller = poller
        self._admission = admission
        self._certificate_user = certificate_user
        self._on_closed = on_closed
        self._clock = clock
        self._dead_peers = DeadPeers(keepalive)
        self._ending: dict[int, Transport] = {}  # transports with a deadline for their end

    def begin(self, transport: Transport) -> None:
        """Watch a new socket; its peer follows when it is ready. If that fails the socket is closed or not watched."""
        # In this order: one that the system does not watch, since it watches too many, is in no list.
        self._poller.selector.register(transport.fd, READ)
        self.by_fd[transport.fd] = transport
        transport.interest = READ
        if transport.is_ready():
            try:
                self.connect(transport)
            except BaseException:
                self.close(transport)
                raise

    def connect(self, transport: Transport) -> None:
        """Make the peer of a socket that is ready."""
        if isinstance(transport, PassedOnTransport):
            client = transport.client
            origin = Origin(
                client.peer, client.local, client.host, client.user, is_tls=client.is_tls, node_name=client.node
            )
        else:
            certificate = transport.peer_certificate()
            origin = Origin(
                endpoint_text(transport.sock.getpeername),
                sys.intern(endpoint_text(transport.sock.getsockname)),  # one text for all sockets of a listener
                transport.address,
                self._certificate_user(certificate) if certificate is not None else None,
                is_tls=isinstance(transport, TlsTransport),
                is_web=transport.is_web,
            )
        peer = self._broker.join(transport.protocol, origin)
        transport.peer = peer
        self.by_key[peer.key] = transport

    def set_interest(self, transport: Transport, interest: int) -> None:
        """Change the events that are watched on a socket, unless it is closed."""
        if transport.fd in self.by_fd:
            transport.interest = interest
            self._poller.selector.modify(transport.fd, interest)

    # --- the end ----------------------------------------------------------------------------------------------------

    def finish(self, transport: Transport, *, sent: bool) -> None:
        """End our half when everything is `sent`, and wait for the peer to end its own: it has ended."""
        if transport.linger_deadline_s:
            return
        if not sent:
            if not transport.unsent_deadline_s:
                transport.unsent_deadline_s = self._clock() + UNSENT_S
                self._ending[transport.fd] = transport
            return
        transport.linger_deadline_s = self._clock() + LINGER_S
        self._ending[transport.fd] = transport
        try:
            transport.finish_sending()
        except OSError:
            self.close(transport)
            return
        self.set_interest(transport, READ)

    def lost(self, transport: Transport) -> None:
        """Close a connection whose socket is gone."""
        peer = transport.peer
        if peer is not None:
            peer.lost()
        self.close(transport)

    def close(self, transport: Transport) -> None:
        """Close a socket and forget it; its peer is lost if it has not ended."""
        if self.by_fd.pop(transport.fd, None) is None:
            return
        self._ending.pop(transport.fd, None)
        self.handshakes.end(transport.fd)
        peer = transport.peer
        if peer is not None:
            self.by_key.pop(peer.key, None)
            peer.lost()
            self._on_closed(peer.key)
        if transport.pre_auth:
            transport.pre_auth = False
            self._admission.leave(transport.fd)
        self._poller.forget(transport.fd)
        transport.close()

    def close_all(self) -> None:
        """Close every socket."""
        for transport in list(self.by_fd.values()):
            self.close(transport)

    def tick(self, now_s: float) -> None:
        """Close the sockets whose time is over, and end peers whose machine is gone."""
        for fd in self.handshakes.overdue(now_s):
            self.close(self.by_fd[fd])
        for transport in list(self._ending.values()):
            deadline_s = transport.linger_deadline_s or transport.unsent_deadline_s
            if deadline_s and now_s >= deadline_s:
                self.close(transport)
        for fd in self._dead_peers.due(self.by_fd, now_s):
            self._end_if_dead(fd)

    def _end_if_dead(self, fd: int) -> None:
        """End a connection whose peer no longer acknowledges what is sent to it."""
        transport = self.by_fd.get(fd)
        if transport is None or not self.keepalive.is_over(transport.sock):
            return
        peer = transport.peer
        if peer is not None and peer.state != ENDED:
            give_up(peer, f"its machine does not answer, timeout: {self.keepalive.timeout_s}s")


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
