"""The fast path: from the bytes of a socket to routed messages and settled acknowledgements.

Everything a busy broker does per message happens here and in what it calls: `Queue.publish` and `DeliveryLedger`.
Rare work is in methods that `channels.connection` and `channels.channel` override. What makes the path fast:

1. The unit of work is the read buffer. One loop walks its frames; a publish whose method, header and single body
   frame lie in the buffer one behind the other is taken in one step, with no state kept between frames.
2. The argument bytes of basic.publish are the key of the route: the same bytes as last time cost one comparison in
   place, and seen before cost one look-up in place. `VirtualHost.topology_version` says when a remembered route may be
   wrong. A content in several steps goes where it was routed when it began, but not to a queue that is deleted by its
   last frame.
3. Content is one slice of the buffer, or the pieces of a large frame that a read has cut, and is never taken apart;
   its properties are checked in place and decoded only for the few messages that carry something the broker must
   act on.
4. Confirms are counted, not written: `channels.confirms`.
5. A walk stops when it has done `Shared.feed_units` of work, and continues in a later turn: the connection is paused
   with PAUSED_TURN and on `Broker.resumed`. Units are counted, not measured: the same bytes stop at the same frame.
   One method may do more work than was left; the next one then waits.

A frame's announced size is checked when its first 7 bytes are here: nothing is buffered for an announcement that we
would refuse. The walk is here; the handling of a publish's frames is in `channels.content_channel`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from warren.amqp.errors import CHANNEL_ERROR, FRAME_ERROR, UNEXPECTED_FRAME, AmqpError, ConnectionException
from warren.amqp.methods import (
    ACK_BYTES,
    BASIC_ACK,
    BASIC_CLASS_ID,
    BASIC_PUBLISH,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEAD_BYTES,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_OVERHEAD_BYTES,
)
from warren.amqp.properties import BODY_SIZE_OFFSET, MIN_HEADER_BYTES
from warren.channels.back_pressure import block_publisher
from warren.channels.connection_states import NEXT_STATES
from warren.channels.content_channel import CUT_MIN_BYTES, EXPECT_HEADER, EXPECT_METHOD, ContentChannel, slice_of
from warren.channels.origin import Origin
from warren.channels.peer import Peer
from warren.channels.route_cache import are_at
from warren.channels.session import CHANNEL_CLOSING
from warren.channels.shared import METHOD_UNITS, PAUSED_TURN

if TYPE_CHECKING:
    from warren.channels.broker import Broker

PROTOCOL: Final = "AMQP 0-9-1"

# An 8-byte grace for clients that count the frame overhead wrongly, as RabbitMQ gives.
FRAME_GRACE_BYTES: Final = 8

# Reads up to this size are joined with the rest of the last read; larger ones are walked where they are.
JOIN_MAX_BYTES: Final = 4096


def _head_at_the_end(data: bytes, at: i64) -> i64:
    """Return type, channel and size of a frame of which no more than these have come, as one number."""
    number: i64 = i64(read_i16_be(data, at + 1)) & 0xFFFF
    return (i64(data[at]) << 16 | number) << 32 | (i64(read_i32_be(data, at + 3)) & 0xFFFFFFFF)


class FrameConnection(Peer):
    """The part of a connection that walks the received bytes."""

    def __init__(self, broker: Broker, key: int, origin: Origin) -> None:
        super().__init__(broker, key, origin, PROTOCOL, NEXT_STATES)
        self.frame_limit_bytes: i64 = 0  # largest payload we accept
        self.cut_channel: ContentChannel | None = None  # whose large body frame is being received
        self.cut_size: i64 = 0  # its payload
        self.cut_missing: i64 = 0  # the bytes of it that are missing, 0: no frame is cut
        self.carry: bytes = b""  # the beginning of a frame, or everything after a pause
        self.carry_from: i64 = 0  # where in it the walk continues: the rest of a turn is not copied
        # Where the walk stands, for the handler of an error raised in it.
        self.at_channel: i64 = 0
        self.at_method: i64 = 0
        self.at_end: i64 = 0

    def walk(self, data: bytes) -> None:
        """Handle received bytes. Input that is incomplete, or comes after a pause, is carried over."""
        self.received_bytes += len(data)
        if self.carry_from > 0:
            self._go_on(data)
            return
        if self.cut_missing > 0 and not self.paused:
            if self.carry:
                data = self.carry + data
                self.carry = b""
            pos: i64 = self._continue_cut(data)
            if 0 <= pos < len(data):
                self._walk_from(data, pos)
            return
        pos = 0
        carry = self.carry
        if carry:
            if self.paused:
                self.carry = carry + data
                return
            self.carry = b""
            missing: i64 = self._missing(carry)
            if len(data) > JOIN_MAX_BYTES and 0 < missing < len(data):
                # Only the frame that was cut is joined: joining all would copy a large read once more.
                if self._walk_from(carry + data[:missing], 0) < 0:
                    return
                pos = missing
                if self.carry:
                    # It was held back by a pause.
                    self.carry += data[pos:]
                    return
            else:
                data = carry + data
        self._walk_from(data, pos)

    def _go_on(self, data: bytes) -> None:
        """Handle the input that the last turn left over, and then `data`."""
        rest = self.carry
        pos: i64 = self.carry_from
        if data:
            rest = rest[pos:] + data
            pos = 0
        if self.paused:
            self.carry = rest
            self.carry_from = pos
            return
        self.carry = b""
        self.carry_from = 0
        self._walk_from(rest, pos)

    def _missing(self, carry: bytes) -> i64:
        """Return the number of bytes that the first frame in `carry` lacks; not positive: none, or its header does."""
        if len(carry) < FRAME_HEAD_BYTES:
            return 0
        return FRAME_OVERHEAD_BYTES + (i64(read_i32_be(carry, 3)) & 0xFFFFFFFF) - len(carry)

    def _walk_from(self, data: bytes, pos: i64) -> i64:
        """Handle the frames from `pos` on and keep the rest; -1 when the connection takes no more."""
        while True:
            try:
                pos = self._frames(data, pos)
                break
            except AmqpError as error:
                pos = self.at_end
                if not self.failed(error):
                    return -1
        if pos < len(data) and not self._begin_cut(data, pos):
            if self.paused & PAUSED_TURN:
                self.carry = data
                self.carry_from = pos
            else:
                self.carry = data[pos:]
        return pos

    def _channel(self, number: i64) -> ContentChannel | None:
        session = self.channels.get(number)
        return session if isinstance(session, ContentChannel) else None

    def _begin_cut(self, data: bytes, pos: i64) -> bool:
        """Take a large body frame whose beginning is the rest of `data`; return False for any other frame."""
        have: i64 = len(data) - pos
        if self.paused or not self.running or have < FRAME_HEAD_BYTES or data[pos] != FRAME_BODY:
            return False
        size: i64 = i64(read_i32_be(data, pos + 3)) & 0xFFFFFFFF
        channel = self._channel(i64(read_i16_be(data, pos + 1)) & 0xFFFF)
        if size < CUT_MIN_BYTES or channel is None or not channel.begin_cut(data[pos:], size):
            return False
        self.cut_channel = channel
        self.cut_size = size
        self.cut_missing = FRAME_OVERHEAD_BYTES + size - have
        return True

    def _continue_cut(self, data: bytes) -> i64:
        """Take the part of the cut frame in `data`; return where the next one begins, -1 when no more is taken."""
        channel = self.cut_channel
        assert channel is not None
        missing: i64 = self.cut_missing
        if len(data) < missing:
            self.cut_missing = missing - len(data)
            channel.add_cut(data)
            return len(data)
        self.cut_missing = 0
        self.cut_channel = None
        self.at_channel = channel.number
        self.at_method = BASIC_PUBLISH
        self.at_end = missing
        try:
            marker = int(data[missing - 1])
            if marker != FRAME_END:
                self.at_method = 0
                text = f"type 3, {int(self.cut_size)} octets: {{invalid_frame_end_marker,{marker}}}"
                raise ConnectionException(FRAME_ERROR, text)
            channel.end_cut(slice_of(data, 0, missing), self.cut_size)
        except AmqpError as error:
            if not self.failed(error):
                return -1
        return missing

    def _frames(self, data: bytes, start: i64) -> i64:
        """Handle whole frames from `start` on and return where the first incomplete or unwanted one begins."""
        pos: i64 = start
        end: i64 = len(data)
        channel: ContentChannel | None = None
        number: i64 = -1
        while end - pos >= FRAME_HEAD_BYTES:
            if self.paused:
                return pos
            units: i64 = self.units_left
            if units <= 0:
                self.share_used()
                return pos
            self.units_left = units - 1
            head: i64 = read_i64_be(data, pos) >> 8 if end - pos > FRAME_HEAD_BYTES else _head_at_the_end(data, pos)
            frame_type: i64 = head >> 48 & 0xFF
            size: i64 = head & 0xFFFFFFFF
            frame_number: i64 = head >> 32 & 0xFFFF
            if size > self.frame_limit_bytes:
                self.at_end = end
                self.at_method = 0
                raise self.frame_too_large(frame_type, frame_number, size)
            payload: i64 = pos + FRAME_HEAD_BYTES
            next_pos: i64 = payload + size + 1
            if next_pos > end:
                return pos
            self.at_end = next_pos
            if data[next_pos - 1] != FRAME_END:
                self.at_method = 0
                marker = int(data[next_pos - 1])
                text = f"type {int(frame_type)}, {int(size)} octets: {{invalid_frame_end_marker,{marker}}}"
                raise ConnectionException(FRAME_ERROR, text)
            if not self.running:
                # Handshake or closing: no channel matters, and the state may change with every frame.
                self.early_frame(frame_type, frame_number, data, payload, next_pos - 1)
                pos = next_pos
                number = -1
                continue
            if frame_number != number:
                number = frame_number
                channel = self._channel(number)
                self.at_channel = number
            if frame_type == FRAME_METHOD:
                method: i64 = 0
                if size >= 4:
                    method = i64(read_i32_be(data, payload)) & 0xFFFFFFFF
                self.at_method = method
                if channel is not None and channel.state == EXPECT_METHOD:
                    if method == BASIC_PUBLISH:
                        vhost = self.vhost
                        assert vhost is not None
                        if self.shared.stopped or vhost.is_crowded:
                            block_publisher(self)
                            return pos
                        route = channel.last_route
                        if (
                            route is None
                            or channel.last_version != vhost.topology_version
                            or not are_at(channel.last_arguments, data, payload + 4, next_pos - 1)
                            or not route.cacheable
                        ):
                            # Errors found while routing are raised after the method frame. The content that
                            # follows then meets a closing channel and is dropped.
                            route = channel.find_route_at(data, payload + 4, next_pos - 1)
                        channel.route = route
                        pos = self._content_in_one_piece(channel, data, next_pos, end)
                        if pos < 0:
                            channel.state = EXPECT_HEADER
                            pos = next_pos
                        continue
                    if method == BASIC_ACK and size == ACK_BYTES:
                        channel.acknowledge(read_i64_be(data, payload + 4), data[payload + 12] & 1 == 1)
                        pos = next_pos
                        continue
                self.units_left -= METHOD_UNITS
                searched: i64 = self.searched()
                try:
                    if not self.method_frame(number, channel, data, payload, next_pos - 1):
                        return pos
                finally:
                    self.units_left -= self.searched() - searched
                # Channels come and go, and so may the whole connection.
                number = -1
            elif frame_type in (FRAME_BODY, FRAME_HEADER):
                # Another channel's method may have come since the publish that this belongs to.
                self.at_method = BASIC_PUBLISH
                self._content_frame(frame_type, channel, number, data, pos, next_pos)
            else:
                self.at_method = 0
                self.other_frame(frame_type, number, size)
            pos = next_pos
        return pos

    def _content_in_one_piece(self, channel: ContentChannel, data: bytes, start: i64, end: i64) -> i64:
        """Take header and single body frame lying at `start`; return the position after them, or -1 if they do not.

        Anything unusual is left to the frame by frame way, which also names the errors.
        """
        if end - start < FRAME_OVERHEAD_BYTES + MIN_HEADER_BYTES:
            return -1
        # Heads of frames are compared as one number: type, channel and size, without the first byte of the payload.
        number: i64 = channel.number
        head: i64 = read_i64_be(data, start) >> 8
        header_bytes: i64 = head & 0xFFFFFFFF
        if head >> 32 != FRAME_HEADER << 16 | number or header_bytes < MIN_HEADER_BYTES:
            return -1
        header_end: i64 = start + FRAME_OVERHEAD_BYTES + header_bytes
        if header_end > end or data[header_end - 1] != FRAME_END or header_bytes > self.frame_limit_bytes:
            return -1
        if read_i16_be(data, start + FRAME_HEAD_BYTES) != BASIC_CLASS_ID:
            return -1
        body_bytes: i64 = read_i64_be(data, start + (FRAME_HEAD_BYTES + BODY_SIZE_OFFSET))
        if body_bytes == 0:
            self.at_end = header_end
            channel.complete(data[start:header_end], None, data, start, header_end, 0, header_end - start)
            return header_end
        if body_bytes < 0 or body_bytes > self.frame_limit_bytes or body_bytes > self.shared.message_max_bytes:
            return -1
        body_end: i64 = header_end + FRAME_OVERHEAD_BYTES + body_bytes
        if body_end > end or data[body_end - 1] != FRAME_END:
            return -1
        if read_i64_be(data, header_end) >> 8 != (FRAME_BODY << 16 | number) << 32 | body_bytes:
            return -1
        self.at_end = body_end
        largest: i64 = header_end - start
        if FRAME_OVERHEAD_BYTES + body_bytes > largest:
            largest = FRAME_OVERHEAD_BYTES + body_bytes
        channel.complete(data[start:body_end], None, data, start, header_end, body_bytes, largest)
        return body_end

    def _content_frame(
        self, frame_type: i64, channel: ContentChannel | None, number: i64, data: bytes, start: i64, end: i64
    ) -> None:
        """Take a header or body frame that comes on its own."""
        if channel is None:
            self.at_method = 0
            if number == 0:
                raise ConnectionException(UNEXPECTED_FRAME, "a content frame on channel 0")
            if self.was_closed(number):
                return
            raise ConnectionException(CHANNEL_ERROR, "expected 'channel.open'")
        state = channel.state
        if state == CHANNEL_CLOSING:
            return
        if state == EXPECT_METHOD:
            self.at_method = 0
            raise ConnectionException(UNEXPECTED_FRAME, "expected method frame, got non method frame instead")
        if state == EXPECT_HEADER:
            if frame_type != FRAME_HEADER:
                raise ConnectionException(
                    UNEXPECTED_FRAME,
                    "expected content header for class 60, got non content header frame instead",
                )
            channel.begin_header(data, start, end)
            return
        if frame_type != FRAME_BODY:
            raise ConnectionException(UNEXPECTED_FRAME, "expected content body, got non content body frame instead")
        channel.add_body(data, start, end)

    def frame_too_large(self, frame_type: i64, number: i64, size: i64) -> ConnectionException:
        """Return the 501 for a frame that announces a payload of `size` bytes."""
        limit = int(self.frame_limit_bytes - FRAME_GRACE_BYTES)
        text = f"type {int(frame_type)}, {int(size)} octets: {{frame_too_large,{int(size)},{limit}}}"
        return ConnectionException(FRAME_ERROR, text)

    # --- overridden by channels.connection ------------------------------------------------------------------------

    def early_frame(self, frame_type: i64, number: i64, data: bytes, start: i64, end: i64) -> None:
        """Handle a frame before open-ok or while closing."""
        raise AssertionError("overridden")

    def method_frame(self, number: i64, channel: ContentChannel | None, data: bytes, start: i64, end: i64) -> bool:
        """Handle any other method; False leaves the frame for later."""
        raise AssertionError("overridden")

    def was_closed(self, number: i64) -> bool:
        """Tell whether a channel of this number has ended lately, so that frames for it may be under way."""
        raise AssertionError("overridden")

    def other_frame(self, frame_type: i64, number: i64, size: i64) -> None:
        """Handle a heartbeat or an unknown frame type."""
        raise AssertionError("overridden")

    def failed(self, error: AmqpError) -> bool:
        """Answer an error raised in the walk; False ends the walk."""
        raise AssertionError("overridden")
