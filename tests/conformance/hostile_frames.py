"""Frames of a peer of bad will, and how it is dropped."""

from __future__ import annotations

from engine_harness import (
    Client,
)
from peer_frames import content_header

from warren.amqp import methods as m
from warren.amqp.codec import frame, method_frame

PUBLISH = method_frame(1, m.BasicPublish(0, "", "q", mandatory=False, immediate=False))


def frame_head(kind: int, number: int, size: int) -> bytes:
    return bytes([kind]) + number.to_bytes(2, "big") + size.to_bytes(4, "big")


def silently_dropped(client: Client) -> None:
    assert client.take_bytes() == b""
    assert client.ended
    assert client.connection.carry == b""


def content_head(size: int) -> bytes:
    return frame(2, 1, content_header({}, size))
