"""The 14 properties of a basic content header: checked for every message, decoded only when a reader needs them.

    content header payload = class:u16 weight:u16 body_size:u64 flags:u16 [more flags] property*

Properties stand in flag order, content-type (bit 15) first, cluster-id (bit 2) last; bit 0 announces another flag
word, which basic never uses.

1. `scan_properties` accepts exactly the input that `decode_properties` can decode.
2. Strings keep their bytes: they are decoded with ``surrogateescape``, so re-encoding is the identity.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be
from mypy_extensions import i64

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp.errors import SYNTAX_ERROR, ConnectionException
from warren.amqp.field_table import TableWalker, flat_table_end, value_end

CONTENT_TYPE: Final = 0x8000
CONTENT_ENCODING: Final = 0x4000
HEADERS: Final = 0x2000
DELIVERY_MODE: Final = 0x1000
PRIORITY: Final = 0x0800
CORRELATION_ID: Final = 0x0400
REPLY_TO: Final = 0x0200
EXPIRATION: Final = 0x0100
MESSAGE_ID: Final = 0x0080
TIMESTAMP: Final = 0x0040
TYPE: Final = 0x0020
USER_ID: Final = 0x0010
APP_ID: Final = 0x0008
CLUSTER_ID: Final = 0x0004

PERSISTENT: Final = 2  # a delivery mode
# The flag that `scan_properties` sets for it, in a bit where AMQP has no property.
PERSISTENT_FLAG: Final = 2
# Properties on which the broker may have to act: CC and BCC, expiration, user-id, direct reply-to.
SPECIAL_PROPERTIES: Final = HEADERS | EXPIRATION | USER_ID | REPLY_TO
# Headers that the broker acts on, as `known_headers` finds them.
HAS_CC: Final = 1
HAS_BCC: Final = 2
HAS_DEATHS: Final = 4
HAS_DELAY: Final = 8  # x-delay or x-deliver-at
# Their keys as they stand in a table, or the first bytes of them: compared as numbers no object is made.
CC: Final = 0x4343
X_DELAY: Final = 0x07782D64656C6179  # with the length in front, like the others
X_DEATH: Final = 0x07782D6465617468
X_DELIV: Final = 0x0C782D64656C6976
# Where body size and flag word stand in a content header *payload*, and how long one without properties is.
BODY_SIZE_OFFSET: Final = 4
FLAGS_OFFSET: Final = 12
MIN_HEADER_BYTES: Final = 14
# Ignore a larger number of milliseconds: it is about thirty years.
EXPIRATION_MAX: Final = 10**12 - 1


def _malformed(what: str) -> ConnectionException:
    return ConnectionException(SYNTAX_ERROR, f"malformed content header: {what}")


def scan_properties(data: bytes, start: i64, end: i64) -> i64:
    """Check the properties of the content header payload ``data[start:end]`` and return its flag word.

    `PERSISTENT_FLAG` is set in the result when the message is persistent.

    Raises:
        ConnectionException: 502, a length does not add up; 502 or 501, the headers table is malformed.
    """
    if end - start < MIN_HEADER_BYTES:
        raise _malformed("too short")
    flags: i64 = i64(read_i16_be(data, start + FLAGS_OFFSET)) & 0xFFFF
    if flags & 3:
        raise _malformed("unknown property flags")
    pos: i64 = start + MIN_HEADER_BYTES
    persistent: i64 = 0
    bit: i64 = CONTENT_TYPE
    left: i64 = flags
    while left:
        if left & bit:
            left ^= bit
            if bit == HEADERS:
                table_end: i64 = flat_table_end(data, pos, end)
                if table_end < 0:
                    walker = TableWalker(data, pos, end)
                    walker.skip_table(1)
                    table_end = walker.pos
                pos = table_end
            elif bit == DELIVERY_MODE:
                if pos < end and data[pos] == PERSISTENT:
                    persistent = PERSISTENT_FLAG
                pos += 1
            elif bit == PRIORITY:
                pos += 1
            elif bit == TIMESTAMP:
                pos += 8
            else:
                if pos >= end:
                    raise _malformed("too short")
                pos += 1 + i64(data[pos])
            if pos > end:
                raise _malformed("too short")
        bit >>= 1
    if pos != end:
        raise _malformed("bytes after the last property")
    return flags | persistent


def find_property(payload: bytes, wanted: i64) -> i64:
    """Return where the property with the flag bit `wanted` begins in a scanned content header payload; -1: nowhere."""
    return find_property_from(payload, 0, wanted)


def find_property_from(data: bytes, start: i64, wanted: i64) -> i64:
    """Return the same for a payload that begins at `start`."""
    flags: i64 = i64(read_i16_be(data, start + FLAGS_OFFSET)) & 0xFFFF
    if flags & wanted == 0:
        return -1
    pos: i64 = start + MIN_HEADER_BYTES
    bit: i64 = CONTENT_TYPE
    while bit > wanted:
        if flags & bit:
            if bit == HEADERS:
                pos += 4 + (i64(read_i32_be(data, pos)) & 0xFFFFFFFF)
            elif bit in (DELIVERY_MODE, PRIORITY):
                pos += 1
            elif bit == TIMESTAMP:
                pos += 8
            else:
                pos += 1 + i64(data[pos])
        bit >>= 1
    return pos


def priority_of(data: bytes, start: i64) -> i64:
    """Return the priority in the scanned content header payload that begins at `start`, 0 without."""
    at: i64 = find_property_from(data, start, PRIORITY)
    if at < 0:
        return 0
    return i64(data[at])


def is_persistent(payload: bytes) -> bool:
    """Tell whether a scanned content header payload asks for delivery mode 2."""
    at: i64 = find_property(payload, DELIVERY_MODE)
    return at >= 0 and payload[at] == PERSISTENT


def headers_of(payload: bytes) -> bytes:
    """Return the headers table of a scanned content header payload, length prefix included; ``b""`` without."""
    at: i64 = find_property(payload, HEADERS)
    if at < 0:
        return b""
    return payload[at : at + 4 + (i64(read_i32_be(payload, at)) & 0xFFFFFFFF)]


def known_headers(payload: bytes) -> i64:
    """Return which headers that the broker acts on are in a scanned content header payload, a bit each.

    One walk over the keys: looking for each of them in the bytes takes longer, all the more with ``in``, for which
    Python makes and drops an exception each time.
    """
    table: i64 = find_property(payload, HEADERS)
    if table < 0:
        return 0
    found: i64 = 0
    pos: i64 = table + 4
    end: i64 = pos + (i64(read_i32_be(payload, table)) & 0xFFFFFFFF)
    while pos < end:
        length: i64 = payload[pos]
        if length == 7:
            word: i64 = read_i64_be(payload, pos)
            if word == X_DELAY:
                found |= HAS_DELAY
            elif word == X_DEATH:
                found |= HAS_DEATHS
        elif length == 12:
            if read_i64_be(payload, pos) == X_DELIV and payload[pos + 8 : pos + 13] == b"er-at":
                found |= HAS_DELAY
        elif length == 2:
            if read_i16_be(payload, pos + 1) == CC:
                found |= HAS_CC
        elif length == 3 and payload[pos + 1] == 66 and read_i16_be(payload, pos + 2) == CC:
            found |= HAS_BCC
        pos = value_end(payload, pos + 1 + length)
    return found


def expiration_ms_of(payload: bytes) -> i64:
    """Return the expiration in a scanned content header payload in ms; -1 when it is missing or not a number."""
    at: i64 = find_property(payload, EXPIRATION)
    if at < 0:
        return -1
    end: i64 = at + 1 + i64(payload[at])
    at += 1
    sign: i64 = i64(payload[at]) if at < end else 0
    if sign == 0x2B or sign == 0x2D:  # + -
        at += 1
    if at == end:
        return -1
    value: i64 = 0
    while at < end:
        digit: i64 = i64(payload[at]) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
        if value > EXPIRATION_MAX or (sign == 0x2D and value > 0):
            return -1
        at += 1
    return value


class BasicProperties:
    """Decoded properties. None: not present. ``headers`` is the encoded table, length prefix included."""

    def __init__(self) -> None:
        self.content_type: str | None = None
        self.content_encoding: str | None = None
        self.headers: bytes | None = None
        self.delivery_mode: int | None = None
        self.priority: int | None = None
        self.correlation_id: str | None = None
        self.reply_to: str | None = None
        self.expiration: str | None = None
        self.message_id: str | None = None
        self.timestamp: int | None = None
        self.type: str | None = None
        self.user_id: str | None = None
        self.app_id: str | None = None
        self.cluster_id: str | None = None

    def encode(self) -> bytes:
        """Return flag word and property list, ready to follow the body size in a content header."""
        flags = 0
        parts: list[bytes] = []
        strings_before = ((CONTENT_TYPE, self.content_type), (CONTENT_ENCODING, self.content_encoding))
        for bit, text in strings_before:
            if text is not None:
                flags |= bit
                parts.append(short_string(text))
        if self.headers is not None:
            flags |= HEADERS
            parts.append(self.headers)
        if self.delivery_mode is not None:
            flags |= DELIVERY_MODE
            parts.append(self.delivery_mode.to_bytes(1, "big"))
        if self.priority is not None:
            flags |= PRIORITY
            parts.append(self.priority.to_bytes(1, "big"))
        strings_middle = (
            (CORRELATION_ID, self.correlation_id),
            (REPLY_TO, self.reply_to),
            (EXPIRATION, self.expiration),
            (MESSAGE_ID, self.message_id),
        )
        for bit, text in strings_middle:
            if text is not None:
                flags |= bit
                parts.append(short_string(text))
        if self.timestamp is not None:
            flags |= TIMESTAMP
            parts.append(self.timestamp.to_bytes(8, "big"))
        strings_after = (
            (TYPE, self.type),
            (USER_ID, self.user_id),
            (APP_ID, self.app_id),
            (CLUSTER_ID, self.cluster_id),
        )
        for bit, text in strings_after:
            if text is not None:
                flags |= bit
                parts.append(short_string(text))
        return flags.to_bytes(2, "big") + b"".join(parts)


def short_string(text: str) -> bytes:
    """Return `text` as a short string: at most 255 bytes, with their number in front."""
    raw = text.encode("utf-8", "surrogateescape")
    assert len(raw) <= NAME_MAX_BYTES
    return bytes([len(raw)]) + raw


def decode_properties(data: bytes, start: i64, end: i64) -> BasicProperties:
    """Decode the properties of the content header payload ``data[start:end]``.

    Raises:
        ConnectionException: as `scan_properties`.
    """
    flags: i64 = scan_properties(data, start, end)
    result = BasicProperties()
    pos: i64 = start + MIN_HEADER_BYTES
    bit: i64 = CONTENT_TYPE
    while bit >= CLUSTER_ID:
        if flags & bit:
            if bit == HEADERS:
                walker = TableWalker(data, pos, end)
                walker.skip_table(1)
                result.headers = data[pos : walker.pos]
                pos = walker.pos
            elif bit == DELIVERY_MODE:
                result.delivery_mode = int(data[pos])
                pos += 1
            elif bit == PRIORITY:
                result.priority = int(data[pos])
                pos += 1
            elif bit == TIMESTAMP:
                result.timestamp = int(read_i64_be(data, pos)) & 0xFFFFFFFFFFFFFFFF
                pos += 8
            else:
                length: i64 = data[pos]
                text = data[pos + 1 : pos + 1 + length].decode("utf-8", "surrogateescape")
                pos += 1 + length
                _set_string(result, bit, text)
        bit >>= 1
    return result


def _set_string(properties: BasicProperties, bit: i64, text: str) -> None:
    if bit == CONTENT_TYPE:
        properties.content_type = text
    elif bit == CONTENT_ENCODING:
        properties.content_encoding = text
    elif bit == CORRELATION_ID:
        properties.correlation_id = text
    elif bit == REPLY_TO:
        properties.reply_to = text
    elif bit == EXPIRATION:
        properties.expiration = text
    elif bit == MESSAGE_ID:
        properties.message_id = text
    elif bit == TYPE:
        properties.type = text
    elif bit == USER_ID:
        properties.user_id = text
    elif bit == APP_ID:
        properties.app_id = text
    else:
        properties.cluster_id = text
