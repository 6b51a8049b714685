"""The identity of a test's peer, and the content header that it sends."""

from __future__ import annotations

from typing import Any

from warren.amqp.properties import BasicProperties

USER = "guest"
PASSWORD = "guest"


def content_header(properties: dict[str, Any], body_bytes: int) -> bytes:
    """Return the payload of a content header frame."""
    encoded = BasicProperties()
    for name, value in properties.items():
        setattr(encoded, name, value)
    return b"\x00\x3c\x00\x00" + body_bytes.to_bytes(8, "big") + encoded.encode()
