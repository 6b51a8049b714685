"""Streams that drop repetitions: the same arguments as of queues."""

from __future__ import annotations

import pytest
from durable_harness import DurableHarness
from engine_harness import Client

from warren.amqp import methods as m
from warren.amqp.field_table import Table, encode_table

from .rules import rule
from .stream_clients import STREAM, consume

ONCE: Table = {**STREAM, "x-message-deduplication": True}


def publisher(harness: DurableHarness) -> Client:
    client = harness.channel()
    client.call(1, m.ConfirmSelect(False))
    return client


def publish(client: Client, body: bytes, headers: Table, delivery_mode: int = 2) -> None:
    """Publish, and see it confirmed."""
    client.publish("", "s", body, headers=encode_table(headers), delivery_mode=delivery_mode)
    client.expect(m.BasicAck)


def bodies(harness: DurableHarness) -> list[bytes]:
    reader = harness.channel()
    consume(reader)
    return reader.bodies()


@rule("warren.dedup.stream", "A stream drops what it has accepted before, and confirms it like the first.")
def test_a_key_comes_once() -> None:
    harness = DurableHarness()
    client = publisher(harness)
    client.declare("s", durable=True, arguments=ONCE)
    for body, key in ((b"a", "k"), (b"again", "k"), (b"b", "l"), (b"again", "k")):
        publish(client, body, {"x-deduplication-header": key})
    publish(client, b"c", {})
    publish(client, b"d", {})
    assert bodies(harness) == [b"a", b"b", b"c", b"d"]


@rule("warren.dedup.stream", "A producer's number that is not larger than the highest comes again.")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_a_producer_publishes_again_after_a_restart(clean: bool, delivery_mode: int) -> None:
    harness = DurableHarness()
    client = publisher(harness)
    client.declare("s", durable=True, arguments=ONCE)
    for number in (1, 2, 2, 5):
        publish(client, b"%d" % number, {"x-producer": "p", "x-seq": number}, delivery_mode)
    harness = harness.restart(clean=clean)
    client = publisher(harness)
    for number in (4, 5, 6):
        publish(client, b"%d" % number, {"x-producer": "p", "x-seq": number}, delivery_mode)
    assert bodies(harness) == [b"1", b"2", b"5", b"6"]
    stream = harness.queue("s")
    assert (stream.published, stream.refused) == (1, 2)


@rule("warren.dedup.stream", "A delayed message is looked at when it is published.")
def test_a_delayed_repetition_does_not_come() -> None:
    harness = DurableHarness()
    client = publisher(harness)
    client.declare("s", durable=True, arguments=ONCE)
    publish(client, b"now", {"x-deduplication-header": "k"})
    publish(client, b"later", {"x-deduplication-header": "k", "x-delay": 1000})
    publish(client, b"other", {"x-deduplication-header": "l", "x-delay": 1000})
    publish(client, b"soon", {"x-deduplication-header": "l"})
    harness.pass_time(2)
    assert bodies(harness) == [b"now", b"other"]
