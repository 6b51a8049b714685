"""One end of a connection that is passed on: a client's socket, plain or TLS, or the one to the leader.

1. `offer` never blocks. Bytes that the kernel does not take wait. The caller has to stop until `flush` says that
   nothing waits: so at most one offer waits, and a last word after it.
2. `receive` returns what is there now: ``b""`` at the end, None when nothing is.
3. TLS between client and node ends here (``server/network/tls_session.py``); TLS between nodes is OpenSSL's, on the
   socket.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from contextlib import suppress
from typing import Final

from warren.server.network.tls_session import TlsSession

RECEIVE_BYTES: Final = 256 << 10


class End:
    """A connected socket that does not block."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.interest = 0  # the events it is watched for
        self.has_ended = False  # the peer sends nothing more
        self.is_hung_up = False  # nothing can be sent to it either; it is not watched
        self._waiting: deque[memoryview] = deque()

    @property
    def is_full(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._waiting)

    def receive(self) -> bytes | None:
        """Return the bytes that have arrived.

        Raises:
            OSError: the connection is gone.
        """
        try:
            return self.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None

    def offer(self, data: bytes | memoryview) -> None:
        """Send `data`, now or later.

        Raises:
            OSError: the connection is gone.
        """
        if not self._waiting:
            sent = self._send(data)
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
        self._waiting.append(memoryview(data))

    def flush(self) -> bool:
        """Send the bytes that wait; return True when nothing waits.

        Raises:
            OSError: the connection is gone.
        """
        waiting = self._waiting
        while waiting:
            first = waiting[0]
            sent = self._send(first)
            if sent < len(first):
                waiting[0] = first[sent:]
                return False
            waiting.popleft()
        return True

    def finish(self) -> None:
        """Send the end of our data. Raises OSError."""
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._waiting.clear()
        self.sock.close()

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0


class NodeTlsEnd(End):
    """The end at another node, with TLS of which the handshake is done."""

    sock: ssl.SSLSocket

    def receive(self) -> bytes | None:
        try:
            return self.sock.recv(RECEIVE_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLZeroReturnError:
            return b""

    def finish(self) -> None:
        with suppress(ssl.SSLError, ValueError):
            self.sock.unwrap()  # its answer is not waited for
        self.sock.shutdown(socket.SHUT_WR)

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self.sock.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0


class ClientTlsEnd(End):
    """The end at a client that speaks TLS with this node."""

    def __init__(self, sock: socket.socket, session: TlsSession) -> None:
        super().__init__(sock)
        self.session = session

    def handshake(self) -> bool:
        """Go on with the handshake; True when it is done.

        Raises:
            OSError: it has failed, or the connection is gone.
        """
        try:
            data = self.sock.recv(self.session.receive_bytes())
        except BlockingIOError:
            return False
        try:
            return self.session.handshake(data)
        finally:
            super().offer(self.session.outgoing())

    def receive(self) -> bytes | None:
        data: bytes | None = None
        with suppress(BlockingIOError):
            data = self.sock.recv(self.session.receive_bytes())
        return self.session.decrypted(data)

    def offer(self, data: bytes | memoryview) -> None:
        super().offer(self.session.encrypted(bytes(data)))

    def finish(self) -> None:
        self.session.end()
        super().offer(self.session.outgoing())
        self.sock.shutdown(socket.SHUT_WR)
