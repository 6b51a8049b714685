"""The bytes of AMQP 0-9-1 frames, as far as a load tool needs them.

A frame is  type(1) channel(2) size(4) payload(size) 0xCE.  Layouts used by arithmetic elsewhere:

  basic.ack, basic.nack   7 + class(2) method(2) delivery_tag(8) bits(1) + 1                = 21 bytes
  basic.publish           7 + class(2) method(2) reserved(2) exchange(1+n) routing_key(1+n) bits(1) + 1
  basic.deliver           7 + class(2) method(2) consumer_tag(1+n) delivery_tag(8) redelivered(1)
                          exchange(1+n) routing_key(1+n) + 1
  content header          7 + class(2) weight(2) body_size(8) flags(2) properties + 1

1. Nothing here reads a socket or keeps state.
2. Encoders refuse values that the format cannot hold (short strings above 255 bytes) instead of cutting them.

Source: AMQP 0-9-1 specification, sections 2.3 and 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct, pack
from typing import Final, NamedTuple, TypeAlias

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_OVERHEAD_BYTES: Final = 8
ACK_BYTES: Final = 21

CONNECTION_START: Final = (10, 10)
CONNECTION_START_OK: Final = (10, 11)
CONNECTION_TUNE: Final = (10, 30)
CONNECTION_TUNE_OK: Final = (10, 31)
CONNECTION_OPEN: Final = (10, 40)
CONNECTION_OPEN_OK: Final = (10, 41)
CONNECTION_CLOSE: Final = (10, 50)
CONNECTION_CLOSE_OK: Final = (10, 51)
CHANNEL_OPEN: Final = (20, 10)
CHANNEL_OPEN_OK: Final = (20, 11)
CHANNEL_CLOSE: Final = (20, 40)
CHANNEL_CLOSE_OK: Final = (20, 41)
EXCHANGE_DECLARE: Final = (40, 10)
EXCHANGE_DECLARE_OK: Final = (40, 11)
EXCHANGE_DELETE: Final = (40, 20)
EXCHANGE_DELETE_OK: Final = (40, 21)
QUEUE_DECLARE: Final = (50, 10)
QUEUE_DECLARE_OK: Final = (50, 11)
QUEUE_BIND: Final = (50, 20)
QUEUE_BIND_OK: Final = (50, 21)
QUEUE_DELETE: Final = (50, 40)
QUEUE_DELETE_OK: Final = (50, 41)
QUEUE_UNBIND: Final = (50, 50)
QUEUE_UNBIND_OK: Final = (50, 51)
BASIC_QOS: Final = (60, 10)
BASIC_QOS_OK: Final = (60, 11)
BASIC_CONSUME: Final = (60, 20)
BASIC_CONSUME_OK: Final = (60, 21)
BASIC_CANCEL: Final = (60, 30)
BASIC_PUBLISH: Final = (60, 40)
BASIC_RETURN: Final = (60, 50)
BASIC_DELIVER: Final = (60, 60)
BASIC_GET: Final = (60, 70)
BASIC_GET_OK: Final = (60, 71)
BASIC_GET_EMPTY: Final = (60, 72)
BASIC_ACK: Final = (60, 80)
BASIC_NACK: Final = (60, 120)
CONFIRM_SELECT: Final = (85, 10)
CONFIRM_SELECT_OK: Final = (85, 11)

FieldValue: TypeAlias = str | bool | int | Mapping[str, "FieldValue"]

_FRAME_START: Final = Struct(">BHI")
_METHOD_START: Final = Struct(">BHIHH")
_ACK: Final = Struct(">BHIHHQBB")


class Frame(NamedTuple):
    """One complete frame in a buffer: ``start`` is its first octet, ``end`` the one after its end octet."""

    kind: int
    channel: int
    start: int
    end: int


class FrameFormatError(ValueError):
    """The bytes received are not AMQP frames."""


def short_string(text: str) -> bytes:
    """Encode a short string: one length octet and at most 255 bytes of UTF-8."""
    raw = text.encode()
    if len(raw) > 255:
        raise ValueError(f"{text[:40]}... has {len(raw)} bytes, a short string holds 255")
    return bytes([len(raw)]) + raw


def long_string(raw: bytes) -> bytes:
    """Encode a long string: four length octets and the bytes."""
    return pack(">I", len(raw)) + raw


def field_table(fields: Mapping[str, FieldValue]) -> bytes:
    """Encode a field table of strings (S), booleans (t), integers (I, or l above 32 bits) and nested tables (F)."""
    parts: list[bytes] = []
    for name, value in fields.items():
        parts.append(short_string(name))
        if isinstance(value, bool):
            parts.append(b"t" + bytes([value]))
        elif isinstance(value, int):
            parts.append(b"I" + pack(">i", value) if -(1 << 31) <= value < 1 << 31 else b"l" + pack(">q", value))
        elif isinstance(value, str):
            parts.append(b"S" + long_string(value.encode()))
        else:
            parts.append(b"F" + field_table(value))
    return long_string(b"".join(parts))


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Wrap ``payload`` in one frame."""
    return _FRAME_START.pack(kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, name: tuple[int, int], arguments: bytes = b"") -> bytes:
    """Encode a method frame; ``name`` is (class id, method id)."""
    return frame(METHOD, channel, pack(">HH", *name) + arguments)


def ack(channel: int, delivery_tag: int, *, multiple: bool) -> bytes:
    """Encode basic.ack: 21 bytes."""
    return _ACK.pack(METHOD, channel, 13, 60, 80, delivery_tag, multiple, FRAME_END)


class Properties(NamedTuple):
    """The content properties the tool uses; absent ones are not sent."""

    headers: Mapping[str, FieldValue] | None = None
    persistent: bool = False
    correlation_id: str = ""
    reply_to: str = ""
    priority: int | None = None
    expiration: str = ""

    def encoded(self) -> bytes:
        """Return property flags and values in the order of section 4.2.6.1 (headers, delivery-mode, priority,
        correlation-id, reply-to, expiration).
        """
        flags = 0
        values = b""
        if self.headers is not None:
            flags |= 0x2000
            values += field_table(self.headers)
        if self.persistent:
            flags |= 0x1000
            values += b"\x02"
        if self.priority is not None:
            flags |= 0x0800
            values += bytes([self.priority])
        if self.correlation_id:
            flags |= 0x0400
            values += short_string(self.correlation_id)
        if self.reply_to:
            flags |= 0x0200
            values += short_string(self.reply_to)
        if self.expiration:
            flags |= 0x0100
            values += short_string(self.expiration)
        return pack(">H", flags) + values


NO_PROPERTIES: Final = Properties()


def publish(
    channel: int,
    exchange: str,
    routing_key: str,
    body: bytes,
    *,
    frame_max_bytes: int,
    properties: Properties = NO_PROPERTIES,
) -> bytes:
    """Encode one whole message: basic.publish, content header, and as many body frames as ``frame_max_bytes``
    asks for (0: one).
    """
    parts = [
        method(channel, BASIC_PUBLISH, b"\0\0" + short_string(exchange) + short_string(routing_key) + b"\0"),
        frame(HEADER, channel, pack(">HHQ", 60, 0, len(body)) + properties.encoded()),
    ]
    piece = frame_max_bytes - FRAME_OVERHEAD_BYTES if frame_max_bytes else max(1, len(body))
    parts.extend(frame(BODY, channel, body[at : at + piece]) for at in range(0, len(body), piece))
    return b"".join(parts)


def body_offset(message: bytes | bytearray) -> int:
    """Return where the body begins in a whole message as `publish` encodes it."""
    method_frame = maybe_frame(message, 0, len(message))
    assert method_frame is not None
    header = maybe_frame(message, method_frame.end, len(message))
    assert header is not None
    return header.end + 7


def maybe_frame(buffer: bytes | bytearray, start: int, stop: int) -> Frame | None:
    """Return the frame that begins at ``start``, or None while fewer than its bytes lie before ``stop``.

    Raises FrameFormatError when the end octet is not where the size says.
    """
    if stop - start < FRAME_OVERHEAD_BYTES:
        return None
    kind, channel, size = _FRAME_START.unpack_from(buffer, start)
    end = start + int(size) + FRAME_OVERHEAD_BYTES
    if end > stop:
        return None
    if buffer[end - 1] != FRAME_END:
        raise FrameFormatError(f"a frame of type {kind} on channel {channel} with {size} bytes does not end with 0xCE")
    return Frame(int(kind), int(channel), start, end)


def frames(buffer: bytes | bytearray, start: int, stop: int) -> Iterator[Frame]:
    """Yield the complete frames between ``start`` and ``stop``."""
    found = maybe_frame(buffer, start, stop)
    while found is not None:
        yield found
        found = maybe_frame(buffer, found.end, stop)


def method_name(buffer: bytes | bytearray, found: Frame) -> tuple[int, int]:
    """Return (class id, method id) of a method frame."""
    _, _, _, class_id, method_id = _METHOD_START.unpack_from(buffer, found.start)
    return int(class_id), int(method_id)


def arguments(buffer: bytes | bytearray, found: Frame) -> bytes:
    """Return the argument bytes of a method frame."""
    return bytes(buffer[found.start + 11 : found.end - 1])
