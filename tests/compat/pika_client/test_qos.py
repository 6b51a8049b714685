"""basic.qos: a limit per consumer, one for the channel, and room made by each settlement."""

from __future__ import annotations

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from ..conftest import Names
from .dialogue import Connect, Inbox, pump, settle


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
