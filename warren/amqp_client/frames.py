"""The bytes of AMQP 0-9-1 frames: whole messages encoded, frames found in a buffer.

A frame is  type(1) channel(2) size(4) payload(size) 0xCE.  Layouts used by arithmetic elsewhere:

  basic.ack, basic.nack   7 + class(2) method(2) delivery_tag(8) bits(1) + 1                = 21 bytes
  basic.publish           7 + class(2) method(2) reserved(2) exchange(1+n) routing_key(1+n) bits(1) + 1
  basic.deliver           7 + class(2) method(2) consumer_tag(1+n) delivery_tag(8) redelivered(1)
                          exchange(1+n) routing_key(1+n) + 1
  content header          7 + class(2) weight(2) body_size(8) flags(2) properties + 1

1. Nothing here keeps state.
2. Encoders refuse values that the format cannot hold (short strings above 255 bytes) instead of cutting them.

Source: AMQP 0-9-1 specification, sections 2.3 and 4.2. Methods other than publish and ack: ``warren.amqp.codec``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Final, NamedTuple

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp.field_table import encode_table
from warren.amqp.methods import ACK_BYTES as ACK_PAYLOAD_BYTES
from warren.amqp.methods import (
    BASIC_ACK,
    BASIC_CLASS_ID,
    BASIC_PUBLISH,
    FRAME_BODY,
    FRAME_END,
    FRAME_HEAD_BYTES,
    FRAME_HEADER,
    FRAME_METHOD,
    FRAME_OVERHEAD_BYTES,
    METHODS,
)
from warren.amqp.properties import FLAGS_OFFSET, PERSISTENT, BasicProperties

ACK_BYTES: Final = ACK_PAYLOAD_BYTES + FRAME_OVERHEAD_BYTES
NO_PROPERTIES: Final = b"\x00\x00"
END: Final = bytes([FRAME_END])
HEAD: Final = Struct(">BHI")
_METHOD_ID: Final = Struct(">I")
_ACK: Final = Struct(">BHIIQBB")
_PUBLISH: Final = Struct(">BHIIH")
_CONTENT: Final = Struct(">BHIHHQ")


class Frame(NamedTuple):
    """One complete frame in a buffer: ``start`` is its first octet, ``end`` the one after its end octet."""

    kind: int
    channel: int
    start: int
    end: int


class FrameFormatError(ValueError):
    """The bytes received are not AMQP frames."""


def maybe_frame(buffer: bytes | bytearray, start: int, stop: int) -> Frame | None:
    """Return the frame that begins at ``start``, or None while fewer than its bytes lie before ``stop``.

    Raises FrameFormatError when the end octet is not where the size says.
    """
    if stop - start < FRAME_OVERHEAD_BYTES:
        return None
    kind, channel, size = HEAD.unpack_from(buffer, start)
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


def method_id(buffer: bytes | bytearray, found: Frame) -> int:
    """Return the packed id (class << 16 | method) of a method frame."""
    return int(_METHOD_ID.unpack_from(buffer, found.start + FRAME_HEAD_BYTES)[0])


def method_name(buffer: bytes | bytearray, found: Frame) -> str:
    """Return the dotted name of a method frame, such as ``basic.ack``."""
    packed = method_id(buffer, found)
    return METHODS[packed].name if packed in METHODS else f"{packed >> 16}.{packed & 0xFFFF}"


def ack(channel: int, delivery_tag: int, *, multiple: bool) -> bytes:
    """Encode basic.ack: 21 bytes."""
    return _ACK.pack(FRAME_METHOD, channel, ACK_PAYLOAD_BYTES, BASIC_ACK, delivery_tag, multiple, FRAME_END)


def publish_method(channel: int, exchange: str, routing_key: str, *, mandatory: bool = False) -> bytes:
    """Encode the frame of basic.publish. Raises ValueError: a name has more than 255 bytes."""
    names = b""
    for text in (exchange, routing_key):
        raw = text.encode("utf-8", "surrogateescape")
        if len(raw) > NAME_MAX_BYTES:
            raise ValueError(f"{text[:40]}... has {len(raw)} bytes: names and routing keys hold {NAME_MAX_BYTES}")
        names += bytes([len(raw)]) + raw
    return _PUBLISH.pack(FRAME_METHOD, channel, 7 + len(names), BASIC_PUBLISH, 0) + names + bytes([mandatory]) + END


def content_head(channel: int, body_bytes: int, properties_bytes: int) -> bytes:
    """Encode the frame of a content header up to its properties; they and `END` complete it."""
    return _CONTENT.pack(FRAME_HEADER, channel, FLAGS_OFFSET + properties_bytes, BASIC_CLASS_ID, 0, body_bytes)


def body_frame(channel: int, body: bytes) -> bytes:
    """Encode one body frame."""
    return HEAD.pack(FRAME_BODY, channel, len(body)) + body + END


def publish(
    channel: int,
    exchange: str,
    routing_key: str,
    body: bytes,
    *,
    frame_max_bytes: int,
    properties: bytes = NO_PROPERTIES,
) -> bytes:
    """Encode one whole message: basic.publish, content header, and as many body frames as ``frame_max_bytes``
    asks for (0: one).
    """
    piece = frame_max_bytes - FRAME_OVERHEAD_BYTES if frame_max_bytes else max(1, len(body))
    parts = [
        publish_method(channel, exchange, routing_key),
        content_head(channel, len(body), len(properties)),
        properties,
        END,
    ]
    parts.extend(body_frame(channel, body[at : at + piece]) for at in range(0, len(body), piece))
    return b"".join(parts)


def encode_properties(
    *,
    headers: Mapping[str, object] | None = None,
    persistent: bool = False,
    correlation_id: str | None = None,
    reply_to: str | None = None,
    priority: int | None = None,
    expiration: str | None = None,
) -> bytes:
    """Encode flag word and property list; properties that are None are not sent."""
    made = BasicProperties()
    made.headers = None if headers is None else encode_table(dict(headers))
    made.delivery_mode = PERSISTENT if persistent else None
    made.priority = priority
    made.correlation_id = correlation_id
    made.reply_to = reply_to
    made.expiration = expiration
    return made.encode()


def body_offset(message: bytes | bytearray) -> int:
    """Return where the body begins in a whole message as `publish` encodes it."""
    method_frame = maybe_frame(message, 0, len(message))
    assert method_frame is not None
    header = maybe_frame(message, method_frame.end, len(message))
    assert header is not None
    return header.end + FRAME_HEAD_BYTES
