"""Count the TLS records of a peer, and those that had data: records without data make the broker work unseen.

1. A record costs some microseconds, however little is in it: it counts as `RECORD_UNITS` of work.
2. A KeyUpdate costs ten times as much, and asks for an answer that takes memory until something is sent. OpenSSL takes
   any number of them, and does not tell. From TLS 1.3 on they look like data from outside, but decrypt to nothing. A
   peer that sends many records without data is disconnected: clients send one after gigabytes, if at all. Received
   bytes are decrypted `CUT_RECORDS` records at a time, so that it is disconnected before the rest is decrypted.
3. A handshake takes `HANDSHAKE_BYTES_MAX` at most: OpenSSL reads every certificate of a chain in one go, a hundred of
   them in 10 ms, whether or not it trusts their signers.
4. The broker reads less at a time from a peer that sends small records, so that each read costs only some milliseconds.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

RECORD_UNITS: Final = 8
EMPTY_MAX: Final = 40  # including those of a handshake, of which a client has up to twenty
EMPTY_SHARE_SHIFT: Final = 10  # and one more for this power of two of records with data
CUT_RECORDS: Final = 16
HANDSHAKE_BYTES_MAX: Final = 48 << 10
RECEIVE_MIN_BYTES: Final = 4096
RECEIVE_MAX_BYTES: Final = 65536
SMALL_BYTES: Final = 512
_HEAD_BYTES: Final = 5


class TlsRecords:
    """Counts the records of one peer.

    ``with_data``: how many gave something to read; ``receive_bytes``: how much to read at a time; ``cuts``: where to
    check the peer in the bytes received last, each time after `CUT_RECORDS` more records.
    """

    def __init__(self) -> None:
        self.receive_bytes: int = RECEIVE_MIN_BYTES
        self.is_handshaken: bool = False
        self._size: i64 = 0  # of all received data
        self.count: i64 = 0
        self.with_data: i64 = 0
        self.cuts: list[int] = []
        self._head: bytes = b""  # the beginning of a record
        self._missing: i64 = 0  # of the last one

    def received(self, data: bytes) -> None:
        """Count the records that begin in `data`, the next received bytes.

        Raises:
            ConnectionAbortedError: the handshake is too large.
        """
        size: i64 = len(data)
        self._size += size
        if self._size > HANDSHAKE_BYTES_MAX and not self.is_handshaken:
            raise ConnectionAbortedError("the TLS handshake is too large")
        before: i64 = self.count
        self.cuts = []
        kept: i64 = len(self._head)
        if kept > 0:
            data = self._head + data
            self._head = b""
        at: i64 = self._missing
        end: i64 = len(data)
        while at + _HEAD_BYTES <= end:
            self.count += 1
            at += _HEAD_BYTES + (i64(data[at + 3]) << 8 | i64(data[at + 4]))
            if (self.count - before) % CUT_RECORDS == 0 and at < end:
                self.cuts.append(int(at - kept))
        self._missing = 0
        if at < end:
            self._head = data[at:]
        else:
            self._missing = at - end
        if (self.count - before) * SMALL_BYTES > size:
            self.receive_bytes = RECEIVE_MIN_BYTES
        elif size >= self.receive_bytes and self.receive_bytes < RECEIVE_MAX_BYTES:
            self.receive_bytes *= 2

    def check(self, pending: i64) -> None:
        """Make sure that the peer sends data, when all received bytes but the last `pending` records have been read.

        Raises:
            ConnectionAbortedError: it does not.
        """
        if self.count - pending - self.with_data > EMPTY_MAX + (self.with_data >> EMPTY_SHARE_SHIFT):
            raise ConnectionAbortedError("the peer sends TLS records without data")
