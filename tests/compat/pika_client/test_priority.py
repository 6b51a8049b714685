"""Priority queues: higher levels leave first, each in order; what prefetch, requeueing, limits and expiry do to that.

1. Levels are 0 to x-max-priority. No priority is 0; one above the maximum counts as the maximum and stays as it is.
2. Priority orders ready messages. It does not overtake deliveries that a consumer has already been sent.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from ..broker import Broker
from ..conftest import Names
from .dialogue import (
    Connect,
    Inbox,
    collect,
    drain,
    emptied,
    get,
    hold,
    settle,
    wait_for_ready,
)


def prioritized(channel: BlockingChannel, names: Names, maximum: int, *, durable: bool = False, **more: Any) -> str:
    """Declare a queue with levels 0 to `maximum`."""
    queue = names.queue()
    arguments = {"x-" + name.replace("_", "-"): value for name, value in more.items()}
    channel.queue_declare(queue, durable=durable, arguments={"x-max-priority": maximum} | arguments)
    return queue


def publish(channel: BlockingChannel, queue: str, *priorities: int | None) -> None:
    """Publish a message of each priority whose body is that priority."""
    for priority in priorities:
        channel.basic_publish("", queue, str(priority).encode(), BasicProperties(priority=priority))


def in_order(channel: BlockingChannel, queue: str) -> list[str]:
    """Empty the queue; return the bodies in the order in which they left."""
    return [body.decode() for body in drain(channel, queue)]


def test_higher_priorities_leave_first(channel: BlockingChannel, names: Names) -> None:
    queue = prioritized(channel, names, 9)
    publish(channel, queue, 3, 9, 0, 5, 7, 1)
    assert in_order(channel, queue) == ["9", "7", "5", "3", "1", "0"]


def test_consumers_get_higher_priorities_first(channel: BlockingChannel, names: Names) -> None:
    queue = prioritized(channel, names, 9)
    publish(channel, queue, 3, 9, 0, 5, 7, 1)
    wait_for_ready(channel, queue, 6)
    inbox = Inbox(channel)
    inbox.consume(queue)
    inbox.wait_for(6)
    assert inbox.bodies == [b"9", b"7", b"5", b"3", b"1", b"0"]


@pytest.mark.parametrize("durable", [False, True])
def test_all_256_levels_are_distinct(channel: BlockingChannel, names: Names, durable: bool) -> None:
    queue = prioritized(channel, names, 255, durable=durable)
    priorities = list(range(256))
    random.Random(5).shuffle(priorities)
    publish(channel, queue, *priorities)
    assert in_order(channel, queue) == [str(priority) for priority in reversed(range(256))]


def test_each_level_keeps_the_order_of_publishing(channel: BlockingChannel, names: Names) -> None:
    queue = prioritized(channel, names, 3)
    expected: dict[int, list[bytes]] = {level: [] for level in range(4)}
    dice = random.Random(7)
    for number in range(400):
        level, body = dice.randrange(4), b"%d" % number
        expected[level].append(body)
        channel.basic_publish("", queue, body, BasicProperties(priority=level))
    assert drain(channel, queue) == [body for level in (3, 2, 1, 0) for body in expected[level]]


def test_no_priority_is_the_lowest(channel: BlockingChannel, names: Names) -> None:
    queue = prioritized(channel, names, 5)
    publish(channel, queue, None, 1, 0, None)
    assert in_order(channel, queue) == ["1", "None", "0", "None"]


def test_a_priority_above_the_maximum_counts_as_the_maximum_and_arrives_as_sent(
    channel: BlockingChannel, names: Names
) -> None:
    queue = prioritized(channel, names, 5)
    publish(channel, queue, 4, 200, 5, 6, 255)
    got = collect(channel, queue, 5)
    assert [body for *_, body in got] == [b"200", b"5", b"6", b"255", b"4"]
    assert [properties.priority for _, properties, _ in got] == [200, 5, 6, 255, 4]


@pytest.mark.parametrize(("maximum", "order"), [(0, ["0", "1", "2", "None"]), (1, ["1", "2", "0", "None"])])
def test_a_maximum_of_one_means_two_levels_and_a_maximum_of_zero_one(
    channel: BlockingChannel, names: Names, maximum: int, order: list[str]
) -> None:
    queue = prioritized(channel, names, maximum)
    publish(channel, queue, 0, 1, 2, None)
    assert in_order(channel, queue) == order


def test_a_queue_without_levels_ignores_priorities(channel: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    channel.queue_declare(queue)
    publish(channel, queue, 1, 9, 0, 5)
    got = collect(channel, queue, 4)
    assert [body for *_, body in got] == [b"1", b"9", b"0", b"5"]
    assert [properties.priority for _, properties, _ in got] == [1, 9, 0, 5]


def test_all_levels_are_counted_purged_and_deleted(channel: BlockingChannel, names: Names) -> None:
    queue = prioritized(channel, names, 9)
    publish(channel, queue, *range(10))
    wait_for_ready(channel, queue, 10)
    method, _, _ = get(channel, queue, auto_ack=True)
    assert method.message_count == 9
    assert emptied(channel, queue) == 9
    publish(channel, queue, 1, 2, 3)
    wait_for_ready(channel, queue, 3)
    assert channel.queue_delete(queue).method.message_count == 3


# prefetch


def test_with_a_prefetch_of_one_the_highest_ready_message_comes_next(channel: BlockingChannel, names: Names) -> None:
    queue = prioritized(channel, names, 9)
    channel.basic_qos(prefetch_count=1)
    inbox = Inbox(channel)
    inbox.consume(queue)
    publish(channel, queue, 0)
    inbox.wait_for(1)
    publish(channel, queue, 1, 9, 5)
    wait_for_ready(channel, queue, 3)
    for count in range(1, 4):
        channel.basic_ack(inbox.tags[count - 1])
        inbox.wait_for(count + 1)
    assert inbox.bodies == [b"0", b"9", b"5", b"1"]


def test_what_was_prefetched_is_not_overtaken(channel: BlockingChannel, names: Names) -> None:
    queue = prioritized(channel, names, 9)
    channel.basic_qos(prefetch_count=3)
    inbox = Inbox(channel)
    inbox.consume(queue)
    publish(channel, queue, 0, 1, 2)
    inbox.wait_for(3)
    publish(channel, queue, 9, 8)
    wait_for_ready(channel, queue, 2)
    channel.basic_ack(inbox.tags[0])
    inbox.wait_for(4)
    channel.basic_ack(inbox.tags[1])
    inbox.wait_for(5)
    assert inbox.bodies == [b"0", b"1", b"2", b"9", b"8"]


def test_a_consumer_without_prefetch_gets_messages_as_they_come(channel: BlockingChannel, names: Names) -> None:
    queue = prioritized(channel, names, 9)
    inbox = Inbox(channel)
    inbox.consume(queue)
    for count, priority in enumerate((1, 9, 0, 5), 1):
        publish(channel, queue, priority)
        inbox.wait_for(count)
    assert inbox.bodies == [b"1", b"9", b"0", b"5"]


# requeueing


def test_a_requeued_message_returns_to_its_place_in_its_level(channel: BlockingChannel, names: Names) -> None:
    queue = prioritized(channel, names, 9)
    for body in (b"first", b"second", b"third"):
        channel.basic_publish("", queue, body, BasicProperties(priority=5))
    tag = hold(channel, queue)
    publish(channel, queue, 9, 1)
    channel.basic_reject(tag, requeue=True)
    assert in_order(channel, queue) == ["9", "first", "second", "third", "1"]


def test_messages_of_many_levels_requeued_together_are_in_order_again(channel: BlockingChannel, names: Names) -> None:
    queue = prioritized(channel, names, 9)
    publish(channel, queue, 4, 9, 4, 0, 9, 2)
    tags = [hold(channel, queue) for _ in range(6)]
    channel.basic_nack(tags[-1], multiple=True, requeue=True)
    assert in_order(channel, queue) == ["9", "9", "4", "4", "2", "0"]


def test_messages_requeued_one_by_one_backwards_are_in_order_again(channel: BlockingChannel, names: Names) -> None:
    queue = prioritized(channel, names, 2)
    for number in range(6):
        channel.basic_publish("", queue, b"%d" % number, BasicProperties(priority=number % 3))
    tags = [hold(channel, queue) for _ in range(6)]
    for tag in reversed(tags):
        channel.basic_reject(tag, requeue=True)
    assert in_order(channel, queue) == ["2", "5", "1", "4", "0", "3"]


def test_a_closing_channel_gives_back_every_level_and_flags_it(connect: Connect, names: Names) -> None:
    connection = connect()
    first, second = connection.channel(), connection.channel()
    queue = prioritized(first, names, 9)
    publish(first, queue, 1, 9, 5)
    for _ in range(3):
        hold(first, queue)
    first.close()
    got = collect(second, queue, 3)
    assert [(body, method.redelivered) for method, _, body in got] == [(b"9", True), (b"5", True), (b"1", True)]


# limits, expiry, dead letters


def test_a_full_queue_drops_the_head_which_is_the_highest_priority(channel: BlockingChannel, names: Names) -> None:
    queue = prioritized(channel, names, 9, max_length=2)
    publish(channel, queue, 1, 9)
    publish(channel, queue, 5)
    assert in_order(channel, queue) == ["5", "1"]


def test_a_message_of_the_highest_priority_does_not_get_into_a_full_queue(
    channel: BlockingChannel, names: Names
) -> None:
    queue = prioritized(channel, names, 9, max_length=2)
    publish(channel, queue, 1, 2, 9)
    assert in_order(channel, queue) == ["2", "1"]


def test_a_full_queue_refuses_whatever_the_priority(channel: BlockingChannel, names: Names) -> None:
    queue = prioritized(channel, names, 9, max_length=2, overflow="reject-publish")
    publish(channel, queue, 1, 2, 9)
    assert in_order(channel, queue) == ["2", "1"]


def test_expired_messages_of_lower_levels_stop_counting(channel: BlockingChannel, names: Names, broker: Broker) -> None:
    queue = prioritized(channel, names, 9)
    channel.confirm_delivery()
    for priority in (9, 5, 1):
        channel.basic_publish("", queue, b"mortal", BasicProperties(priority=priority, expiration="50"))
        channel.basic_publish("", queue, b"%d" % priority, BasicProperties(priority=priority))
    # RabbitMQ looks at the head of the whole queue only, Warren everywhere, within a second
    wait_for_ready(channel, queue, 3 if broker.is_warren else 5)
    assert in_order(channel, queue) == ["9", "5", "1"]


def test_the_heads_of_all_levels_expire_when_nothing_above_them_lives(channel: BlockingChannel, names: Names) -> None:
    queue = prioritized(channel, names, 9, message_ttl=50)
    channel.confirm_delivery()
    publish(channel, queue, 1, 9, 5)
    wait_for_ready(channel, queue, 0)
    assert in_order(channel, queue) == []


def test_a_letter_keeps_its_priority_in_a_priority_queue(channel: BlockingChannel, names: Names) -> None:
    letters = prioritized(channel, names, 9)
    queue = names.queue()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters, "x-max-length": 0}
    channel.queue_declare(queue, arguments=arguments)
    publish(channel, queue, 1, 9, 5)
    wait_for_ready(channel, letters, 3)
    assert in_order(channel, letters) == ["9", "5", "1"]


@pytest.mark.parametrize("requeue", [False, True])
def test_rejections_reach_the_message_of_the_tag_whatever_its_level(
    channel: BlockingChannel, names: Names, requeue: bool
) -> None:
    queue = prioritized(channel, names, 9)
    publish(channel, queue, 1, 9, 5)
    tags = [hold(channel, queue) for _ in range(3)]
    channel.basic_reject(tags[1], requeue=requeue)
    channel.basic_ack(tags[0])
    channel.basic_reject(tags[2], requeue=True)
    settle(channel, queue)
    assert in_order(channel, queue) == (["5", "1"] if requeue else ["1"])
