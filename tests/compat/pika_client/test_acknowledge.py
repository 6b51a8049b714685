"""basic.ack, nack, reject and recover: what goes back where, in which order, marked how, and unknown tags."""

from __future__ import annotations

from typing import Any

import pytest
from pika import spec
from pika.adapters.blocking_connection import BlockingChannel

from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    channel_closed_with,
    connection_closed_with,
    drain,
    emptied,
    get,
    hold,
    round_trip,
    send_method,
    settle,
    tag_of,
    until_closed,
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


def test_an_acknowledged_message_is_gone(connect: Connect, names: Names) -> None:
    channel = connect().channel()
    queue = filled(channel, names, 3)
    for tag in held(channel, queue, 3):
        channel.basic_ack(tag)
    assert left(connect, channel, queue) == []


def test_messages_may_be_acknowledged_in_any_order(connect: Connect, names: Names) -> None:
    channel = connect().channel()
    queue = filled(channel, names, 5)
    held(channel, queue, 5)
    for tag in (4, 1, 5):
        channel.basic_ack(tag)
    assert left(connect, channel, queue) == [b"1", b"2"]


def test_multiple_acknowledges_everything_up_to_the_tag(connect: Connect, names: Names) -> None:
    channel = connect().channel()
    queue = filled(channel, names, 6)
    held(channel, queue, 6)
    channel.basic_ack(2)
    channel.basic_ack(4, multiple=True)
    assert left(connect, channel, queue) == [b"4", b"5"]


def test_multiple_with_tag_zero_acknowledges_everything(connect: Connect, names: Names) -> None:
    channel = connect().channel()
    queue = filled(channel, names, 4)
    held(channel, queue, 4)
    channel.basic_ack(0, multiple=True)
    assert left(connect, channel, queue) == []


@pytest.mark.parametrize("call", ["basic_ack", "basic_nack"])
def test_multiple_with_tag_zero_is_fine_when_nothing_is_outstanding(channel: BlockingChannel, call: str) -> None:
    getattr(channel, call)(0, multiple=True)
    round_trip(channel)


def test_multiple_spans_queues_and_consumers_of_the_channel(connect: Connect, names: Names) -> None:
    channel = connect().channel()
    first, second = filled(channel, names, 3), filled(channel, names, 3)
    for _ in range(2):
        held(channel, first, 1)
        held(channel, second, 1)
    channel.basic_ack(3, multiple=True)
    channel.close()
    reader = connect().channel()
    assert drain(reader, first) == [b"2"]
    assert drain(reader, second) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("call", "options"),
    [
        ("basic_ack", {}),
        ("basic_ack", {"multiple": True}),
        ("basic_nack", {}),
        ("basic_nack", {"multiple": True}),
        ("basic_reject", {}),
    ],
    ids=["ack", "ack-multiple", "nack", "nack-multiple", "reject"],
)
def test_a_tag_never_delivered_is_unknown(
    channel: BlockingChannel, names: Names, call: str, options: dict[str, bool]
) -> None:
    queue = filled(channel, names, 1)
    held(channel, queue, 1)
    with channel_closed_with(406, unknown(7)):
        getattr(channel, call)(7, **options)
        round_trip(channel)


@pytest.mark.parametrize("call", ["basic_ack", "basic_nack", "basic_reject"])
def test_a_settled_tag_is_unknown(channel: BlockingChannel, names: Names, call: str) -> None:
    queue = filled(channel, names, 1)
    held(channel, queue, 1)
    channel.basic_ack(1)
    with channel_closed_with(406, unknown(1)):
        getattr(channel, call)(1)
        round_trip(channel)


def test_tag_zero_alone_is_unknown(channel: BlockingChannel, names: Names) -> None:
    queue = filled(channel, names, 1)
    held(channel, queue, 1)
    with channel_closed_with(406, unknown(0)):
        channel.basic_ack(0)
        round_trip(channel)


def test_a_settled_tag_is_unknown_to_multiple_even_with_older_ones_outstanding(
    channel: BlockingChannel, names: Names
) -> None:
    queue = filled(channel, names, 3)
    held(channel, queue, 3)
    channel.basic_ack(2)
    with channel_closed_with(406, unknown(2)):
        channel.basic_ack(2, multiple=True)
        round_trip(channel)


def test_an_automatically_acknowledged_delivery_has_no_tag_to_settle(channel: BlockingChannel, names: Names) -> None:
    queue = filled(channel, names, 1)
    method, _, _ = get(channel, queue, auto_ack=True)
    with channel_closed_with(406, unknown(tag_of(method))):
        channel.basic_ack(tag_of(method))
        round_trip(channel)


def test_a_tag_of_another_channel_is_unknown(connect: Connect, names: Names) -> None:
    connection = connect()
    one, two = connection.channel(), connection.channel()
    queue = filled(one, names, 1)
    held(one, queue, 1)
    with channel_closed_with(406, unknown(1)):
        two.basic_ack(1)
        round_trip(two)


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


@pytest.mark.parametrize("call", ["basic_nack", "basic_reject"])
def test_without_requeue_a_refused_message_is_gone(connect: Connect, names: Names, call: str) -> None:
    channel = connect().channel()
    queue = filled(channel, names, 3)
    held(channel, queue, 2)
    getattr(channel, call)(1, requeue=False)
    assert left(connect, channel, queue) == [b"1", b"2"]


@pytest.mark.parametrize("call", ["basic_nack", "basic_reject"])
def test_with_requeue_a_refused_message_returns_to_its_place(channel: BlockingChannel, names: Names, call: str) -> None:
    queue = filled(channel, names, 5)
    held(channel, queue, 3)
    getattr(channel, call)(2, requeue=True)
    getattr(channel, call)(1, requeue=True)
    method, _, body = get(channel, queue)
    assert (body, method.redelivered) == (b"0", True)
    method, _, body = get(channel, queue)
    assert (body, method.redelivered) == (b"1", True)
    method, _, body = get(channel, queue)
    assert (body, method.redelivered) == (b"3", False)


def test_nack_multiple_requeues_all_in_order(channel: BlockingChannel, names: Names) -> None:
    queue = filled(channel, names, 6)
    held(channel, queue, 4)
    channel.basic_nack(3, multiple=True, requeue=True)
    assert drain(channel, queue) == [b"0", b"1", b"2", b"4", b"5"]


def test_nack_of_tag_zero_and_multiple_takes_everything(channel: BlockingChannel, names: Names) -> None:
    queue = filled(channel, names, 4)
    held(channel, queue, 4)
    channel.basic_nack(0, multiple=True, requeue=True)
    assert drain(channel, queue) == [b"0", b"1", b"2", b"3"]


def test_nack_multiple_without_requeue_drops_all(channel: BlockingChannel, names: Names) -> None:
    queue = filled(channel, names, 4)
    held(channel, queue, 3)
    channel.basic_nack(3, multiple=True, requeue=False)
    assert drain(channel, queue) == [b"3"]


def test_requeued_out_of_order_they_still_come_in_order(channel: BlockingChannel, names: Names) -> None:
    queue = filled(channel, names, 8)
    tags = held(channel, queue, 6)
    for tag in (tags[4], tags[0], tags[2], tags[5], tags[1]):
        channel.basic_nack(tag, requeue=True)
    assert drain(channel, queue) == [b"0", b"1", b"2", b"4", b"5", b"6", b"7"]


def test_a_requeued_message_reaches_another_consumer_redelivered(connect: Connect, names: Names) -> None:
    queue = names.queue()
    one, two = connect().channel(), connect().channel()
    one.queue_declare(queue)
    one.basic_publish("", queue, b"hot potato")
    tag = held(one, queue, 1)[0]
    inbox = Inbox(two, acks=True)
    inbox.consume(queue)
    one.basic_reject(tag, requeue=True)
    delivery = inbox.wait_for(1)[0]
    assert (delivery.body, delivery.method.redelivered) == (b"hot potato", True)


def test_redelivered_stays_true_over_many_rounds(channel: BlockingChannel, names: Names) -> None:
    queue = filled(channel, names, 1)
    flags = []
    for _ in range(5):
        method, _, _ = get(channel, queue)
        flags.append(method.redelivered)
        channel.basic_nack(tag_of(method), requeue=True)
    assert flags == [False, True, True, True, True]
    assert emptied(channel, queue) == 1


# recover


def test_recover_requeues_everything_outstanding(channel: BlockingChannel, names: Names) -> None:
    queue = filled(channel, names, 4)
    held(channel, queue, 3)
    channel.basic_ack(2)
    channel.basic_recover(requeue=True)
    taken = [get(channel, queue) for _ in range(3)]
    assert [body for _, _, body in taken] == [b"0", b"2", b"3"]
    assert [method.redelivered for method, _, _ in taken] == [True, True, False]
    assert [method.delivery_tag for method, _, _ in taken] == [4, 5, 6]


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


def test_recover_with_nothing_outstanding_is_answered(channel: BlockingChannel) -> None:
    channel.basic_recover(requeue=True)


def test_recover_async_requeues_without_an_answer(channel: BlockingChannel, names: Names) -> None:
    queue = filled(channel, names, 2)
    held(channel, queue, 2)
    send_method(channel, spec.Basic.RecoverAsync(requeue=True))
    round_trip(channel)
    assert drain(channel, queue) == [b"0", b"1"]


@pytest.mark.parametrize("method", [spec.Basic.Recover, spec.Basic.RecoverAsync])
def test_recover_without_requeue_is_not_implemented(connect: Connect, method: Any) -> None:
    connection = connect()
    channel = connection.channel()
    with connection_closed_with(540, "NOT_IMPLEMENTED - requeue=false"):
        send_method(channel, method(requeue=False))
        until_closed(connection)


# which client holds which message


def test_a_consumer_that_dies_gives_back_in_order_before_newer_messages(connect: Connect, names: Names) -> None:
    dying, reader = connect(), connect().channel()
    channel = dying.channel()
    queue = filled(channel, names, 10)
    channel.basic_qos(prefetch_count=4)
    inbox = Inbox(channel)
    inbox.consume(queue)
    inbox.wait_for(4)
    settle(channel, queue)
    assert inbox.bodies == [b"0", b"1", b"2", b"3"]
    dying.close()
    assert drain(reader, queue) == [b"%d" % number for number in range(10)]


def test_two_channels_giving_back_alternately_keep_the_order(connect: Connect, names: Names) -> None:
    connection = connect()
    one, two, reader = connection.channel(), connection.channel(), connection.channel()
    queue = filled(reader, names, 6)
    for _ in range(3):
        held(one, queue, 1)
        held(two, queue, 1)
    two.close()
    one.close()
    assert drain(reader, queue) == [b"%d" % number for number in range(6)]
