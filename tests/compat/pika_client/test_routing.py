"""Exchange types: which bindings a message takes."""

from __future__ import annotations

import datetime
import decimal
from collections import Counter
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker

from ..broker import Broker
from ..conftest import Names
from .dialogue import Connect, drain, emptied, get

# Those of RabbitMQ's tutorial, and words that are empty; `unit/exchanges/test_topic_exchange.py` has the rest.
TOPICS = [
    ("*.orange.*", "quick.orange.rabbit", True),
    ("*.orange.*", "quick.orange.male.rabbit", False),
    ("lazy.#", "lazy", True),
    ("lazy.#", "lazyorange", False),
    ("#", "", True),
    ("a.#.z", "a.b.c.z", True),
    ("a..b", "a..b", True),
    ("ä.*", "ä.ö", True),
]


def test_all_topic_patterns_together_route_each_key_to_the_right_queues(channel: BlockingChannel, names: Names) -> None:
    exchange = names.exchange()
    channel.exchange_declare(exchange, "topic")
    queues = {pattern: names.queue() for pattern in sorted({pattern for pattern, _, _ in TOPICS})}
    for pattern, queue in queues.items():
        channel.queue_declare(queue)
        channel.queue_bind(queue, exchange, pattern)
    for pattern, key, expected in TOPICS:
        channel.basic_publish(exchange, key, b"x")
        counts = {other: emptied(channel, queue) for other, queue in queues.items()}
        assert max(counts.values()) <= 1, f"{key!r} came twice"
        assert (counts[pattern] == 1) is expected, (pattern, key)


# headers

WHEN = datetime.datetime(2024, 2, 29, 12, 30, 15, tzinfo=datetime.UTC)
# One of each kind as pika writes them; `unit/exchanges/test_headers_exchange.py` has the rest.
HEADERS: list[tuple[str, dict[str, Any], dict[str, Any] | None, bool]] = [
    ("all is the default", {"a": "1", "b": 2}, {"a": "1"}, False),
    ("any matches one pair", {"x-match": "any", "a": "1", "b": 2}, {"a": "1", "b": 9}, True),
    ("all-with-x counts x- pairs", {"x-match": "all-with-x", "a": 1, "x-b": 2}, {"a": 1}, False),
    ("void means present", {"x-match": "all", "a": None}, {"a": "whatever"}, True),
    ("no arguments match no headers", {}, None, True),
    (
        "values of every kind match themselves",
        {"a": WHEN, "b": decimal.Decimal("1.25"), "c": {"d": [1, "e"]}, "f": 5_000_000_000, "g": True},
        {"a": WHEN, "b": decimal.Decimal("1.25"), "c": {"d": [1, "e"]}, "f": 5_000_000_000, "g": True},
        True,
    ),
]


@pytest.mark.parametrize(("arguments", "headers", "matches"), [row[1:] for row in HEADERS], ids=[r[0] for r in HEADERS])
def test_headers_exchange(
    channel: BlockingChannel, names: Names, arguments: dict[str, Any], headers: dict[str, Any] | None, matches: bool
) -> None:
    exchange, queue = names.exchange(), names.queue()
    channel.exchange_declare(exchange, "headers")
    channel.queue_declare(queue)
    channel.queue_bind(queue, exchange, "ignored", arguments)
    channel.basic_publish(exchange, "also ignored", b"x", BasicProperties(headers=headers))
    assert bool(drain(channel, queue)) is matches


# CC and BCC


def test_cc_and_bcc_add_routing_keys_and_bcc_is_taken_out(channel: BlockingChannel, names: Names) -> None:
    to, copy, blind = names.queue("to"), names.queue("cc"), names.queue("bcc")
    for queue in (to, copy, blind):
        channel.queue_declare(queue)
    headers: dict[str, Any] = {"CC": [copy], "BCC": [blind], "other": 1}
    channel.basic_publish("", to, b"x", BasicProperties(headers=headers))
    for queue in (to, copy, blind):
        method, properties, body = get(channel, queue, auto_ack=True)
        assert (method.routing_key, body) == (to, b"x")
        assert properties.headers == {"CC": [copy], "other": 1}


# types that are plugins of RabbitMQ and part of Warren


def plugin_exchange(
    connect: Connect, broker: Broker, names: Names, kind: str, arguments: dict[str, Any] | None = None
) -> tuple[BlockingChannel, str]:
    """Declare an exchange of a type RabbitMQ has as plugin; skip where that plugin is not enabled."""
    exchange = names.exchange()
    channel = connect().channel()
    try:
        channel.exchange_declare(exchange, kind, arguments=arguments)
    except (ChannelClosedByBroker, AMQPConnectionError) as refusal:
        if broker.started_here or "unknown exchange type" not in str(refusal):
            raise
        pytest.skip(f"the broker at {broker.host}:{broker.port} has no exchange type {kind}: enable its plugin")
    return channel, exchange


def bound_queues(channel: BlockingChannel, names: Names, exchange: str, keys: list[str]) -> list[str]:
    """Declare one queue per binding key and bind it."""
    queues = [names.queue() for _ in keys]
    for queue, key in zip(queues, keys, strict=True):
        channel.queue_declare(queue)
        channel.queue_bind(queue, exchange, key)
    return queues


def test_consistent_hash_sends_each_key_to_one_queue_and_always_the_same(
    connect: Connect, broker: Broker, names: Names
) -> None:
    channel, exchange = plugin_exchange(connect, broker, names, "x-consistent-hash")
    queues = bound_queues(channel, names, exchange, ["10"] * 4)
    for _ in range(2):
        for number in range(200):
            channel.basic_publish(exchange, f"key {number}", b"%d" % number)
    received = [drain(channel, queue) for queue in queues]
    assert sum(len(bodies) for bodies in received) == 400
    assert all(received), "every queue gets a share"
    assert all(set(Counter(bodies).values()) == {2} for bodies in received)


def test_recent_history_gives_a_new_queue_the_last_twenty(connect: Connect, broker: Broker, names: Names) -> None:
    channel, exchange = plugin_exchange(connect, broker, names, "x-recent-history")
    (early,) = bound_queues(channel, names, exchange, [""])
    for number in range(30):
        channel.basic_publish(exchange, "key", b"%d" % number)
    assert len(drain(channel, early)) == 30
    (late,) = bound_queues(channel, names, exchange, [""])
    assert sorted(drain(channel, late), key=int) == [b"%d" % number for number in range(10, 30)]
