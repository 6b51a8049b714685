"""Consumer priority: x-priority of basic.consume, with consumers of several connections that come and go."""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.compat import long

from ..conftest import Names
from .dialogue import Connect, Inbox, drain, pump, round_trip


def joined(channel: BlockingChannel, queue: str, priority: int | None = None, **options: Any) -> Inbox:
    """Start a consumer of that priority."""
    inbox = Inbox(channel)
    inbox.consume(queue, arguments=None if priority is None else {"x-priority": priority}, **options)
    return inbox


def publish_numbers(channel: BlockingChannel, queue: str, numbers: range) -> None:
    """Publish the numbers as bodies."""
    for number in numbers:
        channel.basic_publish("", queue, b"%d" % number)


def bodies(numbers: range) -> list[bytes]:
    """Return what `publish_numbers` publishes."""
    return [b"%d" % number for number in numbers]


def wait_for_all(channel: BlockingChannel, inboxes: list[Inbox], count: int) -> None:
    """Wait until the inboxes have `count` messages between them."""
    pump(channel.connection, lambda: sum(len(inbox.bodies) for inbox in inboxes) == count, f"{count} deliveries")


@pytest.mark.parametrize("priority", [-(2**63), -(2**31), 2**31 - 1, long(3), 2**63 - 1])
def test_a_priority_is_any_integer(channel: BlockingChannel, names: Names, priority: int) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    below, zero = joined(channel, queue, priority), joined(channel, queue, 0)
    publish_numbers(channel, queue, range(3))
    wait_for_all(channel, [below, zero], 3)
    assert (below if priority > 0 else zero).bodies == bodies(range(3))


def test_a_higher_consumer_that_joins_later_takes_over(connect: Connect, names: Names) -> None:
    connection = connect()
    first, second = connection.channel(), connection.channel()
    queue = names.queue()
    first.queue_declare(queue)
    low = joined(first, queue, 1)
    publish_numbers(first, queue, range(5))
    low.wait_for(5)
    high = joined(second, queue, 2)
    publish_numbers(first, queue, range(5, 10))
    high.wait_for(5)
    assert (low.bodies, high.bodies) == (bodies(range(5)), bodies(range(5, 10)))


@pytest.mark.parametrize("how", ["cancel", "channel close", "connection close"])
def test_when_the_highest_leaves_the_next_lower_one_is_served(connect: Connect, names: Names, how: str) -> None:
    sender, others = connect(), connect()
    channel, leaving = sender.channel(), others.channel()
    queue = names.queue()
    channel.queue_declare(queue)
    low, middle = joined(channel, queue, 1), joined(channel, queue, 2)
    high = Inbox(leaving)
    tag = high.consume(queue, arguments={"x-priority": 3}, auto_ack=True)
    publish_numbers(channel, queue, range(3))
    pump(others, lambda: len(high.bodies) == 3, "three deliveries")
    if how == "cancel":
        leaving.basic_cancel(tag)
    elif how == "channel close":
        leaving.close()
    else:
        others.close()
    publish_numbers(channel, queue, range(3, 6))
    middle.wait_for(3)
    assert (middle.bodies, low.bodies) == (bodies(range(3, 6)), [])


def test_a_rejected_message_goes_back_to_the_highest_that_is_free(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    channel.basic_qos(prefetch_count=1)
    low, high = joined(channel, queue, 1), joined(channel, queue, 2)
    publish_numbers(channel, queue, range(2))
    wait_for_all(channel, [low, high], 2)
    channel.basic_ack(high.tags[0])
    channel.basic_reject(low.tags[0], requeue=True)
    high.wait_for(2)
    assert high.bodies == [b"0", b"1"]
    round_trip(channel)
    assert drain(channel, queue) == []
