"""Deliveries to a peer that does not read: they stop at its limit, and go through one small buffer. outbox (3), (4)"""

from __future__ import annotations

import pytest
from engine_harness import Harness, content_frames, split_frames

from warren.amqp import methods as m
from warren.amqp.codec import frame, method_frame
from warren.amqp.outbox import SPARE_MAX_BYTES
from warren.queues.content_frames import LARGE_MIN_BYTES

BODY_BYTES = 20_000  # more than what is joined, if its frames come one by one
COUNT = 200


@pytest.mark.parametrize(
    ("sent_in", "taken_in"),
    [(4096, 131072), (4096, 4096), (131072, 4096), (131072, 131072)],
)
@pytest.mark.parametrize("number", [1, 2])
def test_deliveries_to_a_peer_that_reads_nothing_stop_whatever_the_frames_are(
    sent_in: int, taken_in: int, number: int
) -> None:
    """In another channel than that of the publish the frames are written in another way."""
    harness = Harness()
    reader = harness.client(frame_max_bytes=taken_in)
    reader.open(number)
    reader.send(number, m.QueueDeclare(0, "q", False, False, False, False, False, b"\0\0\0\0"))
    reader.take()
    reader.consume("q", "t", no_ack=True, number=number)
    reader.take()
    publisher = harness.client(frame_max_bytes=sent_in)
    publisher.open(1)
    outbox = reader.connection.outbox
    reader.peer.stalled = True
    publish = method_frame(1, m.BasicPublish(0, "", "q", False, False))
    for at in range(COUNT):
        body = b"%08d" % at + b"b" * (BODY_BYTES - 8)
        publisher.feed(publish + content_frames(1, body, frame_max_bytes=sent_in))
    assert outbox.waiting_bytes() < harness.broker.limits.outbox_soft_bytes + SPARE_MAX_BYTES
    assert len(outbox.writer) <= outbox.piece_bytes
    assert int(harness.queue("q").ready_count) > COUNT // 2
    harness.wake(reader.peer)
    assert [int(body[:8]) for body in reader.bodies()] == list(range(COUNT))


@pytest.mark.parametrize(("sent_in", "taken_in"), [(4096, 131072), (131072, 4096)])
def test_no_buffer_grows_with_what_a_turn_delivers(sent_in: int, taken_in: int) -> None:
    harness = Harness()
    reader = harness.client(frame_max_bytes=taken_in)
    reader.open(1)
    reader.declare("q")
    publisher = harness.client(frame_max_bytes=sent_in)
    publisher.open(1)
    publish = method_frame(1, m.BasicPublish(0, "", "q", False, False))
    for _ in range(COUNT):
        publisher.feed(publish + content_frames(1, b"b" * BODY_BYTES, frame_max_bytes=sent_in))
    reader.peer.stalled = True
    reader.send(1, m.BasicConsume(0, "q", "t", False, True, False, True, b"\0\0\0\0"))
    pieces = reader.connection.outbox.take()
    assert sum(map(len, pieces)) > 2 * SPARE_MAX_BYTES
    assert max(map(len, pieces)) < reader.connection.outbox.piece_bytes + BODY_BYTES + 200


@pytest.mark.parametrize("sent_in", [4096, 131072])
def test_a_large_content_is_not_copied_for_each_of_its_receivers_at_once(sent_in: int) -> None:
    """Frames as small as that are cut when the peer takes them. ``content_frames.py``"""
    harness = Harness()
    publisher = harness.client(frame_max_bytes=sent_in)
    publisher.open(1)
    readers = [harness.channel() for _ in range(3)]
    for number, reader in enumerate(readers):
        reader.declare(f"q{number}")
        reader.bind(f"q{number}", "amq.fanout")
        reader.consume(f"q{number}", "t", no_ack=True)
        reader.peer.stalled = True
    body = b"b" * (4 * LARGE_MIN_BYTES)
    frames = split_frames(content_frames(1, body, frame_max_bytes=sent_in))
    publisher.connection.feed(method_frame(1, m.BasicPublish(0, "amq.fanout", "", False, False)))
    for kind, number, payload in frames:  # one by one, as a client sends them
        publisher.connection.feed(frame(kind, number, payload))
    harness.settle()
    shared = set.intersection(*({id(chunk) for chunk in reader.connection.outbox._chunks} for reader in readers))
    for reader in readers:
        outbox = reader.connection.outbox
        assert outbox.waiting_bytes() > len(body)
        assert sum(len(chunk) for chunk in outbox._chunks if id(chunk) not in shared) + len(outbox.writer) < 10_000
        harness.wake(reader.peer)
        assert reader.bodies() == [body]
