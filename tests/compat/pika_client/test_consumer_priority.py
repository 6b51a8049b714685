"""Consumer priority: x-priority of basic.consume, higher consumers first, lower ones while those cannot take more.

The basic claim, levels in turn on one channel, is in test_consume.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.compat import long

from ..broker import Broker
from ..conftest import Names
from .dialogue import Connect, Inbox, channel_closed_with, drain, pump, round_trip, settle, wait_for_ready


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


@pytest.mark.parametrize("order", [(1, 10, 5), (10, 5, 1), (5, 1, 10)])
def test_the_highest_priority_gets_everything_whenever_it_came(
    channel: BlockingChannel, names: Names, order: tuple[int, ...]
) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    inboxes = {priority: joined(channel, queue, priority) for priority in order}
    publish_numbers(channel, queue, range(20))
    inboxes[10].wait_for(20)
    settle(channel, queue)
    assert [inboxes[priority].bodies for priority in (10, 5, 1)] == [bodies(range(20)), [], []]


def test_no_priority_is_zero_and_negative_is_lower(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    channel.basic_qos(prefetch_count=2)
    negative, none, zero = joined(channel, queue, -1), joined(channel, queue), joined(channel, queue, 0)
    publish_numbers(channel, queue, range(4))
    wait_for_all(channel, [none, zero], 4)
    assert [len(inbox.bodies) for inbox in (none, zero, negative)] == [2, 2, 0]
    publish_numbers(channel, queue, range(4, 6))
    negative.wait_for(2)


@pytest.mark.parametrize("priority", [-(2**63), -(2**31), 2**31 - 1, long(3), 2**63 - 1])
def test_a_priority_is_any_integer(channel: BlockingChannel, names: Names, priority: int) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    below, zero = joined(channel, queue, priority), joined(channel, queue, 0)
    publish_numbers(channel, queue, range(3))
    wait_for_all(channel, [below, zero], 3)
    assert (below if priority > 0 else zero).bodies == bodies(range(3))


@pytest.mark.parametrize(
    ("value", "kind"),
    [("high", "longstr"), ("5", "longstr"), (True, "bool"), (None, "void"), ([1], "array"), ({"a": 1}, "table")],
)
def test_a_priority_of_another_type_is_refused_and_the_type_named(
    channel: BlockingChannel, names: Names, broker: Broker, value: Any, kind: str
) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    text = f"invalid arg 'x-priority' for {broker.queue(queue)}: \"expected integer, got {kind}\""
    with channel_closed_with(406, f"PRECONDITION_FAILED - {text}"):
        Inbox(channel).consume(queue, arguments={"x-priority": value})


def test_consumers_of_one_priority_take_turns(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    idle = joined(channel, queue)
    equals = [joined(channel, queue, 7) for _ in range(3)]
    publish_numbers(channel, queue, range(30))
    wait_for_all(channel, equals, 30)
    assert [len(inbox.bodies) for inbox in equals] == [10, 10, 10]
    assert idle.bodies == []


def test_the_lower_get_only_what_the_higher_cannot_take(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    channel.basic_qos(prefetch_count=1)
    low, high = joined(channel, queue, 1), joined(channel, queue, 2)
    publish_numbers(channel, queue, range(2))
    wait_for_all(channel, [low, high], 2)
    assert (high.bodies, low.bodies) == ([b"0"], [b"1"])
    publish_numbers(channel, queue, range(2, 3))
    wait_for_ready(channel, queue, 1)
    channel.basic_ack(high.tags[0])
    high.wait_for(2)
    assert (high.bodies, low.bodies) == ([b"0", b"2"], [b"1"])


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


def test_what_a_higher_consumer_leaves_behind_goes_to_the_lower_one(connect: Connect, names: Names) -> None:
    connection = connect()
    channel, leaving = connection.channel(), connection.channel()
    queue = names.queue()
    channel.queue_declare(queue)
    low, high = joined(channel, queue, 1), joined(leaving, queue, 2)
    publish_numbers(channel, queue, range(3))
    high.wait_for(3)
    leaving.close()
    low.wait_for(3)
    assert low.bodies == bodies(range(3))
    assert all(delivery.method.redelivered for delivery in low.deliveries)


def test_a_backlog_goes_to_the_first_consumer_and_what_it_leaves_to_the_higher_one(
    channel: BlockingChannel, names: Names
) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    publish_numbers(channel, queue, range(10))
    channel.basic_qos(prefetch_count=3)
    low = joined(channel, queue, 1)
    low.wait_for(3)
    channel.basic_qos(prefetch_count=0)
    high = joined(channel, queue, 2)
    high.wait_for(7)
    assert (low.bodies, high.bodies) == (bodies(range(3)), bodies(range(3, 10)))


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
