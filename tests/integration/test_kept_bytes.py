"""What peers choose is not kept: many long and different values of each kind leave a bounded number of bytes.

A cache that counts entries grows with the length of what is in it. In each scene a client that stays sends, or names,
`SENT_BYTES` of values that were never seen before. What Python has allocated then may have grown by `KEPT_BYTES`, or
by what a cache says that it holds at most.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from amqp10_harness import amqp10_client, message, section
from broker_process import WarrenProcess
from engine_harness import Client, Harness, content_frames, exchange_declare
from mqtt_harness import mqtt_client, properties, publish_packet
from stomp_harness import stomp_client

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import encode_table
from warren.amqp10.performatives import DETACH
from warren.amqp10.values import UInt
from warren.channels.route_cache import CACHE_BYTES_MAX

from .management.client import Api

SENT_BYTES = 6 << 20
KEPT_BYTES = 256 << 10
ENTRY_BYTES = 500
LONG = 30_000
SHORT = 230  # a short string has at most 255 bytes

Scene = Callable[[Harness], Iterator[None]]


def values(size: int) -> Iterator[str]:
    """Yield different texts of `size` characters, with what a cache needs for each `SENT_BYTES` together."""
    for number in range(SENT_BYTES // (size + ENTRY_BYTES)):
        yield f"{number:08}" + "x" * (size - 8)


def publish(client: Client, exchange: str, key: str, headers: bytes | None = None) -> None:
    properties_ = {} if headers is None else {"headers": headers}
    client.feed(
        method_frame(1, m.BasicPublish(0, exchange, key, mandatory=False, immediate=False))
        + content_frames(1, b"", properties_)
    )


def _routing_keys(harness: Harness) -> Iterator[None]:
    client = harness.channel()
    for each in values(SHORT):
        publish(client, "amq.topic", each)
    yield


def _headers(harness: Harness) -> Iterator[None]:
    client = harness.channel()
    for each in values(LONG):
        publish(client, "amq.headers", "", encode_table({"h": each, each[:100]: 1}))
    yield


def _exchanges_and_queues(harness: Harness) -> Iterator[None]:
    client = harness.channel()
    for number, each in enumerate(values(SHORT)):
        if number > 1500:
            break
        client.call(1, exchange_declare(each, "topic"))
        client.declare(each, exclusive=True)
        client.bind(each, each, each)
        publish(client, each, each)
        client.call(1, m.ExchangeDelete(0, each, if_unused=False, no_wait=False))
        client.call(1, m.QueueDelete(0, each, if_unused=False, if_empty=False, no_wait=False))
    yield


def _consumers(harness: Harness) -> Iterator[None]:
    client = harness.channel()
    client.declare("q")
    for each in values(LONG):
        client.consume("q", each[:SHORT], arguments={"x-note": each})
        client.call(1, m.BasicCancel(each[:SHORT], False))
    yield


def _mqtt(harness: Harness) -> Iterator[None]:
    client = mqtt_client(harness, 5)
    for each in values(LONG):
        given = properties({3: each[:SHORT]}, [(each[:SHORT], each)])
        client.feed(publish_packet(each[:SHORT], version=5, given=given))
        client.subscribe(each[:SHORT])
        client.unsubscribe(each[:SHORT])
    yield


def _mqtt_topics(harness: Harness) -> Iterator[None]:
    client = mqtt_client(harness)
    for each in values(SHORT):
        client.peer.feed(publish_packet(each))
    harness.settle()
    yield


def _stomp(harness: Harness) -> Iterator[None]:
    client = stomp_client(harness)
    for each in values(4000):
        client.send("SEND", b"", destination=f"/topic/{each[:SHORT]}", note=each)
        client.send("SUBSCRIBE", id=each, destination=f"/topic/{each[:SHORT]}")
        client.send("UNSUBSCRIBE", id=each)
        client.send("BEGIN", transaction=each)
        client.send("ABORT", transaction=each)
    yield


def _amqp10(harness: Harness) -> Iterator[None]:
    client = amqp10_client(harness)
    client.sender(0, "/exchanges/amq.topic")
    for each in values(LONG):
        client.transfer(0, message(before=section(0x74, {each: each[:100]})), settled=True)
        client.sender(1, f"/exchanges/amq.topic/{each[:SHORT]}", name=each)
        client.transfer(1, message(b""), settled=True)
        client.send(DETACH, [UInt(1), True])
    yield


SCENES: list[tuple[Scene, int]] = [
    (_routing_keys, CACHE_BYTES_MAX),
    (_headers, 0),
    (_exchanges_and_queues, 0),
    (_consumers, 0),
    (_mqtt, CACHE_BYTES_MAX),
    (_mqtt_topics, CACHE_BYTES_MAX),
    (_stomp, CACHE_BYTES_MAX),
    (_amqp10, CACHE_BYTES_MAX),
]


@pytest.mark.parametrize(("scene", "cached_bytes"), SCENES, ids=lambda each: getattr(each, "__name__", ""))
def test_what_peers_choose_is_not_kept(scene: Scene, cached_bytes: int) -> None:
    harness = Harness()
    gc.collect()
    tracemalloc.start()
    try:
        (before, _) = tracemalloc.get_traced_memory()
        for _ in scene(harness):
            harness.notices.clear()
            harness.take_changes()
            gc.collect()
            (after, _) = tracemalloc.get_traced_memory()
            print(f"{after - before:,} bytes kept")
            assert after - before < KEPT_BYTES + cached_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.long
def test_what_requests_say_is_not_kept(tmp_path: Path) -> None:
    """Paths, queries, headers, fields of bodies, and names of things that do not exist."""
    long = 7000
    with WarrenProcess(tmp_path) as process:
        api = Api(process.http_port)

        def ask(count: int, kind: str) -> None:
            for number in range(count):
                each = f"{kind}{number:08}" + "x" * long
                answers = (
                    api.ask("GET", f"/queues/%2F/{each}"),
                    api.ask("GET", f"/queues?name={each}&{each[:300]}=1"),
                    api.ask("GET", "/overview", headers={"X-Note": each, "User-Agent": each[:4000]}),
                    api.ask("PUT", f"/exchanges/%2F/{each[:200]}", {"type": each, each: 1}),
                )
                assert [answer.status for answer in answers] == [404, 200, 200, 400]

        ask(100, "a")
        before = process.resident_bytes()
        ask(500, "b")
        grown = process.resident_bytes() - before
        api.close()
    print(f"{grown:,} bytes")
    assert grown < 4 << 20, "of 14 MB"
