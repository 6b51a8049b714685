"""Time to live: of a queue's messages, of single ones, both, nothing at all, and what expiry does to counts and order.

1. An expiry is absolute and set when the message enters the queue. Only ready messages expire.
2. Nothing that has expired is delivered, whatever else has not been cleared away yet.
"""

from __future__ import annotations

from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from ..broker import Broker
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
    outlast,
    pump,
    ready,
    round_trip,
    settle,
    wait_for_ready,
)

SHORT_MS = 100
LONG_MS = 600_000


def lasting(milliseconds: int | str) -> BasicProperties:
    """Properties of a message that expires."""
    return BasicProperties(expiration=str(milliseconds))


def queue_with_ttl(channel: BlockingChannel, names: Names, milliseconds: int, **options: Any) -> str:
    """Declare a queue whose messages live for `milliseconds`."""
    queue = names.queue()
    channel.queue_declare(queue, arguments={"x-message-ttl": milliseconds}, **options)
    return queue


@pytest.fixture
def confirming(channel: BlockingChannel) -> BlockingChannel:
    """The channel with confirms: a publish returns when the message is in its queue and its time runs."""
    channel.confirm_delivery()
    return channel


# the source of the time


def test_messages_expire_after_the_time_to_live_of_their_queue(confirming: BlockingChannel, names: Names) -> None:
    queue = queue_with_ttl(confirming, names, SHORT_MS)
    for _ in range(3):
        confirming.basic_publish("", queue, b"x")
    wait_for_ready(confirming, queue, 0)
    assert drain(confirming, queue) == []


def test_a_message_expires_after_its_own_time_to_live(confirming: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    confirming.queue_declare(queue)
    confirming.basic_publish("", queue, b"x", lasting(SHORT_MS))
    wait_for_ready(confirming, queue, 0)
    assert drain(confirming, queue) == []


@pytest.mark.parametrize(("of_queue", "of_message"), [(SHORT_MS, LONG_MS), (LONG_MS, SHORT_MS)])
def test_the_shorter_of_both_times_counts(
    confirming: BlockingChannel, names: Names, of_queue: int, of_message: int
) -> None:
    queue = queue_with_ttl(confirming, names, of_queue)
    confirming.basic_publish("", queue, b"x", lasting(of_message))
    wait_for_ready(confirming, queue, 0)


def test_the_longer_of_both_times_never_counts(confirming: BlockingChannel, names: Names) -> None:
    queue = queue_with_ttl(confirming, names, LONG_MS)
    confirming.basic_publish("", queue, b"short", lasting(SHORT_MS))
    confirming.basic_publish("", queue, b"long")
    outlast(confirming, SHORT_MS)
    assert drain(confirming, queue) == [b"long"]


def test_a_message_without_time_to_live_stays_while_others_go(confirming: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    confirming.queue_declare(queue)
    for number in range(10):
        mortal = lasting(SHORT_MS) if number % 2 else None
        confirming.basic_publish("", queue, b"%d" % number, mortal)
    outlast(confirming, SHORT_MS)
    assert drain(confirming, queue) == [b"0", b"2", b"4", b"6", b"8"]


@pytest.mark.parametrize("expiration", ["0", "007", "+60000", "315360000000"])
def test_every_decimal_number_up_to_ten_years_is_an_expiration_and_arrives_as_sent(
    connect: Connect, names: Names, expiration: str
) -> None:
    queue = names.queue()
    sender, reader = connect().channel(), connect().channel()
    sender.queue_declare(queue)
    inbox = Inbox(reader)
    inbox.consume(queue, auto_ack=True)
    sender.basic_publish("", queue, b"x", lasting(expiration))
    delivery = inbox.wait_for(1)[0]
    assert (delivery.body, delivery.properties.expiration) == (b"x", expiration)


@pytest.mark.parametrize(("expiration", "reason"), [(" 5", "no_integer"), ("5 ", '{leftover_string," "}')])
def test_an_expiration_is_judged_whether_or_not_a_queue_takes_the_message(
    channel: BlockingChannel, names: Names, expiration: str, reason: str
) -> None:
    with channel_closed_with(406, f"PRECONDITION_FAILED - invalid expiration '{expiration}': {reason}"):
        channel.basic_publish("", names.unused(), b"x", lasting(expiration))
        round_trip(channel)


def test_a_persistent_message_in_a_durable_queue_expires_too(confirming: BlockingChannel, names: Names) -> None:
    queue = queue_with_ttl(confirming, names, SHORT_MS, durable=True)
    confirming.basic_publish("", queue, b"x" * 100_000, BasicProperties(delivery_mode=2))
    wait_for_ready(confirming, queue, 0)
    assert drain(confirming, queue) == []


def test_each_queue_has_its_own_time_for_the_same_message(confirming: BlockingChannel, names: Names) -> None:
    short, long = queue_with_ttl(confirming, names, SHORT_MS), queue_with_ttl(confirming, names, LONG_MS)
    exchange = names.exchange()
    confirming.exchange_declare(exchange, "fanout")
    confirming.queue_bind(short, exchange)
    confirming.queue_bind(long, exchange)
    confirming.basic_publish(exchange, "", b"x")
    assert [body for *_, body in collect(confirming, long, 1)] == [b"x"]
    confirming.basic_publish(exchange, "", b"y")
    wait_for_ready(confirming, short, 0)
    assert drain(confirming, long) == [b"y"]


def test_the_time_runs_from_the_commit_of_a_transaction(connect: Connect, names: Names) -> None:
    queue = names.queue()
    sender, reader = connect().channel(), connect().channel()
    sender.queue_declare(queue)
    inbox = Inbox(reader)
    inbox.consume(queue, auto_ack=True)
    sender.tx_select()
    sender.basic_publish("", queue, b"x", lasting(SHORT_MS))
    outlast(sender, SHORT_MS)
    sender.tx_commit()
    assert inbox.wait_for(1)[0].body == b"x"


# no time at all


@pytest.mark.parametrize("how", ["queue", "message"])
def test_with_a_time_to_live_of_zero_nothing_waits_for_a_consumer(
    channel: BlockingChannel, names: Names, how: str
) -> None:
    queue = queue_with_ttl(channel, names, 0 if how == "queue" else LONG_MS)
    for _ in range(3):
        channel.basic_publish("", queue, b"x", lasting(0 if how == "message" else LONG_MS))
    assert emptied(channel, queue) == 0


@pytest.mark.parametrize("how", ["queue", "message"])
def test_with_a_time_to_live_of_zero_a_waiting_consumer_still_gets_everything(
    channel: BlockingChannel, names: Names, how: str
) -> None:
    queue = queue_with_ttl(channel, names, 0 if how == "queue" else LONG_MS)
    inbox = Inbox(channel)
    inbox.consume(queue)
    for number in range(10):
        channel.basic_publish("", queue, b"%d" % number, lasting(0 if how == "message" else LONG_MS))
    inbox.wait_for(10)
    assert inbox.bodies == [b"%d" % number for number in range(10)]


def test_with_a_time_to_live_of_zero_a_consumer_whose_prefetch_is_used_up_gets_nothing(
    channel: BlockingChannel, names: Names
) -> None:
    queue = queue_with_ttl(channel, names, 0)
    channel.basic_qos(prefetch_count=1)
    inbox = Inbox(channel)
    inbox.consume(queue)
    channel.basic_publish("", queue, b"taken")
    inbox.wait_for(1)
    channel.basic_publish("", queue, b"too much")
    settle(channel, queue)
    channel.basic_ack(inbox.tags[0])
    settle(channel, queue)
    channel.basic_publish("", queue, b"taken again")
    inbox.wait_for(2)
    assert inbox.bodies == [b"taken", b"taken again"]


def test_a_mandatory_message_that_expires_at_once_is_confirmed_and_not_returned(
    confirming: BlockingChannel, names: Names
) -> None:
    queue = queue_with_ttl(confirming, names, 0)
    confirming.basic_publish("", queue, b"x", mandatory=True)
    assert drain(confirming, queue) == []


# unacknowledged and requeued


def taken_at_once(channel: BlockingChannel, queue: str, body: bytes) -> int:
    """Publish to a consumer that waits, so that no time to live is too short; return the delivery tag.

    The consumer is cancelled and the message stays unacknowledged.
    """
    inbox = Inbox(channel)
    consumer_tag = inbox.consume(queue)
    channel.basic_publish("", queue, body)
    inbox.wait_for(1)
    channel.basic_cancel(consumer_tag)
    return inbox.tags[0]


def test_an_unacknowledged_message_does_not_expire(connect: Connect, names: Names) -> None:
    channel, watcher = connect().channel(), connect().channel()
    queue = queue_with_ttl(channel, names, SHORT_MS)
    tag = taken_at_once(channel, queue, b"held")
    outlast(channel, SHORT_MS)
    channel.basic_ack(tag)
    round_trip(channel)
    assert ready(watcher, queue) == 0


@pytest.mark.parametrize("how", ["reject", "nack", "recover", "channel close", "connection close"])
def test_a_requeued_message_keeps_the_time_it_had(connect: Connect, names: Names, how: str) -> None:
    connection, watcher = connect(), connect().channel()
    channel = connection.channel()
    queue = queue_with_ttl(channel, names, SHORT_MS)
    tag = taken_at_once(channel, queue, b"too late")
    outlast(channel, SHORT_MS)
    if how == "reject":
        channel.basic_reject(tag, requeue=True)
    elif how == "nack":
        channel.basic_nack(tag, requeue=True)
    elif how == "recover":
        channel.basic_recover(requeue=True)
    elif how == "channel close":
        channel.close()
    else:
        connection.close()
    inbox = Inbox(watcher)
    inbox.consume(queue)
    watcher.basic_publish("", queue, b"in time")
    inbox.wait_for(1)
    assert inbox.bodies == [b"in time"]


def test_a_message_requeued_in_time_is_delivered_again(channel: BlockingChannel, names: Names) -> None:
    queue = queue_with_ttl(channel, names, LONG_MS)
    channel.basic_publish("", queue, b"x", lasting(LONG_MS))
    channel.basic_reject(hold(channel, queue), requeue=True)
    method, properties, body = get(channel, queue, auto_ack=True)
    assert (method.redelivered, properties.expiration, body) == (True, str(LONG_MS), b"x")


# never delivered


def test_a_consumer_that_frees_itself_gets_nothing_that_expired_meanwhile(
    confirming: BlockingChannel, names: Names
) -> None:
    queue = names.queue()
    confirming.queue_declare(queue)
    confirming.basic_qos(prefetch_count=1)
    inbox = Inbox(confirming)
    inbox.consume(queue)
    confirming.basic_publish("", queue, b"first")
    inbox.wait_for(1)
    for _ in range(5):
        confirming.basic_publish("", queue, b"expires", lasting(SHORT_MS))
    confirming.basic_publish("", queue, b"last")
    outlast(confirming, SHORT_MS)
    confirming.basic_ack(inbox.tags[0])
    inbox.wait_for(2)
    assert inbox.bodies == [b"first", b"last"]


def test_a_consumer_that_comes_later_gets_nothing_that_expired_meanwhile(
    confirming: BlockingChannel, names: Names
) -> None:
    queue = names.queue()
    confirming.queue_declare(queue)
    confirming.basic_publish("", queue, b"before")
    confirming.basic_publish("", queue, b"expires", lasting(SHORT_MS))
    confirming.basic_publish("", queue, b"after")
    outlast(confirming, SHORT_MS)
    inbox = Inbox(confirming)
    inbox.consume(queue)
    inbox.wait_for(2)
    assert inbox.bodies == [b"before", b"after"]


def test_a_get_skips_what_has_expired_and_does_not_count_it(confirming: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    confirming.queue_declare(queue)
    for _ in range(5):
        confirming.basic_publish("", queue, b"expires", lasting(SHORT_MS))
    confirming.basic_publish("", queue, b"live")
    confirming.basic_publish("", queue, b"live too")
    outlast(confirming, SHORT_MS)
    method, _, body = get(confirming, queue, auto_ack=True)
    assert (body, method.message_count) == (b"live", 1)


def test_a_thousand_messages_expire(confirming: BlockingChannel, names: Names) -> None:
    queue = queue_with_ttl(confirming, names, SHORT_MS)
    for number in range(1000):
        confirming.basic_publish("", queue, b"%d" % number)
    outlast(confirming, SHORT_MS)
    wait_for_ready(confirming, queue, 0)
    assert drain(confirming, queue) == []


# counts


def test_what_expired_at_the_head_is_counted_neither_by_purge_nor_by_delete(
    confirming: BlockingChannel, names: Names
) -> None:
    queue = queue_with_ttl(confirming, names, SHORT_MS)
    other = names.queue()
    confirming.queue_declare(other, arguments={"x-message-ttl": SHORT_MS})
    for _ in range(3):
        confirming.basic_publish("", queue, b"x")
        confirming.basic_publish("", other, b"x")
    wait_for_ready(confirming, queue, 0)
    wait_for_ready(confirming, other, 0)
    assert emptied(confirming, queue) == 0
    assert confirming.queue_delete(other).method.message_count == 0


def test_messages_expire_one_after_the_other_as_their_times_come(confirming: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    confirming.queue_declare(queue)
    confirming.basic_publish("", queue, b"1", lasting(SHORT_MS))
    confirming.basic_publish("", queue, b"2", lasting(2 * SHORT_MS))
    confirming.basic_publish("", queue, b"3", lasting(LONG_MS))
    counts: list[int] = []

    def only_the_last_is_left() -> bool:
        counts.append(ready(confirming, queue))
        return counts[-1] == 1

    pump(confirming.connection, only_the_last_is_left, "two of three messages to expire")
    assert counts == sorted(counts, reverse=True)
    assert drain(confirming, queue) == [b"3"]


def test_what_expired_behind_a_live_head_stops_counting(
    confirming: BlockingChannel, names: Names, broker: Broker
) -> None:
    queue = names.queue()
    confirming.queue_declare(queue)
    confirming.basic_publish("", queue, b"head")
    for _ in range(3):
        confirming.basic_publish("", queue, b"expires", lasting(SHORT_MS))
    if broker.is_warren:
        # within a second; RabbitMQ looks at the head only
        wait_for_ready(confirming, queue, 1)
    else:
        outlast(confirming, SHORT_MS)
        assert ready(confirming, queue) == 4
    assert drain(confirming, queue) == [b"head"]


def test_a_purged_message_is_not_missed_when_its_time_comes(confirming: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    confirming.queue_declare(queue)
    confirming.basic_publish("", queue, b"purged", lasting(SHORT_MS))
    confirming.queue_purge(queue)
    outlast(confirming, SHORT_MS)
    confirming.basic_publish("", queue, b"new")
    assert ready(confirming, queue) == 1
    assert drain(confirming, queue) == [b"new"]


def test_a_queue_declared_anew_has_its_new_time_to_live(confirming: BlockingChannel, names: Names) -> None:
    queue = queue_with_ttl(confirming, names, SHORT_MS)
    confirming.basic_publish("", queue, b"gone with the queue")
    confirming.queue_delete(queue)
    confirming.queue_declare(queue)
    confirming.basic_publish("", queue, b"stays")
    outlast(confirming, SHORT_MS)
    assert drain(confirming, queue) == [b"stays"]
