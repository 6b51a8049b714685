"""Priority queues: higher levels leave first; prefetch and limits do not change that.

1. Levels are 0 to x-max-priority. No priority is 0; one above the maximum counts as the maximum and stays as it is.
2. Priority orders ready messages. It does not overtake deliveries that a consumer has already been sent.
"""

from __future__ import annotations

from typing import Any

from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from ..conftest import Names
from .dialogue import (
    drain,
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


# limits, expiry, dead letters


def test_a_letter_keeps_its_priority_in_a_priority_queue(channel: BlockingChannel, names: Names) -> None:
    letters = prioritized(channel, names, 9)
    queue = names.queue()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": letters, "x-max-length": 0}
    channel.queue_declare(queue, arguments=arguments)
    publish(channel, queue, 1, 9, 5)
    wait_for_ready(channel, letters, 3)
    assert in_order(channel, letters) == ["9", "5", "1"]
