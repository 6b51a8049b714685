"""Consumers of MQTT and STOMP: frames counted however they are cut, answered by their numbers, and looked at."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import cast

import pytest

from warren.perf.client import BrokerError, PerfConnection
from warren.perf.meter import Histogram
from warren.perf.mqtt_flow import MqttConnection, MqttConsumer, packet, text
from warren.perf.protocol_run import FrameConsumer
from warren.perf.stomp_flow import StompConsumer, frame

from .ends import Ends

BODY = bytes(range(20))


class _Ends(Ends):
    version = 4


@pytest.fixture
def ends() -> Iterator[_Ends]:
    made = _Ends()
    yield made
    made.end()


def mqtt(ends: _Ends) -> FrameConsumer:
    connection = cast(MqttConnection, ends)
    return MqttConsumer(connection, "t/0", body_bytes=len(BODY), stamped=True, latency=Histogram())


def stomp(ends: _Ends, ack_batch: int = 0) -> FrameConsumer:
    connection = cast(PerfConnection, ends)
    return StompConsumer(connection, ack_batch=ack_batch, body_bytes=len(BODY), stamped=True, latency=Histogram())


def publish(number: int, body: bytes = BODY, topic: str = "t/0") -> bytes:
    return packet(0x32, text(topic) + number.to_bytes(2, "big") + body)


def message(number: int, body: bytes = BODY) -> bytes:
    headers = {"subscription": "0", "message-id": f"T@@{number}", "ack": f"A@@{number}", "content-length": "20"}
    return frame("MESSAGE", headers, body)


def fed(consumer: FrameConsumer, ends: _Ends, data: bytes, dice: random.Random) -> bytes:
    """Return what it answers to `data`, given in pieces."""
    answers = b""
    while data:
        size = dice.choice((1, 3, 50, 1000, 20_000))
        ends.broker.send(data[:size])
        data = data[size:]
        consumer.receive(0)
        try:
            answers += ends.broker.recv(1 << 20)
        except BlockingIOError:
            pass
    return answers


@pytest.mark.parametrize("seed", range(10))
def test_packets_are_counted_and_answered_by_their_ids_however_they_are_cut(ends: _Ends, seed: int) -> None:
    dice = random.Random(seed)
    ids = [dice.randrange(1, 65536) for _ in range(2000)]
    consumer = mqtt(ends)
    answers = fed(consumer, ends, b"".join(map(publish, ids)), dice)
    assert consumer.received == 2000
    assert answers == b"".join(b"\x40\x02" + each.to_bytes(2, "big") for each in ids)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("ack_batch", [0, 1, 7])
def test_frames_are_counted_and_answered_in_batches_though_their_numbers_grow(
    ends: _Ends, seed: int, ack_batch: int
) -> None:
    consumer = stomp(ends, ack_batch)
    data = b"\n".join(message(number) for number in range(1, 1201))
    answers = fed(consumer, ends, data, random.Random(seed))
    assert consumer.received == 1200
    due = range(ack_batch, 1201, ack_batch) if ack_batch else []
    assert answers == b"".join(b"ACK\nid:A@@%d\n\n\0" % number for number in due)
    if ack_batch == 7:
        assert consumer.last_answer() == b"ACK\nid:A@@1200\n\n\0"


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (publish(1, BODY + b"x"), "another topic or size"),
        (publish(1) + publish(2, topic="t/1"), "another topic or size"),
        (b"\xe0\0", "type 14"),
        (b"\x30\xff\xff\xff\xff", "no MQTT"),
    ],
)
def test_what_is_no_message_of_the_load_is_named_by_an_mqtt_consumer(ends: _Ends, data: bytes, word: str) -> None:
    consumer = mqtt(ends)
    ends.broker.send(data)
    with pytest.raises(BrokerError, match=word):
        consumer.receive(0)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (message(1, BODY + b"x"), "another size"),
        (b"ERROR\nmessage:no such vhost\n\nlook\0", "no such vhost: look"),
        (b"x" * 70_000, "no STOMP"),
    ],
)
def test_what_is_no_message_of_the_load_is_named_by_a_stomp_consumer(ends: _Ends, data: bytes, word: str) -> None:
    consumer = stomp(ends)
    ends.broker.setblocking(True)
    ends.broker.sendall(data)
    with pytest.raises(BrokerError, match=word):
        consumer.receive(0)
