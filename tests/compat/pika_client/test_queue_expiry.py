"""x-expires: a queue that nobody uses is deleted.

A passive declare is use as well, so these tests look for the queue with mandatory messages.
"""

from __future__ import annotations

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

from ..broker import Broker
from ..conftest import Names
from .dialogue import Connect, channel_closed_with, collect, drain, hold, pump

SHORT_MS = 250


def expiring(channel: BlockingChannel, names: Names, milliseconds: int = SHORT_MS, **arguments: object) -> str:
    """Declare a queue that expires."""
    queue = names.queue()
    channel.queue_declare(queue, arguments={"x-expires": milliseconds} | arguments)
    return queue


@pytest.fixture
def scout(connect: Connect) -> BlockingChannel:
    """A separate channel, to check whether a queue exists without using it."""
    channel = connect().channel()
    channel.confirm_delivery()
    return channel


def exists(scout: BlockingChannel, queue: str) -> bool:
    """Tell whether a message to `queue` finds it."""
    try:
        scout.basic_publish("", queue, b"anybody home?", mandatory=True)
    except UnroutableError:
        return False
    return True


def wait_until_gone(scout: BlockingChannel, queue: str) -> None:
    """Wait until messages to `queue` come back; those before are in it."""
    pump(scout.connection, lambda: not exists(scout, queue), f"{queue} to expire")


def test_a_queue_that_nobody_uses_is_deleted(
    channel: BlockingChannel, names: Names, broker: Broker, scout: BlockingChannel
) -> None:
    queue = expiring(channel, names)
    wait_until_gone(scout, queue)
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
        channel.queue_declare(queue, passive=True)


def test_a_durable_queue_expires_too(channel: BlockingChannel, names: Names, scout: BlockingChannel) -> None:
    queue = names.queue()
    channel.queue_declare(queue, durable=True, arguments={"x-expires": SHORT_MS})
    wait_until_gone(scout, queue)


def test_the_messages_of_an_expired_queue_are_not_dead_lettered(
    channel: BlockingChannel, names: Names, scout: BlockingChannel
) -> None:
    letters = names.queue("letters")
    channel.queue_declare(letters)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters}
    queue = expiring(channel, names, SHORT_MS, **arguments)
    wait_until_gone(scout, queue)
    # a letter from its successor, which does not expire, would arrive after its own
    channel.queue_declare(queue, arguments=arguments)
    channel.basic_publish("", queue, b"the only letter")
    channel.basic_reject(hold(channel, queue), requeue=False)
    assert [body for *_, body in collect(channel, letters, 1)] == [b"the only letter"]
    assert drain(channel, letters) == []
