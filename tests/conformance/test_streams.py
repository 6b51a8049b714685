"""Streams: messages stay, and are read from wherever a consumer wants. Texts are those of RabbitMQ 3.10.8."""

from __future__ import annotations

import json
from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import (
    Client,
    Harness,
    Received,
    Refusal,
    basic_consume,
    body_of,
    publish_frames,
    queue_declare,
)
from fuzz.engine import START_MS

from warren.amqp import methods as m
from warren.amqp.field_table import Table, Timestamp, encode_table, with_length
from warren.queues.metadata import PolicyDelete, PolicyPut, VhostPut
from warren.queues.stream import SHORT_CHUNK_MESSAGES

from .rules import rule
from .typed_table import Typed, text, typed_table

STREAM: Table = {"x-queue-type": "stream"}
ME = "queue 's' in vhost '/'"
START_S = START_MS // 1000
PAGE = 16  # entries of an index page of `DurableHarness`
OFFSET = "x-stream-offset"


def declare(client: Client, name: str = "s", **arguments: object) -> None:
    """Declare a stream; underscores in names stand for hyphens."""
    table: Table = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    client.declare(name, durable=True, arguments=STREAM | table)


def fill(client: Client, count: int, *, first: int = 0, seconds: float = 0, **properties: Any) -> None:
    """Publish the numbers from `first` on, so many `seconds` apart."""
    for number in range(first, first + count):
        client.publish("", "s", b"%d" % number, **properties)
        if seconds:
            client.harness.pass_time(seconds)


def consume(client: Client, arguments: Table | None = None, *, prefetch: int = 1000, queue: str = "s") -> str:
    """Consume, from the first message on unless the arguments say otherwise."""
    client.call(1, m.BasicQos(0, prefetch, False))
    return client.consume(queue, arguments={OFFSET: "first"} if arguments is None else arguments)


def headers_of(received: Received) -> dict[str, Typed]:
    assert received.content is not None and received.content.properties.headers is not None
    return typed_table(received.content.properties.headers)


def offset_of(received: Received) -> int:
    kind, offset = headers_of(received)[OFFSET]
    assert kind == "l"
    return int(offset)


def offsets(client: Client) -> list[int]:
    """Return the offsets of what came, which is deliveries only."""
    return [offset_of(each) for each in client.deliveries()]


def everything(client: Client) -> list[tuple[int, bytes]]:
    """Return what is in the stream, read on a channel of its own."""
    client.open(9)
    client.call(9, m.BasicQos(0, 60000, False))
    client.consume("s", arguments={OFFSET: "first"}, number=9)
    found = [(offset_of(each), body_of(each)) for each in client.deliveries()]
    assert client.call(9, m.ChannelClose(200, "", 0, 0)) == m.ChannelCloseOk()
    return found


def numbers(count: int, first: int = 0) -> list[tuple[int, bytes]]:
    """Return what `everything` returns after `fill`."""
    return [(number, b"%d" % number) for number in range(first, count)]


def consume_refused(client: Client, arguments: Table | None = None, *, no_ack: bool = False) -> Refusal:
    return client.refused(1, basic_consume("s", no_ack=no_ack, arguments=arguments))


def precondition(explanation: str, method: type[Any] = m.BasicConsume) -> Refusal:
    return Refusal("channel", 406, f"PRECONDITION_FAILED - {explanation}", method)


def not_implemented(explanation: str, method: type[Any] = m.BasicConsume) -> Refusal:
    return Refusal("connection", 540, f"NOT_IMPLEMENTED - {explanation}", method)


def restarted(harness: DurableHarness, *, clean: bool = True) -> tuple[DurableHarness, Client]:
    """Return the next process: everything that a stream has is on disk only."""
    harness.write()
    harness = harness.restart(clean=clean)
    return harness, harness.channel()


def put_policy(harness: Harness, apply_to: str = "all", **definition: object) -> None:
    settings = json.dumps({key.replace("_", "-"): value for key, value in definition.items()})
    harness.broker.administer(PolicyPut("/", "p", "", apply_to, 0, settings))
    harness.settle()


# --- declaring --------------------------------------------------------------------------------------------------------


@rule("rabbitmq.stream.declare", "A stream is declared like a queue, and counts its messages, read or not.")
def test_a_stream_is_declared(client: Client) -> None:
    assert client.declare("s", durable=True, arguments=STREAM) == m.QueueDeclareOk("s", 0, 0)
    fill(client, 3)
    consume(client)
    client.send(1, m.BasicAck(client.deliveries()[-1].method.delivery_tag, True))
    assert client.declare("s", durable=True, arguments=STREAM) == m.QueueDeclareOk("s", 3, 1)
    assert client.declare("s", passive=True) == m.QueueDeclareOk("s", 3, 1)


@rule("rabbitmq.stream.declare", "A stream is durable, not exclusive, not auto-delete, and has a name: 406.")
@pytest.mark.parametrize(
    ("name", "properties", "reason"),
    [
        ("s", {"durable": False}, f"invalid property 'non-durable' for {ME}"),
        ("s", {"exclusive": True}, f"invalid property 'exclusive-owner' for {ME}"),
        ("s", {"auto_delete": True}, f"invalid property 'auto-delete' for {ME}"),
        ("", {}, "Cannot declare a server-named queue for type rabbit_stream_queue"),
    ],
)
def test_properties(client: Client, harness: Harness, name: str, properties: dict[str, bool], reason: str) -> None:
    call = queue_declare(name, arguments=STREAM, **{"durable": True, **properties})
    assert client.refused(1, call) == precondition(reason, m.QueueDeclare)
    assert not harness.vhost.queues


@rule("rabbitmq.stream.arguments", "It has arguments of its own and some that others have too, each with its range.")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-max-length-bytes", 0),
        ("x-max-length-bytes", 2**62),
        *(("x-max-age", age) for age in ("1Y", "12M", "7D", "1h", "90m", "1s", "007s")),
        ("x-stream-max-segment-size-bytes", 0),
        ("x-stream-max-segment-size-bytes", 3_000_000_000),
        ("x-stream-filter-size-bytes", 16),
        ("x-stream-filter-size-bytes", 255),
        ("x-initial-cluster-size", 1),
        ("x-queue-leader-locator", "balanced"),
        ("x-unknown", 1),
    ],
)
def test_arguments(client: Client, name: str, value: object) -> None:
    for _ in range(2):
        client.declare("s", durable=True, arguments=STREAM | {name: value})


@rule("rabbitmq.stream.arguments", "What is out of its range is refused, 406.")
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        *(("x-max-age", age, "invalid_max_age") for age in ("5x", "0s", "", "h", "1H", "1", "-1s", "1.5h", "1 h")),
        ("x-max-age", "9" * 13 + "s", "invalid_max_age"),
        ("x-max-age", 5, "{unacceptable_type,signedint}"),
        ("x-max-length-bytes", -1, "{value_negative,-1}"),
        ("x-max-length-bytes", "a", '"expected integer, got longstr"'),
        ("x-stream-max-segment-size-bytes", "a", '"expected integer, got longstr"'),
        ("x-stream-max-segment-size-bytes", -1, "{value_negative,-1}"),
        ("x-stream-filter-size-bytes", "a", '"expected integer, got longstr"'),
        ("x-initial-cluster-size", 0, "{value_zero,0}"),
        ("x-initial-cluster-size", -1, "{value_negative,-1}"),
        ("x-queue-leader-locator", "bogus", "invalid_queue_locator_arg"),
    ],
)
def test_impossible_arguments(client: Client, harness: Harness, name: str, value: object, reason: str) -> None:
    call = queue_declare("s", durable=True, arguments=STREAM | {name: value})
    assert client.refused(1, call) == precondition(f"invalid arg '{name}' for {ME}: {reason}", m.QueueDeclare)
    assert not harness.vhost.queues


@rule("rabbitmq.stream.arguments", "Sizes of segments and filters have texts of their own, 406.")
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        *(("x-stream-max-segment-size-bytes", size, "Exceeded max value") for size in (3_000_000_001, 10**13)),
        *(("x-stream-filter-size-bytes", size, "Invalid value") for size in (-1, 0, 15, 256)),
    ],
)
def test_texts_of_their_own(client: Client, name: str, value: object, reason: str) -> None:
    call = queue_declare("s", durable=True, arguments=STREAM | {name: value})
    assert client.refused(1, call) == precondition(f"{reason} for {name}", m.QueueDeclare)


@rule("rabbitmq.stream.arguments", "What takes messages out or hands them out otherwise, a stream does not have: 406.")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-max-length", 5),
        ("x-message-ttl", 5),
        ("x-expires", 5),
        ("x-overflow", "drop-head"),
        ("x-dead-letter-exchange", "x"),
        ("x-dead-letter-routing-key", "k"),
        ("x-dead-letter-strategy", "at-most-once"),
        ("x-single-active-consumer", True),
        ("x-max-priority", 3),
        ("x-queue-mode", "lazy"),
        ("x-queue-version", 2),
        ("x-delivery-limit", 5),
        ("x-consumer-timeout", 5),
        ("x-visibility-timeout", 5),
        ("x-retry-backoff", ["5s"]),
        ("x-key-shared", True),
        ("x-storage", "disk"),
        ("x-consumer-prefetch-max", 5),
        ("x-max-unacked", 5),
    ],
)
def test_arguments_of_other_types(client: Client, harness: Harness, name: str, value: object) -> None:
    call = queue_declare("s", durable=True, arguments=STREAM | {name: value})
    reason = f"invalid arg '{name}' for {ME} of queue type rabbit_stream_queue"
    assert client.refused(1, call) == precondition(reason, m.QueueDeclare)
    assert not harness.vhost.queues


@rule("rabbitmq.stream.arguments", "Other queue types do not have the arguments of streams: 406.")
@pytest.mark.parametrize(("base", "kind"), [({}, "classic"), ({"x-queue-type": "quorum"}, "quorum")])
def test_arguments_of_streams(client: Client, base: Table, kind: str) -> None:
    reason = f"invalid arg 'x-max-age' for {ME} of queue type rabbit_{kind}_queue"
    call = queue_declare("s", durable=True, arguments=base | {"x-max-age": "1h"})
    assert client.refused(1, call) == precondition(reason, m.QueueDeclare)


@rule("rabbitmq.stream.declare", "A redeclaration agrees in type and arguments: else 406.")
@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        (STREAM, STREAM | {"x-max-age": "1h"}, "x-max-age' {}: received the value '1h' of type 'longstr' but"),
        (STREAM | {"x-max-age": "1h"}, STREAM | {"x-max-age": "60m"}, "x-max-age' {}: received '60m' but current is"),
        (STREAM | {"x-max-length-bytes": 5}, STREAM, "x-max-length-bytes' {}: received none but current is the value"),
        (STREAM, {}, "x-queue-type' {}: received none but current is the value 'stream' of type 'longstr'"),
        ({}, STREAM, "x-queue-type' {}: received the value 'stream' of type 'longstr' but current is none"),
    ],
)
def test_redeclaration(client: Client, first: Table, second: Table, difference: str) -> None:
    client.declare("s", durable=True, arguments=first)
    refusal = client.refused(1, queue_declare("s", durable=True, arguments=second))
    assert (refusal.scope, refusal.code) == ("channel", 406)
    assert refusal.text.startswith("PRECONDITION_FAILED - inequivalent arg '" + difference.format(f"for {ME}"))
    client.declare("s", durable=True, arguments=first)


@rule("rabbitmq.stream.declare", "The default queue type of a vhost may be stream; what cannot be one is classic.")
def test_the_default_type_of_a_vhost(harness: Harness) -> None:
    harness.broker.administer(VhostPut("/", default_queue_type="stream"))
    client = harness.channel()
    client.declare("s", durable=True)
    client.declare("s", durable=True, arguments=STREAM)
    client.declare("transient")
    client.declare("exclusive", durable=True, exclusive=True)
    types = {name: queue.rules.queue_type for name, queue in harness.vhost.queues.items()}
    assert types == {"s": "stream", "transient": "classic", "exclusive": "classic"}
    fill(client, 1)
    assert everything(client) == numbers(1)
    assert client.get("transient") is None


@rule("rabbitmq.stream.delete", "It is deleted with all its messages, and a new one begins at 0.")
def test_a_new_stream_begins_anew(client: Client) -> None:
    declare(client)
    fill(client, 3)
    assert client.call(1, m.QueueDelete(0, "s", False, False, False)) == m.QueueDeleteOk(3)
    declare(client)
    client.publish("", "s", b"new")
    assert everything(client) == [(0, b"new")]


@rule(
    "rabbitmq.stream.delete",
    "if-unused and if-empty hold for streams.",
    deviation="RabbitMQ 3.10 deletes a stream that is not empty all the same.",
)
def test_if_unused_and_if_empty(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 1)
    consume(client)
    client.deliveries()
    refusal = client.refused(1, m.QueueDelete(0, "s", True, False, False))
    assert refusal == precondition(f"{ME} in use", m.QueueDelete)
    refusal = client.refused(1, m.QueueDelete(0, "s", False, True, False))
    assert refusal == precondition(f"{ME} not empty", m.QueueDelete)
    assert "s" in harness.vhost.queues


@rule("rabbitmq.stream.delete", "Its consumers get a basic.cancel, and may still answer what they have had.")
def test_deleted_under_consumers(client: Client, other: Client) -> None:
    declare(client)
    fill(client, 5)
    tags = [consume(other, prefetch=2)]
    assert offsets(other) == [0, 1]
    tags.append(consume(other, {OFFSET: "next"}))
    assert client.call(1, m.QueueDelete(0, "s", False, False, False)) == m.QueueDeleteOk(5)
    cancels = [each.method for each in other.take()]
    assert cancels == [m.BasicCancel(tag, True) for tag in tags]
    other.send(1, m.BasicAck(1, False), m.BasicNack(2, False, True))
    other.nothing()


# --- what streams do not do -------------------------------------------------------------------------------------------


@rule("rabbitmq.stream.get", "basic.get is not for streams: 540.")
@pytest.mark.parametrize("no_ack", [True, False])
@pytest.mark.parametrize("count", [0, 1])
def test_get(client: Client, no_ack: bool, count: int) -> None:
    declare(client)
    fill(client, count)
    refusal = client.refused(1, m.BasicGet(0, "s", no_ack))
    assert refusal == not_implemented(f"basic.get not supported by stream queues {ME}", m.BasicGet)


@rule("rabbitmq.stream.purge", "A stream is not purged: 540.")
def test_purge(client: Client, other: Client) -> None:
    declare(client)
    fill(client, 2)
    refusal = client.refused(1, m.QueuePurge(0, "s", False))
    assert refusal == not_implemented(f"queue.purge not supported by stream queues {ME}", m.QueuePurge)
    assert everything(other) == numbers(2)


@rule("rabbitmq.stream.consume", "A consumer needs a prefetch: 406, whatever else it asks for.")
@pytest.mark.parametrize("no_ack", [True, False])
@pytest.mark.parametrize("limits", [[], [m.BasicQos(0, 10, True)], [m.BasicQos(0, 5, False), m.BasicQos(0, 0, False)]])
def test_consume_without_prefetch(client: Client, harness: Harness, no_ack: bool, limits: list[m.BasicQos]) -> None:
    declare(client)
    for limit in limits:
        client.call(1, limit)
    refusal = consume_refused(client, no_ack=no_ack)
    assert refusal == precondition(f"consumer prefetch count is not set for '{ME}'")
    assert not harness.queue("s").consumers


@rule("rabbitmq.stream.consume", "A consumer acknowledges: without that, 540.")
def test_consume_without_acknowledgements(client: Client, harness: Harness) -> None:
    declare(client)
    client.call(1, m.BasicQos(0, 10, False))
    refusal = consume_refused(client, no_ack=True)
    assert refusal == not_implemented(f"automatic acknowledgement not supported by stream queues {ME}")
    assert not harness.queue("s").consumers


@rule("rabbitmq.stream.consume", "A limit for all consumers of a channel together is not for streams: 540.")
def test_consume_with_a_limit_of_the_channel(client: Client, harness: Harness) -> None:
    declare(client)
    client.call(1, m.BasicQos(0, 10, False))
    client.call(1, m.BasicQos(0, 10, True))
    assert consume_refused(client) == not_implemented(f"{ME} does not support global qos")
    assert not harness.queue("s").consumers


@rule("rabbitmq.stream.consume", "Consumers have no priority: 406.")
@pytest.mark.parametrize("priority", [0, 5, -1])
def test_consume_with_a_priority(client: Client, harness: Harness, priority: int) -> None:
    declare(client)
    client.call(1, m.BasicQos(0, 10, False))
    refusal = consume_refused(client, {"x-priority": priority})
    assert refusal == precondition(f"invalid arg 'x-priority' for {ME} of queue type rabbit_stream_queue")
    assert not harness.queue("s").consumers


@rule("rabbitmq.stream.consume", "Consumers cannot be exclusive: it is ignored, and others are let in.")
def test_exclusive_is_ignored(client: Client, other: Client) -> None:
    declare(client)
    fill(client, 2)
    for each in (client, other):
        each.call(1, m.BasicQos(0, 10, False))
        each.consume("s", exclusive=True, arguments={OFFSET: "first"})
        assert offsets(each) == [0, 1]
    assert [consumer.exclusive for consumer in client.harness.queue("s").consumers] == [False, False]


# --- where a consumer begins ------------------------------------------------------------------------------------------

WHERE: list[tuple[Table, list[int]]] = [
    ({OFFSET: "first"}, [0, 1, 2, 3, 4]),
    ({OFFSET: "last"}, [4]),
    ({OFFSET: "next"}, []),
    ({}, []),
    ({OFFSET: 0}, [0, 1, 2, 3, 4]),
    ({OFFSET: 3}, [3, 4]),
    ({OFFSET: -1}, [0, 1, 2, 3, 4]),
    ({OFFSET: 5}, []),
    # Message n came after n times ten seconds; it is now second 50.
    ({OFFSET: Timestamp(START_S - 1)}, [0, 1, 2, 3, 4]),
    ({OFFSET: Timestamp(0)}, [0, 1, 2, 3, 4]),
    ({OFFSET: Timestamp(START_S + 19)}, [2, 3, 4]),
    ({OFFSET: Timestamp(START_S + 20)}, [2, 3, 4]),
    ({OFFSET: Timestamp(START_S + 21)}, [3, 4]),
    ({OFFSET: Timestamp(START_S + 40)}, [4]),
    ({OFFSET: Timestamp(START_S + 41)}, []),
    ({OFFSET: Timestamp(2**63)}, []),
    ({OFFSET: "30s"}, [2, 3, 4]),
    ({OFFSET: "29s"}, [3, 4]),
    ({OFFSET: "1s"}, []),
    ({OFFSET: "1m"}, [0, 1, 2, 3, 4]),
    ({OFFSET: "100Y"}, [0, 1, 2, 3, 4]),
]


@rule("rabbitmq.stream.offset", "A consumer begins at first, last, next, an offset, a timestamp or an age; or at next.")
@pytest.mark.parametrize(("arguments", "expected"), WHERE)
def test_where_a_consumer_begins(client: Client, arguments: Table, expected: list[int]) -> None:
    declare(client)
    fill(client, 5, seconds=10)
    consume(client, arguments)
    assert offsets(client) == expected
    client.publish("", "s")
    assert offsets(client) == [5]


@rule("rabbitmq.stream.offset", "It is the same when all that is on disk.")
@pytest.mark.parametrize(("arguments", "expected"), WHERE)
@pytest.mark.parametrize("clean", [True, False])
def test_where_a_consumer_begins_on_disk(arguments: Table, expected: list[int], clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 5, seconds=10)
    _, client = restarted(harness, clean=clean)
    consume(client, arguments)
    assert offsets(client) == expected
    client.publish("", "s")
    assert offsets(client) == [5]


@rule("rabbitmq.stream.offset", "An offset is of any integer type.")
@pytest.mark.parametrize(
    "encoded", [b"b\x01", b"B\x01", b"s\0\x01", b"u\0\x01", b"I\0\0\0\x01", b"l" + bytes(7) + b"\1"]
)
def test_integer_types(client: Client, encoded: bytes) -> None:
    declare(client)
    fill(client, 3)
    client.call(1, m.BasicQos(0, 10, False))
    table = with_length(b"\x0fx-stream-offset" + encoded)
    client.send(1, m.BasicConsume(0, "s", "", False, False, False, False, table))
    client.pick(m.BasicConsumeOk)
    assert offsets(client) == [1, 2]


@rule("rabbitmq.stream.offset", "What came in the same millisecond is found from its first message on.")
def test_equal_times(client: Client) -> None:
    declare(client)
    fill(client, 2)
    client.harness.pass_time(1)
    fill(client, 3, first=2)
    client.harness.pass_time(1)
    fill(client, 1, first=5)
    consume(client, {OFFSET: Timestamp(START_S + 1)})
    assert offsets(client) == [2, 3, 4, 5]


@rule("rabbitmq.stream.offset", "In an empty stream every one of them is where the first message will be.")
@pytest.mark.parametrize("offset", ["first", "last", "next", 0, -5, Timestamp(START_S - 5), "1h"])
def test_an_empty_stream(client: Client, offset: object) -> None:
    declare(client)
    consume(client, {OFFSET: offset})
    fill(client, 2)
    assert offsets(client) == [0, 1]


@rule("rabbitmq.stream.offset", "A consumer at an offset that does not exist yet waits for that one.")
def test_an_offset_beyond_the_end(client: Client, other: Client) -> None:
    declare(client)
    fill(client, 2)
    consume(client, {OFFSET: 4})
    consume(other, {OFFSET: 2**62})
    fill(client, 4, first=2)
    assert offsets(client) == [4, 5]
    other.nothing()


@rule(
    "rabbitmq.stream.offset",
    "Anything else is refused, 406.",
    deviation="For some of it RabbitMQ 3.10 closes the connection with 541, internal error.",
)
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("1x", '{longstr,<<"1x">>}'),
        ("5", '{longstr,<<"5">>}'),
        ("0s", '{longstr,<<"0s">>}'),
        ("bogus", '{longstr,<<"bogus">>}'),
        ("First", '{longstr,<<"First">>}'),
        ("", "{longstr,<<>>}"),
        (True, "{bool,true}"),
        (None, "{void,undefined}"),
        ([1], "{array,[{signedint,1}]}"),
        ({"a": 1}, '{table,[{<<"a">>,signedint,1}]}'),
        (1.5, "{double,1.5}"),
        (b"first", '{binary,<<"first">>}'),
    ],
)
def test_impossible_offsets(client: Client, harness: Harness, value: object, shown: str) -> None:
    declare(client)
    client.call(1, m.BasicQos(0, 10, False))
    refusal = consume_refused(client, {OFFSET: value})
    assert refusal == precondition(f"invalid arg '{OFFSET}' for {ME}: {{invalid_stream_offset_arg,{shown}}}")
    assert not harness.queue("s").consumers


# --- the offset of a message ------------------------------------------------------------------------------------------


@rule("rabbitmq.stream.header", "Each message carries its offset as x-stream-offset, a long; offsets count from 0.")
@pytest.mark.parametrize("on_disk", [False, True])
def test_the_offset_is_a_header(on_disk: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 3)
    if on_disk:
        _, client = restarted(harness)
    consume(client)
    deliveries = client.deliveries()
    assert [headers_of(each) for each in deliveries] == [{OFFSET: ("l", number)} for number in range(3)]
    assert [each.method.delivery_tag for each in deliveries] == [1, 2, 3]
    assert not any(each.method.redelivered for each in deliveries)


@rule("rabbitmq.stream.header", "One that the publisher sent is replaced; every other header and property stays.")
@pytest.mark.parametrize("sent", [{}, {OFFSET: 77}, {OFFSET: "first"}, {OFFSET: None}])
def test_other_headers_and_properties_stay(client: Client, other: Client, sent: Table) -> None:
    declare(client)
    properties: dict[str, Any] = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "delivery_mode": 1,
        "priority": 5,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "60000",
        "message_id": "m",
        "timestamp": 5,
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
    }
    headers = encode_table({"before": 1, **sent, "behind": "b"})
    client.publish("amq.direct", "nobody", b"")  # routed nowhere: no offset
    client.publish("", "s", b"body", headers=headers, **properties)
    for each in (client, other):
        consume(each)
        (received,) = each.deliveries()
        assert headers_of(received) == {"before": ("I", 1), "behind": text("b"), OFFSET: ("l", 0)}
        assert received.content is not None
        assert {name: getattr(received.content.properties, name) for name in properties} == properties
        assert (received.method.exchange, received.method.routing_key) == ("", "s")


@rule("rabbitmq.stream.header", "Large contents, and those of several frames and reads, are as they were.")
@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("frame_max_bytes", [4096, 131072])
def test_large_contents(on_disk: bool, frame_max_bytes: int) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    bodies = [b"", b"x" * 3000, b"y" * 40_000, bytes(range(256)) * 2000]
    for body in bodies:
        data = publish_frames("", "s", body, properties={"headers": encode_table({"a": "b" * 3000})})
        for at in range(0, len(data), 50_000):
            client.connection.feed(data[at : at + 50_000])
        harness.settle()
    if on_disk:
        harness, client = restarted(harness)
    reader = harness.client(frame_max_bytes=frame_max_bytes)
    reader.open(1)
    consume(reader)
    deliveries = reader.deliveries()
    assert [body_of(each) for each in deliveries] == bodies
    for offset, each in enumerate(deliveries):
        assert headers_of(each) == {"a": text("b" * 3000), OFFSET: ("l", offset)}
        assert each.content is not None
        assert all(size <= frame_max_bytes for size in each.content.frame_bytes)


# --- credit -----------------------------------------------------------------------------------------------------------


@rule("rabbitmq.stream.credit", "The prefetch is a consumer's credit, and an acknowledgement gives some back.")
@pytest.mark.parametrize("on_disk", [False, True])
def test_acknowledgements_give_credit(on_disk: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 10)
    if on_disk:
        harness, client = restarted(harness)
    consume(client, prefetch=3)
    assert offsets(client) == [0, 1, 2]
    client.send(1, m.BasicAck(2, False))
    assert offsets(client) == [3]
    client.send(1, m.BasicAck(4, True))
    assert offsets(client) == [4, 5, 6]
    assert harness.queue("s").unacked_count == 3
    assert everything(client) == numbers(10)


@rule(
    "rabbitmq.stream.credit",
    "Rejecting, requeueing or not, is an answer like an acknowledgement: nothing comes again.",
    deviation="RabbitMQ 3.10 closes the connection with 540.",
)
@pytest.mark.parametrize(
    "answer",
    [
        m.BasicNack(3, True, True),
        m.BasicNack(3, True, False),
        m.BasicNack(2, False, True),
        m.BasicReject(2, True),
        m.BasicReject(2, False),
    ],
)
def test_rejecting_gives_credit(client: Client, harness: Harness, answer: m.BasicNack | m.BasicReject) -> None:
    declare(client)
    fill(client, 10)
    consume(client, prefetch=3)
    assert offsets(client) == [0, 1, 2]
    client.send(1, answer)
    multiple = isinstance(answer, m.BasicNack) and answer.multiple
    deliveries = client.deliveries()
    assert [offset_of(each) for each in deliveries] == ([3, 4, 5] if multiple else [3])
    assert not any(each.method.redelivered for each in deliveries)
    assert (harness.queue("s").unacked_count, harness.queue("s").ready_count) == (3, 10)
    assert everything(client) == numbers(10)


@rule("rabbitmq.stream.credit", "basic.recover gives all credit of the channel back; what it had does not come again.")
def test_recover_gives_credit(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 10)
    consume(client, prefetch=3)
    assert offsets(client) == [0, 1, 2]
    client.send(1, m.BasicRecover(True))
    client.pick(m.BasicRecoverOk)
    assert offsets(client) == [3, 4, 5]
    assert harness.queue("s").unacked_count == 3


@rule("rabbitmq.stream.credit", "What a channel has not answered when it ends is in the stream like everything else.")
@pytest.mark.parametrize("how", ["close", "error", "hang up", "cancel"])
def test_the_end_of_a_channel(client: Client, other: Client, harness: Harness, how: str) -> None:
    declare(client)
    fill(client, 5)
    tag = consume(other, prefetch=3)
    assert offsets(other) == [0, 1, 2]
    if how == "close":
        other.call(1, m.ChannelClose(200, "", 0, 0))
    elif how == "error":
        other.refused(1, m.QueueBind(0, "s", "missing", "", False, encode_table({})))
    elif how == "cancel":
        assert other.call(1, m.BasicCancel(tag, False)) == m.BasicCancelOk(tag)
        assert harness.queue("s").unacked_count == 3
        other.send(1, m.BasicAck(0, True))
        other.nothing()
    else:
        other.hang_up()
    queue = harness.queue("s")
    assert (queue.unacked_count, queue.ready_count, len(queue.consumers)) == (0, 5, 0)
    assert everything(client) == numbers(5)


@rule("rabbitmq.stream.credit", "Everything goes to every consumer, at its own pace.")
def test_every_consumer_gets_everything(client: Client, other: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 3)
    consume(client, prefetch=2)
    consume(other)
    fill(client, 3, first=3)
    assert offsets(client) == [0, 1]
    assert offsets(other) == [0, 1, 2, 3, 4, 5]
    client.send(1, m.BasicAck(2, True))
    assert offsets(client) == [2, 3]
    other.nothing()
    assert harness.queue("s").unacked_count == 8


@rule("rabbitmq.stream.credit", "A tag that is not outstanding is refused, 406, as anywhere.")
def test_unknown_tags(client: Client) -> None:
    declare(client)
    fill(client, 1)
    consume(client)
    client.deliveries()
    client.send(1, m.BasicAck(1, False))
    assert client.refused(1, m.BasicAck(1, False)) == precondition("unknown delivery tag 1", m.BasicAck)


@rule("warren.stream.pause", "A stream that is paused takes messages and hands none out until it is resumed.")
def test_pause(client: Client, harness: Harness) -> None:
    declare(client)
    consume(client)
    queue = harness.queue("s")
    queue.pause(paused=True)
    fill(client, 3)
    client.nothing()
    queue.pause(paused=False)
    harness.settle()
    assert offsets(client) == [0, 1, 2]


# --- filters ----------------------------------------------------------------------------------------------------------

VALUES: list[Table | None] = [
    {"x-stream-filter-value": "a"},
    {"x-stream-filter-value": "b"},
    {"x-stream-filter-value": "c"},
    {"x-stream-filter-value": ""},
    {"x-stream-filter-value": 5},
    {"other": "a"},
    None,
]


@rule("rabbitmq.stream.filter", "x-stream-filter is one value or several; without one everything is wanted.")
@rule("rabbitmq.stream.filter", "With x-stream-match-unfiltered also what has no value, or none that is a text.")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6]),
        ({"x-stream-match-unfiltered": False}, [0, 1, 2, 3, 4, 5, 6]),
        ({"x-stream-filter": "a"}, [0]),
        ({"x-stream-filter": ""}, [3]),
        ({"x-stream-filter": ["a", "c"]}, [0, 2]),
        ({"x-stream-filter": "ac"}, []),
        ({"x-stream-filter": []}, []),
        ({"x-stream-filter": "b", "x-stream-match-unfiltered": False}, [1]),
        ({"x-stream-filter": "b", "x-stream-match-unfiltered": True}, [1, 4, 5, 6]),
        ({"x-stream-filter": [], "x-stream-match-unfiltered": True}, [4, 5, 6]),
    ],
)
def test_filters(client: Client, arguments: Table, expected: list[int]) -> None:
    declare(client)
    for headers in VALUES:
        properties: dict[str, Any] = {} if headers is None else {"headers": encode_table(headers)}
        client.publish("", "s", **properties)
    consume(client, {OFFSET: "first", **arguments})
    assert offsets(client) == expected


@rule("rabbitmq.stream.filter", "What is not wanted takes no credit.")
def test_what_is_not_wanted_takes_no_credit(client: Client) -> None:
    declare(client)
    for number in range(100):
        value = "wanted" if number % 40 == 39 else "not"
        client.publish("", "s", headers=encode_table({"x-stream-filter-value": value}))
    consume(client, {OFFSET: "first", "x-stream-filter": "wanted"}, prefetch=1)
    assert offsets(client) == [39]
    client.send(1, m.BasicAck(1, False))
    assert offsets(client) == [79]


@rule(
    "rabbitmq.stream.filter",
    "A filter is text, and to match what has none a bool: else 406.",
    deviation="RabbitMQ 3.10 does not look at them.",
)
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x-stream-filter": 5}, "'x-stream-filter' {}: {{invalid_stream_filter_arg,{{signedint,5}}}}"),
        (
            {"x-stream-filter": ["a", 5]},
            "'x-stream-filter' {}: {{invalid_stream_filter_arg,{{array,[{{longstr,<<\"a\">>}},{{signedint,5}}]}}}}",
        ),
        (
            {"x-stream-filter": "a", "x-stream-match-unfiltered": "yes"},
            "'x-stream-match-unfiltered' {}: {{unacceptable_type,longstr}}",
        ),
    ],
)
def test_impossible_filters(client: Client, harness: Harness, arguments: Table, reason: str) -> None:
    declare(client)
    client.call(1, m.BasicQos(0, 10, False))
    assert consume_refused(client, arguments) == precondition("invalid arg " + reason.format(f"for {ME}"))
    assert not harness.queue("s").consumers


# --- what is kept -----------------------------------------------------------------------------------------------------


@rule("rabbitmq.stream.durable", "Everything is stored, whatever its delivery mode, and confirmed when it is synced.")
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("mode", [None, 1, 2])
def test_confirms(clean: bool, mode: int | None) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    client.call(1, m.ConfirmSelect(False))
    harness.store.hold = True
    properties: dict[str, Any] = {} if mode is None else {"delivery_mode": mode}
    client.publish("", "s", b"x", **properties)
    client.nothing()
    harness.store.hold = False
    harness.settle()
    assert client.expect(m.BasicAck).delivery_tag == 1
    harness = harness.restart(clean=clean)
    client = harness.channel()
    consume(client)
    (received,) = client.deliveries()
    assert (offset_of(received), body_of(received)) == (0, b"x")
    assert received.content is not None and received.content.properties.delivery_mode == mode
    assert not received.method.redelivered
    client.publish("", "s", b"y")
    assert offsets(client) == [1]


@rule("warren.stream.visible", "Nobody sees what is not synced: an offset once seen never stands for another message.")
@pytest.mark.parametrize("mode", [1, 2])
def test_nobody_sees_what_is_not_synced(mode: int) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 1)
    harness.write()
    consume(client)
    assert offsets(client) == [0]
    harness.store.hold = True
    client.publish("", "s", b"lost", delivery_mode=mode)
    client.open(2)
    client.call(2, m.BasicQos(0, 10, False))
    client.consume("s", arguments={OFFSET: "last"}, number=2)
    client.nothing()
    harness = harness.restart(clean=False)
    client = harness.channel()
    client.publish("", "s", b"another", delivery_mode=mode)
    assert everything(client) == [(0, b"0"), (1, b"another")]


@rule("warren.stream.visible", "What is synced is seen, whoever has come before or after the publish.")
def test_what_is_synced_is_seen() -> None:
    harness = DurableHarness()
    client, early, late = harness.channel(), harness.channel(), harness.channel()
    declare(client)
    consume(early)
    harness.store.hold = True
    fill(client, 2)
    consume(late)
    fill(client, 1, first=2)
    early.nothing()
    late.nothing()
    harness.store.hold = False
    harness.settle()
    assert offsets(early) == offsets(late) == [0, 1, 2]


@rule("rabbitmq.stream.durable", "It comes back with its messages, their times and its arguments.")
@pytest.mark.parametrize("clean", [False, True])
def test_it_comes_back(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, max_age="1h")
    fill(client, 40, seconds=1)
    for _ in range(2):
        harness, client = restarted(harness, clean=clean)
    assert harness.queue("s").ready_count == 40
    declare(client, max_age="1h")
    assert everything(client) == numbers(40)
    consume(client, {OFFSET: Timestamp(START_S + 33)})
    assert offsets(client) == list(range(33, 40))


@rule("rabbitmq.stream.durable", "Besides classic queues on one exchange each keeps what it is to keep.")
@pytest.mark.parametrize("mode", [1, 2])
def test_a_stream_besides_a_classic_queue(mode: int) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    declare(client, "second")
    client.declare("classic", durable=True)
    client.declare("transient")
    for queue in ("s", "classic", "transient", "second"):
        client.bind(queue, "amq.fanout")
    client.call(1, m.ConfirmSelect(False))
    harness.store.hold = True
    client.publish("amq.fanout", "", b"x", delivery_mode=mode)
    client.nothing()
    harness.store.hold = False
    harness.settle()
    client.expect(m.BasicAck)
    for queue in ("classic", "transient"):
        got = client.get(queue)
        assert got is not None and got.content is not None
        assert (body_of(got), got.content.properties.headers) == (b"x", None)
    harness = harness.restart(clean=False)
    client = harness.channel()
    assert everything(client) == [(0, b"x")]
    assert harness.queue("second").ready_count == 1
    assert (client.get("classic") is not None) == (mode == 2)


@rule("rabbitmq.stream.durable", "Its messages have no time to live of their own: an expiration is a property.")
@pytest.mark.parametrize("on_disk", [False, True])
def test_expiration_is_ignored(on_disk: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 2, expiration="5")
    if on_disk:
        harness, client = restarted(harness)
    harness.pass_time(3600)
    consume(client)
    deliveries = client.deliveries()
    assert [offset_of(each) for each in deliveries] == [0, 1]
    assert [each.content and each.content.properties.expiration for each in deliveries] == ["5", "5"]


@rule("rabbitmq.stream.dead-letters", "A stream takes dead letters, and they are of the time at which they came.")
def test_dead_letters() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    client.declare(
        "q",
        durable=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "s", "x-message-ttl": 10_000},
    )
    fill(client, 1)
    client.publish("", "q", b"rejected", delivery_mode=1)
    got = client.get("q")
    assert got is not None
    client.send(1, m.BasicReject(got.method.delivery_tag, False))
    client.publish("", "q", b"expired", delivery_mode=2)
    harness.pass_time(10)
    _, client = restarted(harness, clean=False)
    assert everything(client) == [(0, b"0"), (1, b"rejected"), (2, b"expired")]
    consume(client, {OFFSET: Timestamp(START_S + 5)})
    (letter,) = client.deliveries()
    headers = headers_of(letter)
    assert (offset_of(letter), headers["x-first-death-reason"]) == (2, text("expired"))


@rule("rabbitmq.stream.delayed", "A delayed message is in the stream from its time on, and is of that time.")
@pytest.mark.parametrize("mode", [1, 2])
def test_delayed_messages(mode: int) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    consume(client)
    client.publish("", "s", b"later", headers=encode_table({"x-delay": 10_000}), delivery_mode=mode)
    fill(client, 1)
    assert offsets(client) == [0]
    harness.pass_time(9)
    client.nothing()
    harness.pass_time(1)
    (late,) = client.deliveries()
    assert (offset_of(late), body_of(late)) == (1, b"later")
    _, client = restarted(harness, clean=False)
    consume(client, {OFFSET: Timestamp(START_S + 10)})
    assert offsets(client) == [1]


@rule("rabbitmq.stream.delayed", "What is held for a stream survives a restart and goes into it when its time comes.")
@pytest.mark.parametrize("clean", [True, False])
def test_delayed_messages_survive(clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 1)
    client.publish("", "s", b"later", headers=encode_table({"x-delay": 10_000}), delivery_mode=2)
    harness, client = restarted(harness, clean=clean)
    assert everything(client) == numbers(1)
    harness.pass_time(10)
    assert everything(client) == [(0, b"0"), (1, b"later")]


@rule("rabbitmq.stream.tx", "A transaction publishes with its commit, which is answered when all is synced.")
@pytest.mark.parametrize("mode", [1, 2])
def test_transactions(mode: int) -> None:
    harness = DurableHarness()
    client, reader = harness.channel(), harness.channel()
    declare(client)
    consume(reader)
    client.call(1, m.TxSelect())
    client.publish("", "s", b"rolled back", delivery_mode=mode)
    client.call(1, m.TxRollback())
    client.publish("", "s", b"committed", delivery_mode=mode)
    reader.nothing()
    harness.store.hold = True
    client.send(1, m.TxCommit())
    client.nothing()
    reader.nothing()
    harness.store.hold = False
    harness.settle()
    client.expect(m.TxCommitOk)
    assert reader.bodies() == [b"committed"]
    assert everything(harness.restart(clean=False).channel()) == [(0, b"committed")]


@rule("rabbitmq.stream.tx", "Acknowledgements in a transaction give credit with its commit.")
def test_acknowledgements_in_a_transaction(client: Client, harness: Harness) -> None:
    declare(client)
    fill(client, 6)
    client.call(1, m.TxSelect())
    consume(client, prefetch=2)
    assert offsets(client) == [0, 1]
    client.send(1, m.BasicAck(1, False), m.BasicNack(2, False, True))
    client.nothing()
    assert client.call(1, m.TxRollback()) == m.TxRollbackOk()
    client.send(1, m.BasicAck(1, False), m.BasicNack(2, False, True), m.TxCommit())
    client.pick(m.TxCommitOk)
    assert offsets(client) == [2, 3]
    assert harness.queue("s").unacked_count == 2


# --- retention --------------------------------------------------------------------------------------------------------


@rule("rabbitmq.stream.retention", "With x-max-length-bytes the oldest pages go, as long as so many bytes are left.")
def test_retention_by_bytes() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, max_length_bytes=2000)
    for number in range(5 * PAGE):
        client.publish("", "s", b"%d" % number * 50)
    harness, client = restarted(harness)
    client.publish("", "s", b"new")
    stream = harness.queue("s")
    left = everything(client)
    first = left[0][0]
    assert [offset for offset, _ in left] == list(range(first, 5 * PAGE + 1))
    assert first % PAGE == 0 and first > 0
    assert stream.ready_count == len(left)
    assert stream.ready_bytes == sum(len(body) for _, body in left)
    assert 2000 <= stream.ready_bytes < 2000 + PAGE * 100


@rule("rabbitmq.stream.retention", "With x-max-age the oldest pages go when all in them is older than that.")
def test_retention_by_age() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, max_age="1m")
    fill(client, 3 * PAGE, seconds=1)
    harness, client = restarted(harness)
    # The last of the first page came in second 15.
    harness.pass_time(60 + PAGE - 1 - 3 * PAGE - 3)
    put_policy(harness, max_age="2m")  # has it look at once
    harness.pass_time(2)
    assert len(everything(client)) == 3 * PAGE
    harness.pass_time(2)
    assert everything(client) == numbers(3 * PAGE, first=PAGE)
    harness.pass_time(PAGE)
    assert everything(client) == numbers(3 * PAGE, first=2 * PAGE)


@rule("rabbitmq.stream.retention", "The last page stays, and no offset is given twice.")
@pytest.mark.parametrize("count", [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE])
@pytest.mark.parametrize("limit", [{"max_length_bytes": 0}, {"max_age": "1s"}])
@pytest.mark.parametrize("clean", [True, False])
def test_the_last_page_stays(count: int, limit: dict[str, Any], clean: bool) -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, **limit)
    fill(client, count)
    for _ in range(3):
        harness, client = restarted(harness, clean=clean)
        put_policy(harness, queue_leader_locator="balanced")  # all rules are looked at anew
        harness.pass_time(7200)
        left = everything(client)
        assert left == numbers(count, first=left[0][0])
        assert left[0][0] == (count - 1) // PAGE * PAGE
    client.publish("", "s", b"next")
    assert everything(client)[-1] == (count, b"next")


@rule("rabbitmq.stream.retention", "A consumer whose next message went goes on with the oldest that is there.")
def test_a_consumer_that_was_left_behind() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, max_length_bytes=0)
    fill(client, 8 * PAGE)
    harness.write()
    client = harness.restart(clean=True, memory_bytes=0).channel()
    client.declare("q")
    client.publish("", "q")  # now memory is short, and what a consumer has of it is little
    consume(client, prefetch=SHORT_CHUNK_MESSAGES)
    assert offsets(client) == list(range(SHORT_CHUNK_MESSAGES))
    client.publish("", "s", b"new")
    client.send(1, m.BasicAck(0, True))
    assert offsets(client) == [8 * PAGE]
    consume(client, {OFFSET: 3})
    assert offsets(client) == [8 * PAGE]


@rule("rabbitmq.stream.policy", "Policies of streams set max-length-bytes and max-age, and the smaller number counts.")
def test_policies() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client, max_length_bytes=2000)
    client.declare("q", durable=True)
    fill(client, 5 * PAGE)
    harness, client = restarted(harness)
    put_policy(harness, "streams", max_length_bytes=10, max_age="1h")
    rules = harness.queue("s").rules
    assert (rules.max_length_bytes, rules.max_age_ms) == (10, 3_600_000)
    assert everything(client) == numbers(5 * PAGE, first=4 * PAGE)
    assert harness.queue("q").rules.max_length_bytes == -1
    put_policy(harness, "streams", max_length_bytes=10**6)
    assert (harness.queue("s").rules.max_length_bytes, harness.queue("s").rules.max_age_ms) == (2000, -1)
    harness.broker.administer(PolicyDelete("/", "p"))
    assert harness.queue("s").rules.max_length_bytes == 2000


@rule("rabbitmq.stream.policy", "A max-age that a policy brings holds for what is there, and goes with the policy.")
def test_max_age_of_a_policy() -> None:
    harness = DurableHarness()
    client = harness.channel()
    declare(client)
    fill(client, 3 * PAGE)
    harness, client = restarted(harness)
    harness.pass_time(7200)
    put_policy(harness, "streams", max_age="3h")
    harness.pass_time(3599)
    harness.broker.administer(PolicyDelete("/", "p"))
    harness.pass_time(7200)
    assert len(everything(client)) == 3 * PAGE
    put_policy(harness, "streams", max_age="1h")
    harness.pass_time(2)
    assert everything(client) == numbers(3 * PAGE, first=2 * PAGE)


@rule("rabbitmq.stream.policy", "Policies for other types, and those with keys that streams lack, pass it over.")
@pytest.mark.parametrize(
    ("apply_to", "definition"),
    [
        ("classic_queues", {"max_length_bytes": 5}),
        ("quorum_queues", {"max_length_bytes": 5}),
        ("exchanges", {"alternate_exchange": "x"}),
        ("all", {"max_length_bytes": 5, "max_length": 5}),
        ("queues", {"max_length_bytes": 5, "message_ttl": 5}),
    ],
)
def test_other_policies(client: Client, harness: Harness, apply_to: str, definition: dict[str, object]) -> None:
    declare(client)
    put_policy(harness, apply_to, **definition)
    assert harness.queue("s").rules.max_length_bytes == -1
