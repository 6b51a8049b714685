"""A large content on its way to a peer, framed piece by piece as the peer takes it.

Small contents are copied or patched at once (`DeliveryLedger.write_content`). A content of many MiB would cost its
copy, and that of its outbox, in one turn. So it is cut into frames for the peer's channel number and frame size when
the socket has room, about `PIECE_BYTES` at a time. The body is read in its place and never joined.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i32_be
from mypy_extensions import i64, u8

from warren.amqp.methods import FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_OVERHEAD_BYTES
from warren.amqp.outbox import Supply
from warren.msgstore.log.message import HEADER_AT, Message, write_frame_head

# Contents from this size on are framed as they are taken.
LARGE_MIN_BYTES: Final = 1 << 20
PIECE_BYTES: Final = 1 << 18
# A larger frame would only make for larger copies.
FRAME_MAX_BYTES: Final = 131072


class ContentFrames(Supply):
    """The frames of `message` for `channel` of a peer that takes frames of `frame_max` bytes; 0: of any size."""

    def __init__(self, message: Message, channel: i64, frame_max: i64) -> None:
        if frame_max == 0 or frame_max > FRAME_MAX_BYTES:
            frame_max = FRAME_MAX_BYTES
        room: i64 = frame_max - FRAME_OVERHEAD_BYTES
        self._channel: i64 = channel
        self._room: i64 = room
        self._header = message.header_payload()
        self._body_left: i64 = message.body_bytes
        pieces = message.pieces
        self._pieces = [message.content] if pieces is None else pieces
        # The position of the rest of the body: the piece, the place in it, and how much of the current frame is left.
        self._piece: i64 = 0
        self._pos: i64 = FRAME_OVERHEAD_BYTES + len(self._header)
        self._frame_left: i64 = 0
        self._in_frame: bool = False
        frames: i64 = (message.body_bytes + room - 1) // room
        super().__init__(FRAME_OVERHEAD_BYTES + len(self._header) + message.body_bytes + FRAME_OVERHEAD_BYTES * frames)

    def next_piece(self) -> bytes:
        out = BytesWriter()
        header = self._header
        if header:
            write_frame_head(out, FRAME_HEADER, self._channel, len(header))
            out.write(header)
            out.append(FRAME_END)
            self._header = b""
        while self._body_left > 0 and len(out) < PIECE_BYTES:
            size: i64 = self._room
            if size > self._body_left:
                size = self._body_left
            write_frame_head(out, FRAME_BODY, self._channel, size)
            self._write_body(out, size)
            out.append(FRAME_END)
            self._body_left -= size
        if self._body_left == 0:
            self._pieces = []
        made = out.getvalue()
        self.left_bytes -= len(made)
        return made

    def _write_body(self, out: BytesWriter, count: i64) -> None:
        """Write the next `count` bytes of the body."""
        while count > 0:
            if self._frame_left == 0:
                self._enter_frame()
                continue
            piece = self._pieces[self._piece]
            size: i64 = len(piece) - self._pos
            if size == 0:
                self._piece += 1
                self._pos = 0
                continue
            if size > self._frame_left:
                size = self._frame_left
            if size > count:
                size = count
            out.write(piece[self._pos : self._pos + size])
            self._pos += size
            self._frame_left -= size
            count -= size

    def _enter_frame(self) -> None:
        """Skip the end of a frame and the head of the next."""
        if self._in_frame:
            self._byte()
        self._in_frame = True
        head = BytesWriter()
        while len(head) < HEADER_AT:
            head.append(self._byte())
        self._frame_left = i64(read_i32_be(head.getvalue(), 3)) & 0xFFFFFFFF

    def _byte(self) -> u8:
        piece = self._pieces[self._piece]
        while self._pos == len(piece):
            self._piece += 1
            self._pos = 0
            piece = self._pieces[self._piece]
        self._pos += 1
        return u8(piece[self._pos - 1])
