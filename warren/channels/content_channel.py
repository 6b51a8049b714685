"""The part of a channel that every publish passes: its route, its content, and the queues when nothing is special.

    states of content on a channel:    EXPECT_METHOD -> EXPECT_HEADER -> EXPECT_BODY -> EXPECT_METHOD
    CHANNEL_CLOSING: we sent channel.close; frames of the channel are dropped until close-ok.

1. A content that lies in the buffer as a whole comes to `complete` at once, any other one by `begin_header`, `add_body`
   and the `cut` of large frames. Both have the same effects.
2. A content's announced size is checked when its header is here: nothing is buffered for an announcement that we would
   refuse. The received part of an incomplete content is counted by `channels.inbound`.
3. Each publish and its outcome are counted here; see ``queues.counters``.

Part of the fast path: see `channels.fast_path`. Rare work is in methods that `channels.channel` overrides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import read_i16_be, read_i64_be
from mypy_extensions import i64

from warren.amqp.errors import (
    FRAME_ERROR,
    PRECONDITION_FAILED,
    UNEXPECTED_FRAME,
    ChannelException,
    ConnectionException,
)
from warren.amqp.methods import BASIC_CLASS_ID, FRAME_HEAD_BYTES, FRAME_OVERHEAD_BYTES
from warren.amqp.numbers import number_text
from warren.amqp.properties import BODY_SIZE_OFFSET, MIN_HEADER_BYTES
from warren.channels.back_pressure import hold_content
from warren.channels.session import SESSION_OPEN, Session
from warren.msgstore.log.message import PIECE_OVERHEAD_BYTES
from warren.queues.delivery import DeliveryLedger

if TYPE_CHECKING:
    from warren.channels.fast_path import FrameConnection

EXPECT_METHOD: Final = SESSION_OPEN
EXPECT_HEADER: Final = 1
EXPECT_BODY: Final = 2

# RabbitMQ's hard cap: beyond it the header is a framing error, below it (and above the limit) a refused publish.
BODY_HARD_MAX_BYTES: Final = 536870912
EMPTY_BODY_FRAMES_MAX: Final = 16
# A body frame of at least this size that a read has cut is taken in pieces, each copied once, instead of being joined.
CUT_MIN_BYTES: Final = 16384


def slice_of(data: bytes, start: i64, end: i64) -> bytes:
    """Return ``data[start:end]`` without a copy when that is all of it: a large frame that was cut between reads."""
    if start == 0 and end == len(data):
        return data
    return data[start:end]


class ContentChannel(Session):
    """The part of a channel that takes contents. The loop over the frames knows only this part."""

    def __init__(self, connection: FrameConnection, number: i64, ledger: DeliveryLedger) -> None:
        super().__init__(connection, number, ledger)
        self._parts: list[bytes] = []
        self._body_bytes: i64 = 0
        self._body_received: i64 = 0
        self._largest_frame: i64 = 0
        self._empty_frames: i64 = 0

    def begin_header(self, data: bytes, start: i64, end: i64) -> None:
        """Take the content header frame ``data[start:end]`` of a content that does not lie in one piece."""
        self._body_bytes = self.check_header(data, start, end)
        if self._body_bytes == 0:
            self.state = EXPECT_METHOD
            self._leave_out_deleted()
            self.complete(data[start:end], None, data, start, end, 0, end - start)
            return
        self.state = EXPECT_BODY
        self._parts = [slice_of(data, start, end)]
        self._body_received = 0
        self._empty_frames = 0
        self._largest_frame = end - start
        hold_content(self, end - start + PIECE_OVERHEAD_BYTES)

    def check_header(self, data: bytes, start: i64, end: i64) -> i64:
        """Check the header frame ``data[start:end]`` as far as framing goes and return the announced body size.

        Raises:
            ConnectionException: 501, 505. ChannelException: 406, larger than the configured maximum.
        """
        if end - start < FRAME_OVERHEAD_BYTES + MIN_HEADER_BYTES:
            raise ConnectionException(FRAME_ERROR, "content header too short")
        class_id: i64 = i64(read_i16_be(data, start + FRAME_HEAD_BYTES)) & 0xFFFF
        if class_id != BASIC_CLASS_ID:
            raise ConnectionException(
                UNEXPECTED_FRAME,
                f"expected content header for class 60, got one for class {int(class_id)} instead",
            )
        size: i64 = read_i64_be(data, start + (FRAME_HEAD_BYTES + BODY_SIZE_OFFSET))
        if size < 0 or size > BODY_HARD_MAX_BYTES:
            announced = number_text(int(size) & 0xFFFFFFFFFFFFFFFF)
            raise ConnectionException(
                FRAME_ERROR,
                f"content body size {announced} exceeds maximum allowed size {BODY_HARD_MAX_BYTES}",
            )
        if size > self.shared.message_max_bytes:
            raise ChannelException(
                PRECONDITION_FAILED,
                f"message size {int(size)} is larger than configured max size {int(self.shared.message_max_bytes)}",
            )
        return size

    def add_body(self, data: bytes, start: i64, end: i64) -> None:
        """Take the body frame ``data[start:end]``."""
        size: i64 = end - start - FRAME_OVERHEAD_BYTES
        if size == 0:
            self._empty_frames += 1
            if self._empty_frames > EMPTY_BODY_FRAMES_MAX:
                raise ConnectionException(FRAME_ERROR, "too many empty content body frames")
            return
        received: i64 = self._body_received + size
        if received > self._body_bytes:
            raise ConnectionException(FRAME_ERROR, "content body frame exceeds remaining content size")
        self._parts.append(slice_of(data, start, end))
        if received < self._body_bytes:
            hold_content(self, end - start + PIECE_OVERHEAD_BYTES)
        self._body_frame_done(end - start)

    def begin_cut(self, piece: bytes, size: i64) -> bool:
        """Take the beginning of a large body frame of `size` payload bytes; False leaves it to the ordinary way."""
        if self.state != EXPECT_BODY or self._body_received + size > self._body_bytes:
            return False
        self._parts.append(piece)
        hold_content(self, len(piece) + PIECE_OVERHEAD_BYTES)
        return True

    def add_cut(self, piece: bytes) -> None:
        """Take more of it. Small pieces are joined: a peer that trickles must not cost an object for every read."""
        if self.state != EXPECT_BODY:
            return
        last = self._parts[-1]
        if len(piece) + len(last) <= CUT_MIN_BYTES:
            self._parts[-1] = last + piece
            hold_content(self, len(piece))
        else:
            self._parts.append(piece)
            hold_content(self, len(piece) + PIECE_OVERHEAD_BYTES)

    def end_cut(self, piece: bytes, size: i64) -> None:
        """Take the rest of it."""
        if self.state != EXPECT_BODY:
            return
        self.add_cut(piece)
        self._body_frame_done(size + FRAME_OVERHEAD_BYTES)

    def _body_frame_done(self, frame_bytes: i64) -> None:
        """Count a whole body frame, and publish when it was the last."""
        if frame_bytes > self._largest_frame:
            self._largest_frame = frame_bytes
        self._body_received += frame_bytes - FRAME_OVERHEAD_BYTES
        if self._body_received < self._body_bytes:
            return
        self.shared.inbound.let_go(self)
        parts = self._parts
        header = parts[0]
        self._parts = []
        self.state = EXPECT_METHOD
        self._leave_out_deleted()
        if self._body_bytes >= CUT_MIN_BYTES:
            self.complete(b"", parts, header, 0, len(header), self._body_bytes, self._largest_frame)
        else:
            self.complete(b"".join(parts), None, header, 0, len(header), self._body_bytes, self._largest_frame)

    def _leave_out_deleted(self) -> None:
        """Forget deleted queues of the route: a queue that was deleted since basic.publish takes nothing."""
        route = self.route
        vhost = self.peer.vhost
        assert route is not None and vhost is not None
        if self.last_version != vhost.topology_version:
            # Channels share the route, but each notices that the version has changed.
            route.queues = [queue for queue in route.queues if not queue.deleted]

    def drop_content(self) -> None:
        """Forget a content received in part: the channel or its connection ends."""
        self.shared.inbound.let_go(self)
        self._parts = []
        self.route = None
