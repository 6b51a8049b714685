"""Queues: declared, named by the server, exclusive, the last one declared, bound, purged, deleted."""

from __future__ import annotations

import re

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    drain,
    get,
    hold,
    ready,
    round_trip,
)

# declare


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("auto_delete", [False, True])
def test_declare_ok_names_the_queue_and_counts(
    channel: BlockingChannel, names: Names, durable: bool, auto_delete: bool
) -> None:
    queue = names.queue()
    declared = channel.queue_declare(queue, durable=durable, auto_delete=auto_delete).method
    assert (declared.queue, declared.message_count, declared.consumer_count) == (queue, 0, 0)


def test_an_empty_name_asks_the_server_for_one(channel: BlockingChannel) -> None:
    named = {channel.queue_declare("", exclusive=True, auto_delete=True).method.queue for _ in range(5)}
    assert len(named) == 5
    assert all(re.fullmatch(r"amq\.gen-[A-Za-z0-9_-]{22}", queue) for queue in named)


# exclusive


def test_an_exclusive_queue_serves_its_own_connection_on_any_channel(connect: Connect, names: Names) -> None:
    connection = connect()
    first, second = connection.channel(), connection.channel()
    queue = names.queue()
    first.queue_declare(queue, exclusive=True)
    second.queue_declare(queue, exclusive=True)
    second.basic_publish("", queue, b"mine")
    assert drain(second, queue) == [b"mine"]


def test_an_exclusive_queue_survives_the_channel_that_declared_it(connect: Connect, names: Names) -> None:
    connection = connect()
    queue = names.queue()
    first = connection.channel()
    first.queue_declare(queue, exclusive=True)
    first.close()
    assert ready(connection.channel(), queue) == 0


# the last declared queue


def test_an_empty_queue_name_means_the_last_one_declared(channel: BlockingChannel) -> None:
    first = channel.queue_declare("", exclusive=True).method.queue
    last = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind("", "amq.direct", "a-key-of-" + last)
    channel.basic_publish("amq.direct", "a-key-of-" + last, b"bound")
    assert get(channel, "", auto_ack=True)[2] == b"bound"
    channel.basic_publish("", last, b"purged")
    assert channel.queue_purge("").method.message_count == 1
    inbox = Inbox(channel)
    inbox.consume("")
    channel.basic_publish("", last, b"consumed")
    inbox.wait_for(1)
    channel.queue_delete("")
    assert ready(channel, first) == 0


# bind and unbind


def test_a_binding_routes_until_it_is_unbound(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    key = names.unused("key")
    channel.queue_bind(queue, "amq.direct", key)
    channel.basic_publish("amq.direct", key, b"bound")
    channel.queue_unbind(queue, "amq.direct", key)
    channel.basic_publish("amq.direct", key, b"unbound")
    assert drain(channel, queue) == [b"bound"]


# delete


def test_messages_unacknowledged_when_their_queue_is_deleted_can_still_be_settled(
    channel: BlockingChannel, names: Names
) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    for _ in range(3):
        channel.basic_publish("", queue, b"")
    tags = [hold(channel, queue) for _ in range(3)]
    channel.queue_delete(queue)
    channel.basic_ack(tags[0])
    channel.basic_nack(tags[1])
    channel.basic_reject(tags[2])
    round_trip(channel)
