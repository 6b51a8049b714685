"""Super streams: to which partition a message goes."""

from __future__ import annotations

import pytest
from durable_harness import DurableHarness
from engine_harness import Client, Harness, publish_frames

from warren.amqp import methods as m
from warren.amqp.field_table import encode_table
from warren.exchanges.murmur3 import murmur3

from .rules import rule
from .stream_clients import STREAM
from .super_stream_topology import bind, counts, super_stream, unbind


@rule("rabbitmq.super-stream.routing", "A message goes to the partition that murmur3 of its routing key says.")
@pytest.mark.parametrize(
    ("key", "partition"),
    # The expectations of the stream protocol's .NET client.
    [
        ("hello4", 2),
        ("hello5", 0),
        ("hello6", 2),
        ("hello7", 0),
        ("hello8", 1),
        ("hello9", 0),
        ("hello10", 2),
        ("hello88", 1),
    ],
)
def test_hashed_keys(client: Client, harness: Harness, key: str, partition: int) -> None:
    super_stream(client, 3)
    client.publish("e", key)
    assert counts(harness, "e-0", "e-1", "e-2") == [int(at == partition) for at in range(3)]


@rule("rabbitmq.super-stream.routing", "The hash is MurmurHash3 of 32 bits.")
@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0),
        (b"", 1, 0x514E28B7),
        (b"", 0xFFFFFFFF, 0x81F16F39),
        (b"\0", 0, 0x514E28B7),
        (b"\0\0", 0, 0x30F4C306),
        (b"\0\0\0", 0, 0x85F0B427),
        (b"\0\0\0\0", 0, 0x2362F9DE),
        (b"\xff\xff\xff\xff", 0, 0x76293B50),
        (b"\x21\x43\x65\x87", 0x5082EDEE, 0x2362F9DE),
        (b"aaaa", 0x9747B28C, 0x5A97808A),
        (b"Hello, world!", 0x9747B28C, 0x24884CBA),
        (b"The quick brown fox jumps over the lazy dog", 0x9747B28C, 0x2FA826CD),
    ],
)
def test_murmur3(data: bytes, seed: int, expected: int) -> None:
    assert murmur3(data, seed) == expected


@rule("rabbitmq.super-stream.routing", "Keys spread over the partitions; each goes to one and the same, always.")
def test_spread() -> None:
    harness = DurableHarness()
    client = harness.channel()
    super_stream(client, 4)
    names = ["e-0", "e-1", "e-2", "e-3"]
    keys = [f"key {number}" for number in range(400)]
    client.feed(b"".join(publish_frames("e", key) for key in keys))
    first = counts(harness, *names)
    assert sum(first) == 400 and min(first) > 60
    client.feed(b"".join(publish_frames("e", key) for key in reversed(keys)))
    assert counts(harness, *names) == [2 * count for count in first]
    harness.write()
    harness = harness.restart(clean=False)
    client = harness.channel()
    client.feed(b"".join(publish_frames("e", key) for key in keys))
    assert counts(harness, *names) == [3 * count for count in first]


@rule("rabbitmq.super-stream.routing", "Who publishes to a direct exchange chooses the partition.")
def test_chosen_keys(client: Client, harness: Harness) -> None:
    super_stream(client, ["a", "b"], "direct")
    for key in ("a", "b", "b", "c"):
        client.publish("e", key)
    assert counts(harness, "e-a", "e-b") == [1, 2]


@rule("rabbitmq.super-stream.routing", "Where no partition has the number that was hashed, a message is not routed.")
def test_missing_partitions(client: Client, harness: Harness) -> None:
    super_stream(client, 2)
    client.declare("lost")
    client.declare_exchange("a", "fanout")
    client.bind("lost", "a")
    super_stream(client, 2, name="f", more={"alternate-exchange": "a"})
    keys = {int(murmur3(key.encode(), 104729) % 2): key for key in map(str, range(20))}
    for name in ("e", "f"):
        client.call(1, m.QueueDelete(0, f"{name}-0", if_unused=False, if_empty=False, no_wait=False))
        client.declare(f"{name}-9", durable=True, arguments=STREAM)
        bind(client, f"{name}-9", "9", 9, name)
    client.publish("e", keys[0], b"0", mandatory=True)
    (returned,) = client.take()
    assert isinstance(returned.method, m.BasicReturn)
    client.publish("f", keys[0], b"0")
    assert counts(harness, "lost") == [1]
    client.publish("e", keys[1], b"1", mandatory=True)
    client.nothing()
    assert counts(harness, "e-1", "e-9", "f-1", "f-9") == [1, 0, 0, 0]


@rule("rabbitmq.super-stream.routing", "Without partitions nothing is routed; CC and BCC are not looked at.")
def test_other_keys(client: Client, harness: Harness) -> None:
    super_stream(client, True)
    client.publish("e", "hello4", mandatory=True)
    assert isinstance(client.take()[0].method, m.BasicReturn)
    super_stream(client, 3, name="f")
    client.publish("f", "hello4", headers=encode_table({"CC": ["hello5"], "BCC": ["hello8"]}))
    assert counts(harness, "f-0", "f-1", "f-2") == [0, 0, 1]


@rule("warren.super-stream.routing", "Routes that were looked up before follow every change of the partitions.")
def test_routes_follow_the_partitions(client: Client, harness: Harness) -> None:
    super_stream(client, 2)
    key = next(key for key in map(str, range(99)) if [murmur3(key.encode(), 104729) % n for n in (2, 3)] == [1, 2])
    frames = publish_frames("e", key)
    for _ in range(3):
        client.feed(frames)
    client.declare("e-2", durable=True, arguments=STREAM)
    bind(client, "e-2", "2", 2)
    client.feed(frames)
    unbind(client, "e-2", "2", 2)
    client.feed(frames)
    assert counts(harness, "e-0", "e-1", "e-2") == [0, 4, 1]
