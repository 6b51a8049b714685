"""Delayed messages: on delayed message exchanges, which RabbitMQ has as a plugin, and of any queue, which Warren has.

The tests tell delayed messages by the order of arrival, never by a clock.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker, UnroutableError

from ..broker import Broker
from ..conftest import Names
from .dialogue import Connect, Inbox, get

# A later publish has to arrive before the end of a message's delay: the test may stand still for that long.
SHORT_MS = 500
LONG_MS = 1500
YEAR_MS = 31_536_000_000


def delayed(delay: Any) -> BasicProperties:
    """Properties of a message with a delay."""
    return BasicProperties(headers={"x-delay": delay}, delivery_mode=2)


@pytest.fixture
def queue(channel: BlockingChannel, names: Names, broker: Broker) -> str:
    """A queue of a broker that delays messages for any queue."""
    if not broker.is_warren:
        pytest.skip("only Warren delays messages without a delayed message exchange")
    name = names.queue()
    channel.queue_declare(name, durable=True)
    return name


@pytest.fixture
def exchange(connect: Connect, names: Names, broker: Broker) -> tuple[BlockingChannel, str]:
    """A channel and a delayed message exchange of it."""
    name = names.exchange()
    channel = connect().channel()
    try:
        channel.exchange_declare(name, "x-delayed-message", arguments={"x-delayed-type": "direct"})
    except (ChannelClosedByBroker, AMQPConnectionError) as refusal:
        if broker.is_warren or "unknown exchange type" not in str(refusal):
            raise
        pytest.skip("this broker has no delayed message exchanges: enable the plugin")
    return channel, name


def bound_queue(channel: BlockingChannel, names: Names, exchange: str, key: str) -> str:
    """Declare a queue and bind it."""
    queue = names.queue()
    channel.queue_declare(queue)
    channel.queue_bind(queue, exchange, key)
    return queue


# any queue


def test_messages_come_in_the_order_of_their_delays(channel: BlockingChannel, queue: str) -> None:
    inbox = Inbox(channel)
    for delay_ms in (LONG_MS, SHORT_MS, 0):
        channel.basic_publish("", queue, str(delay_ms).encode(), delayed(delay_ms))
    inbox.consume(queue, auto_ack=True)
    inbox.wait_for(3)
    assert inbox.bodies == [b"0", str(SHORT_MS).encode(), str(LONG_MS).encode()]
    assert [delivery.properties.headers for delivery in inbox.deliveries] == [
        {"x-delay": delay_ms} for delay_ms in (0, -SHORT_MS, -LONG_MS)
    ]


def test_a_task_for_next_year_is_held_and_goes_with_its_queue(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    eta_ms = int(time.time() * 1000) + YEAR_MS
    channel.basic_publish("", queue, b"next year", BasicProperties(headers={"x-deliver-at": eta_ms}, delivery_mode=2))
    channel.basic_publish("", queue, b"in ten years", delayed(10 * YEAR_MS))
    channel.basic_publish("", queue, b"now", BasicProperties(delivery_mode=2))
    _, _, body = get(channel, queue)
    assert body == b"now"
    assert channel.basic_get(queue) == (None, None, None)
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
    assert channel.queue_purge(queue).method.message_count == 0
    channel.queue_delete(queue)


# delayed message exchanges


def test_an_exchange_holds_messages_and_routes_those_without_a_delay(
    exchange: tuple[BlockingChannel, str], names: Names
) -> None:
    channel, name = exchange
    inbox = Inbox(channel)
    inbox.consume(bound_queue(channel, names, name, "k"), auto_ack=True)
    channel.basic_publish(name, "k", b"late", delayed(LONG_MS))
    channel.basic_publish(name, "k", b"early", delayed(str(SHORT_MS)))
    channel.basic_publish(name, "k", b"at once", delayed(-1))
    channel.basic_publish(name, "elsewhere", b"lost", delayed(SHORT_MS))
    channel.basic_publish(name, "k", b"plain")
    inbox.wait_for(4)
    assert inbox.bodies == [b"at once", b"plain", b"early", b"late"]
    assert [delivery.method.exchange for delivery in inbox.deliveries] == [name] * 4
    assert inbox.deliveries[3].properties.headers == {"x-delay": -LONG_MS}
    assert inbox.deliveries[2].properties.headers == {"x-delay": -SHORT_MS}


def test_a_message_is_routed_by_the_bindings_of_its_time(exchange: tuple[BlockingChannel, str], names: Names) -> None:
    channel, name = exchange
    channel.basic_publish(name, "k", b"m", delayed(LONG_MS))
    inbox = Inbox(channel)
    inbox.consume(bound_queue(channel, names, name, "k"), auto_ack=True)
    assert inbox.wait_for(1)[0].body == b"m"


def test_a_mandatory_message_comes_back_and_is_delivered_all_the_same(
    exchange: tuple[BlockingChannel, str], names: Names
) -> None:
    channel, name = exchange
    inbox = Inbox(channel)
    inbox.consume(bound_queue(channel, names, name, "k"), auto_ack=True)
    channel.confirm_delivery()
    with pytest.raises(UnroutableError) as returned:
        channel.basic_publish(name, "k", b"m", delayed(SHORT_MS), mandatory=True)
    (message,) = returned.value.messages
    assert message.method.reply_code == 312
    assert inbox.wait_for(1)[0].body == b"m"


def test_a_delayed_exchange_behind_another_one(exchange: tuple[BlockingChannel, str], names: Names) -> None:
    channel, name = exchange
    source = names.exchange()
    channel.exchange_declare(source, "fanout")
    channel.exchange_bind(name, source, "k")
    inbox = Inbox(channel)
    inbox.consume(bound_queue(channel, names, name, "k"), auto_ack=True)
    channel.basic_publish(source, "k", b"later", delayed(SHORT_MS))
    channel.basic_publish(source, "k", b"now")
    inbox.wait_for(2)
    assert [(delivery.body, delivery.method.exchange) for delivery in inbox.deliveries] == [
        (b"now", source),
        (b"later", source),
    ]
