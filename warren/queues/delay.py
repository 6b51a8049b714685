"""Delays that a publisher asks for: the headers, and their meaning.

    x-delay         ms from now; RabbitMQ's delayed message exchange has the same header
    x-deliver-at    ms since the epoch, or a timestamp (seconds)

1. Values are integers of any type, whole parts of floats and decimals, or texts of decimal digits with or without a
   sign: all the forms in which clients send a number of milliseconds. Other values are ignored: a header that other
   brokers ignore must not close a channel. Of several headers of the same name the last one counts.
2. The later one of the two counts. A time that has come, or a negative number, is not a delay.
3. A held message says so: its ``x-delay`` is negative from then on, and when it is delivered, as with RabbitMQ's
   exchange. So the next exchange or broker does not delay it again.

Source: RabbitMQ's delayed message exchange plugin for ``x-delay`` and its types.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64, u8

from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.field_table import TableWalker, value_end
from warren.amqp.outbox import CHUNK_MIN_BYTES
from warren.amqp.properties import HEADERS, X_DELAY, X_DELIV, find_property, find_property_from
from warren.msgstore.log.message import HEADER_AT, Message
from warren.queues.dead_letter import with_header

DELAY: Final = "x-delay"
DELAY_MAX_MS: Final = 315360000000
# Later times cannot be told apart, and need not be.
_FAR: Final = 1 << 60
_DIGITS_MAX: Final = 19


def due_time_ms(header: bytes, now_ms: i64) -> i64:
    """Return until when to hold a message with this content header payload, in ms since the epoch; 0: not at all."""
    table: i64 = find_property(header, HEADERS)
    if table < 0:
        return 0
    delay: i64 = 0
    at: i64 = 0
    pos: i64 = table + 4
    end: i64 = pos + (i64(read_i32_be(header, table)) & 0xFFFFFFFF)
    while pos < end:
        length: i64 = header[pos]
        value: i64 = pos + 1 + length
        if length == 7 and read_i64_be(header, pos) == X_DELAY:
            delay = _number(header, value, False)
        elif length == 12 and read_i64_be(header, pos) == X_DELIV and header[pos + 8 : value] == b"er-at":
            at = _number(header, value, True)
        pos = value_end(header, value)
    # No conditional expressions here: they would make objects of the numbers.
    if delay > 0 and now_ms + delay > at:
        return now_ms + delay
    if at > now_ms:
        return at
    return 0


def check_delay(due_ms: i64, now_ms: i64) -> None:
    """Refuse a delay that is too long.

    Raises:
        ChannelException: 406, further away than ten years.
    """
    if due_ms - now_ms > DELAY_MAX_MS:
        raise ChannelException(PRECONDITION_FAILED, f"delay of {due_ms - now_ms} ms is more than {DELAY_MAX_MS} ms")


def _number(data: bytes, at: i64, is_time: bool) -> i64:
    """Return the ms of the tagged value at `at`, 0 for other values; `is_time`: it may be a timestamp."""
    tag: i64 = data[at]
    start: i64 = at + 1
    number: i64 = 0
    if tag == 73:  # I
        number = i64(read_i32_be(data, start))
    elif tag == 108 or tag == 76:  # l L
        number = read_i64_be(data, start)
    elif tag == 105:  # i
        number = i64(read_i32_be(data, start)) & 0xFFFFFFFF
    elif tag == 115:  # s
        number = i64(read_i16_be(data, start))
    elif tag == 117:  # u
        number = i64(read_i16_be(data, start)) & 0xFFFF
    elif tag == 98:  # b
        number = data[start]
        if number > 127:
            number -= 256
    elif tag == 66:  # B
        number = data[start]
    elif tag == 84 and is_time:  # T, unsigned
        number = read_i64_be(data, start)
        if number < 0 or number > _FAR // 1000:
            number = _FAR // 1000
        number *= 1000
    elif tag == 102 or tag == 100 or tag == 68 or tag == 83:  # f d D S
        number = _whole(TableWalker(data, at, len(data)).value(1))
    if number > _FAR:
        number = _FAR
    return number


def _signed_bytes(tag: i64) -> i64:
    """Return the size of integers with `tag`, 0 when they are not signed."""
    if tag == 108 or tag == 76:  # l L
        return 8
    if tag == 73:  # I
        return 4
    if tag == 115:  # s
        return 2
    return 1 if tag == 98 else 0  # b


def _whole(value: object) -> i64:
    if isinstance(value, float):
        if math.isnan(value):
            return 0
        return i64(int(max(-float(_FAR), min(float(_FAR), value))))
    if isinstance(value, Decimal):
        return i64(int(value))
    if not isinstance(value, str):
        return 0
    digits = value[1:] if value[:1] in ("-", "+") else value
    if not digits or len(digits) > _DIGITS_MAX or not digits.isascii() or not digits.isdigit():
        return 0
    number = int(value)
    return i64(max(-_FAR, min(_FAR, number)))


def negate_delay(message: Message) -> None:
    """Change the sign of the ``x-delay`` of `message` if it is a delay."""
    frame = message.header_frame()
    table: i64 = find_property_from(frame, HEADER_AT, HEADERS)
    if table < 0:
        return
    delay: i64 = 0
    at: i64 = 0
    times: i64 = 0
    pos: i64 = table + 4
    end: i64 = pos + (i64(read_i32_be(frame, table)) & 0xFFFFFFFF)
    while pos < end:
        length: i64 = frame[pos]
        value: i64 = pos + 1 + length
        if length == 7 and read_i64_be(frame, pos) == X_DELAY:
            times += 1
            at = value
            delay = _number(frame, value, False)
        pos = value_end(frame, value)
    if delay <= 0:
        return
    size: i64 = _signed_bytes(frame[at])
    if times > 1 or size == 0 or message.pieces is not None or len(frame) >= CHUNK_MIN_BYTES:
        made = with_header(message, DELAY, int(-delay))
        message.take_frames(made.content, made.pieces)
        message.frame_max_bytes = made.frame_max_bytes
        return
    # Changed in place, by far the most frequent case.
    out = BytesWriter()
    out.write(frame)
    delay = -delay
    at += size
    while size > 0:
        out[at] = u8(delay & 255)
        delay >>= 8
        at -= 1
        size -= 1
    message.content = out.getvalue()
