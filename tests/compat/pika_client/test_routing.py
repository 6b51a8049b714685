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
from .dialogue import Connect, channel_closed_with, drain, emptied, get, round_trip

# default exchange


def test_the_default_exchange_routes_by_queue_name(channel: BlockingChannel, names: Names) -> None:
    first, second = names.queue(), names.queue()
    channel.queue_declare(first)
    channel.queue_declare(second)
    channel.basic_publish("", first, b"to the first")
    channel.basic_publish("", second, b"to the second")
    channel.basic_publish("", names.unused(), b"to nobody")
    assert drain(channel, first) == [b"to the first"]
    assert drain(channel, second) == [b"to the second"]


# direct and fanout


def test_a_direct_exchange_compares_whole_keys(channel: BlockingChannel, names: Names) -> None:
    exchange, queue = names.exchange(), names.queue()
    channel.exchange_declare(exchange, "direct")
    channel.queue_declare(queue)
    for key in ("red", "", "a.*", "#", "Ünïcode ✓"):
        channel.queue_bind(queue, exchange, key)
    for key in ("red", "RED", "re", "", "redd", "a.b", "a.*", "#", "Ünïcode ✓"):
        channel.basic_publish(exchange, key, key.encode())
    assert drain(channel, queue) == [b"red", b"", b"a.*", b"#", "Ünïcode ✓".encode()]


def test_a_direct_exchange_delivers_to_every_queue_of_a_key_and_once_to_each(
    channel: BlockingChannel, names: Names
) -> None:
    exchange = names.exchange()
    queues = [names.queue() for _ in range(3)]
    channel.exchange_declare(exchange, "direct")
    for queue in queues:
        channel.queue_declare(queue)
        channel.queue_bind(queue, exchange, "all")
        channel.queue_bind(queue, exchange, "all", {"another": "binding"})
    channel.queue_bind(queues[0], exchange, "one")
    channel.basic_publish(exchange, "all", b"all")
    channel.basic_publish(exchange, "one", b"one")
    assert [drain(channel, queue) for queue in queues] == [[b"all", b"one"], [b"all"], [b"all"]]


def test_a_fanout_exchange_ignores_keys_and_headers(channel: BlockingChannel, names: Names) -> None:
    exchange = names.exchange()
    queues = [names.queue() for _ in range(10)]
    channel.exchange_declare(exchange, "fanout")
    for number, queue in enumerate(queues):
        channel.queue_declare(queue)
        channel.queue_bind(queue, exchange, f"key {number}", {"x-match": "any"})
    channel.basic_publish(exchange, "whatever", b"for all", BasicProperties(headers={"a": 1}))
    assert all(drain(channel, queue) == [b"for all"] for queue in queues)


# topic

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


def test_topic_patterns_match_as_in_rabbitmq(channel: BlockingChannel, names: Names) -> None:
    exchange, queue = names.exchange(), names.queue()
    channel.exchange_declare(exchange, "topic")
    channel.queue_declare(queue)
    mistaken = []
    for pattern, key, expected in TOPICS:
        channel.queue_bind(queue, exchange, pattern)
        channel.basic_publish(exchange, key, b"x")
        channel.queue_unbind(queue, exchange, pattern)
        if bool(drain(channel, queue)) is not expected:
            mistaken.append((pattern, key, expected))
    assert mistaken == []


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


def test_overlapping_topic_bindings_of_one_queue_deliver_once(channel: BlockingChannel, names: Names) -> None:
    exchange, queue = names.exchange(), names.queue()
    channel.exchange_declare(exchange, "topic")
    channel.queue_declare(queue)
    for pattern in ("#", "a.#", "*.b", "a.b", "#.b"):
        channel.queue_bind(queue, exchange, pattern)
    channel.basic_publish(exchange, "a.b", b"once")
    assert drain(channel, queue) == [b"once"]
    for pattern in ("#", "a.#", "*.b", "#.b"):
        channel.queue_unbind(queue, exchange, pattern)
    channel.basic_publish(exchange, "a.b", b"still")
    channel.basic_publish(exchange, "a.c", b"no more")
    assert drain(channel, queue) == [b"still"]


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


def test_integers_of_different_width_are_equal_headers(channel: BlockingChannel, names: Names) -> None:
    from pika.compat import long  # pika writes this one with 64 bits

    exchange, queue = names.exchange(), names.queue()
    channel.exchange_declare(exchange, "headers")
    channel.queue_declare(queue)
    channel.queue_bind(queue, exchange, "", {"a": 5})
    channel.basic_publish(exchange, "", b"x", BasicProperties(headers={"a": long(5)}))
    assert drain(channel, queue) == [b"x"]


def test_a_string_and_its_octets_are_equal_headers(channel: BlockingChannel, names: Names) -> None:
    exchange, queue = names.exchange(), names.queue()
    channel.exchange_declare(exchange, "headers")
    channel.queue_declare(queue)
    channel.queue_bind(queue, exchange, "", {"a": "text"})
    channel.basic_publish(exchange, "", b"x", BasicProperties(headers={"a": b"text"}))
    assert drain(channel, queue) == [b"x"]


def test_one_message_takes_each_queue_of_a_headers_exchange_once(channel: BlockingChannel, names: Names) -> None:
    exchange, queue = names.exchange(), names.queue()
    channel.exchange_declare(exchange, "headers")
    channel.queue_declare(queue)
    channel.queue_bind(queue, exchange, "", {"x-match": "any", "a": 1})
    channel.queue_bind(queue, exchange, "", {"x-match": "any", "b": 2})
    channel.basic_publish(exchange, "", b"once", BasicProperties(headers={"a": 1, "b": 2}))
    assert drain(channel, queue) == [b"once"]


def test_an_x_match_of_no_known_form_is_refused(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    text = 'Invalid x-match field value <<"most">>; expected all, any, all-with-x, or any-with-x'
    with channel_closed_with(406, f"PRECONDITION_FAILED - {text}"):
        channel.queue_bind(queue, "amq.headers", "", {"x-match": "most", "a": 1})


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


@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_cc_and_bcc_work_for_named_exchanges_and_deliver_once(
    channel: BlockingChannel, names: Names, kind: str
) -> None:
    exchange, queue = names.exchange(), names.queue()
    channel.exchange_declare(exchange, kind)
    channel.queue_declare(queue)
    channel.queue_bind(queue, exchange, "a")
    channel.queue_bind(queue, exchange, "b")
    every: list[dict[str, Any]] = [{"CC": ["a", "b"]}, {"BCC": ["b"]}, {"CC": ["a"], "BCC": ["b"]}]
    for headers in every:
        channel.basic_publish(exchange, "neither", b"once", BasicProperties(headers=headers))
    assert drain(channel, queue) == [b"once"] * 3


def test_items_of_cc_that_are_no_strings_are_ignored(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    channel.basic_publish("", names.unused(), b"x", BasicProperties(headers={"CC": [1, queue, None]}))
    assert drain(channel, queue) == [b"x"]


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_cc_and_bcc_must_be_arrays(channel: BlockingChannel, names: Names, header: str) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    text = f'PRECONDITION_FAILED - invalid message: {{unacceptable_type_in_header,"{header}",longstr}}'
    with channel_closed_with(406, text):
        channel.basic_publish("", queue, b"x", BasicProperties(headers={header: "not an array"}))
        round_trip(channel)


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


def test_consistent_hash_shares_by_weight(connect: Connect, broker: Broker, names: Names) -> None:
    channel, exchange = plugin_exchange(connect, broker, names, "x-consistent-hash")
    light, heavy = bound_queues(channel, names, exchange, ["1", "9"])
    for number in range(1000):
        channel.basic_publish(exchange, str(number), b"")
    counts = emptied(channel, light), emptied(channel, heavy)
    assert sum(counts) == 1000
    assert counts[1] > 2 * counts[0]


@pytest.mark.parametrize(
    ("arguments", "properties"),
    [
        ({"hash-header": "customer"}, lambda value: BasicProperties(headers={"customer": value})),
        ({"hash-property": "message_id"}, lambda value: BasicProperties(message_id=value)),
        ({"hash-property": "correlation_id"}, lambda value: BasicProperties(correlation_id=value)),
        ({"hash-property": "timestamp"}, lambda value: BasicProperties(timestamp=int(value))),
    ],
    ids=["header", "message_id", "correlation_id", "timestamp"],
)
def test_consistent_hash_can_hash_a_header_or_a_property(
    connect: Connect, broker: Broker, names: Names, arguments: dict[str, Any], properties: Any
) -> None:
    channel, exchange = plugin_exchange(connect, broker, names, "x-consistent-hash", arguments)
    queues = bound_queues(channel, names, exchange, ["5"] * 3)
    for round_number in range(3):
        for value in range(60):
            channel.basic_publish(exchange, f"key {round_number}", b"%d" % value, properties(str(value)))
    received = [drain(channel, queue) for queue in queues]
    assert sum(len(bodies) for bodies in received) == 180
    assert all(set(Counter(bodies).values()) == {3} for bodies in received if bodies)
    assert sum(bool(bodies) for bodies in received) > 1


def test_consistent_hash_refuses_two_sources_of_the_hash(connect: Connect, broker: Broker, names: Names) -> None:
    plugin_exchange(connect, broker, names, "x-consistent-hash")
    text = "PRECONDITION_FAILED - hash-header and hash-property are mutually exclusive"
    both = {"hash-header": "h", "hash-property": "message_id"}
    with channel_closed_with(406, text):
        connect().channel().exchange_declare(names.exchange(), "x-consistent-hash", arguments=both)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("0", "The binding key must be greater than 0"),
        ("-3", "The binding key must be greater than 0"),
        ("many", 'The binding key must be an integer: <<"many">>'),
    ],
)
def test_consistent_hash_refuses_a_binding_key_that_is_no_weight(
    connect: Connect, broker: Broker, names: Names, key: str, text: str
) -> None:
    channel, exchange = plugin_exchange(connect, broker, names, "x-consistent-hash")
    queue = names.queue()
    channel.queue_declare(queue)
    with channel_closed_with(406, f"PRECONDITION_FAILED - {text}"):
        channel.queue_bind(queue, exchange, key)


def test_consistent_hash_moves_keys_away_from_an_unbound_queue(connect: Connect, broker: Broker, names: Names) -> None:
    channel, exchange = plugin_exchange(connect, broker, names, "x-consistent-hash")
    first, second = bound_queues(channel, names, exchange, ["3", "3"])
    channel.queue_unbind(first, exchange, "3")
    for number in range(50):
        channel.basic_publish(exchange, str(number), b"")
    assert (emptied(channel, first), emptied(channel, second)) == (0, 50)


def test_random_picks_one_queue_per_message(connect: Connect, broker: Broker, names: Names) -> None:
    channel, exchange = plugin_exchange(connect, broker, names, "x-random")
    queues = bound_queues(channel, names, exchange, ["any", "key", "counts"])
    for _ in range(300):
        channel.basic_publish(exchange, "ignored", b"")
    counts = [emptied(channel, queue) for queue in queues]
    assert sum(counts) == 300
    assert min(counts) > 0


def test_modulus_hash_spreads_keys_and_keeps_them(connect: Connect, broker: Broker, names: Names) -> None:
    channel, exchange = plugin_exchange(connect, broker, names, "x-modulus-hash")
    queues = bound_queues(channel, names, exchange, ["", "", ""])
    for _ in range(2):
        for number in range(100):
            channel.basic_publish(exchange, f"key {number}", b"%d" % number)
    received = [drain(channel, queue) for queue in queues]
    assert sum(len(bodies) for bodies in received) == 200
    assert all(received)
    assert all(set(Counter(bodies).values()) == {2} for bodies in received)


def test_recent_history_gives_a_new_queue_the_last_twenty(connect: Connect, broker: Broker, names: Names) -> None:
    channel, exchange = plugin_exchange(connect, broker, names, "x-recent-history")
    (early,) = bound_queues(channel, names, exchange, [""])
    for number in range(30):
        channel.basic_publish(exchange, "key", b"%d" % number)
    assert len(drain(channel, early)) == 30
    (late,) = bound_queues(channel, names, exchange, [""])
    assert sorted(drain(channel, late), key=int) == [b"%d" % number for number in range(10, 30)]


def test_recent_history_length_and_no_store(connect: Connect, broker: Broker, names: Names) -> None:
    arguments = {"x-recent-history-length": 3}
    channel, exchange = plugin_exchange(connect, broker, names, "x-recent-history", arguments)
    bound_queues(channel, names, exchange, [""])
    for number in range(5):
        channel.basic_publish(exchange, "", b"%d" % number)
    secret = BasicProperties(headers={"x-recent-history-no-store": True})
    channel.basic_publish(exchange, "", b"not kept", secret)
    (late,) = bound_queues(channel, names, exchange, [""])
    assert sorted(drain(channel, late)) == [b"2", b"3", b"4"]
