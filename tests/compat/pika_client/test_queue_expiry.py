"""x-expires: a queue that nobody uses is deleted. Consuming, getting and declaring are use; publishing is not.

A passive declare is use as well, so these tests look for the queue with mandatory messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from ..broker import Broker
from ..conftest import Names
from .dialogue import Connect, Inbox, channel_closed_with, collect, drain, hold, outlast, pump, round_trip

SHORT_MS = 250
# Of a queue that a test uses before it expires: between two uses the test may stand still for that long.
USED_MS = 2000


def expiring(channel: BlockingChannel, names: Names, milliseconds: int = SHORT_MS, **arguments: object) -> str:
    """Declare a queue that expires."""
    queue = names.queue()
    channel.queue_declare(queue, arguments={"x-expires": milliseconds} | arguments)
    return queue


@pytest.fixture
def scout(connect: Connect) -> BlockingChannel:
    """A separate channel, to check whether a queue exists without using it."""
    channel = connect().channel()
    channel.confirm_delivery()
    return channel


def exists(scout: BlockingChannel, queue: str) -> bool:
    """Tell whether a message to `queue` finds it."""
    try:
        scout.basic_publish("", queue, b"anybody home?", mandatory=True)
    except UnroutableError:
        return False
    return True


def wait_until_gone(scout: BlockingChannel, queue: str) -> None:
    """Wait until messages to `queue` come back; those before are in it."""
    pump(scout.connection, lambda: not exists(scout, queue), f"{queue} to expire")


def outlive(channel: BlockingChannel, use: Callable[[], object]) -> None:
    """Use a queue that expires after USED_MS again and again for longer than that."""
    over_at = time.monotonic() + 1.5 * USED_MS / 1000

    def used_for_long_enough() -> bool:
        use()
        return time.monotonic() > over_at

    pump(channel.connection, used_for_long_enough, "one and a half times the expiry")


def test_a_queue_that_nobody_uses_is_deleted(
    channel: BlockingChannel, names: Names, broker: Broker, scout: BlockingChannel
) -> None:
    queue = expiring(channel, names)
    wait_until_gone(scout, queue)
    with channel_closed_with(404, f"NOT_FOUND - no {broker.queue(queue)}"):
        channel.queue_declare(queue, passive=True)


def test_the_shortest_life_of_a_queue_is_a_millisecond(
    channel: BlockingChannel, names: Names, scout: BlockingChannel
) -> None:
    wait_until_gone(scout, expiring(channel, names, 1))


def test_a_durable_queue_expires_too(channel: BlockingChannel, names: Names, scout: BlockingChannel) -> None:
    queue = names.queue()
    channel.queue_declare(queue, durable=True, arguments={"x-expires": SHORT_MS})
    wait_until_gone(scout, queue)


def test_messages_do_not_keep_a_queue_nor_does_publishing(
    channel: BlockingChannel, names: Names, scout: BlockingChannel
) -> None:
    queue = expiring(channel, names)
    wait_until_gone(scout, queue)


def test_unacknowledged_messages_of_a_get_do_not_keep_a_queue(
    channel: BlockingChannel, names: Names, scout: BlockingChannel
) -> None:
    queue = expiring(channel, names, USED_MS)
    channel.basic_publish("", queue, b"x")
    tag = hold(channel, queue)
    wait_until_gone(scout, queue)
    channel.basic_ack(tag)
    round_trip(channel)


def test_the_bindings_of_a_queue_expire_with_it(channel: BlockingChannel, names: Names, scout: BlockingChannel) -> None:
    queue, exchange = expiring(channel, names, USED_MS), names.exchange()
    channel.exchange_declare(exchange, "fanout")
    channel.queue_bind(queue, exchange)
    wait_until_gone(scout, queue)
    channel.queue_declare(queue)
    channel.basic_publish(exchange, "", b"lost")
    assert drain(channel, queue) == []


def test_the_name_of_an_expired_queue_is_free_for_another(
    channel: BlockingChannel, names: Names, scout: BlockingChannel
) -> None:
    queue = expiring(channel, names)
    wait_until_gone(scout, queue)
    declared = channel.queue_declare(queue, durable=True, arguments={"x-max-length": 5}).method
    assert declared.message_count == 0


@pytest.mark.parametrize("how", ["cancel", "channel close", "connection close"])
def test_a_queue_with_a_consumer_lives_until_the_consumer_is_gone(
    connect: Connect, names: Names, scout: BlockingChannel, how: str
) -> None:
    connection = connect()
    channel = connection.channel()
    queue = expiring(channel, names, USED_MS)
    tag = Inbox(channel).consume(queue, auto_ack=True)
    outlast(channel, USED_MS + SHORT_MS)
    assert exists(scout, queue)
    if how == "cancel":
        channel.basic_cancel(tag)
    elif how == "channel close":
        channel.close()
    else:
        connection.close()
    wait_until_gone(scout, queue)


def test_the_last_of_several_consumers_keeps_the_queue(
    channel: BlockingChannel, names: Names, scout: BlockingChannel
) -> None:
    queue = expiring(channel, names, USED_MS)
    tags = [Inbox(channel).consume(queue) for _ in range(2)]
    channel.basic_cancel(tags[0])
    outlast(channel, USED_MS + SHORT_MS)
    assert exists(scout, queue)
    channel.basic_cancel(tags[1])
    wait_until_gone(scout, queue)


def test_a_queue_that_is_declared_again_and_again_lives(
    channel: BlockingChannel, names: Names, scout: BlockingChannel
) -> None:
    queue = expiring(channel, names, USED_MS)
    outlive(channel, lambda: channel.queue_declare(queue, arguments={"x-expires": USED_MS}))
    assert exists(scout, queue)
    wait_until_gone(scout, queue)


def test_a_queue_that_is_declared_passively_again_and_again_lives(
    channel: BlockingChannel, names: Names, scout: BlockingChannel
) -> None:
    queue = expiring(channel, names, USED_MS)
    outlive(channel, lambda: channel.queue_declare(queue, passive=True))
    assert exists(scout, queue)
    wait_until_gone(scout, queue)


@pytest.mark.parametrize("filled", [False, True])
def test_a_queue_that_is_got_from_again_and_again_lives_empty_or_not(
    channel: BlockingChannel, names: Names, scout: BlockingChannel, filled: bool
) -> None:
    queue = expiring(channel, names, USED_MS)
    for _ in range(1000 if filled else 0):
        channel.basic_publish("", queue, b"x")
    outlive(channel, lambda: channel.basic_get(queue, auto_ack=True))
    assert exists(scout, queue)
    wait_until_gone(scout, queue)


def test_binding_purging_and_acknowledging_are_no_use(
    channel: BlockingChannel, names: Names, scout: BlockingChannel
) -> None:
    queue = expiring(channel, names, USED_MS)
    for _ in range(100):
        channel.basic_publish("", queue, b"x")
    tags = [hold(channel, queue) for _ in range(100)]

    def gone_all_the_same() -> bool:
        if not exists(scout, queue):
            return True
        try:
            channel.basic_ack(tags.pop())
            channel.queue_unbind(queue, "amq.direct", "k")
            channel.queue_purge(queue)
        except ChannelClosedByBroker:
            return True
        return False

    pump(channel.connection, gone_all_the_same, "the queue to expire")


def test_the_messages_of_an_expired_queue_are_not_dead_lettered(
    channel: BlockingChannel, names: Names, scout: BlockingChannel
) -> None:
    letters = names.queue("letters")
    channel.queue_declare(letters)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters}
    queue = expiring(channel, names, SHORT_MS, **arguments)
    wait_until_gone(scout, queue)
    # a letter from its successor, which does not expire, would arrive after its own
    channel.queue_declare(queue, arguments=arguments)
    channel.basic_publish("", queue, b"the only letter")
    channel.basic_reject(hold(channel, queue), requeue=False)
    assert [body for *_, body in collect(channel, letters, 1)] == [b"the only letter"]
    assert drain(channel, letters) == []


def test_a_queue_declared_anew_outlives_the_time_of_its_predecessor(
    channel: BlockingChannel, names: Names, scout: BlockingChannel
) -> None:
    queue = expiring(channel, names)
    channel.queue_delete(queue)
    channel.queue_declare(queue)
    outlast(channel, 3 * SHORT_MS)
    assert exists(scout, queue)
