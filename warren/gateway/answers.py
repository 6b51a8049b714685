"""The bytes from a leader to one client, passed on so that the gateway can always append a last word of its own.

    whole frames    passed on as they come, without a copy
    the last one    held until it is whole, up to `HELD_BYTES_MAX`; a larger one is passed on in pieces

1. The bytes given to the client end at the end of a frame, except within a frame larger than `HELD_BYTES_MAX`. So a
   connection.close can follow when the leader is gone, and the client knows the reason.
2. Nothing is appended after a connection.close or close-ok of the leader, after bytes that are not AMQP frames, or
   before the connection is open: a broker ends some handshakes without a word, and clients know what that means.
3. If the leader goes while a part of a frame is held, that part is dropped: the frame was never sent whole.

No I/O: bytes in, bytes out.
"""

from __future__ import annotations

from typing import Final

from warren.amqp.codec import method_frame
from warren.amqp.errors import CONNECTION_FORCED, reply_text
from warren.amqp.methods import ConnectionClose
from warren.amqp.whole_frames import HEAD_BYTES, ends_connection, frame_bytes, opens_connection, whole_frames

HELD_BYTES_MAX: Final = 256 << 10  # twice the usual frame_max


class Answers:
    """The bytes of one connection, from a leader to its client."""

    def __init__(self) -> None:
        self.is_over = False  # the leader has said its last word
        self._held = b""
        self._missing = 0  # of a frame that is passed on in pieces
        self._is_framed = True
        self._is_open = False

    def passed_on(self, data: bytes) -> bytes | memoryview:
        """Take bytes that the leader has sent; return the bytes to send to the client now."""
        if not self._is_framed:
            return data
        if self._missing:
            return self._of_large_frame(data)
        if self._held:
            data = self._held + data
            self._held = b""
        end, last = whole_frames(data)
        if end < 0:
            self._is_framed = False
            return data
        if last >= 0:
            self.is_over = ends_connection(data, last)
            self._is_open = self._is_open or opens_connection(data, end)
        rest = len(data) - end
        if not rest:
            return data
        if rest > HELD_BYTES_MAX:
            self._missing = int(frame_bytes(data, end)) + HEAD_BYTES + 1 - rest
            return data
        self._held = data[end:]
        return memoryview(data)[:end]

    def last_word(self, text: str) -> bytes:
        """Return a connection.close that tells the client `text`, or ``b""`` where it cannot be inserted."""
        if self.is_over or self._missing or not self._is_open:
            return b""
        return farewell(text)

    def _of_large_frame(self, data: bytes) -> bytes | memoryview:
        size = len(data)
        if size <= self._missing:
            self._missing -= size
            return data
        head, self._missing = data[: self._missing], 0
        return head + self.passed_on(data[len(head) :])


def farewell(text: str) -> bytes:
    """Return the frame that closes a connection with 320 and `text`."""
    return method_frame(0, ConnectionClose(CONNECTION_FORCED, reply_text(CONNECTION_FORCED, text), 0, 0))
