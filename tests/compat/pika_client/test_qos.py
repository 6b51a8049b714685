"""basic.qos: per consumer, per channel, what it does not limit, and what it refuses."""

from __future__ import annotations

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from ..conftest import Names
from .dialogue import Connect, Inbox, connection_closed_with, get, pump, settle


def filled(channel: BlockingChannel, names: Names, count: int) -> str:
    """Return a queue holding the messages "0", "1", …"""
    queue = names.queue()
    channel.queue_declare(queue)
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number)
    return queue


@pytest.mark.parametrize("prefetch_count", [1, 3, 10])
def test_a_consumer_holds_no_more_than_its_prefetch(
    channel: BlockingChannel, names: Names, prefetch_count: int
) -> None:
    queue = filled(channel, names, 20)
    channel.basic_qos(prefetch_count=prefetch_count)
    inbox = Inbox(channel)
    inbox.consume(queue)
    inbox.wait_for(prefetch_count)
    settle(channel, queue)
    assert len(inbox.bodies) == prefetch_count
    channel.basic_ack(1)
    inbox.wait_for(prefetch_count + 1)
    settle(channel, queue)
    assert len(inbox.bodies) == prefetch_count + 1


@pytest.mark.parametrize("settlement", ["ack", "ack multiple", "nack", "reject"])
def test_every_settlement_makes_room(channel: BlockingChannel, names: Names, settlement: str) -> None:
    queue = filled(channel, names, 20)
    channel.basic_qos(prefetch_count=4)
    inbox = Inbox(channel)
    inbox.consume(queue)
    inbox.wait_for(4)
    if settlement == "ack":
        channel.basic_ack(3)
    elif settlement == "ack multiple":
        channel.basic_ack(3, multiple=True)
    elif settlement == "nack":
        channel.basic_nack(2, multiple=True, requeue=False)
    else:
        channel.basic_reject(4, requeue=False)
    settled = {"ack": 1, "ack multiple": 3, "nack": 2, "reject": 1}[settlement]
    inbox.wait_for(4 + settled)
    settle(channel, queue)
    assert len(inbox.bodies) == 4 + settled


def test_no_limit_without_qos_and_with_zero(channel: BlockingChannel, names: Names) -> None:
    queue = filled(channel, names, 500)
    channel.basic_qos(prefetch_count=5)
    channel.basic_qos(prefetch_count=0)
    inbox = Inbox(channel)
    inbox.consume(queue)
    inbox.wait_for(500)


def test_each_consumer_of_a_channel_has_its_own_limit(channel: BlockingChannel, names: Names) -> None:
    first, second = filled(channel, names, 10), filled(channel, names, 10)
    channel.basic_qos(prefetch_count=2)
    one, two = Inbox(channel), Inbox(channel)
    one.consume(first)
    two.consume(second)
    one.wait_for(2)
    two.wait_for(2)
    settle(channel, first)
    settle(channel, second)
    assert (len(one.bodies), len(two.bodies)) == (2, 2)


def test_a_new_limit_holds_for_new_consumers_only(channel: BlockingChannel, names: Names) -> None:
    first, second = filled(channel, names, 10), filled(channel, names, 10)
    channel.basic_qos(prefetch_count=2)
    one, two = Inbox(channel), Inbox(channel)
    one.consume(first)
    channel.basic_qos(prefetch_count=5)
    two.consume(second)
    one.wait_for(2)
    two.wait_for(5)
    settle(channel, first)
    settle(channel, second)
    assert (len(one.bodies), len(two.bodies)) == (2, 5)


def test_a_global_limit_is_shared_by_all_consumers_of_the_channel(channel: BlockingChannel, names: Names) -> None:
    first, second = filled(channel, names, 10), filled(channel, names, 10)
    channel.basic_qos(prefetch_count=3, global_qos=True)
    one, two = Inbox(channel), Inbox(channel)
    one.consume(first)
    two.consume(second)
    pump(channel.connection, lambda: len(one.bodies) + len(two.bodies) >= 3, "three deliveries")
    settle(channel, first)
    settle(channel, second)
    assert len(one.bodies) + len(two.bodies) == 3
    channel.basic_ack(3, multiple=True)
    pump(channel.connection, lambda: len(one.bodies) + len(two.bodies) >= 6, "three more")
    settle(channel, first)
    settle(channel, second)
    assert len(one.bodies) + len(two.bodies) == 6


def test_a_global_limit_can_be_raised_and_lifted_while_consuming(channel: BlockingChannel, names: Names) -> None:
    queue = filled(channel, names, 30)
    channel.basic_qos(prefetch_count=2, global_qos=True)
    inbox = Inbox(channel)
    inbox.consume(queue)
    inbox.wait_for(2)
    settle(channel, queue)
    assert len(inbox.bodies) == 2
    channel.basic_qos(prefetch_count=6, global_qos=True)
    inbox.wait_for(6)
    settle(channel, queue)
    assert len(inbox.bodies) == 6
    channel.basic_qos(prefetch_count=0, global_qos=True)
    inbox.wait_for(30)


def test_a_global_limit_can_be_lowered_while_consuming(channel: BlockingChannel, names: Names) -> None:
    queue = filled(channel, names, 30)
    channel.basic_qos(prefetch_count=6, global_qos=True)
    inbox = Inbox(channel)
    inbox.consume(queue)
    inbox.wait_for(6)
    channel.basic_qos(prefetch_count=2, global_qos=True)
    channel.basic_ack(4, multiple=True)
    settle(channel, queue)
    assert len(inbox.bodies) == 6
    channel.basic_ack(5)
    inbox.wait_for(7)
    settle(channel, queue)
    assert len(inbox.bodies) == 7


def test_both_limits_hold_together(channel: BlockingChannel, names: Names) -> None:
    first, second = filled(channel, names, 10), filled(channel, names, 10)
    channel.basic_qos(prefetch_count=2)
    channel.basic_qos(prefetch_count=3, global_qos=True)
    one, two = Inbox(channel), Inbox(channel)
    one.consume(first)
    one.wait_for(2)
    two.consume(second)
    two.wait_for(1)
    settle(channel, first)
    settle(channel, second)
    assert (len(one.bodies), len(two.bodies)) == (2, 1)


def test_limits_of_one_channel_do_not_bind_another(connect: Connect, names: Names) -> None:
    connection = connect()
    limited, free = connection.channel(), connection.channel()
    queue = filled(limited, names, 10)
    limited.basic_qos(prefetch_count=1, global_qos=True)
    one, two = Inbox(limited), Inbox(free)
    one.consume(queue)
    one.wait_for(1)
    two.consume(queue)
    two.wait_for(9)
    assert one.bodies == [b"0"]


@pytest.mark.parametrize("global_qos", [False, True])
def test_consumers_without_acknowledgement_are_not_limited(
    channel: BlockingChannel, names: Names, global_qos: bool
) -> None:
    queue = filled(channel, names, 50)
    channel.basic_qos(prefetch_count=1, global_qos=global_qos)
    inbox = Inbox(channel)
    inbox.consume(queue, auto_ack=True)
    inbox.wait_for(50)


@pytest.mark.parametrize("global_qos", [False, True])
def test_gets_are_not_limited(channel: BlockingChannel, names: Names, global_qos: bool) -> None:
    queue = filled(channel, names, 10)
    channel.basic_qos(prefetch_count=1, global_qos=global_qos)
    assert [get(channel, queue)[2] for _ in range(10)] == [b"%d" % number for number in range(10)]


def test_fair_dispatch_gives_work_to_whoever_is_free(connect: Connect, names: Names) -> None:
    queue = names.queue()
    connection = connect()
    slow, quick = connection.channel(), connection.channel()
    slow.queue_declare(queue)
    for channel in (slow, quick):
        channel.basic_qos(prefetch_count=1)
    stuck, working = Inbox(slow), Inbox(quick, acks=True)
    stuck.consume(queue)
    working.consume(queue)
    for number in range(11):
        slow.basic_publish("", queue, b"%d" % number)
    pump(connection, lambda: len(stuck.bodies) + len(working.bodies) == 11, "eleven deliveries")
    assert (len(stuck.bodies), len(working.bodies)) == (1, 10)
    slow.basic_ack(1)
    slow.basic_publish("", queue, b"again")
    pump(connection, lambda: b"again" in stuck.bodies + working.bodies, "the last delivery")


def test_a_prefetch_size_is_not_implemented(connect: Connect) -> None:
    channel = connect().channel()
    with connection_closed_with(540, "NOT_IMPLEMENTED - prefetch_size!=0 (1024)"):
        channel.basic_qos(prefetch_size=1024)
