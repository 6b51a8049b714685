"""Contents that are received in part: what is not limited."""

from __future__ import annotations

from engine_harness import Harness, body_of
from peer_frames import content_header

from warren.amqp import methods as m
from warren.amqp.codec import frame, method_frame


def test_without_a_limit_a_content_may_take_as_long_as_it_likes() -> None:
    harness = Harness(content_timeout_s=0.0)
    client = harness.channel()
    client.declare("q")
    publish = method_frame(1, m.BasicPublish(0, "", "q", False, False))
    client.feed(publish + frame(2, 1, content_header({}, 2)) + frame(3, 1, b"a"))
    for _ in range(5):
        harness.pass_time(1000)
    client.nothing()
    client.feed(frame(3, 1, b"b"))
    got = client.get("q")
    assert got is not None and body_of(got) == b"ab"
