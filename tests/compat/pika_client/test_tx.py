"""tx class: what commit and rollback do to publishes and acknowledgements."""

from __future__ import annotations

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from ..broker import Broker
from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    channel_closed_with,
    drain,
    emptied,
    get,
    hold,
    pump,
    ready,
    round_trip,
    settle,
)


def test_select_is_idempotent_and_empty_transactions_end_well(channel: BlockingChannel) -> None:
    for _ in range(2):
        channel.tx_select()
        channel.tx_commit()
        channel.tx_rollback()


@pytest.mark.parametrize("call", ["tx_commit", "tx_rollback"])
def test_without_select_there_is_nothing_to_end(channel: BlockingChannel, call: str) -> None:
    with channel_closed_with(406, "PRECONDITION_FAILED - channel is not transactional"):
        getattr(channel, call)()


def test_publishes_appear_with_commit(connect: Connect, names: Names) -> None:
    queue = names.queue()
    sender, reader = connect().channel(), connect().channel()
    sender.queue_declare(queue)
    sender.tx_select()
    for number in range(10):
        sender.basic_publish("", queue, b"%d" % number)
    round_trip(sender)
    assert drain(reader, queue) == []
    sender.tx_commit()
    assert drain(reader, queue) == [b"%d" % number for number in range(10)]


def test_publishes_vanish_with_rollback(connect: Connect, names: Names) -> None:
    queue = names.queue()
    sender, reader = connect().channel(), connect().channel()
    sender.queue_declare(queue)
    sender.tx_select()
    sender.basic_publish("", queue, b"dropped")
    sender.tx_rollback()
    sender.basic_publish("", queue, b"kept")
    sender.tx_commit()
    assert drain(reader, queue) == [b"kept"]


def test_a_transaction_spans_queues_and_exchanges(connect: Connect, names: Names) -> None:
    sender, reader = connect().channel(), connect().channel()
    exchange, queues = names.exchange(), [names.queue() for _ in range(3)]
    sender.exchange_declare(exchange, "fanout")
    for queue in queues:
        sender.queue_declare(queue)
        sender.queue_bind(queue, exchange)
    sender.tx_select()
    sender.basic_publish(exchange, "", b"all")
    sender.basic_publish("", queues[0], b"one")
    round_trip(sender)
    assert [emptied(reader, queue) for queue in queues] == [0, 0, 0]
    sender.tx_commit()
    assert [drain(reader, queue) for queue in queues] == [[b"all", b"one"], [b"all"], [b"all"]]


def test_transactions_follow_each_other(connect: Connect, names: Names) -> None:
    queue = names.queue()
    sender, reader = connect().channel(), connect().channel()
    sender.queue_declare(queue)
    sender.tx_select()
    for number in range(6):
        sender.basic_publish("", queue, b"%d" % number)
        if number % 2:
            sender.tx_rollback()
        else:
            sender.tx_commit()
    assert drain(reader, queue) == [b"0", b"2", b"4"]


def test_the_route_is_taken_when_publishing_not_when_committing(channel: BlockingChannel, names: Names) -> None:
    queue, key = names.queue(), names.unused("key")
    channel.queue_declare(queue)
    channel.tx_select()
    channel.basic_publish("amq.direct", key, b"too early")
    channel.queue_bind(queue, "amq.direct", key)
    channel.basic_publish("amq.direct", key, b"in time")
    channel.queue_unbind(queue, "amq.direct", key)
    channel.tx_commit()
    assert drain(channel, queue) == [b"in time"]


def test_a_mandatory_message_without_route_comes_back(channel: BlockingChannel, names: Names) -> None:
    back: list[bytes] = []
    channel.add_on_return_callback(lambda _, method, properties, body: back.append(body))
    channel.tx_select()
    channel.basic_publish("", names.unused(), b"nobody", mandatory=True)
    channel.tx_commit()
    pump(channel.connection, lambda: back == [b"nobody"], "the message to come back")


def test_acknowledgements_wait_for_commit(connect: Connect, names: Names) -> None:
    queue = names.queue()
    holder, reader = connect().channel(), connect().channel()
    holder.queue_declare(queue)
    for number in range(4):
        holder.basic_publish("", queue, b"%d" % number)
    holder.tx_select()
    tags = [hold(holder, queue) for _ in range(4)]
    holder.basic_ack(tags[0])
    holder.basic_ack(tags[1])
    holder.tx_commit()
    holder.basic_ack(tags[2])
    holder.close()
    assert drain(reader, queue) == [b"2", b"3"]


def test_rollback_restores_what_was_acknowledged_without_redelivery(connect: Connect, names: Names) -> None:
    queue = names.queue()
    holder, reader = connect().channel(), connect().channel()
    holder.queue_declare(queue)
    holder.basic_publish("", queue, b"held")
    holder.tx_select()
    tag = hold(holder, queue)
    holder.basic_ack(tag)
    holder.tx_rollback()
    assert ready(reader, queue) == 0
    holder.basic_ack(tag)
    holder.tx_commit()
    holder.close()
    assert drain(reader, queue) == []


@pytest.mark.parametrize("call", ["basic_nack", "basic_reject"])
def test_requeueing_waits_for_commit(connect: Connect, names: Names, call: str) -> None:
    queue = names.queue()
    holder, reader = connect().channel(), connect().channel()
    holder.queue_declare(queue)
    holder.basic_publish("", queue, b"held")
    holder.tx_select()
    tag = hold(holder, queue)
    getattr(holder, call)(tag, requeue=True)
    round_trip(holder)
    assert drain(reader, queue) == []
    holder.tx_commit()
    method, _, body = get(reader, queue, auto_ack=True)
    assert (body, method.redelivered) == (b"held", True)


def test_a_tag_acknowledged_twice_in_a_transaction_is_unknown(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"x")
    channel.tx_select()
    channel.tx_commit()
    tag = hold(channel, queue)
    channel.basic_ack(tag)
    with channel_closed_with(406, f"PRECONDITION_FAILED - unknown delivery tag {tag}"):
        channel.basic_ack(tag)
        round_trip(channel)


def test_a_consumer_in_a_transaction_gets_more_only_after_commit(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    for number in range(4):
        channel.basic_publish("", queue, b"%d" % number)
    channel.basic_qos(prefetch_count=2)
    channel.tx_select()
    inbox = Inbox(channel)
    inbox.consume(queue)
    inbox.wait_for(2)
    channel.basic_ack(2, multiple=True)
    settle(channel, queue)
    assert inbox.bodies == [b"0", b"1"]
    channel.tx_commit()
    inbox.wait_for(4)


def test_closing_the_channel_rolls_back(connect: Connect, names: Names) -> None:
    queue = names.queue()
    holder, reader = connect().channel(), connect().channel()
    holder.queue_declare(queue)
    holder.basic_publish("", queue, b"held")
    holder.tx_select()
    tag = hold(holder, queue)
    holder.basic_ack(tag)
    holder.basic_publish("", queue, b"never committed")
    holder.close()
    assert drain(reader, queue) == [b"held"]


def test_an_error_in_a_transaction_rolls_back(connect: Connect, names: Names, broker: Broker) -> None:
    connection = connect()
    sender, reader = connection.channel(), connection.channel()
    queue, missing = names.queue(), names.unused()
    sender.queue_declare(queue)
    sender.tx_select()
    sender.basic_publish("", queue, b"never committed")
    with channel_closed_with(404, f"NOT_FOUND - no {broker.exchange(missing)}"):
        sender.basic_publish(missing, "", b"x")
        sender.tx_commit()
    assert drain(reader, queue) == []


def test_declarations_are_not_part_of_a_transaction(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.tx_select()
    channel.queue_declare(queue)
    channel.tx_rollback()
    assert ready(channel, queue) == 0
