"""basic.ack, nack, reject and recover as pika sends them: order of what goes back, flags, and unknown tags."""

from __future__ import annotations

from pika.adapters.blocking_connection import BlockingChannel

from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    channel_closed_with,
    drain,
    hold,
    round_trip,
    wait_for_ready,
)


def unknown(tag: int) -> str:
    """The text of 406 for a delivery tag that is not outstanding."""
    return f"PRECONDITION_FAILED - unknown delivery tag {tag}"


def filled(channel: BlockingChannel, names: Names, count: int) -> str:
    """Return a queue holding the messages "0", "1", …"""
    queue = names.queue()
    channel.queue_declare(queue)
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number)
    round_trip(channel)
    return queue


def held(channel: BlockingChannel, queue: str, count: int) -> list[int]:
    """Get `count` messages without acknowledging; return their tags."""
    return [hold(channel, queue) for _ in range(count)]


def left(connect: Connect, channel: BlockingChannel, queue: str) -> list[bytes]:
    """Close `channel` and return what is then in its queue."""
    channel.close()
    return drain(connect().channel(), queue)


# ack


def test_multiple_acknowledges_everything_up_to_the_tag(connect: Connect, names: Names) -> None:
    channel = connect().channel()
    queue = filled(channel, names, 6)
    held(channel, queue, 6)
    channel.basic_ack(2)
    channel.basic_ack(4, multiple=True)
    assert left(connect, channel, queue) == [b"4", b"5"]


def test_an_unknown_tag_settles_nothing_and_requeues_all(connect: Connect, names: Names) -> None:
    connection = connect()
    channel, reader = connection.channel(), connection.channel()
    queue = filled(channel, names, 3)
    held(channel, queue, 3)
    with channel_closed_with(406, unknown(9)):
        channel.basic_ack(9, multiple=True)
        round_trip(channel)
    wait_for_ready(reader, queue, 3)
    assert drain(reader, queue) == [b"0", b"1", b"2"]


# nack and reject


def test_nack_of_tag_zero_and_multiple_takes_everything(channel: BlockingChannel, names: Names) -> None:
    queue = filled(channel, names, 4)
    held(channel, queue, 4)
    channel.basic_nack(0, multiple=True, requeue=True)
    assert drain(channel, queue) == [b"0", b"1", b"2", b"3"]


# recover


def test_recover_redelivers_to_the_consumer(channel: BlockingChannel, names: Names) -> None:
    queue = filled(channel, names, 3)
    inbox = Inbox(channel)
    inbox.consume(queue)
    inbox.wait_for(3)
    channel.basic_recover(requeue=True)
    inbox.wait_for(6)
    assert inbox.bodies == [b"0", b"1", b"2"] * 2
    assert inbox.tags == [1, 2, 3, 4, 5, 6]
    assert [delivery.method.redelivered for delivery in inbox.deliveries] == [False] * 3 + [True] * 3


def test_tags_before_recover_are_unknown_after_it(channel: BlockingChannel, names: Names) -> None:
    queue = filled(channel, names, 1)
    held(channel, queue, 1)
    channel.basic_recover(requeue=True)
    with channel_closed_with(406, unknown(1)):
        channel.basic_ack(1)
        round_trip(channel)
