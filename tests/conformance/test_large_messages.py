"""Bodies of many MiB: whole on every way, in memory once, and never joined or looked through in one turn."""

from __future__ import annotations

import random
from typing import Any

import pytest
from engine_harness import Client, Harness, body_of, content_frames

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.channels.shared import PAUSED_ALARM

from .rules import rule

READ_BYTES = 250_000  # the bytes of a socket's read
BODIES = [random.Random(seed).randbytes(size) for seed, size in enumerate((3_000_000, 100, 2_500_001, 1 << 20))]


def publish(client: Client, queue: str, body: bytes, number: int = 1, **properties: Any) -> None:
    """Publish as a socket would deliver it, in many reads."""
    data = method_frame(number, m.BasicPublish(0, "", queue, mandatory=False, immediate=False)) + content_frames(
        number, body, properties
    )
    for at in range(0, len(data), READ_BYTES):
        client.feed(data[at : at + READ_BYTES])


def got(client: Client, queue: str, number: int = 1) -> bytes:
    received = client.get(queue, no_ack=True, number=number)
    assert received is not None
    return body_of(received)


@rule(
    "warren.large-messages", "A body of several MiB arrives as it was sent, on any channel and in frames of any size."
)
@pytest.mark.parametrize("frame_max", [4096, 131072])
@pytest.mark.parametrize("properties", [{}, {"expiration": "60000"}, {"user_id": "guest", "delivery_mode": 2}])
def test_a_large_body_arrives_as_it_was_sent(harness: Harness, frame_max: int, properties: dict[str, Any]) -> None:
    client = harness.channel()
    other = harness.client(frame_max_bytes=frame_max)
    for number in (1, 3):
        other.open(number)
    client.declare("q", durable=True)
    for body in BODIES[:2] * 2:
        publish(client, "q", body, **properties)
    messages = harness.queue("q").ready.in_memory()
    assert all(len(piece) <= READ_BYTES for message in messages for piece in message.pieces or [])
    assert [message.pieces is None for message in messages] == [False, True, False, True]
    assert [got(other, "q", number) for number in (1, 1, 3, 3)] == BODIES[:2] * 2


@rule("warren.large-messages", "While memory is short a queue keeps 1 MiB, or one message; the rest is read in pieces.")
def test_large_messages_wait_on_disk_and_come_back_in_pieces(client: Client, harness: Harness) -> None:
    harness.broker.log.memory_bytes = 0
    client.declare("q", durable=True)
    for body in BODIES * 3:
        publish(client, "q", body, delivery_mode=2)
    backlog = harness.queue("q").ready
    assert sum(message.body_bytes for message in backlog.in_memory()) < 4_100_000
    came = []
    for _ in range(len(BODIES) * 3):
        came.append(got(client, "q"))
        for message in backlog.in_memory():
            if message.body_bytes >= 1 << 20:
                assert message.pieces is not None
                assert max(map(len, message.pieces)) <= 1 << 18
    assert came == BODIES * 3


@rule("warren.large-messages", "While the disk is behind with large messages, only those who publish such wait for it.")
def test_small_messages_do_not_wait_for_large_ones(client: Client, harness: Harness) -> None:
    small, large = harness.channel(), harness.channel()
    client.declare("q", durable=True)
    harness.store.hold = True
    publish(client, "q", bytes(5 << 20), delivery_mode=2)  # it is being written
    publish(client, "q", bytes(33 << 20), delivery_mode=2)
    small.publish("", "q", b"small")
    assert harness.queue("q").ready_count == 3
    publish(large, "q", BODIES[0], delivery_mode=2)
    assert large.connection.paused == PAUSED_ALARM
    assert harness.queue("q").ready_count == 3
    harness.store.hold = False
    harness.settle()
    assert large.connection.paused == 0
    assert harness.queue("q").ready_count == 4
    for each in (client, small, large):
        each.nothing()


@rule("warren.large-messages", "A large message that expires on disk is dead-lettered whole.")
def test_large_messages_are_dead_lettered(client: Client, harness: Harness) -> None:
    harness.broker.log.memory_bytes = 0
    client.declare("dead", durable=True)
    arguments = {"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    client.declare("q", durable=True, arguments=arguments)
    for body in BODIES * 2:
        publish(client, "q", body, delivery_mode=2)
    harness.pass_time(2)
    harness.settle()
    assert [got(client, "dead") for _ in range(len(BODIES) * 2)] == BODIES * 2


@rule("warren.large-messages", "A large message whose bytes on the disk have changed is reported and passed over.")
@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_a_damaged_large_message_is_not_delivered(client: Client, harness: Harness, share: float) -> None:
    harness.broker.log.memory_bytes = 0
    client.declare("q", durable=True)
    for body in BODIES:
        publish(client, "q", body, delivery_mode=2)
    image = next(each for each in harness.store.segments.values() if each.find(BODIES[2][-9_000:]) > 0)
    end = image.find(BODIES[2][-9_000:]) + 9_000
    image[end - len(BODIES[2]) + int(share * len(BODIES[2]))] ^= 1
    assert [got(client, "q") for _ in range(3)] == [BODIES[0], BODIES[1], BODIES[3]]
    assert harness.broker.log.damage.reports
