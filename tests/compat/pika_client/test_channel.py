"""Channels of pika: numbers, reuse, flow, and what is under way when the broker closes one."""

from __future__ import annotations

import pytest
from pika.exceptions import ChannelWrongStateError

from ..conftest import Names, SharedConnection
from .dialogue import (
    Connect,
    Inbox,
    ready,
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
