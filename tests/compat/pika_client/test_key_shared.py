"""Key-shared queues as pika's users have them: workers on connections of their own, some of which die. Warren only."""

from __future__ import annotations

from collections import defaultdict

import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel

from ..broker import Broker
from ..conftest import Names
from .dialogue import Connect, Inbox, pump, ready


@pytest.fixture(autouse=True)
def _warren_only(broker: Broker) -> None:
    if not broker.is_warren:
        pytest.skip("RabbitMQ has no queue of this kind")


def declare(channel: BlockingChannel, names: Names, **arguments: object) -> str:
    """Declare a durable queue whose messages have their key in the header ``customer``."""
    queue = names.queue()
    more = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    shared = {"x-key-shared": True, "x-key-header": "customer"}
    channel.queue_declare(queue, durable=True, arguments=shared | more)
    return queue


def publish(channel: BlockingChannel, queue: str, *bodies: str) -> None:
    """Publish messages whose key is what stands before the dash."""
    for body in bodies:
        properties = BasicProperties(headers={"customer": body.partition("-")[0]}, delivery_mode=2)
        channel.basic_publish("", queue, body.encode(), properties)


def worker(connect: Connect, queue: str, prefetch: int) -> tuple[BlockingChannel, Inbox]:
    """Consume on a connection of its own, without answering."""
    channel = connect().channel()
    channel.basic_qos(prefetch_count=prefetch)
    inbox = Inbox(channel)
    inbox.consume(queue)
    return channel, inbox


def test_the_routing_key_is_the_key_where_no_header_is_named(channel: BlockingChannel, names: Names) -> None:
    queue, exchange = names.queue(), names.exchange()
    channel.exchange_declare(exchange, "topic")
    channel.queue_declare(queue, arguments={"x-key-shared": True})
    channel.queue_bind(queue, exchange, "#")
    one, two = Inbox(channel), Inbox(channel)
    one.consume(queue)
    two.consume(queue)
    for number in range(6):
        channel.basic_publish(exchange, f"order.{number % 2}", str(number).encode())
    pump(channel.connection, lambda: len(one.bodies) + len(two.bodies) == 6, "six deliveries")
    assert sorted([one.bodies, two.bodies]) == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]


def test_workers_come_and_go_and_every_customer_is_served_in_order(
    channel: BlockingChannel, connect: Connect, names: Names
) -> None:
    queue = declare(channel, names)
    channel.confirm_delivery()
    customers = [f"customer{number}" for number in range(7)]
    total = 40
    publish(channel, queue, *[f"{customer}-{number}" for number in range(total) for customer in customers])
    done: dict[str, list[int]] = defaultdict(list)

    def work(inbox: Inbox, count: int, *, dies: bool) -> None:
        """Answer `count` messages; then leave, with the other deliveries unanswered, or continue."""
        served = inbox.wait_for(count)[:count]
        for delivery in served:
            customer, _, number = delivery.body.decode().partition("-")
            assert delivery.properties.headers == {"customer": customer}
            done[customer].append(int(number))
            inbox_channel = channels[id(inbox)]
            assert delivery.method.delivery_tag is not None
            inbox_channel.basic_ack(delivery.method.delivery_tag)
        if dies:
            channels[id(inbox)].connection.close()
        else:
            del inbox.deliveries[:count]

    channels: dict[int, BlockingChannel] = {}
    inboxes: list[Inbox] = []
    for _ in range(3):
        own, inbox = worker(connect, queue, 5)
        channels[id(inbox)] = own
        inboxes.append(inbox)
    # The second and third answer part of what they have and die; a fourth takes their place.
    work(inboxes[1], 3, dies=True)
    work(inboxes[2], 2, dies=True)
    own, inbox = worker(connect, queue, 5)
    channels[id(inbox)] = own
    left = total * len(customers) - 5
    living = [inboxes[0], inbox]
    while left:
        for each in living:
            channels[id(each)].connection.process_data_events(time_limit=0.01)
            count = len(each.deliveries)
            if count:
                work(each, count, dies=False)
                left -= count
    assert dict(done) == {customer: list(range(total)) for customer in customers}
    assert ready(channel, queue) == 0
