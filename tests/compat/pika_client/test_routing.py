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

# an empty key has no words; between two dots there is an empty word
TOPICS = [
    ("*.orange.*", "quick.orange.rabbit", True),
    ("*.orange.*", "quick.orange", False),
    ("*.orange.*", "quick.orange.male.rabbit", False),
    ("*.*.rabbit", "lazy.pink.rabbit", True),
    ("lazy.#", "lazy", True),
    ("lazy.#", "lazy.orange.male.rabbit", True),
    ("lazy.#", "lazyorange", False),
    ("#", "", True),
    ("#", "anything.at.all", True),
    ("#.#", "", True),
    ("#.#", "a", True),
    ("#.*", "", False),
    ("#.*", "a.b", True),
    ("*", "one", True),
    ("*", "one.two", False),
    ("*", "", False),
    ("", "", True),
    ("", "a", False),
    ("a.#.z", "a.z", True),
    ("a.#.z", "a.b.c.z", True),
    ("a.#.z", "a.b.c", False),
    ("a.*.#.z", "a.z", False),
    ("a.*.#.z", "a.b.z", True),
    ("#.b.#", "a.b.c", True),
    ("#.b.#", "b", True),
    ("#.b.#", "a.c", False),
    ("a..b", "a..b", True),
    ("a..b", "a.b", False),
    ("a.*.b", "a..b", True),
    (".a", ".a", True),
    (".a", "a", False),
    ("*.a", ".a", True),
    ("a.", "a.", True),
    ("a.#", "a.", True),
    ("..", "..", True),
    ("*.*.*", "..", True),
    ("exact.words", "exact.words", True),
    ("exact.words", "exact.word", False),
    ("a*", "ab", False),
    ("a*", "a*", True),
    ("a.b#", "a.b.c", False),
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
HEADERS: list[tuple[str, dict[str, Any], dict[str, Any] | None, bool]] = [
    ("all matches all pairs", {"x-match": "all", "a": "1", "b": 2}, {"a": "1", "b": 2, "c": 3}, True),
    ("all needs every pair", {"x-match": "all", "a": "1", "b": 2}, {"a": "1"}, False),
    ("all needs equal values", {"x-match": "all", "a": "1"}, {"a": "2"}, False),
    ("all is the default", {"a": "1", "b": 2}, {"a": "1"}, False),
    ("all by default matches", {"a": "1", "b": 2}, {"b": 2, "a": "1"}, True),
    ("any matches one pair", {"x-match": "any", "a": "1", "b": 2}, {"a": "1", "b": 9}, True),
    ("any needs one pair", {"x-match": "any", "a": "1", "b": 2}, {"a": "9", "b": 9}, False),
    ("any of nothing never matches", {"x-match": "any"}, {"a": 1}, False),
    ("all of nothing always matches", {"x-match": "all"}, {"a": 1}, True),
    ("no arguments always match", {}, {"a": 1}, True),
    ("no arguments match no headers", {}, None, True),
    ("no headers match no pair", {"x-match": "any", "a": 1}, None, False),
    ("void means present", {"x-match": "all", "a": None}, {"a": "whatever"}, True),
    ("void needs presence", {"x-match": "all", "a": None}, {"b": 1}, False),
    ("void in any", {"x-match": "any", "a": None, "b": 7}, {"a": False}, True),
    ("all ignores x- pairs", {"x-match": "all", "a": 1, "x-b": 2}, {"a": 1}, True),
    ("any ignores x- pairs", {"x-match": "any", "a": 1, "x-b": 2}, {"x-b": 2}, False),
    ("all-with-x counts x- pairs", {"x-match": "all-with-x", "a": 1, "x-b": 2}, {"a": 1}, False),
    ("all-with-x matches x- pairs", {"x-match": "all-with-x", "a": 1, "x-b": 2}, {"a": 1, "x-b": 2}, True),
    ("any-with-x matches x- pairs", {"x-match": "any-with-x", "a": 1, "x-b": 2}, {"x-b": 2}, True),
    ("any-with-x needs one", {"x-match": "any-with-x", "a": 1, "x-b": 2}, {"x-b": 3}, False),
    ("integers compare by value", {"a": 5_000_000_000}, {"a": 5_000_000_000}, True),
    ("a string is not an integer", {"a": "1"}, {"a": 1}, False),
    ("a boolean matches itself", {"a": True}, {"a": True}, True),
    ("true is not false", {"a": True}, {"a": False}, False),
    ("a timestamp matches itself", {"a": WHEN}, {"a": WHEN}, True),
    ("a decimal matches itself", {"a": decimal.Decimal("1.25")}, {"a": decimal.Decimal("1.25")}, True),
    ("a nested table matches itself", {"a": {"b": [1, "c"]}}, {"a": {"b": [1, "c"]}}, True),
    ("an array matches itself", {"a": [1, 2]}, {"a": [1, 2]}, True),
    ("the order in an array counts", {"a": [1, 2]}, {"a": [2, 1]}, False),
    ("names are case sensitive", {"A": 1}, {"a": 1}, False),
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


def test_a_string_and_its_octets_are_equal_headers(channel: BlockingChannel, names: Names) -> None:
    exchange, queue = names.exchange(), names.queue()
    channel.exchange_declare(exchange, "headers")
    channel.queue_declare(queue)
    channel.queue_bind(queue, exchange, "", {"a": "text"})
    channel.basic_publish(exchange, "", b"x", BasicProperties(headers={"a": b"text"}))
    assert drain(channel, queue) == [b"x"]


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
