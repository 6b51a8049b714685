"""The bytes between a leader and a follower: a non-blocking socket, written from several threads, read on the loop.

1. `put` never blocks. Bytes that the kernel does not take at once wait in order, and the task of `send` sends them.
2. The waiting bytes are bounded by `BACKLOG_BYTES_MAX`, and by one `put` more. Beyond that the wire fails: the other
   side gets the missing data from the files when it connects again, and no frame waits for it in memory.
3. Waiting bytes are sent on the loop in passes of about `SEND_AT_ONCE_BYTES`, and everything else on the loop has its
   turn between them: otherwise a peer that reads as fast as this side sends, and much of it, would hold up all clients.
4. A thread of its own can push much data: then that thread waits for the other side, and not the loop.
5. After a failure nothing more is sent, and `receive` says that the other side is gone. A caller of `put` is not told:
   the committer continues, and the task that reads finds out.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Final

import trio

Piece = bytes | memoryview

BACKLOG_BYTES_MAX: Final = 64 << 20
RECEIVE_BYTES: Final = 1 << 18
SEND_AT_ONCE_BYTES: Final = 1 << 19
PUSH_S: Final = 0.1
# One system call takes at most this much.
_PIECES_MAX: Final = 512
_TLS_PIECE_BYTES: Final = 1 << 16


class Wire:
    """A connected socket. Make it on the loop."""

    def __init__(self, sock: socket.socket, backlog_bytes_max: int = BACKLOG_BYTES_MAX) -> None:
        sock.setblocking(False)
        with suppress(OSError):  # a pair of sockets in a test has none
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.failure = ""
        self.is_over = False  # the other side has closed it
        self.sent_bytes = 0  # which the kernel has taken
        self.backlog_bytes = 0
        self._sock = sock
        self._backlog_bytes_max = backlog_bytes_max
        self._is_pushed = False  # a thread sends the waiting bytes
        self._backlog: deque[memoryview] = deque()
        self._lock = Lock()
        self._token = trio.lowlevel.current_trio_token()
        self._waiting = trio.Event()

    def fileno(self) -> int:
        """Return the descriptor, to be watched for input."""
        return self._sock.fileno()

    def put(self, pieces: Sequence[Piece]) -> None:
        """Send `pieces`, now or later. Any thread."""
        with self._lock:
            if self.failure:
                return
            was_empty = not self._backlog
            for piece in pieces:
                if len(piece):
                    self._backlog.append(memoryview(piece))
                    self.backlog_bytes += len(piece)
            if was_empty:
                self._send_some()
            if self.backlog_bytes > self._backlog_bytes_max:
                self._fail(f"{self.backlog_bytes} bytes wait to be sent: the other node or the network is too slow")
            if not self._backlog:
                return
        if was_empty and not self._is_pushed:
            self._token.run_sync_soon(self._wake)

    def push(self, pieces: Sequence[Piece]) -> bool:
        """Send `pieces`, and wait until they are with the kernel; tell whether they are. Not on the loop.

        Bytes that are not sent after `PUSH_S` wait like those of `put`; push an empty sequence to wait longer.
        """
        self._is_pushed = True
        try:
            self.put(pieces)
            give_up_s = time.monotonic() + PUSH_S
            poll = select.poll()
            poll.register(self._sock, select.POLLOUT)
            while self._backlog and not self.failure and (left_s := give_up_s - time.monotonic()) > 0:
                poll.poll(left_s * 1000)
                with self._lock:
                    self._send_some(SEND_AT_ONCE_BYTES)
        finally:
            self._is_pushed = False
        is_sent = not self._backlog
        if not is_sent:
            self._token.run_sync_soon(self._wake)
        return is_sent

    async def send(self) -> None:
        """Send the waiting bytes, until the wire fails."""
        while not self.failure:
            await self._waiting.wait()
            self._waiting = trio.Event()
            while self._backlog and not self.failure and not self._is_pushed:
                await trio.lowlevel.wait_writable(self._sock)
                with self._lock:
                    self._send_some(SEND_AT_ONCE_BYTES)

    def detach(self) -> socket.socket:
        """Give the socket away, and be over. Raises OSError when something waits to be sent."""
        with self._lock:
            if self._backlog or self.failure:
                raise OSError(self.failure or "the other node reads nothing")
            self.failure = "given away"
        return self._detached()

    def binding(self) -> bytes:
        """Return the certificate that the other side has shown, nothing without TLS: see ``handshake.py`` (3)."""
        return b""

    def fail(self, reason: str) -> None:
        """End it as if the network had failed. Any thread."""
        with self._lock:
            self._fail(reason)

    def receive(self) -> bytes | None:
        """Return the bytes that have arrived, None without any, empty (``b""``) when the other side is gone."""
        if self.failure:
            return b""
        try:
            data = self._receive()
            self.is_over = not data
            return data
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError as error:
            with self._lock:
                self._fail(error.strerror or str(error))
            return b""

    async def received(self) -> bytes:
        """Wait for bytes and return them; nothing when the other side is gone."""
        while (data := self.receive()) is None:
            await self.readable()
        return data

    async def readable(self) -> None:
        """Wait until there may be something to `receive`."""
        await trio.lowlevel.wait_readable(self._sock)

    def wait_for_input(self) -> None:
        """Do so in a thread: the wire's failure ends that, too. Not with `close`."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.poll()

    def close(self) -> None:
        """Close it. Waiting bytes are not sent."""
        with self._lock:
            self._fail("closed")
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()

    # --- with the lock ----------------------------------------------------------------------------------------------

    def _send_some(self, enough_bytes: int = BACKLOG_BYTES_MAX) -> None:
        try:
            enough_bytes += self.sent_bytes
            while self._backlog and self.sent_bytes < enough_bytes:
                sent = self._send()
                self.sent_bytes += sent
                self.backlog_bytes -= sent
                while sent:
                    first = self._backlog[0]
                    if sent < len(first):
                        self._backlog[0] = first[sent:]
                        break
                    sent -= len(first)
                    self._backlog.popleft()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._fail(error.strerror or str(error))

    def _send(self) -> int:
        backlog = self._backlog
        return self._sock.sendmsg([backlog[at] for at in range(min(len(backlog), _PIECES_MAX))])

    def _receive(self) -> bytes:
        return self._sock.recv(RECEIVE_BYTES)

    def _detached(self) -> socket.socket:
        return socket.socket(fileno=self._sock.detach())

    def _fail(self, reason: str) -> None:
        if self.failure:
            return
        self.failure = reason
        self._backlog.clear()
        self.backlog_bytes = 0
        with suppress(OSError):
            # A caller that waits for input learns of it.
            self._sock.shutdown(socket.SHUT_RDWR)
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._wake)

    def _wake(self) -> None:
        self._waiting.set()


class TlsWire(Wire):
    """The same with TLS: `sock` has been through the handshake. OpenSSL does one thing at a time."""

    _sock: ssl.SSLSocket

    def binding(self) -> bytes:
        return self._sock.getpeercert(binary_form=True) or b""

    def _send(self) -> int:
        joined = bytearray()
        for piece in self._backlog:
            joined += piece[: _TLS_PIECE_BYTES - len(joined)]
            if len(joined) >= _TLS_PIECE_BYTES:
                break
        return self._sock.send(joined)

    def _receive(self) -> bytes:
        with self._lock:
            return self._sock.recv(RECEIVE_BYTES)

    def _detached(self) -> socket.socket:
        return self._sock


async def shake_hands(sock: ssl.SSLSocket) -> None:
    """Do the TLS handshake of a non-blocking socket. Raises OSError."""
    while True:
        try:
            sock.do_handshake()
            return
        except ssl.SSLWantReadError:
            await trio.lowlevel.wait_readable(sock)
        except ssl.SSLWantWriteError:
            await trio.lowlevel.wait_writable(sock)
