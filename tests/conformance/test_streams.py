"""Streams: messages stay, and are read from wherever a consumer wants. Texts are those of RabbitMQ 3.10.8."""

from __future__ import annotations

from typing import Any

import pytest
from durable_harness import DurableHarness
from engine_harness import (
    Client,
    Harness,
    body_of,
    publish_frames,
)

from warren.amqp import methods as m
from warren.amqp.field_table import Table, Timestamp, encode_table, with_length

from .rules import rule
from .stream_clients import (
    ME,
    OFFSET,
    START_S,
    consume,
    consume_refused,
    declare,
    everything,
    fill,
    headers_of,
    numbers,
    offset_of,
    offsets,
    precondition,
    restarted,
)
from .typed_table import text

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
        m.BasicNack(3, multiple=True, requeue=True),
        m.BasicNack(3, multiple=True, requeue=False),
        m.BasicNack(2, multiple=False, requeue=True),
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
@rule(
    "rabbitmq.stream.filter",
    "With x-stream-match-unfiltered also what has no value, an empty one, or none that is a text.",
)
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
        ({"x-stream-filter": "b", "x-stream-match-unfiltered": True}, [1, 3, 4, 5, 6]),
        ({"x-stream-filter": [], "x-stream-match-unfiltered": True}, [3, 4, 5, 6]),
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
