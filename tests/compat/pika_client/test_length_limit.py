"""Length limits: what counts, and the answers to a message too many: drop the head or refuse it.

1. Only ready messages count, by number and by octets of their bodies.
2. A publisher is told (basic.nack) when at least one queue refused; that others took the message does not change it.
"""

from __future__ import annotations

from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError

from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    channel_closed_with,
    collect,
    drain,
    emptied,
    get,
    hold,
    publish_in_flight,
    settle,
    wait_for_ready,
)

REFUSING = ["reject-publish", "reject-publish-dlx"]


def limited(channel: BlockingChannel, names: Names, *, durable: bool = False, **limits: Any) -> str:
    """Declare a queue with `max_length`, `max_length_bytes`, `overflow` and the like."""
    queue = names.queue()
    arguments = {"x-" + key.replace("_", "-"): value for key, value in limits.items()}
    channel.queue_declare(queue, durable=durable, arguments=arguments)
    return queue


def publish_numbers(channel: BlockingChannel, queue: str, count: int) -> None:
    """Publish b"0", b"1" and so on, an octet each up to ten."""
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number)


def accepted(confirming: BlockingChannel, queue: str, body: bytes, exchange: str = "") -> bool:
    """Publish on a channel with confirms; tell whether the broker acked it."""
    try:
        confirming.basic_publish(exchange, queue, body)
    except NackError:
        return False
    return True


@pytest.fixture
def confirming(channel: BlockingChannel) -> BlockingChannel:
    """The channel with confirms: a publish returns when its queues have taken or refused it."""
    channel.confirm_delivery()
    return channel


# drop-head


@pytest.mark.parametrize("overflow", [{}, {"overflow": "drop-head"}])
@pytest.mark.parametrize("durable", [False, True])
def test_a_full_queue_drops_its_oldest_messages(
    channel: BlockingChannel, names: Names, overflow: dict[str, str], durable: bool
) -> None:
    queue = limited(channel, names, durable=durable, max_length=3, **overflow)
    publish_numbers(channel, queue, 10)
    assert drain(channel, queue) == [b"7", b"8", b"9"]


def test_a_queue_too_full_in_octets_drops_as_many_as_it_takes(channel: BlockingChannel, names: Names) -> None:
    queue = limited(channel, names, max_length_bytes=100)
    for size in (30, 30, 30, 10, 80):
        channel.basic_publish("", queue, b"x" * size)
    assert [len(body) for body in drain(channel, queue)] == [10, 80]


def test_a_message_larger_than_the_whole_queue_leaves_it_empty(channel: BlockingChannel, names: Names) -> None:
    queue = limited(channel, names, max_length_bytes=100)
    channel.basic_publish("", queue, b"small")
    channel.basic_publish("", queue, b"x" * 101)
    assert emptied(channel, queue) == 0


def test_whichever_limit_is_reached_first_counts(channel: BlockingChannel, names: Names) -> None:
    queue = limited(channel, names, max_length=3, max_length_bytes=10)
    for size in (1, 1, 1, 1):
        channel.basic_publish("", queue, b"x" * size)
    assert emptied(channel, queue) == 3
    for size in (6, 6):
        channel.basic_publish("", queue, b"x" * size)
    assert emptied(channel, queue) == 1


def test_only_bodies_count_in_octets(channel: BlockingChannel, names: Names) -> None:
    queue = limited(channel, names, max_length_bytes=10)
    large = BasicProperties(headers={"padding": "x" * 1000}, correlation_id="y" * 200)
    for _ in range(5):
        channel.basic_publish("", queue, b"ab", large)
    for _ in range(20):
        channel.basic_publish("", queue, b"", large)
    assert emptied(channel, queue) == 25


def test_a_publisher_is_acked_for_what_is_dropped(confirming: BlockingChannel, names: Names) -> None:
    queue = limited(confirming, names, max_length=1)
    assert all(accepted(confirming, queue, b"%d" % number) for number in range(5))
    assert drain(confirming, queue) == [b"4"]


def test_unacknowledged_messages_do_not_count(channel: BlockingChannel, names: Names) -> None:
    queue = limited(channel, names, max_length=2, max_length_bytes=2)
    publish_numbers(channel, queue, 2)
    tags = [hold(channel, queue) for _ in range(2)]
    publish_numbers(channel, queue, 2)
    assert drain(channel, queue) == [b"0", b"1"]
    for tag in tags:
        channel.basic_ack(tag)


def test_requeueing_drops_what_is_too_much_from_the_head(channel: BlockingChannel, names: Names) -> None:
    queue = limited(channel, names, max_length=3)
    publish_numbers(channel, queue, 2)
    tags = [hold(channel, queue) for _ in range(2)]
    for body in (b"2", b"3"):
        channel.basic_publish("", queue, body)
    channel.basic_nack(tags[-1], multiple=True, requeue=True)
    assert drain(channel, queue) == [b"1", b"2", b"3"]


def test_a_requeued_message_is_the_head_and_goes_first(channel: BlockingChannel, names: Names) -> None:
    queue = limited(channel, names, max_length=2)
    channel.basic_publish("", queue, b"old")
    tag = hold(channel, queue)
    publish_numbers(channel, queue, 2)
    channel.basic_reject(tag, requeue=True)
    assert drain(channel, queue) == [b"0", b"1"]


def test_what_goes_straight_to_a_consumer_never_counts(channel: BlockingChannel, names: Names) -> None:
    queue = limited(channel, names, max_length=1)
    inbox = Inbox(channel)
    inbox.consume(queue)
    publish_numbers(channel, queue, 100)
    inbox.wait_for(100)
    assert inbox.bodies == [b"%d" % number for number in range(100)]


def test_a_consumer_whose_prefetch_is_used_up_gets_what_was_not_dropped(channel: BlockingChannel, names: Names) -> None:
    queue = limited(channel, names, max_length=2)
    channel.basic_qos(prefetch_count=1)
    inbox = Inbox(channel, acks=False)
    inbox.consume(queue)
    publish_numbers(channel, queue, 1)
    inbox.wait_for(1)
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", queue, body)
    settle(channel, queue)
    channel.basic_ack(inbox.tags[0])
    inbox.wait_for(2)
    channel.basic_ack(inbox.tags[1])
    inbox.wait_for(3)
    assert inbox.bodies == [b"0", b"2", b"3"]


def test_expired_messages_make_room_before_live_ones_are_dropped(confirming: BlockingChannel, names: Names) -> None:
    queue = limited(confirming, names, max_length=2)
    confirming.basic_publish("", queue, b"mortal", BasicProperties(expiration="50"))
    confirming.basic_publish("", queue, b"live")
    wait_for_ready(confirming, queue, 1)
    confirming.basic_publish("", queue, b"new")
    assert drain(confirming, queue) == [b"live", b"new"]


# a limit of zero


@pytest.mark.parametrize("limit", [{"max_length": 0}, {"max_length_bytes": 0}])
def test_a_queue_of_length_zero_keeps_nothing_and_hands_over_everything(
    channel: BlockingChannel, names: Names, limit: dict[str, Any]
) -> None:
    queue = limited(channel, names, **limit)
    publish_numbers(channel, queue, 3)
    assert emptied(channel, queue) == 0
    inbox = Inbox(channel)
    inbox.consume(queue)
    publish_numbers(channel, queue, 3)
    inbox.wait_for(3)
    assert inbox.bodies == [b"0", b"1", b"2"]


def test_no_octets_at_all_leave_room_for_empty_messages(channel: BlockingChannel, names: Names) -> None:
    queue = limited(channel, names, max_length_bytes=0)
    for _ in range(3):
        channel.basic_publish("", queue, b"")
    assert emptied(channel, queue) == 3


def test_a_queue_of_length_zero_loses_what_is_requeued(channel: BlockingChannel, names: Names) -> None:
    queue = limited(channel, names, max_length=0)
    inbox = Inbox(channel)
    tag = inbox.consume(queue)
    publish_numbers(channel, queue, 1)
    inbox.wait_for(1)
    channel.basic_cancel(tag)
    channel.basic_reject(inbox.tags[0], requeue=True)
    assert emptied(channel, queue) == 0


@pytest.mark.parametrize("overflow", REFUSING)
def test_a_queue_of_length_zero_that_refuses_refuses_even_what_a_consumer_waits_for(
    confirming: BlockingChannel, names: Names, overflow: str
) -> None:
    queue = limited(confirming, names, max_length=0, overflow=overflow)
    inbox = Inbox(confirming)
    inbox.consume(queue)
    assert not accepted(confirming, queue, b"x")
    settle(confirming, queue)
    assert inbox.bodies == []


# reject-publish


@pytest.mark.parametrize("overflow", REFUSING)
@pytest.mark.parametrize("durable", [False, True])
def test_a_full_queue_refuses_and_keeps_what_it_has(
    confirming: BlockingChannel, names: Names, overflow: str, durable: bool
) -> None:
    queue = limited(confirming, names, durable=durable, max_length=3, overflow=overflow)
    answers = [accepted(confirming, queue, b"%d" % number) for number in range(6)]
    assert answers == [True] * 3 + [False] * 3
    assert drain(confirming, queue) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("overflow", REFUSING)
def test_a_publisher_without_confirms_is_told_nothing(channel: BlockingChannel, names: Names, overflow: str) -> None:
    queue = limited(channel, names, max_length=2, overflow=overflow)
    publish_numbers(channel, queue, 5)
    assert drain(channel, queue) == [b"0", b"1"]


def test_a_refused_mandatory_message_is_nacked_and_not_returned(confirming: BlockingChannel, names: Names) -> None:
    queue = limited(confirming, names, max_length=0, overflow="reject-publish")
    with pytest.raises(NackError) as caught:
        confirming.basic_publish("", queue, b"x", mandatory=True)
    assert caught.value.messages == []


def test_a_limit_in_octets_refuses_what_does_not_fit_and_takes_what_does(
    confirming: BlockingChannel, names: Names
) -> None:
    queue = limited(confirming, names, max_length_bytes=10, overflow="reject-publish")
    sizes = [6, 5, 4, 1, 0]
    assert [accepted(confirming, queue, b"x" * size) for size in sizes] == [True, False, True, False, True]
    assert [len(body) for body in drain(confirming, queue)] == [6, 4, 0]


@pytest.mark.parametrize("how", ["get", "acknowledged get", "purge", "consume", "expiry"])
def test_a_full_queue_accepts_again_as_soon_as_there_is_room(
    confirming: BlockingChannel, names: Names, how: str
) -> None:
    queue = limited(confirming, names, max_length=1, overflow="reject-publish")
    mortal = BasicProperties(expiration="100") if how == "expiry" else None
    confirming.basic_publish("", queue, b"first", mortal)
    if how == "expiry":
        wait_for_ready(confirming, queue, 0)
    else:
        assert not accepted(confirming, queue, b"too much")
    if how == "get":
        hold(confirming, queue)
    elif how == "acknowledged get":
        get(confirming, queue, auto_ack=True)
    elif how == "purge":
        confirming.queue_purge(queue)
    elif how == "consume":
        confirming.basic_qos(prefetch_count=1)
        inbox = Inbox(confirming)
        inbox.consume(queue)
        inbox.wait_for(1)
    assert accepted(confirming, queue, b"second")
    assert not accepted(confirming, queue, b"too much")


def test_requeueing_is_never_refused(confirming: BlockingChannel, names: Names) -> None:
    queue = limited(confirming, names, max_length=2, overflow="reject-publish")
    publish_numbers(confirming, queue, 2)
    tags = [hold(confirming, queue) for _ in range(2)]
    publish_numbers(confirming, queue, 2)
    confirming.basic_nack(tags[-1], multiple=True, requeue=True)
    assert not accepted(confirming, queue, b"x")
    assert emptied(confirming, queue) == 4


def test_a_commit_that_a_queue_refuses_part_of_closes_the_channel(connect: Connect, names: Names) -> None:
    connection = connect()
    channel, reader = connection.channel(), connection.channel()
    queue = limited(channel, names, max_length=2, overflow="reject-publish")
    channel.tx_select()
    publish_numbers(channel, queue, 5)
    with channel_closed_with(406, "PRECONDITION_FAILED - partial tx completion"):
        channel.tx_commit()
    # RabbitMQ keeps the first two; a broker whose transactions are atomic may keep none
    assert set(drain(reader, queue)) <= {b"0", b"1"}


# several queues


@pytest.mark.parametrize("overflow", REFUSING)
def test_one_refusing_queue_of_many_is_a_nack_and_the_others_have_the_message(
    confirming: BlockingChannel, names: Names, overflow: str
) -> None:
    exchange = names.exchange()
    confirming.exchange_declare(exchange, "fanout")
    queues = [limited(confirming, names) for _ in range(2)]
    queues.insert(1, limited(confirming, names, max_length=1, overflow=overflow))
    for queue in queues:
        confirming.queue_bind(queue, exchange)
    assert accepted(confirming, "", b"0", exchange)
    assert not accepted(confirming, "", b"1", exchange)
    assert [drain(confirming, queue) for queue in queues] == [[b"0", b"1"], [b"0"], [b"0", b"1"]]


def test_only_the_refused_ones_of_many_in_flight_are_nacked(channel: BlockingChannel, names: Names) -> None:
    full, roomy = limited(channel, names, max_length=0, overflow="reject-publish"), limited(channel, names)
    acked, nacked = publish_in_flight(channel, [roomy if number % 3 else full for number in range(1, 301)], b"x")
    assert nacked == set(range(3, 301, 3))
    assert acked == set(range(1, 301)) - nacked


def test_messages_may_pass_a_limit_one_at_a_time_for_ever(connect: Connect, names: Names) -> None:
    sender, reader = connect().channel(), connect().channel()
    queue = limited(sender, names, max_length=1, overflow="reject-publish")
    sender.confirm_delivery()
    for number in range(50):
        assert accepted(sender, queue, b"%d" % number)
        assert [body for *_, body in collect(reader, queue, 1)] == [b"%d" % number]
