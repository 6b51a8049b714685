"""channel class: numbers, reuse, flow, what closing gives back, and how far an error reaches."""

from __future__ import annotations

import pytest
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelWrongStateError

from ..broker import Broker
from ..conftest import Names, SharedConnection
from .dialogue import (
    Connect,
    Inbox,
    channel_closed_with,
    connection_closed_with,
    consumers,
    drain,
    get,
    hold,
    impl,
    pump,
    ready,
    round_trip,
    send_method,
    settle,
    until_closed,
)


def test_channels_are_numbered_by_the_client(connect: Connect) -> None:
    connection = connect()
    assert [connection.channel(number).channel_number for number in (7, 1, 300)] == [7, 1, 300]


def test_a_channel_number_is_free_again_after_close(connect: Connect) -> None:
    connection = connect()
    for _ in range(50):
        channel = connection.channel(3)
        channel.close()
        assert channel.is_closed


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


def test_flow_false_is_not_implemented(connect: Connect) -> None:
    channel = connect().channel()
    with connection_closed_with(540, "NOT_IMPLEMENTED - active=false"):
        channel.flow(False)


def test_access_request_of_the_old_days_gets_a_ticket(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    tickets: list[int] = []
    impl(connection).callbacks.add(
        channel.channel_number, spec.Access.RequestOk, lambda reply: tickets.append(reply.method.ticket)
    )
    send_method(channel, spec.Access.Request(realm="/data", active=True, write=True, read=True))
    round_trip(channel)
    assert tickets == [1]


def test_opening_an_open_channel_again_is_a_connection_error(connect: Connect) -> None:
    connection = connect()
    channel = connection.channel()
    with connection_closed_with(504, "CHANNEL_ERROR - second 'channel.open' seen"):
        send_method(channel, spec.Channel.Open())
        until_closed(connection)


def test_a_method_on_a_channel_never_opened_is_a_connection_error(connect: Connect) -> None:
    connection = connect()
    with connection_closed_with(504, "CHANNEL_ERROR - expected 'channel.open'"):
        impl(connection)._send_method(9, spec.Queue.Declare(queue="never"))
        until_closed(connection)


def test_a_channel_error_leaves_other_channels_alone(connect: Connect, names: Names, broker: Broker) -> None:
    connection = connect()
    bystander, culprit = connection.channel(), connection.channel()
    missing = names.unused()
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(missing)}"):
        culprit.queue_declare(missing, passive=True)
    assert culprit.is_closed
    round_trip(bystander)
    assert connection.is_open


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


def test_closing_a_channel_requeues_in_order_and_marks_redelivered(connect: Connect, names: Names) -> None:
    connection = connect()
    channel, later = connection.channel(), connection.channel()
    queue = names.queue()
    channel.queue_declare(queue)
    for number in range(5):
        channel.basic_publish("", queue, b"%d" % number)
    for _ in range(3):
        get(channel, queue)
    channel.close()
    redelivered = []
    for number in range(5):
        method, _, body = get(later, queue, auto_ack=True)
        assert body == b"%d" % number
        redelivered.append(method.redelivered)
    assert redelivered == [True, True, True, False, False]


def test_a_channel_error_requeues_too(connect: Connect, names: Names, broker: Broker) -> None:
    connection = connect()
    channel, later = connection.channel(), connection.channel()
    queue = names.queue()
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"held")
    get(channel, queue)
    assert ready(channel, queue) == 0
    missing = names.unused()
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(missing)}"):
        channel.queue_declare(missing, passive=True)
    pump(connection, lambda: ready(later, queue) == 1, "the message to come back")


def test_closing_a_channel_removes_its_consumers(connect: Connect, names: Names) -> None:
    connection = connect()
    channel, other = connection.channel(), connection.channel()
    queue = names.queue()
    channel.queue_declare(queue)
    Inbox(channel).consume(queue)
    Inbox(channel).consume(queue)
    assert consumers(other, queue) == 2
    channel.close()
    assert consumers(other, queue) == 0


def test_delivery_tags_count_per_channel_across_consumers_and_gets(connect: Connect, names: Names) -> None:
    connection = connect()
    first, second = connection.channel(), connection.channel()
    queue = names.queue()
    first.queue_declare(queue)
    for _ in range(6):
        first.basic_publish("", queue, b"")
    assert hold(first, queue) == 1
    assert hold(first, queue) == 2
    assert hold(second, queue) == 1
    inbox = Inbox(first)
    inbox.consume(queue)
    inbox.wait_for(3)
    assert inbox.tags == [3, 4, 5]


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
