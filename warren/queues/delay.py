"""Delays that a publisher asks for: which headers, and what they mean.

    x-delay         ms from now; RabbitMQ's delayed message exchange has the same header
    x-deliver-at    ms since the epoch, or a timestamp (seconds)

1. Values are integers of any type, whole parts of floats and decimals, or texts of decimal digits with or without a
   sign: what clients make of a number of milliseconds. Anything else is no delay: what other brokers ignore must not
   close a channel. Of several headers of the same name the last one counts.
2. Whichever of the two is later counts. A time that has come, or a negative number, is no delay.
3. A message that was delayed says so: its ``x-delay`` is negative when it is delivered, as RabbitMQ's exchange does it,
   and so does not delay it again in the next broker.

Source: RabbitMQ's delayed message exchange plugin for ``x-delay`` and its types.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, read_i64_be, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i64, u8

from warren.amqp.codec import wire_short
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.field_table import TableWalker
from warren.amqp.outbox import CHUNK_MIN_BYTES
from warren.amqp.properties import HEADERS, find_property
from warren.msgstore.message import Message
from warren.msgstore.records import signed_word
from warren.queues.dead_letter import with_header

DELAY: Final = "x-delay"
DELIVER_AT: Final = "x-deliver-at"
DELAY_MAX_MS: Final = 315360000000
# What is further away than this cannot be told apart, and need not be.
_FAR: Final = 1 << 60
_DIGITS_MAX: Final = 19

_RAW_DELAY: Final = b"\x07x-delay"
_RAW_DELIVER_AT: Final = b"\x0cx-deliver-at"


def due_time_ms(header: bytes, now_ms: i64) -> i64:
    """Return until when a message with this content header payload is to be held, in ms since the epoch; 0: not."""
    table: i64 = find_property(header, HEADERS)
    if table < 0:
        return 0
    delay: i64 = 0
    at: i64 = 0
    walker = TableWalker(header, table + 4, table + 4 + (i64(read_i32_be(header, table)) & 0xFFFFFFFF))
    while walker.pos < walker.end:
        start: i64 = walker.pos
        length: i64 = header[start]
        walker.pos = start + 1 + length
        value: i64 = walker.pos
        if length == 7 and header[start:value] == _RAW_DELAY:
            delay = _number(walker, False)
        elif length == 12 and header[start:value] == _RAW_DELIVER_AT:
            at = _number(walker, True)
        else:
            walker.skip_value(1)
    due_ms: i64 = now_ms + delay if delay > 0 else 0
    if at > due_ms:
        due_ms = at
    return due_ms if due_ms > now_ms else 0


def check_delay(due_ms: i64, now_ms: i64) -> None:
    """Refuse a delay that is too long.

    Raises:
        ChannelException: 406, further away than ten years.
    """
    if due_ms - now_ms > DELAY_MAX_MS:
        raise ChannelException(PRECONDITION_FAILED, f"delay of {due_ms - now_ms} ms is more than {DELAY_MAX_MS} ms")


def _number(walker: TableWalker, is_time: bool) -> i64:
    """Step over a value and return the ms that it says, 0 when it says none; `is_time`: it may be a timestamp."""
    data = walker.data
    tag: i64 = data[walker.pos]
    start: i64 = walker.pos + 1
    if tag == 102 or tag == 100 or tag == 68 or tag == 83:  # f d D S
        return _whole(walker.value(1))
    walker.skip_value(1)
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
        number = _FAR if number < 0 or number > _FAR // 1000 else number * 1000
    return number if number < _FAR else _FAR


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


def without_delay(message: Message) -> Message:
    """Return `message` with the sign of its ``x-delay`` changed where that is a delay."""
    pieces = message.pieces
    frame = message.content if pieces is None else pieces[0]
    size: i64 = i64(read_i32_be(frame, 3)) & 0xFFFFFFFF
    payload = frame[7 : 7 + size]
    table: i64 = find_property(payload, HEADERS)
    if table < 0:
        return message
    delay: i64 = 0
    at: i64 = 0
    times: i64 = 0
    walker = TableWalker(payload, table + 4, table + 4 + (i64(read_i32_be(payload, table)) & 0xFFFFFFFF))
    while walker.pos < walker.end:
        start: i64 = walker.pos
        length: i64 = payload[start]
        walker.pos = start + 1 + length
        if length == 7 and payload[start : walker.pos] == _RAW_DELAY:
            times += 1
            at = walker.pos
            delay = _number(walker, False)
        else:
            walker.skip_value(1)
    if delay <= 0:
        return message
    value = _same_type(payload[at], -delay)
    if times > 1 or not value or len(frame) >= CHUNK_MIN_BYTES or pieces is not None:
        return with_header(message, DELAY, int(-delay))
    # In its place, by far the most frequent.
    at += 8
    made = message.copy()
    made.due_ms = message.due_ms
    made.content = frame[:at] + value + frame[at + len(value) :]
    return made


def _same_type(tag: i64, number: i64) -> bytes:
    """Encode a number with the type of another one without its tag; ``b""`` where that cannot be."""
    out = BytesWriter()
    if tag == 73:  # I
        write_i32_be(out, signed_word(number))
    elif tag == 108 or tag == 76:  # l L
        write_i64_be(out, number)
    elif tag == 115:  # s
        write_i16_be(out, wire_short(number))
    elif tag == 98:  # b
        out.append(u8(number & 255))
    return out.getvalue()
