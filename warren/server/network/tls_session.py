"""Speak TLS with one peer through memory buffers: bytes in, bytes out, without a socket.

1. Calls leave nothing in buffers: all received data that can be decrypted is returned at once.
2. Records are counted (``tls_records.py``), in the handshake as well. A peer whose records have no data costs the
   decryption of a few, however many it sends at once.
"""

from __future__ import annotations

import ssl
from typing import Final

from mypy_extensions import i64

from warren.server.network.tls_records import CUT_RECORDS, RECORD_UNITS, TlsRecords

READ_BYTES: Final = 262144


class TlsSession:
    """The server's side, or a client's side of a server named `server_name`; the client begins the handshake.

    `units`: the cost of the last `decrypted`; `is_ended`: the peer's data has been returned completely.

    Raises:
        OSError, ValueError: `server_name` is not a host name.
    """

    def __init__(self, context: ssl.SSLContext, server_name: str | None = None) -> None:
        self.is_client: bool = server_name is not None
        self.is_handshaken: bool = False
        self.is_ended: bool = False
        self.units: i64 = 0
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, not self.is_client, server_name)
        self._records = TlsRecords()

    def receive_bytes(self) -> int:
        """Return how much to read at a time."""
        return self._records.receive_bytes

    def begin(self) -> None:
        """Begin the handshake as a client: send `outgoing` afterwards."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            pass

    def handshake(self, data: bytes) -> bool:
        """Continue the handshake; True when it is done. Send `outgoing` afterwards, also when it fails.

        Raises:
            OSError: the handshake failed (`ssl.SSLError` is one), or the peer has hung up.
        """
        if not data:
            raise ConnectionResetError("closed during the TLS handshake")
        self._records.received(data)
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
            self.is_handshaken = True
            self._records.is_handshaken = True
        except ssl.SSLWantReadError:
            pass
        return self.is_handshaken

    def decrypted(self, data: bytes | None) -> bytes | None:
        """Take received bytes, or ``b""`` at the end of the stream; return all data in them.

        Returns ``b""`` at the end of the peer's data, None when nothing can be decrypted yet.

        Raises:
            OSError: TLS has failed, or the peer sends records without data.
        """
        records = self._records
        before: i64 = records.count
        parts: list[bytes] = []
        self.units = 0
        if data:
            records.received(data)
            pending: i64 = records.count - before
            self.units = pending * RECORD_UNITS
            start = 0
            for cut in records.cuts:
                self._incoming.write(data[start:cut])
                self._decrypt(parts)
                pending -= CUT_RECORDS
                records.check(pending)
                start = cut
            self._incoming.write(data[start:] if start else data)
        elif data is not None:
            self._incoming.write_eof()
        ended = self._decrypt(parts)
        records.check(0)
        self.is_ended = ended
        if parts:
            return b"".join(parts)
        return b"" if ended else None

    def _decrypt(self, parts: list[bytes]) -> bool:
        """Append all data that can be decrypted now; tell whether it is the last."""
        while True:
            try:
                part = self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                return False
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return True
            if not part:
                return True
            parts.append(part)
            self._records.with_data += 1

    def encrypted(self, plain: bytes) -> bytes:
        """Return the bytes to send for `plain`, and those of TLS itself. One call keeps records large."""
        self._tls.write(plain)
        return self._outgoing.read()

    def outgoing(self) -> bytes:
        """Return the bytes of TLS itself: handshakes, alerts."""
        return self._outgoing.read()

    def has_own_words(self) -> bool:
        """Tell whether `outgoing` has bytes."""
        return self._outgoing.pending > 0

    def end(self) -> None:
        """End our half of the session, without waiting for the peer's half of the closing handshake."""
        try:
            self._tls.unwrap()
        except (ssl.SSLError, OSError):
            pass

    def peer_certificate(self) -> dict[str, object] | None:
        """Return the verified certificate of the peer as `ssl.SSLObject.getpeercert` gives it, None without one.

        A certificate with a name that is not UTF-8 cannot be read. That does not refuse its owner: it names no user.
        """
        try:
            certificate = self._tls.getpeercert()
        except UnicodeDecodeError:
            return None
        return dict(certificate) if certificate else None
