"""The clients of a node that does not lead, each with a connection to the leader once there is one.

    SHAKING   TLS with the client is being agreed on
    WAITING   waits for a connection to the leader; nothing is read from it
    PASSED    its bytes go to the leader, and the leader's to it
    LEAVING   the leader sends nothing more; the rest is sent, then the client has to end the connection

    state     what happens                                    becomes
    SHAKING   handshake done                                  WAITING
    WAITING   connected to the leader                         PASSED
    WAITING   no leader in time; this node stops              LEAVING, told why
    PASSED    the leader has said its last word, and ended    LEAVING
    PASSED    the leader is gone, or another one leads        LEAVING, told why (``answers.py``)
    PASSED    nothing is heard of the leader for `SILENT_S`   LEAVING, told why
    any       the client is gone; a deadline has passed       closed, at both ends

1. An end is read only while the other end accepts the bytes: a peer that does not read costs one read, the bytes that
   ``answers.py`` holds, and the buffers of two sockets in the kernel.
2. The end of a client is passed on as an end; its loss as a loss.
3. Clients that are not connected to the leader are counted by `Admission`, as those of a broker that have not logged
   in. Those that keep silent while TLS is being agreed on make room for others. Each client takes two descriptors, and
   none is taken that is for files.
4. One task does it all, on a selector of its own: a read, a send, no task and no timer for each client.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Final

import trio

from warren.gateway.answers import Answers, farewell
from warren.gateway.ends import ClientTlsEnd, End, NodeTlsEnd
from warren.server.client_of_node import ClientOfNode
from warren.server.following import Passage
from warren.server.logs import get_logger
from warren.server.network.acceptor import Listener
from warren.server.network.admission import Admission, address_block
from warren.server.network.dead_peers import NEVER, DeadPeers, Keepalive
from warren.server.network.handshakes import Handshakes
from warren.server.network.readiness import ENDED, ERROR, GONE, READABLE, WRITE, open_selector
from warren.server.network.sockets import endpoint_text
from warren.server.network.tls_session import TlsSession

SHAKING: Final = "tls handshake"
WAITING: Final = "waiting"
PASSED: Final = "passed on"
LEAVING: Final = "leaving"

# Less than the grace time of a cluster: clients that are told try another node.
SILENT_S: Final = 2.0
LINGER_S: Final = 3.0
UNSENT_S: Final = 10.0
LAST_LINGER_S: Final = 1.0  # when this node begins to lead, or stops
ACCEPTS_PER_TURN: Final = 32
ACCEPT_PAUSE_S: Final = 0.02
HANDSHAKE_BUDGET_S: Final = 0.001
YIELD_EVERY_S: Final = 0.002
# A leader whose machine is gone does not answer: the kernel probes it from time to time.
_FIRST_AFTER: Final = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"  # the latter on macOS
KEEPALIVE: Final = ((getattr(socket, _FIRST_AFTER), 3), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 3))

log = get_logger("gateway")


class Client:
    """A client, with its state; `facts` is the information for the leader about it."""

    def __init__(self, end: End, facts: ClientOfNode) -> None:
        self.end = end
        self.facts = facts
        self.state = WAITING
        self.leader: End | None = None
        self.leader_node: object = None  # the node that this connection leads to
        self.answers = Answers()
        self.deadline_s = 0.0  # not 0: it is closed then
        self.is_finished = False  # it was told that nothing more comes
        self.waits = trio.CancelScope()  # of the task that connects it to the leader


class Clients:
    """All clients of this node. `begin` starts connecting one to the leader: `connected` or `turned_away` follows.

    `certificate_user` maps a verified certificate to a user name. `clock` is monotonic, in seconds. `keepalive`: of the
    sockets of clients.
    """

    def __init__(
        self,
        admission: Admission,
        handshakes: Handshakes,
        descriptors_below: int,
        certificate_user: Callable[[dict[str, object]], str | None],
        begin: Callable[[Client], None],
        clock: Callable[[], float] = time.monotonic,
        keepalive: Keepalive = NEVER,
    ) -> None:
        self._admission = admission
        self._handshakes = handshakes
        self._descriptors_below = descriptors_below
        self._certificate_user = certificate_user
        self._begin = begin
        self._clock = clock
        self._keepalive = keepalive
        self._dead_peers = DeadPeers(keepalive)
        self._selector = open_selector()
        self._listeners: dict[int, Listener] = {}
        self._resting: dict[int, float] = {}  # listeners that do not accept until then
        self._clients: dict[int, Client] = {}  # by the descriptors of their ends

    # --- state for observers ----------------------------------------------------------------------------------------

    def count(self, *states: str) -> int:
        """Return the number of clients in one of these states."""
        return sum(client.state in states for client in self._all())

    def _all(self) -> list[Client]:
        return [client for fd, client in self._clients.items() if fd == client.end.fd]

    # --- from outside -----------------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Accept clients from `listener`."""
        fd = listener.sock.fileno()
        self._listeners[fd] = listener
        self._selector.register(fd, READABLE)

    async def run(self) -> None:
        """Serve. For ever."""
        last_yield_s = self._clock()
        while True:
            events = self._selector.poll(0)
            if not events and not self._handshakes.due_count:
                await trio.lowlevel.wait_readable(self._selector.fileno())
                last_yield_s = self._clock()
                continue
            self._turn(events)
            now_s = self._clock()
            if now_s - last_yield_s > YIELD_EVERY_S:
                await trio.lowlevel.checkpoint()
                last_yield_s = now_s

    def tick(self, leader_node: object, silent_s: float = 0.0) -> None:
        """Check timeouts. Call about twice a second.

        `leader_node` is the known leader, None without one. Nothing was heard of it for `silent_s`.
        """
        now_s = self._clock()
        for fd, until_s in list(self._resting.items()):
            if now_s >= until_s:
                try:
                    self._selector.register(fd, READABLE)
                except (OSError, MemoryError) as error:
                    log.error("accept.failed", error=str(error))
                    continue  # it is tried again with the next tick
                del self._resting[fd]
        for fd in self._handshakes.overdue(now_s):
            self._close(self._clients[fd])
        for fd in self._dead_peers.due(self._clients, now_s):
            found = self._clients.get(fd)
            if found is not None and fd == found.end.fd and self._keepalive.is_over(found.end.sock):
                log.warning("connection.lost", peer=found.facts.peer, reason="its machine does not answer")
                self._close(found)
        for client in self._all():
            if client.deadline_s and now_s >= client.deadline_s:
                self._close(client)
            elif client.state == PASSED and leader_node is not None and client.leader_node != leader_node:
                self._leave(client, "another node is the leader now: connect again")
            elif client.state == PASSED and silent_s >= SILENT_S:
                self._leave(client, "this node has lost contact with the leader: connect again, to another node")

    def connected(self, client: Client, passage: Passage) -> None:
        """Pass on a client from now on. Close the connection to the leader if the client is gone by now."""
        sock = passage.sock
        if client.state != WAITING or self._clients.get(client.end.fd) is not client:
            sock.close()
            return
        if sock.fileno() >= self._descriptors_below:
            sock.close()
            self.turned_away(client, "too many clients are connected to this node")
            return
        leader = NodeTlsEnd(sock) if isinstance(sock, ssl.SSLSocket) else End(sock)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            self._add(client, leader, READABLE)
        except BaseException:
            sock.close()
            raise
        client.leader = leader
        client.leader_node = passage.leader
        client.state = PASSED
        self._admission.leave(client.end.fd)
        try:
            self._watch(client.end, READABLE)
            # Bytes that came directly after the TLS handshake have been read already: the selector does not tell them.
            self._read(client, client.end)
        except Exception as error:
            self._failed(client, error)

    def turned_away(self, client: Client, reason: str) -> None:
        """Notify a client that it cannot be connected to the leader."""
        if client.state == WAITING and self._clients.get(client.end.fd) is client:
            log.warning("a client was turned away", peer=client.facts.peer, reason=reason)
            self._leave(client, reason)

    def end_all(self, reason: str) -> None:
        """Dismiss all clients, and listen no more. Their ends are waited for in a thread, not here."""
        for listener in self._listeners.values():
            listener.sock.close()
        self._listeners = {}
        left: list[End] = []
        for client in self._all():
            client.waits.cancel()
            if client.state in (WAITING, PASSED):
                self._leave(client, reason)
            if client.state == LEAVING and self._clients.get(client.end.fd) is client:
                self._forget(client)
                left.append(client.end)
            else:
                self._close(client)
        self._selector.close()
        if left:
            Thread(target=_linger, args=(left,), name="gateway linger", daemon=True).start()

    # --- turns ------------------------------------------------------------------------------------------------------

    def _turn(self, events: list[tuple[int, int]]) -> None:
        accepting: list[Listener] = []
        for fd, mask in events:
            client = self._clients.get(fd)
            if client is None:
                if fd in self._listeners:
                    accepting.append(self._listeners[fd])
                continue
            end = client.end if fd == client.end.fd else client.leader
            assert end is not None
            try:
                if mask & WRITE:
                    self._flush(client, end)
                if mask & ~WRITE and self._clients.get(fd) is client:
                    self._heard(client, end, mask)
            except Exception as error:
                self._failed(client, error)
        # Behind the last event: until here no descriptor that was closed in this turn is another connection's.
        for listener in accepting:
            self._accept(listener)
        self._shake_hands()

    def _heard(self, client: Client, end: End, mask: int) -> None:
        if client.state == SHAKING:
            self._handshakes.make_due(end.fd)
            self._admission.heard(end.fd, self._clock(), has_to_wait=True)
            self._watch(end, 0)
        elif client.state == WAITING:
            self._close(client)  # only its end is watched
        elif end.interest & READABLE:
            self._read(client, end)
        elif mask & ERROR:
            self._lost(client, end)
        elif mask & GONE:
            # Not read at the moment, since the other end is full: its last bytes are read when that is over.
            self._selector.unregister(end.fd)
            end.is_hung_up = True

    def _read(self, client: Client, end: End) -> None:
        """Pass on the bytes that have arrived at one end."""
        try:
            data = end.receive()
        except OSError:
            self._lost(client, end)
            return
        if data is None:
            return
        if not data:
            self._ended(client, end)
            return
        if client.state == LEAVING:
            return  # it cannot be passed on: the leader is gone
        leader = client.leader
        assert leader is not None
        other = leader
        try:
            if end is leader:
                other = client.end
                other.offer(client.answers.passed_on(data))
            else:
                other.offer(data)
        except OSError:
            self._lost(client, other)
            return
        if other.is_full:
            self._watch(other, other.interest | WRITE)
            self._watch(end, end.interest & ~READABLE)

    def _flush(self, client: Client, end: End) -> None:
        """Send the bytes that wait at one end, and continue to read the other end."""
        try:
            if not end.flush():
                return
        except OSError:
            self._lost(client, end)
            return
        self._watch(end, end.interest & ~WRITE)
        if client.state == LEAVING:
            self._finish(client)
        elif client.leader is not None:
            self._go_on(client, client.leader if end is client.end else client.end, end)

    def _go_on(self, client: Client, end: End, other: End) -> None:
        """Read one end again, now that the other one has taken everything; or pass its end on."""
        if end.has_ended:
            self._pass_end_on(client, other)
        elif end.is_hung_up:
            while self._clients.get(end.fd) is client and client.state == PASSED:
                if other.is_full or end.has_ended:
                    break
                self._read(client, end)
        else:
            self._watch(end, end.interest | READABLE)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _ended(self, client: Client, end: End) -> None:
        """Handle the end of one end's data."""
        end.has_ended = True
        self._watch(end, end.interest & ~READABLE)
        if end is not client.end:
            self._leader_gone(client)
        elif client.state == LEAVING:
            self._close(client)
        else:
            leader = client.leader
            assert leader is not None
            if not leader.is_full:
                self._pass_end_on(client, leader)

    def _pass_end_on(self, client: Client, other: End) -> None:
        try:
            other.finish()
        except OSError:
            self._lost(client, other)

    def _lost(self, client: Client, end: End) -> None:
        """Handle the loss of one end."""
        if end is client.end or client.state != PASSED:
            self._close(client)
        else:
            self._leader_gone(client)

    def _leader_gone(self, client: Client) -> None:
        if client.end.has_ended:
            self._close(client)  # it has gone first, and the leader has answered that
        else:
            self._leave(client, "the connection to the leader has ended: connect again")

    def _leave(self, client: Client, reason: str) -> None:
        """Dismiss a client: it gets the reason, unless the leader has sent it."""
        waited = client.state == WAITING
        word = farewell(reason) if waited else client.answers.last_word(reason)
        if waited:
            self._admission.leave(client.end.fd)
        client.state = LEAVING
        self._drop_leader(client)
        client.deadline_s = self._clock() + UNSENT_S
        end = client.end
        try:
            if waited:
                end.receive()  # unread bytes from it would make the kernel destroy the bytes that we send
            if word:
                end.offer(word)
        except OSError:
            self._close(client)
            return
        if end.is_hung_up:
            self._close(client)
            return
        self._watch(end, READABLE | WRITE if end.is_full else READABLE)
        if not end.is_full:
            self._finish(client)

    def _finish(self, client: Client) -> None:
        """End our half, as everything is sent, and wait for the client's."""
        if client.is_finished:
            return
        client.is_finished = True
        client.deadline_s = self._clock() + LINGER_S
        try:
            client.end.finish()
        except OSError:
            self._close(client)

    def _drop_leader(self, client: Client) -> None:
        leader = client.leader
        if leader is not None:
            client.leader = None
            self._remove(leader)
            leader.close()

    def _failed(self, client: Client, error: Exception) -> None:
        """Close a client after a fault of ours, or for lack of memory; the others continue. Bytes may be missing."""
        log.error("internal error, the connection is closed", peer=client.facts.peer, exception=error)
        self._close(client)

    def _close(self, client: Client) -> None:
        if client.state in (SHAKING, WAITING):
            self._admission.leave(client.end.fd)
            client.waits.cancel()
        client.state = LEAVING
        self._forget(client)
        client.end.close()

    def _forget(self, client: Client) -> None:
        """Take a client out of everything, but leave its end open."""
        self._drop_leader(client)
        if self._clients.get(client.end.fd) is client:
            self._handshakes.end(client.end.fd)
            self._remove(client.end)

    def _watch(self, end: End, interest: int) -> None:
        """Watch an end for these events; a hang-up is noticed in any case."""
        if interest != end.interest and not end.is_hung_up:
            self._selector.modify(end.fd, interest)
            end.interest = interest

    def _add(self, client: Client, end: End, interest: int) -> None:
        # In this order: an end that the system does not watch, since it watches too many, is not listed.
        self._selector.register(end.fd, interest)
        self._clients[end.fd] = client
        end.interest = interest

    def _remove(self, end: End) -> None:
        del self._clients[end.fd]
        if not end.is_hung_up:
            self._selector.unregister(end.fd)

    # --- the beginning ----------------------------------------------------------------------------------------------

    def _accept(self, listener: Listener) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if not self._admission.may_accept(self._clock()):
                self._rest(listener)
                return
            try:
                sock, peer = listener.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.error("accept.failed", error=str(error))
                self._rest(listener)
                return
            address, now_s = str(peer[0]), self._clock()
            loser = self._admission.maybe_loser(address, sock.fileno(), now_s)
            if loser is not None:
                log.warning("a silent client was disconnected to make room", peer=self._clients[loser].facts.peer)
                self._close(self._clients[loser])
            if not self._admission.enter(address, sock.fileno(), now_s):
                log.warning("a client was turned away", peer=address, reason=self._admission.refusal)
                sock.close()
                continue
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._keepalive.start(sock)
                self._welcome(listener, sock, address)
            except Exception as error:
                self._drop(sock, address, error)

    def _drop(self, sock: socket.socket, address: str, error: Exception) -> None:
        """Close a connection that cannot be served: that ends this one only."""
        client = self._clients.get(sock.fileno())
        if client is not None:
            self._failed(client, error)
            return
        log.error("internal error, the connection is closed", peer=address, exception=error)
        self._handshakes.end(sock.fileno())
        self._admission.leave(sock.fileno())
        sock.close()

    def _welcome(self, listener: Listener, sock: socket.socket, address: str) -> None:
        facts = ClientOfNode(
            endpoint_text(sock.getpeername), endpoint_text(sock.getsockname), is_tls=listener.tls is not None
        )
        if listener.tls is None:
            client = Client(End(sock), facts)
        else:
            client = Client(ClientTlsEnd(sock, TlsSession(listener.tls())), facts)
        if listener.tls is None:
            self._await_leader(client)
            self._add(client, client.end, ENDED)
            self._begin(client)
        else:
            client.state = SHAKING
            self._handshakes.begin(client.end.fd, address_block(address), self._clock())
            self._add(client, client.end, READABLE)

    def _await_leader(self, client: Client) -> None:
        """Note that a client waits for a connection to the leader: it is not read, so it is not silent."""
        self._admission.heard(client.end.fd, self._clock(), has_to_wait=True)

    def _rest(self, listener: Listener) -> None:
        fd = listener.sock.fileno()
        self._selector.unregister(fd)
        self._resting[fd] = self._clock() + ACCEPT_PAUSE_S

    def _shake_hands(self) -> None:
        """Do steps of handshakes, one at least and not for long: others are served between them."""
        start_s = self._clock()
        while self._handshakes.due_count:
            client = self._clients[self._handshakes.take_next()]
            try:
                self._shake_hand(client)
            except OSError as error:
                log.warning("the TLS handshake with a client has failed", peer=client.facts.peer, reason=str(error))
                self._close(client)
            except Exception as error:
                self._failed(client, error)
            if self._clock() - start_s > HANDSHAKE_BUDGET_S:
                return

    def _shake_hand(self, client: Client) -> None:
        """Do a step of a handshake. Raises OSError: it has failed, or the connection is gone."""
        end = client.end
        assert isinstance(end, ClientTlsEnd)
        if not end.handshake():
            self._admission.heard(end.fd, self._clock(), has_to_wait=False)
            self._watch(end, READABLE)
            return
        client.facts = self._named(client.facts, end.session)
        self._handshakes.end(end.fd)
        client.state = WAITING
        self._await_leader(client)
        self._watch(end, ENDED)
        self._begin(client)

    def _named(self, facts: ClientOfNode, session: TlsSession) -> ClientOfNode:
        certificate = session.peer_certificate()
        user = self._certificate_user(certificate) if certificate is not None else None
        return ClientOfNode(facts.peer, facts.local, is_tls=True, user=user)


def _linger(ends: list[End]) -> None:
    """Send the rest, and wait for these clients to end: closing with unread input would destroy the sent bytes."""
    deadline_s = time.monotonic() + LAST_LINGER_S
    poll = select.poll()
    left = {end.fd: end for end in ends}
    for end in ends:
        poll.register(end.fd, select.POLLIN | select.POLLOUT if end.is_full else select.POLLIN)
    while left and (now_s := time.monotonic()) < deadline_s:
        for fd, mask in poll.poll((deadline_s - now_s) * 1000):
            end = left[fd]
            over = True
            with suppress(OSError):
                if mask & select.POLLOUT and end.flush():
                    end.finish()
                    poll.modify(fd, select.POLLIN)
                over = bool(mask & ~select.POLLOUT) and not end.sock.recv(1 << 16)
            if over:
                poll.unregister(fd)
                left.pop(fd).close()
    for end in left.values():
        end.close()
