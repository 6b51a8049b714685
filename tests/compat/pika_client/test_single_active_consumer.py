"""Single active consumer: one of many is served, the others wait; the choice of the next one."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from ..broker import Broker
from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    channel_closed_with,
    consumers,
    pump,
    ready,
)


def single(channel: BlockingChannel, names: Names, *, auto_delete: bool = False, **more: Any) -> str:
    """Declare a queue that serves one consumer at a time."""
    queue = names.queue()
    arguments = {"x-" + name.replace("_", "-"): value for name, value in more.items()}
    channel.queue_declare(queue, auto_delete=auto_delete, arguments={"x-single-active-consumer": True} | arguments)
    return queue


def publish(channel: BlockingChannel, queue: str, *messages: bytes) -> None:
    """Publish messages."""
    for body in messages:
        channel.basic_publish("", queue, body)


def wait_for(connection: pika.BlockingConnection, inbox: Inbox, *messages: bytes) -> None:
    """Wait until exactly these are in the inbox."""
    pump(connection, lambda: len(inbox.bodies) >= len(messages), f"{messages}")
    assert inbox.bodies == list(messages)


def test_waiting_consumers_are_counted(channel: BlockingChannel, names: Names) -> None:
    queue = single(channel, names)
    tags = [Inbox(channel).consume(queue) for _ in range(3)]
    assert consumers(channel, queue) == 3
    for left, tag in enumerate(tags[::-1]):
        channel.basic_cancel(tag)
        assert consumers(channel, queue) == 2 - left


def test_who_leaves_and_comes_back_waits_behind_the_others(channel: BlockingChannel, names: Names) -> None:
    queue = single(channel, names)
    inboxes = [Inbox(channel) for _ in range(3)]
    tags = [inbox.consume(queue) for inbox in inboxes]
    channel.basic_cancel(tags[0])
    tags[0] = inboxes[0].consume(queue)
    for number in (1, 2, 0):
        publish(channel, queue, b"%d" % number)
        wait_for(channel.connection, inboxes[number], b"%d" % number)
        channel.basic_cancel(tags[number])


def test_the_successor_gets_what_was_unacknowledged_before_what_is_new(connect: Connect, names: Names) -> None:
    leaving, staying = connect(), connect()
    first, second = leaving.channel(), staying.channel()
    queue = single(first, names)
    one, two = Inbox(first), Inbox(second)
    first.basic_qos(prefetch_count=3)
    one.consume(queue)
    two.consume(queue)
    publish(second, queue, b"0", b"1", b"2", b"3", b"4")
    pump(leaving, lambda: len(one.bodies) == 3, "three deliveries")
    first.basic_ack(one.tags[0])
    # RabbitMQ mixes up the order when this one is still under way
    pump(leaving, lambda: len(one.bodies) == 4, "one more")
    # Not by `close`: that cancels first, and then the successor is served before the channel gives anything back.
    with pytest.raises(ChannelClosedByBroker):
        first.exchange_declare(names.exchange(), passive=True)
    wait_for(staying, two, b"1", b"2", b"3", b"4")
    assert [delivery.method.redelivered for delivery in two.deliveries] == [True, True, True, False]


def test_an_auto_delete_queue_lives_while_anybody_waits(connect: Connect, names: Names, broker: Broker) -> None:
    watcher, channel = connect().channel(), connect().channel()
    queue = single(channel, names, auto_delete=True)
    tags = [Inbox(channel).consume(queue) for _ in range(2)]
    channel.basic_cancel(tags[0])
    assert ready(watcher, queue) == 0
    channel.basic_cancel(tags[1])
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
        watcher.queue_declare(queue, passive=True)


def test_the_order_of_messages_survives_every_change_of_hands(connect: Connect, names: Names) -> None:
    connection = connect()
    sender = connection.channel()
    queue = single(sender, names)
    received: list[bytes] = []
    readers = [connection.channel() for _ in range(5)]
    inboxes = [Inbox(reader) for reader in readers]
    for inbox in inboxes:
        inbox.consume(queue)
    publish(sender, queue, *(b"%d" % number for number in range(50)))
    for turn, (reader, inbox) in enumerate(zip(readers, inboxes, strict=True)):
        inbox.wait_for(50 - 10 * turn)
        # each acknowledges ten and leaves with the rest
        reader.basic_ack(inbox.tags[9], multiple=True)
        received += inbox.bodies[:10]
        reader.close()
    assert received == [b"%d" % number for number in range(50)]
