"""Large contents that reads cut anywhere arrive as they were sent, in any framing that the consumer needs."""

from __future__ import annotations

import random

import pytest
from engine_harness import Client, Harness, body_of, publish_frames

from warren.amqp import methods as m
from warren.channels.content_channel import CUT_MIN_BYTES

SIZES = (CUT_MIN_BYTES - 1, CUT_MIN_BYTES, 65536, 131064, 131065, 300_000)


def feed_cut(client: Client, data: bytes, rng: random.Random, longest: int) -> None:
    """Feed `data` in reads of random lengths."""
    while data:
        size = rng.randint(1, longest)
        client.feed(data[:size])
        data = data[size:]


@pytest.mark.parametrize("longest", [600, 5000, 70_000, 262_144])
@pytest.mark.parametrize("number", [1, 2])
def test_a_large_body_arrives_whole_however_it_was_cut(number: int, longest: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    harness = Harness()
    publisher, consumer = harness.channel(), harness.client()
    consumer.open(number)
    consumer.declare("q", number=number)
    consumer.consume("q", "t", number=number)
    bodies = [rng.randbytes(size) for size in SIZES for _ in range(3)]
    feed_cut(publisher, b"".join(publish_frames("", "q", body) for body in bodies), rng, longest)
    assert [body_of(each) for each in consumer.deliveries()] == bodies


def test_a_cut_body_can_be_read_by_everyone_who_needs_it_otherwise() -> None:
    harness = Harness()
    publisher, other = harness.channel(), harness.channel()
    small = harness.client(frame_max_bytes=4096)
    small.open(1)
    publisher.declare_exchange("fan", "fanout")
    for queue in ("a", "b", "c"):
        publisher.declare(queue)
        publisher.bind(queue, "fan")
    body = random.Random(1).randbytes(100_000)
    frames = publish_frames("fan", "", body)
    publisher.feed(frames[:50_000])
    publisher.feed(frames[50_000:])
    for client, queue in ((other, "a"), (small, "b"), (other, "c")):
        received = client.get(queue)
        assert received is not None
        assert body_of(received) == body


def test_a_cut_frame_without_its_end_octet_is_a_frame_error() -> None:
    client = Harness().channel()
    client.declare("q")
    frames = publish_frames("", "q", bytes(50_000))
    client.feed(frames[:20_000])
    client.feed(frames[20_000:-1] + b"\x00")
    refusal = client.refusal()
    assert (refusal.scope, refusal.code) == ("connection", 501)
    assert refusal.text.endswith("{invalid_frame_end_marker,0}")


def test_what_follows_a_cut_body_of_a_closed_channel_is_still_understood() -> None:
    harness = Harness()
    client, other = harness.channel(), harness.channel()
    client.open(2)
    client.declare("q")
    frames = publish_frames("", "q", bytes(50_000))
    client.feed(frames[:20_000])
    # The channel is closed from our side in the middle of the frame, as the delivery timeout does.
    connection = client.connection
    connection.channels[1].state = 3
    connection.channels[1].drop_content()
    client.feed(frames[20_000:])
    assert client.call(2, m.QueueDeclare(0, "q", True, False, False, False, False, b"\0\0\0\0")).message_count == 0
    assert other.get("q") is None
