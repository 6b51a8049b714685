"""basic.consume, cancel and get: tags, cancel notification, and pika's generator."""

from __future__ import annotations

from pika.adapters.blocking_connection import BlockingChannel

from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    drain,
    get,
    pump,
    ready,
    round_trip,
    tag_of,
)

# consume and cancel


def test_messages_already_there_and_coming_later_are_delivered(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"before")
    inbox = Inbox(channel)
    tag = inbox.consume(queue)
    channel.basic_publish("", queue, b"after")
    before, after = inbox.wait_for(2)
    assert (before.body, after.body) == (b"before", b"after")
    assert before.method.consumer_tag == tag
    assert (before.method.delivery_tag, after.method.delivery_tag) == (1, 2)
    assert before.method.redelivered is False
    assert (before.method.exchange, before.method.routing_key) == ("", queue)


# dispatch


def test_unknown_consumer_arguments_are_accepted(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    inbox = Inbox(channel)
    inbox.consume(queue, arguments={"x-colour": "green", "x-cancel-on-ha-failover": True})
    channel.basic_publish("", queue, b"x")
    inbox.wait_for(1)


# exclusive consumers


def test_get_is_possible_beside_an_exclusive_consumer(connect: Connect, names: Names) -> None:
    queue = names.queue()
    owner, other = connect().channel(), connect().channel()
    owner.queue_declare(queue)
    owner.basic_qos(prefetch_count=1)
    inbox = Inbox(owner)
    inbox.consume(queue, exclusive=True)
    owner.basic_publish("", queue, b"consumed")
    inbox.wait_for(1)
    owner.basic_publish("", queue, b"got")
    round_trip(owner)
    assert get(other, queue, auto_ack=True)[2] == b"got"


# cancellation by the broker


def test_deleting_a_queue_tells_its_consumers(connect: Connect, names: Names) -> None:
    connection = connect()
    channel, other = connection.channel(), connection.channel()
    queue = names.queue()
    channel.queue_declare(queue)
    tags = [Inbox(channel).consume(queue), Inbox(channel).consume(queue)]
    cancelled: list[str | None] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    other.queue_delete(queue)
    pump(connection, lambda: len(cancelled) == 2, "two cancellations")
    assert set(cancelled) == set(tags)
    assert channel.consumer_tags == []


# the generator


def test_the_generator_yields_messages_in_order(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    for number in range(10):
        channel.basic_publish("", queue, b"%d" % number)
    bodies = []
    for method, _, body in channel.consume(queue):
        channel.basic_ack(tag_of(method))
        bodies.append(body)
        if len(bodies) == 10:
            break
    assert channel.cancel() == 0
    assert bodies == [b"%d" % number for number in range(10)]
    assert ready(channel, queue) == 0


def test_the_generator_yields_nones_while_nothing_comes(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    seen: list[bytes | None] = []
    for method, _, body in channel.consume(queue, inactivity_timeout=0.05, auto_ack=True):
        seen.append(body)
        if method is None:
            channel.basic_publish("", queue, b"woken")
        if seen.count(b"woken") == 2:
            break
    channel.cancel()
    assert seen[0] is None


def test_leaving_the_generator_requeues_what_it_prefetched(connect: Connect, names: Names) -> None:
    connection = connect()
    channel = connection.channel()
    queue = names.queue()
    channel.queue_declare(queue)
    for number in range(5):
        channel.basic_publish("", queue, b"%d" % number)
    for method, _, body in channel.consume(queue):
        assert body == b"0"
        channel.basic_ack(tag_of(method))
        break
    channel.cancel()
    assert drain(channel, queue) == [b"1", b"2", b"3", b"4"]


def test_the_generator_ends_when_its_queue_is_deleted(connect: Connect, names: Names) -> None:
    connection = connect()
    channel, other = connection.channel(), connection.channel()
    queue = names.queue()
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"last")
    bodies = []
    for _, _, body in channel.consume(queue, auto_ack=True):
        bodies.append(body)
        other.queue_delete(queue)
    assert bodies == [b"last"]
