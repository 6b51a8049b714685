"""Read and write the sockets of the reactor: plain, TLS, and WebSockets over either; non-blocking, one object each.

A transport moves bytes between a socket and an engine connection and decides nothing else.

1. The outbox is taken only when everything taken before is with the kernel, and a large one in parts. A peer that does
   not read costs one outbox (its soft limit) and one backlog of at most that size, whatever is published for it.
2. `receive` returns the bytes that are there now: ``b""`` at the end of the stream, None without any.
3. TLS leaves nothing in buffers across calls: a receive returns all that it decrypts. A WebSocket may keep a part of
   the received bytes for a later call (`is_behind`); until that is done nothing more is received.
4. A receive costs some milliseconds at most. TLS records are counted, and less is read at a time if they are small.
   Frames of a WebSocket are counted as well.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.server.client_of_node import ClientOfNode
from warren.server.network.tls_session import TlsSession
from warren.server.network.web_rules import FRAME_UNITS, FRAMES_MAX, FRAMES_MIN, WebRules

if TYPE_CHECKING:
    from warren.channels.broker import PeerMaker
    from warren.channels.peer import Peer
    from warren.server.network.web_socket import WebSocket

RECEIVE_BYTES: Final = 262144
# A flush ends when it has sent more than this: a peer that reads as fast as we write must not delay the others.
FLUSH_MAX_BYTES: Final = 4 << 20
# The kernel takes 1,024 pieces in one gathering write.
PIECES_MAX: Final = 1000


class Transport:
    """A plain TCP connection."""

    # There may be very many connections, all of them idle.
    __slots__ = (
        "_backlog",
        "_offset",
        "address",
        "fd",
        "interest",
        "is_web",
        "linger_deadline_s",
        "peer",
        "pre_auth",
        "protocol",
        "receiving_units",
        "sock",
        "unsent_deadline_s",
    )

    def __init__(self, sock: socket.socket, address: str, protocol: PeerMaker) -> None:
        self.sock = sock
        self.protocol = protocol  # makes the peer when the connection is ready
        self.fd = sock.fileno()
        self.address = address  # the peer's, without port
        self.peer: Peer | None = None
        self.interest = 0  # what epoll watches
        self.receiving_units: i64 = 0  # additional cost of the last receive
        self.pre_auth = True  # counted by admission control
        self.is_web = False  # a WebSocket
        self.linger_deadline_s = 0.0  # not 0: we have ended, and wait for the peer to
        self.unsent_deadline_s = 0.0  # not 0: the connection has ended, and its last bytes are not with the kernel
        self._backlog: list[bytes] = []
        self._offset = 0  # sent bytes of _backlog[0]

    def receive(self, limit_bytes: int) -> bytes | None:
        """Return received bytes, at most `limit_bytes`, or more if TLS has decrypted more.

        Raises:
            OSError: the connection is gone.
            WebSocketEnd: the WebSocket is over; the last bytes for its peer follow.
        """
        try:
            return self.sock.recv(limit_bytes)
        except BlockingIOError:
            return None

    def is_behind(self) -> bool:
        """Tell whether `receive` still has received bytes to return."""
        return False

    def flush(self) -> bool:
        """Send the outbox; False if the socket is full, or much was sent, and EPOLLOUT has to call again.

        Raises:
            OSError: the connection is gone.
        """
        peer = self.peer
        assert peer is not None
        outbox = peer.outbox
        if not self._backlog:
            chunks = self._take(outbox.take_some())
            if len(chunks) == 1:
                # The usual case: one piece, which the socket takes completely.
                size = self._send_whole(chunks[0])
                if size == len(chunks[0]):
                    if outbox.sent(size):
                        peer.drained()
                    if outbox.waiting_bytes() == 0:
                        return True
                    chunks = self._take(outbox.take_some())
                elif size:
                    outbox.sent(size)
                    self._offset = size
            self._backlog = chunks
        flushed = 0
        while self._backlog:
            if flushed > FLUSH_MAX_BYTES:
                return False
            try:
                size = self._send_some()
            except BlockingIOError:
                return False
            flushed += size
            if outbox.sent(size):
                peer.drained()
            self._advance(size)
            if not self._backlog and outbox.waiting_bytes() > 0:
                self._backlog = self._take(outbox.take_some())
        return True

    def _take(self, chunks: list[bytes]) -> list[bytes]:
        return chunks

    def _send_whole(self, data: bytes) -> int:
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0

    def _send_some(self) -> int:
        backlog = self._backlog
        if len(backlog) == 1:
            if self._offset == 0:
                return self.sock.send(backlog[0])
            return self.sock.send(memoryview(backlog[0])[self._offset :])
        pieces: list[bytes | memoryview] = list(backlog[:PIECES_MAX])
        if self._offset:
            pieces[0] = memoryview(backlog[0])[self._offset :]
        return self.sock.sendmsg(pieces)

    def _advance(self, size: int) -> None:
        backlog = self._backlog
        done = 0
        size += self._offset
        while done < len(backlog) and size >= len(backlog[done]):
            size -= len(backlog[done])
            done += 1
        self._offset = size
        if done == len(backlog):
            self._backlog = []
        else:
            del backlog[:done]

    def peer_certificate(self) -> dict[str, object] | None:
        """Return the verified certificate of the peer as `ssl.SSLObject.getpeercert` gives it."""
        return None

    def is_ready(self) -> bool:
        """Tell whether the connection can carry bytes of the peer: at once, or when the TLS handshake is done."""
        return True

    def finish_sending(self) -> None:
        """End our half of the connection; the kernel has everything taken before."""
        self.sock.shutdown(socket.SHUT_WR)

    def _say_last(self, data: bytes) -> None:
        """Send a few bytes after everything else, if there is room for them."""
        try:
            self.sock.send(data)
        except BlockingIOError:
            pass

    def close(self) -> None:
        self.sock.close()


class TlsTransport(Transport):
    """The same through TLS, by way of memory buffers."""

    def __init__(self, sock: socket.socket, address: str, context: ssl.SSLContext, protocol: PeerMaker) -> None:
        super().__init__(sock, address, protocol)
        self._session = TlsSession(context)
        self._raw: bytes = b""  # handshake bytes that wait for the socket

    def is_ready(self) -> bool:
        return self._session.is_handshaken

    def handshake(self) -> bool:
        """Continue the handshake; True when it is done.

        Raises:
            OSError: the handshake failed (`ssl.SSLError` is one) or the connection is gone.
        """
        try:
            data = self.sock.recv(self._session.receive_bytes())
        except BlockingIOError:
            return False
        try:
            return self._session.handshake(data)
        finally:
            self._send_raw()

    def _send_raw(self) -> None:
        """Send handshake and alert bytes: a few kilobytes, which a fresh socket buffer always takes."""
        self._raw += self._session.outgoing()
        while self._raw:
            try:
                sent = self.sock.send(self._raw)
            except BlockingIOError:
                return
            self._raw = self._raw[sent:]

    def receive(self, limit_bytes: int) -> bytes | None:
        session = self._session
        data: bytes | None = None
        try:
            data = self.sock.recv(session.receive_bytes())
        except BlockingIOError:
            pass  # bytes that came right after the handshake may still be undecrypted
        decrypted = session.decrypted(data)
        self.receiving_units = session.units
        return decrypted

    def _take(self, chunks: list[bytes]) -> list[bytes]:
        """Encrypt the chunks. One TLS write per outbox keeps records large."""
        if not chunks:
            return []
        plain = b"".join(chunks)
        encrypted = self._raw + self._session.encrypted(plain)
        self._raw = b""
        peer = self.peer
        assert peer is not None
        # The outbox counts the bytes for the socket, which are now ciphertext.
        peer.outbox.in_flight_bytes += len(encrypted) - len(plain)
        return [encrypted]

    def peer_certificate(self) -> dict[str, object] | None:
        return self._session.peer_certificate()

    def _say_last(self, data: bytes) -> None:
        self._raw += self._session.encrypted(data)

    def finish_sending(self) -> None:
        self._session.end()
        self._send_raw()
        self.sock.shutdown(socket.SHUT_WR)


class WebSocketTransport(Transport):
    """A WebSocket on a plain TCP connection."""

    def __init__(self, sock: socket.socket, address: str, protocol: PeerMaker, rules: WebRules) -> None:
        super().__init__(sock, address, protocol)
        self.web = _opened(rules, address)
        self.is_web = True

    def is_behind(self) -> bool:
        return self.web.is_behind and not self.linger_deadline_s  # what is left then is not decoded

    def receive(self, limit_bytes: int) -> bytes | None:
        if self.linger_deadline_s:
            return super().receive(limit_bytes)  # nobody listens now
        self.receiving_units = 0
        if not self.web.is_behind:
            data = super().receive(limit_bytes)
            if not data:
                return data
            self.web.received(data)
        return _said(self, self.web)

    def _take(self, chunks: list[bytes]) -> list[bytes]:
        return super()._take(_framed(self, self.web, chunks))

    def finish_sending(self) -> None:
        farewell = self.web.farewell()
        if farewell:
            self._say_last(farewell)
        super().finish_sending()

    def close(self) -> None:
        super().close()
        self.web.close()


# The same methods once more: compiled classes have one base class.
class TlsWebSocketTransport(TlsTransport):
    """A WebSocket through TLS."""

    def __init__(
        self, sock: socket.socket, address: str, context: ssl.SSLContext, protocol: PeerMaker, rules: WebRules
    ) -> None:
        super().__init__(sock, address, context, protocol)
        self.web = _opened(rules, address)
        self.is_web = True

    def is_behind(self) -> bool:
        return self.web.is_behind and not self.linger_deadline_s  # what is left then is not decoded

    def receive(self, limit_bytes: int) -> bytes | None:
        if self.linger_deadline_s:
            return super().receive(limit_bytes)  # nobody listens now
        self.receiving_units = 0
        if not self.web.is_behind:
            data = super().receive(limit_bytes)
            if not data:
                return data
            self.web.received(data)
        return _said(self, self.web)

    def _take(self, chunks: list[bytes]) -> list[bytes]:
        return super()._take(_framed(self, self.web, chunks))

    def finish_sending(self) -> None:
        farewell = self.web.farewell()
        if farewell:
            self._say_last(farewell)
        super().finish_sending()

    def close(self) -> None:
        super().close()
        self.web.close()


def _opened(rules: WebRules, address: str) -> WebSocket:
    # Imported by the first one: wsproto and its dependencies take a megabyte.
    from warren.server.network.web_socket import WebSocket

    return WebSocket(rules, address)


def _said(transport: Transport, web: WebSocket) -> bytes | None:
    """Return the data in the frames that `web` has received, as many as a turn may have."""
    peer = transport.peer
    assert peer is not None
    said = web.read(min(max(int(peer.shared.feed_units) // FRAME_UNITS, FRAMES_MIN), FRAMES_MAX))
    transport.receiving_units += web.units
    if web.control_bytes():
        peer.outbox.touch()
    return said


def _framed(transport: Transport, web: WebSocket, chunks: list[bytes]) -> list[bytes]:
    """Return `chunks` of the outbox in frames, after the control frames that are due."""
    peer = transport.peer
    assert peer is not None
    # A pong does not count for the protocol: heartbeats are sent as if no pong had been sent.
    peer.outbox.sent_bytes -= web.control_bytes()
    framed = web.framed(chunks)
    # The outbox counts the bytes for the socket.
    peer.outbox.in_flight_bytes += sum(map(len, framed)) - sum(map(len, chunks))
    return framed


class PassedOnTransport(Transport):
    """A client that another node passes on: `client` describes it, the socket is that of the node."""

    def __init__(self, sock: socket.socket, client: ClientOfNode, protocol: PeerMaker) -> None:
        super().__init__(sock, client.host, protocol)
        self.client = client


class TlsPassedOnTransport(PassedOnTransport):
    """The same with TLS between the nodes, whose handshake is done: OpenSSL reads and writes the socket."""

    def receive(self, limit_bytes: int) -> bytes | None:
        try:
            return self.sock.recv(limit_bytes)  # a record at a time; the next ones are still with the kernel
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None

    def _send_whole(self, data: bytes) -> int:
        return self._send_joined(data)

    def _send_some(self) -> int:
        data = b"".join(self._backlog[:PIECES_MAX])[self._offset :]
        sent = self._send_joined(data)
        if not sent:
            raise BlockingIOError
        return sent

    def _send_joined(self, data: bytes) -> int:
        try:
            return self.sock.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
