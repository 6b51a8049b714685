"""Contents that may be taken in one step, and those that only look so."""

from __future__ import annotations

import pytest
from engine_harness import Harness, body_of
from peer_frames import content_header

from warren.amqp import methods as m
from warren.amqp.codec import frame, method_frame


@pytest.mark.parametrize("sizes", [(20,), (10, 10), (1, 19), (19, 1), (4, 8, 8)])
def test_a_body_arrives_in_whatever_frames_it_comes(sizes: tuple[int, ...]) -> None:
    """Wherever a single frame would end there is the byte that ends frames."""
    client = Harness().channel()
    client.declare("q")
    frames = b"".join(frame(3, 1, b"\xce" * size) for size in sizes)
    publish = method_frame(1, m.BasicPublish(0, "", "q", mandatory=False, immediate=False))
    client.feed(publish + frame(2, 1, content_header({}, 20)) + frames)
    got = client.get("q")
    assert got is not None and body_of(got) == b"\xce" * 20


@pytest.mark.parametrize("body", [b"", b"x"])
def test_a_content_arrives_in_whatever_pieces_it_comes(body: bytes) -> None:
    harness = Harness()
    client = harness.channel()
    client.declare("q")
    data = method_frame(1, m.BasicPublish(0, "", "q", mandatory=False, immediate=False)) + frame(
        2, 1, content_header({}, len(body))
    )
    data += frame(3, 1, body) if body else b""
    for cut in range(len(data) + 1):
        client.feed(data[:cut])
        client.feed(data[cut:])
        got = client.get("q")
        assert got is not None and body_of(got) == body
        assert harness.queue("q").unacked_bytes == (cut + 1) * len(body)
