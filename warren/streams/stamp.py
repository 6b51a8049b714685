"""The offset of a message among the headers of its deliveries: ``x-stream-offset``, a long.

Made once for each message of a chunk, so on the hot path: the entry is set in front of the others, and everything after
it is copied unchanged.

    content header frame   type, channel, size + n | class, weight, body size | flags + HEADERS | content type, encoding
                           table length + 25 | entry | other headers, the rest of the frame and all body frames
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from warren.amqp.codec import wire_short
from warren.amqp.methods import FRAME_HEADER
from warren.amqp.properties import CONTENT_ENCODING, CONTENT_TYPE, FLAGS_OFFSET, HEADERS, MIN_HEADER_BYTES
from warren.msgstore.log.message import HEADER_AT, Message, write_frame_head
from warren.queues.dead_letter import with_header
from warren.streams.consumer import OFFSET

_KEY: Final = bytes([len(OFFSET)]) + OFFSET.encode()
_ENTRY_HEAD: Final = _KEY + b"l"
_ENTRY_BYTES: Final = len(_ENTRY_HEAD) + 8
# A longer table is decoded entry by entry: it may already have as many entries as are allowed.
_TABLE_MAX_BYTES: Final = 4096


def stamped(message: Message, offset: i64) -> Message:
    """Return `message` with `offset` among its headers, instead of such a header from its publisher."""
    frame = message.header_frame()
    frame_size: i64 = i64(read_i32_be(frame, 3)) & 0xFFFFFFFF
    flags: i64 = i64(read_i16_be(frame, HEADER_AT + FLAGS_OFFSET)) & 0xFFFF
    table: i64 = HEADER_AT + MIN_HEADER_BYTES
    if flags & CONTENT_TYPE:
        table += 1 + i64(frame[table])
    if flags & CONTENT_ENCODING:
        table += 1 + i64(frame[table])
    table_bytes: i64 = 0
    rest: i64 = table
    more: i64 = 4 + _ENTRY_BYTES
    if flags & HEADERS:
        table_bytes = i64(read_i32_be(frame, table)) & 0xFFFFFFFF
        rest = table + 4
        more = _ENTRY_BYTES
        if table_bytes > _TABLE_MAX_BYTES or frame.find(_KEY, rest, rest + table_bytes) >= 0:
            return with_header(message, OFFSET, int(offset))
    out = BytesWriter()
    write_frame_head(out, FRAME_HEADER, message.channel, frame_size + more)
    out.write(frame[HEADER_AT : HEADER_AT + FLAGS_OFFSET])
    write_i16_be(out, wire_short(flags | HEADERS))
    out.write(frame[HEADER_AT + MIN_HEADER_BYTES : table])
    write_i32_be(out, i32(table_bytes + _ENTRY_BYTES))
    out.write(_ENTRY_HEAD)
    write_i64_be(out, offset)
    out.write(frame[rest:])
    largest: i64 = 8 + frame_size + more
    if largest < message.frame_max_bytes:
        largest = message.frame_max_bytes
    content = out.getvalue()
    pieces = message.pieces
    if pieces is not None:
        pieces = [content, *pieces[1:]]
        content = b""
    return Message(message.envelope, content, message.channel, message.body_bytes, largest, True, pieces)
