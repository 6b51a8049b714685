"""Delayed messages: on delayed message exchanges, which RabbitMQ has as a plugin, and of any queue, which Warren has.

The tests tell delayed messages by the order of arrival, never by a clock.
"""

from __future__ import annotations

from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker

from ..broker import Broker
from ..conftest import Names
from .dialogue import Connect, Inbox

# A later publish has to arrive before the end of a message's delay: the test may stand still for that long.
SHORT_MS = 500
LONG_MS = 1500


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
