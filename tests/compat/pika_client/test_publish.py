"""basic.publish and basic.return: bodies, properties and field tables unchanged as pika writes and reads them."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest
from pika import BasicProperties, spec
from pika.adapters.blocking_connection import BlockingChannel

from ..broker import Broker
from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    get,
    pump,
)

# bodies


@pytest.mark.parametrize("size", [0, 1, 2, 255, 4096, 131_063, 131_064, 131_065, 262_128, 1_000_003])
def test_a_body_arrives_as_it_was_sent(channel: BlockingChannel, names: Names, size: int) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    body = (b"\x00\xce\x01AMQP" * (size // 7 + 1))[:size]
    channel.basic_publish("", queue, body)
    assert get(channel, queue, auto_ack=True)[2] == body


def test_a_large_message_of_many_frames_reaches_a_consumer(connect: Connect, names: Names) -> None:
    queue = names.queue()
    sender, receiver = connect().channel(), connect(frame_max=8192).channel()
    sender.queue_declare(queue)
    inbox = Inbox(receiver)
    inbox.consume(queue, auto_ack=True)
    body = bytes(range(256)) * 32768
    assert len(body) == 8 * 1024 * 1024
    sender.basic_publish("", queue, body)
    assert inbox.wait_for(1)[0].body == body


def test_one_publisher_on_one_channel_is_delivered_in_order(connect: Connect, names: Names) -> None:
    queue = names.queue()
    sender, receiver = connect().channel(), connect().channel()
    sender.queue_declare(queue)
    inbox = Inbox(receiver)
    inbox.consume(queue, auto_ack=True)
    for number in range(5000):
        sender.basic_publish("", queue, b"%d" % number)
    inbox.wait_for(5000)
    assert inbox.bodies == [b"%d" % number for number in range(5000)]
    assert inbox.tags == list(range(1, 5001))


# properties

PROPERTIES: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "headers": {"key": "value"},
    "delivery_mode": 2,
    "priority": 9,
    "correlation_id": "correlation ✓",
    "reply_to": "somewhere",
    "expiration": "60000",
    "message_id": "message",
    "timestamp": 1_700_000_000,
    "type": "greeting",
    "user_id": "guest",
    "app_id": "compat",
    "cluster_id": "reserved",
}


def sent_and_received(channel: BlockingChannel, queue: str, properties: BasicProperties) -> BasicProperties:
    """Publish with `properties` and return those that come out again."""
    channel.basic_publish("", queue, b"x", properties)
    return get(channel, queue, auto_ack=True)[1]


def user_id_of(broker: Broker, properties: dict[str, Any]) -> dict[str, Any]:
    """Set user_id to the user of this session."""
    return properties | ({"user_id": broker.username} if "user_id" in properties else {})


def test_all_fourteen_properties_arrive_together(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    properties = BasicProperties(**user_id_of(broker, PROPERTIES))
    assert sent_and_received(channel, queue, properties) == properties


def test_empty_values_are_not_absent_values(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    properties = BasicProperties(headers={}, correlation_id="", priority=0, timestamp=0, type="", app_id="")
    assert sent_and_received(channel, queue, properties) == properties


FIELD_VALUES: dict[str, Any] = {
    "longstr": "text with ✓",
    "empty longstr": "",
    "long longstr": "x" * 70_000,
    "octets": b"\x00\xff\xce",
    "no octets": b"",
    "true": True,
    "false": False,
    "signed 32 bit": -(2**31),
    "largest signed 32 bit": 2**31 - 1,
    "signed 64 bit": -(2**63),
    "largest signed 64 bit": 2**63 - 1,
    "decimal": decimal.Decimal("-12.345"),
    "decimal without places": decimal.Decimal(7),
    "timestamp": datetime.datetime(2038, 1, 19, 3, 14, 8, tzinfo=datetime.UTC),
    "timestamp of the epoch": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
    "void": None,
    "table": {"a": 1, "b": {"c": [1, {"d": None}]}},
    "empty table": {},
    "array": [1, "two", b"three", None, True, [4, {"five": 5}], decimal.Decimal("6.5")],
    "empty array": [],
}


def test_a_table_of_all_kinds_arrives_in_the_order_sent(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    received = sent_and_received(channel, queue, BasicProperties(headers=dict(FIELD_VALUES)))
    assert received.headers is not None
    assert list(received.headers.items()) == list(FIELD_VALUES.items())


def test_a_header_table_of_many_frames_worth_is_kept(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    headers = {f"header {number}": "x" * 50 for number in range(1500)}
    assert sent_and_received(channel, queue, BasicProperties(headers=headers)).headers == headers


@pytest.mark.parametrize("kind", ["topic", "headers"])
def test_properties_survive_routing_and_fan_out(channel: BlockingChannel, names: Names, kind: str) -> None:
    exchange, queues = names.exchange(), [names.queue() for _ in range(3)]
    channel.exchange_declare(exchange, kind)
    for queue in queues:
        channel.queue_declare(queue)
        channel.queue_bind(queue, exchange, "#")
    properties = BasicProperties(**{k: v for k, v in PROPERTIES.items() if k != "user_id"})
    channel.basic_publish(exchange, "some.key", b"body", properties)
    for queue in queues:
        method, received, body = get(channel, queue, auto_ack=True)
        assert (method.exchange, method.routing_key, body) == (exchange, "some.key", b"body")
        assert received == properties


# returns


def returned(channel: BlockingChannel) -> list[tuple[spec.Basic.Return, BasicProperties, bytes]]:
    """Collect what the broker returns on this channel."""
    inbox: list[tuple[spec.Basic.Return, BasicProperties, bytes]] = []
    channel.add_on_return_callback(lambda _, method, properties, body: inbox.append((method, properties, body)))
    return inbox


@pytest.mark.parametrize("body", [b"", b"a body", b"x" * 300_000], ids=["empty", "small", "many frames"])
def test_a_mandatory_message_without_route_comes_back_whole(
    channel: BlockingChannel, names: Names, body: bytes
) -> None:
    back = returned(channel)
    properties = BasicProperties(headers={"h": [1]}, message_id="m")
    key = names.unused("key")
    channel.basic_publish("amq.direct", key, body, properties, mandatory=True)
    pump(channel.connection, lambda: len(back) == 1, "the message to come back")
    method, received, returned_body = back[0]
    assert (method.reply_code, method.reply_text) == (312, "NO_ROUTE")
    assert (method.exchange, method.routing_key) == ("amq.direct", key)
    assert (received, returned_body) == (properties, body)


def test_a_returned_message_keeps_its_copies_and_hides_its_blind_copies(channel: BlockingChannel, names: Names) -> None:
    back = returned(channel)
    headers: dict[str, Any] = {"BCC": [names.unused("blind")], "CC": [names.unused("copy")]}
    channel.basic_publish("", names.unused(), b"x", BasicProperties(headers=headers), mandatory=True)
    pump(channel.connection, lambda: len(back) == 1, "the message to come back")
    assert back[0][1].headers == {"CC": headers["CC"]}
