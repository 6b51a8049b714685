"""Quorum queues: delivery counts, limits, order of returns, and what RabbitMQ has not always allowed.

The differences between versions are RabbitMQ's; where 4.3 changed something Warren does as 4.3 does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from ..broker import Broker
from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    channel_closed_with,
    collect,
    connection_closed_with,
    drain,
    hold,
    pump,
    ready,
)

QUORUM = {"x-queue-type": "quorum"}


def declare(channel: BlockingChannel, names: Names, **arguments: Any) -> str:
    """Declare a quorum queue."""
    queue = names.queue()
    more = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    channel.queue_declare(queue, durable=True, arguments=QUORUM | more)
    return queue


@pytest.fixture
def confirming(channel: BlockingChannel) -> BlockingChannel:
    """The channel with confirms: a publish returns once its message is in the queue."""
    channel.confirm_delivery()
    return channel


def publish_numbers(channel: BlockingChannel, queue: str, count: int) -> None:
    """Publish b"0", b"1" and so on."""
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number)


# publishing and consuming


@pytest.mark.parametrize("mode", [1, 2])
def test_messages_are_confirmed_kept_in_order_and_delivered_as_sent(
    confirming: BlockingChannel, names: Names, mode: Any
) -> None:
    queue = declare(confirming, names)
    properties = BasicProperties(headers={"a": [1]}, priority=3, delivery_mode=mode, message_id="m")
    for number in range(20):
        confirming.basic_publish("", queue, b"%d" % number, properties, mandatory=True)
    got = collect(confirming, queue, 20)
    assert [body for *_, body in got] == [b"%d" % number for number in range(20)]
    for method, received, _ in got:
        assert method.redelivered is False
        assert (received.delivery_mode, received.priority, received.message_id) == (mode, 3, "m")
        headers: Any = received.headers
        assert headers["a"] == [1]


@pytest.mark.parametrize(("flag", "named"), [("if_unused", "if-unused"), ("if_empty", "if-empty")])
def test_a_conditional_delete_was_not_always_possible(
    connect: Connect, names: Names, broker: Broker, flag: str, named: str
) -> None:
    channel = connect().channel()
    queue = declare(channel, names)
    if broker.is_warren:
        channel.queue_delete(queue, **{flag: True})
        with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
            channel.queue_declare(queue, passive=True)
    else:
        text = f"cannot delete {broker.queue(queue)}. queue.delete operations with {named} flag set are not supported"
        with connection_closed_with(540, f"NOT_IMPLEMENTED - {text} by quorum queues"):
            channel.queue_delete(queue, **{flag: True})


def test_a_prefetch_of_the_whole_channel_is_refused_or_taken_for_one_of_each_consumer(
    connect: Connect, names: Names, broker: Broker
) -> None:
    channel = connect().channel()
    queue = declare(channel, names)
    channel.basic_qos(prefetch_count=5, global_qos=True)
    inbox = Inbox(channel)
    if broker.behaves_like(4, 3):
        inbox.consume(queue)
        channel.basic_publish("", queue, b"x")
        inbox.wait_for(1)
    else:
        text = f"NOT_IMPLEMENTED - {broker.queue(queue)} does not support global qos"
        with connection_closed_with(540, text):
            inbox.consume(queue)


def test_a_transaction_publishes_and_rolls_back(connect: Connect, names: Names) -> None:
    channel = connect().channel()
    queue = declare(channel, names)
    channel.tx_select()
    channel.basic_publish("", queue, b"rolled back")
    channel.tx_rollback()
    channel.basic_publish("", queue, b"committed")
    channel.tx_commit()
    assert [body for *_, body in collect(channel, queue, 1)] == [b"committed"]
    assert drain(channel, queue) == []


# order of what comes back


@pytest.mark.parametrize(
    "give_back",
    [
        lambda channel, tags: channel.basic_nack(tags[-1], multiple=True, requeue=True),
        lambda channel, tags: [channel.basic_reject(tag, requeue=True) for tag in tags],
        lambda channel, tags: channel.basic_recover(requeue=True),
        lambda channel, tags: channel.close(),
    ],
    ids=["nack multiple", "reject one by one", "recover", "close"],
)
def test_what_is_given_back_comes_again_before_the_rest(
    connect: Connect, names: Names, give_back: Callable[[BlockingChannel, list[int]], object]
) -> None:
    connection = connect()
    channel, reader = connection.channel(), connection.channel()
    queue = declare(channel, names, delivery_limit=10)
    reader.confirm_delivery()
    publish_numbers(reader, queue, 6)
    tags = [hold(channel, queue) for _ in range(4)]
    give_back(channel, tags)
    pump(connection, lambda: ready(reader, queue) == 6, "all messages to be back")
    got = collect(reader, queue, 6)
    assert [body for *_, body in got] == [b"%d" % number for number in range(6)]
    assert [method.redelivered for method, *_ in got] == [True] * 4 + [False] * 2


# expiry, length, dead letters


def test_a_message_dies_in_a_quorum_queue_and_then_in_a_classic_one(confirming: BlockingChannel, names: Names) -> None:
    letters, classic = names.queue("letters"), names.queue("classic")
    confirming.queue_declare(letters)
    confirming.queue_declare(
        classic,
        arguments={"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters},
    )
    queue = declare(confirming, names, dead_letter_exchange="", dead_letter_routing_key=classic)
    confirming.basic_publish("", queue, b"x")
    confirming.basic_reject(hold(confirming, queue), requeue=False)
    headers: Any = collect(confirming, letters, 1)[0][1].headers
    assert [(entry["queue"], entry["reason"]) for entry in headers["x-death"]] == [
        (classic, "expired"),
        (queue, "rejected"),
    ]
