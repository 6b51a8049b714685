"""x-expires: a queue that nobody uses is deleted.

A passive declare is use as well, so these tests look for the queue with mandatory messages.
"""

from __future__ import annotations

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

from ..broker import Broker
from ..conftest import Names
from .dialogue import Connect, channel_closed_with, pump

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
