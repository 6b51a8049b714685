"""The bytes of the AMQP 0-9-1 frames that a client sends for each message.

A frame is  type(1) channel(2) size(4) payload(size) 0xCE.  Layouts used by arithmetic elsewhere:

  basic.ack, basic.nack   7 + class(2) method(2) delivery_tag(8) bits(1) + 1                = 21 bytes
  basic.publish           7 + class(2) method(2) reserved(2) exchange(1+n) routing_key(1+n) bits(1) + 1
  content header          7 + class(2) weight(2) body_size(8) flags(2) properties + 1

Encoders refuse values that the format cannot hold (short strings above 255 bytes) instead of cutting them.

Source: AMQP 0-9-1 specification, sections 2.3 and 4.2. Methods other than publish and ack: ``warren.amqp.codec``.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from warren.amqp.codec import NAME_MAX_BYTES
from warren.amqp.methods import (
    ACK_BYTES,
    BASIC_ACK,
    BASIC_CLASS_ID,
    BASIC_PUBLISH,
    FRAME_END,
    FRAME_HEADER,
    FRAME_METHOD,
)
from warren.amqp.properties import FLAGS_OFFSET

NO_PROPERTIES: Final = b"\x00\x00"
END: Final = bytes([FRAME_END])
HEAD: Final = Struct(">BHI")
_ACK: Final = Struct(">BHIIQBB")
_PUBLISH: Final = Struct(">BHIIH")
_CONTENT: Final = Struct(">BHIHHQ")


def ack(channel: int, delivery_tag: int, *, multiple: bool) -> bytes:
    """Encode basic.ack: 21 bytes."""
    return _ACK.pack(FRAME_METHOD, channel, ACK_BYTES, BASIC_ACK, delivery_tag, multiple, FRAME_END)


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
