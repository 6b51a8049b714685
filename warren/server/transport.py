"""Sockets of the reactor: plain and TLS, non-blocking, one object per accepted connection.

A transport moves bytes between a socket and an engine connection and decides nothing else.

1. The outbox is taken only when everything taken before is with the kernel, and a large one in parts. A peer that does
   not read costs one outbox (its soft limit) and one backlog of at most that size, whatever is published for it.
2. `receive` returns what is there now: ``b""`` at the end of the stream, None when nothing is.
3. TLS buffers nothing across calls: whatever a receive decrypts is returned by it.
4. A receive costs some milliseconds at most: TLS records are counted, and of small ones less is read at a time.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.server.tls_records import RECORD_UNITS, TlsRecords

if TYPE_CHECKING:
    from warren.channels.broker import Protocol
    from warren.channels.peer import Peer

RECEIVE_BYTES: Final = 262144
# A flush ends when it has sent more than this: a peer that reads as fast as we write is not alone.
FLUSH_MAX_BYTES: Final = 4 << 20
# The kernel takes 1,024 pieces in one gathering write.
PIECES_MAX: Final = 1000


class Transport:
    """A plain TCP connection."""

    def __init__(self, sock: socket.socket, address: str, protocol: Protocol) -> None:
        self.sock = sock
        self.protocol = protocol  # makes the peer when it can be talked to
        self.fd = sock.fileno()
        self.address = address  # the peer's, without port
        self.connection: Peer | None = None
        self.interest = 0  # what epoll watches
        self.decrypting_units: i64 = 0  # what the last receive cost besides
        self.pre_auth = True  # counted by admission control
        self.linger_deadline_s = 0.0  # not 0: we have ended, and wait for the peer to
        self.unsent_deadline_s = 0.0  # not 0: the connection has ended, and its last bytes are not with the kernel
        self._backlog: list[bytes] = []
        self._offset = 0  # sent bytes of _backlog[0]

    def receive(self, limit_bytes: int) -> bytes | None:
        """Return received bytes, at most `limit_bytes`; more of what TLS has decrypted.

        Raises:
            OSError: the connection is gone.
        """
        try:
            return self.sock.recv(limit_bytes)
        except BlockingIOError:
            return None

    def flush(self) -> bool:
        """Send the outbox; False when the socket is full, or much was sent, and EPOLLOUT has to call again.

        Raises:
            OSError: the connection is gone.
        """
        connection = self.connection
        assert connection is not None
        outbox = connection.outbox
        if not self._backlog:
            chunks = self._take(outbox.take_some())
            if len(chunks) == 1:
                # Nearly always: one piece, and the socket takes it whole.
                size = self._send_whole(chunks[0])
                if size == len(chunks[0]):
                    if outbox.sent(size):
                        connection.drained()
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
                connection.drained()
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
        """Tell the peer that nothing more comes."""
        self.sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.sock.close()


class TlsTransport(Transport):
    """The same through TLS, by way of memory buffers."""

    def __init__(self, sock: socket.socket, address: str, context: ssl.SSLContext, protocol: Protocol) -> None:
        super().__init__(sock, address, protocol)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshaken = False
        self._records = TlsRecords()
        self._raw: bytes = b""  # handshake bytes that wait for the socket

    def is_ready(self) -> bool:
        return self._handshaken

    def handshake(self) -> bool:
        """Go on with the handshake; True when it is done.

        Raises:
            OSError: the handshake failed (`ssl.SSLError` is one) or the connection is gone.
        """
        try:
            data = self.sock.recv(self._records.receive_bytes)
        except BlockingIOError:
            return False
        if not data:
            raise ConnectionResetError("closed during the TLS handshake")
        self._records.received(data)
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
            self._handshaken = True
            self._records.is_handshaken = True
        except ssl.SSLWantReadError:
            pass
        finally:
            self._send_raw()
        return self._handshaken

    def _send_raw(self) -> None:
        """Send handshake and alert bytes: a few kilobytes, which a fresh socket buffer always takes."""
        self._raw += self._outgoing.read()
        while self._raw:
            try:
                sent = self.sock.send(self._raw)
            except BlockingIOError:
                return
            self._raw = self._raw[sent:]

    def receive(self, limit_bytes: int) -> bytes | None:
        records = self._records
        before: i64 = records.count
        try:
            data = self.sock.recv(records.receive_bytes)
        except BlockingIOError:
            pass  # what came right behind the handshake may still be undecrypted
        else:
            if data:
                records.received(data)
                self._incoming.write(data)
            else:
                self._incoming.write_eof()
        self.decrypting_units = (records.count - before) * RECORD_UNITS
        decrypted = self._decrypt()
        records.check()
        return decrypted

    def _decrypt(self) -> bytes | None:
        """Return everything that can be decrypted now."""
        parts: list[bytes] = []
        ended = False
        while True:
            try:
                part = self._tls.read(RECEIVE_BYTES)
            except ssl.SSLWantReadError:
                break
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                ended = True
                break
            if not part:
                ended = True
                break
            parts.append(part)
            self._records.with_data += 1
        if parts:
            return b"".join(parts)
        return b"" if ended else None

    def _take(self, chunks: list[bytes]) -> list[bytes]:
        """Encrypt. One TLS write per outbox keeps records large."""
        if not chunks:
            return []
        plain = b"".join(chunks)
        self._tls.write(plain)
        encrypted = self._raw + self._outgoing.read()
        self._raw = b""
        connection = self.connection
        assert connection is not None
        # The outbox counts what the socket takes, which is now ciphertext.
        connection.outbox.in_flight_bytes += len(encrypted) - len(plain)
        return [encrypted]

    def peer_certificate(self) -> dict[str, object] | None:
        certificate = self._tls.getpeercert()
        return dict(certificate) if certificate else None

    def finish_sending(self) -> None:
        try:
            self._tls.unwrap()
        except (ssl.SSLError, OSError):
            pass  # the peer's half of the closing handshake is not waited for
        self._send_raw()
        self.sock.shutdown(socket.SHUT_WR)
