"""Encoded publishes, one after the other, as clients stage them: checked before they are stored.

    publish      method frame of basic.publish, content header frame, body frames; all on channel 1

1. `scan_publishes` accepts only correct framing. A publish that it accepts can still be refused later for a reason that
   depends on the broker or the publisher, such as a missing exchange.
2. A message is never cut: a scan ends after a whole message.

The form is stricter than that of a client's connection: a ticket and flags of 0, no empty body frames.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from warren.amqp.codec import decode_shortstr
from warren.amqp.errors import FRAME_ERROR, PRECONDITION_FAILED, SYNTAX_ERROR, ChannelException, ConnectionException
from warren.amqp.methods import (
    BASIC_CLASS_ID,
    BASIC_PUBLISH,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEAD_BYTES,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_OVERHEAD_BYTES,
)
from warren.amqp.numbers import number_text
from warren.amqp.properties import BODY_SIZE_OFFSET, MIN_HEADER_BYTES, scan_properties

# A whole frame; larger bodies are in several.
FRAME_BYTES_MAX: Final = 131072

_CHANNEL: Final = 1
_ARGUMENT_BYTES_MIN: Final = 5  # a ticket, two empty names, the flags


class PublishScan:
    """The position of a scan, and its results: how many messages, to which exchanges."""

    def __init__(self, body_bytes_max: i64) -> None:
        self.body_bytes_max: i64 = body_bytes_max
        self.pos: i64 = 0
        self.messages: i64 = 0
        self.exchanges: dict[str, None] = {}
        self._arguments = b""


def scan_publishes(scan: PublishScan, data: bytes, most_bytes: i64, most_messages: i64) -> i64:
    """Continue in `data` from ``scan.pos``, by the given bytes and messages at most; return the number of messages.

    At least one message is taken, whatever its size; 0: nothing is left.

    Raises:
        ConnectionException: 501 or 502, it is malformed. ChannelException: 406, a body is larger than allowed.
    """
    end: i64 = len(data)
    pos: i64 = scan.pos
    stop: i64 = pos + most_bytes
    count: i64 = 0
    while pos < end and count < most_messages:
        following: i64 = _publish_end(scan, data, pos, end)
        if following > stop and count > 0:
            break
        pos = following
        count += 1
    scan.pos = pos
    scan.messages += count
    return count


def _publish_end(scan: PublishScan, data: bytes, pos: i64, end: i64) -> i64:
    """Check the publish at `pos` and return where it ends."""
    header: i64 = _frame_end(data, pos, end, FRAME_METHOD)
    arguments: i64 = pos + (FRAME_HEAD_BYTES + 4)  # after the id
    if header - arguments - 1 < _ARGUMENT_BYTES_MIN or read_i32_be(data, pos + FRAME_HEAD_BYTES) != BASIC_PUBLISH:
        raise ConnectionException(SYNTAX_ERROR, f"byte {int(pos)}: expected basic.publish")
    raw = data[arguments : header - 1]
    if raw != scan._arguments:
        _check_arguments(scan, raw, pos)
    body: i64 = _frame_end(data, header, end, FRAME_HEADER)
    payload: i64 = header + FRAME_HEAD_BYTES
    if body - payload - 1 < MIN_HEADER_BYTES or read_i16_be(data, payload) != BASIC_CLASS_ID:
        raise ConnectionException(SYNTAX_ERROR, f"byte {int(header)}: expected a content header of class 60")
    left: i64 = read_i64_be(data, payload + BODY_SIZE_OFFSET)
    if left < 0 or left > scan.body_bytes_max:
        announced = number_text(int(left) & 0xFFFFFFFFFFFFFFFF)
        text = f"message size {announced} is larger than configured max size {int(scan.body_bytes_max)}"
        raise ChannelException(PRECONDITION_FAILED, text)
    scan_properties(data, payload, body - 1)
    while left > 0:
        following: i64 = _frame_end(data, body, end, FRAME_BODY)
        size: i64 = following - body - FRAME_OVERHEAD_BYTES
        if size == 0 or size > left:
            raise ConnectionException(FRAME_ERROR, f"byte {int(body)}: the body frames do not add up to the body")
        left -= size
        body = following
    return body


def _frame_end(data: bytes, pos: i64, end: i64, frame_type: i64) -> i64:
    """Return the end of the frame at `pos`, which has to be of that type."""
    if end - pos < FRAME_OVERHEAD_BYTES:
        raise ConnectionException(FRAME_ERROR, f"byte {int(pos)}: a frame that is cut off")
    size: i64 = i64(read_i32_be(data, pos + 3)) & 0xFFFFFFFF
    if i64(data[pos]) != frame_type or read_i16_be(data, pos + 1) != _CHANNEL:
        text = f"byte {int(pos)}: expected a frame of type {int(frame_type)} on channel {_CHANNEL}"
        raise ConnectionException(FRAME_ERROR, text)
    if size > FRAME_BYTES_MAX - FRAME_OVERHEAD_BYTES:
        raise ConnectionException(FRAME_ERROR, f"byte {int(pos)}: a frame of more than {FRAME_BYTES_MAX} bytes")
    if size > end - pos - FRAME_OVERHEAD_BYTES:
        raise ConnectionException(FRAME_ERROR, f"byte {int(pos)}: a frame that is cut off")
    following: i64 = pos + FRAME_OVERHEAD_BYTES + size
    if data[following - 1] != FRAME_END:
        raise ConnectionException(FRAME_ERROR, f"byte {int(pos)}: a frame without its end octet")
    return following


def _check_arguments(scan: PublishScan, raw: bytes, pos: i64) -> None:
    size: i64 = len(raw)
    exchange = decode_shortstr(raw, 2, size)
    key_at: i64 = 3 + i64(raw[2])
    decode_shortstr(raw, key_at, size)
    flags_at: i64 = key_at + 1 + i64(raw[key_at])
    if flags_at + 1 != size or raw[flags_at] != 0 or read_i16_be(raw, 0) != 0:
        text = f"byte {int(pos)}: basic.publish must have ticket and flags of 0, and nothing else"
        raise ConnectionException(SYNTAX_ERROR, text)
    scan.exchanges[exchange] = None
    scan._arguments = raw
