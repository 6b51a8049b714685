"""Length limits: a queue that drops its head, one that refuses, and what its publishers are told.

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
    Inbox,
    drain,
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


# a limit of zero


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


def test_a_refused_mandatory_message_is_nacked_and_not_returned(confirming: BlockingChannel, names: Names) -> None:
    queue = limited(confirming, names, max_length=0, overflow="reject-publish")
    with pytest.raises(NackError) as caught:
        confirming.basic_publish("", queue, b"x", mandatory=True)
    assert caught.value.messages == []


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


# several queues


def test_only_the_refused_ones_of_many_in_flight_are_nacked(channel: BlockingChannel, names: Names) -> None:
    full, roomy = limited(channel, names, max_length=0, overflow="reject-publish"), limited(channel, names)
    acked, nacked = publish_in_flight(channel, [roomy if number % 3 else full for number in range(1, 301)], b"x")
    assert nacked == set(range(3, 301, 3))
    assert acked == set(range(1, 301)) - nacked
