"""Transactions: what a commit does to publishes and acknowledgements, seen from another connection."""

from __future__ import annotations

from pika.adapters.blocking_connection import BlockingChannel

from ..conftest import Names
from .dialogue import (
    Connect,
    drain,
    emptied,
    hold,
    pump,
    ready,
    round_trip,
)


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


def test_declarations_are_not_part_of_a_transaction(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.tx_select()
    channel.queue_declare(queue)
    channel.tx_rollback()
    assert ready(channel, queue) == 0
