"""Time to live: of a queue's messages and of single ones, and what is an expiration.

1. An expiry is absolute and set when the message enters the queue. Only ready messages expire.
2. Nothing that has expired is delivered, whatever else has not been cleared away yet.
"""

from __future__ import annotations

from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    drain,
    outlast,
    wait_for_ready,
)

SHORT_MS = 100


def lasting(milliseconds: int | str) -> BasicProperties:
    """Properties of a message that expires."""
    return BasicProperties(expiration=str(milliseconds))


def queue_with_ttl(channel: BlockingChannel, names: Names, milliseconds: int, **options: Any) -> str:
    """Declare a queue whose messages live for `milliseconds`."""
    queue = names.queue()
    channel.queue_declare(queue, arguments={"x-message-ttl": milliseconds}, **options)
    return queue


@pytest.fixture
def confirming(channel: BlockingChannel) -> BlockingChannel:
    """The channel with confirms: a publish returns when the message is in its queue and its time runs."""
    channel.confirm_delivery()
    return channel


# the source of the time


def test_messages_expire_after_the_time_to_live_of_their_queue(confirming: BlockingChannel, names: Names) -> None:
    queue = queue_with_ttl(confirming, names, SHORT_MS)
    for _ in range(3):
        confirming.basic_publish("", queue, b"x")
    wait_for_ready(confirming, queue, 0)
    assert drain(confirming, queue) == []


def test_a_message_expires_after_its_own_time_to_live(confirming: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    confirming.queue_declare(queue)
    confirming.basic_publish("", queue, b"x", lasting(SHORT_MS))
    wait_for_ready(confirming, queue, 0)
    assert drain(confirming, queue) == []


@pytest.mark.parametrize("expiration", ["0", "007", "+60000", "315360000000"])
def test_every_decimal_number_up_to_ten_years_is_an_expiration_and_arrives_as_sent(
    connect: Connect, names: Names, expiration: str
) -> None:
    queue = names.queue()
    sender, reader = connect().channel(), connect().channel()
    sender.queue_declare(queue)
    inbox = Inbox(reader)
    inbox.consume(queue, auto_ack=True)
    sender.basic_publish("", queue, b"x", lasting(expiration))
    delivery = inbox.wait_for(1)[0]
    assert (delivery.body, delivery.properties.expiration) == (b"x", expiration)


def test_the_time_runs_from_the_commit_of_a_transaction(connect: Connect, names: Names) -> None:
    queue = names.queue()
    sender, reader = connect().channel(), connect().channel()
    sender.queue_declare(queue)
    inbox = Inbox(reader)
    inbox.consume(queue, auto_ack=True)
    sender.tx_select()
    sender.basic_publish("", queue, b"x", lasting(SHORT_MS))
    outlast(sender, SHORT_MS)
    sender.tx_commit()
    assert inbox.wait_for(1)[0].body == b"x"
