"""Channels of pika: numbers, reuse, flow, and what is under way when the broker closes one."""

from __future__ import annotations

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelWrongStateError

from ..broker import Broker
from ..conftest import Names, SharedConnection
from .dialogue import (
    Connect,
    Inbox,
    channel_closed_with,
    drain,
    ready,
    round_trip,
    settle,
)


def test_channels_are_numbered_by_the_client(connect: Connect) -> None:
    connection = connect()
    assert [connection.channel(number).channel_number for number in (7, 1, 300)] == [7, 1, 300]


def test_a_closed_channel_refuses_to_work_and_its_number_is_reusable(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel(1)
    channel.close(reply_code=320, reply_text="closed with a reason of the client")
    with pytest.raises(ChannelWrongStateError):
        channel.queue_declare("")
    assert connection.channel(1).is_open


def test_a_channel_is_a_context_manager(shared_connection: SharedConnection) -> None:
    with shared_connection.get().channel() as channel:
        assert channel.is_open
    assert channel.is_closed


def test_flow_true_is_answered_with_true(channel: BlockingChannel) -> None:
    assert channel.flow(True) is True


def test_the_number_of_a_channel_closed_by_the_broker_is_reusable(
    connect: Connect, names: Names, broker: Broker
) -> None:
    connection = connect()
    for _ in range(20):
        channel = connection.channel(5)
        missing = names.unused()
        with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(missing)}"):
            channel.queue_declare(missing, passive=True)


def test_what_follows_a_channel_error_in_the_pipe_is_ignored(connect: Connect, names: Names, broker: Broker) -> None:
    connection = connect()
    watcher, culprit = connection.channel(), connection.channel()
    queue = names.queue()
    watcher.queue_declare(queue)
    missing = names.unused()
    with channel_closed_with(404, f"NOT_FOUND - no {broker.exchange(missing)}"):
        culprit.basic_publish("", queue, b"before")
        culprit.basic_publish(missing, "", b"the error")
        culprit.basic_publish("", queue, b"after")
        round_trip(culprit)
    assert drain(watcher, queue) == [b"before"]


def test_many_channels_share_one_connection_without_mixing_their_messages(connect: Connect, names: Names) -> None:
    connection = connect(frame_max=4096)
    channels = [connection.channel() for _ in range(10)]
    queues = [names.queue() for _ in channels]
    bodies = [bytes([number]) * (3000 * (number + 1)) for number in range(10)]
    inboxes = []
    for channel, queue in zip(channels, queues, strict=True):
        channel.queue_declare(queue)
        inboxes.append(Inbox(channel, acks=True))
        inboxes[-1].consume(queue)
    for _ in range(3):
        for number, body in enumerate(bodies):
            channels[(number + 3) % 10].basic_publish("", queues[number], body)
    for number, inbox in enumerate(inboxes):
        inbox.wait_for(3)
        assert inbox.bodies == [bodies[number]] * 3
    for channel, queue in zip(channels, queues, strict=True):
        settle(channel, queue)
        assert ready(channel, queue) == 0
