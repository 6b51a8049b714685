"""Super streams as pika's users have them: declared, published to, and consumed by several instances. Warren only."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from ..broker import Broker, WarrenProcess
from ..conftest import Names
from .dialogue import Connect, Inbox, pump, tag_of

TYPE = "x-super-stream"


@pytest.fixture(autouse=True)
def _warren_only(broker: Broker) -> None:
    if not broker.is_warren:
        pytest.skip("only Warren makes the partitions of a super stream, and has consumer groups")


def declare(channel: BlockingChannel, names: Names, count: int = 3) -> tuple[str, list[str]]:
    """Declare a super stream; return its name and those of its partitions."""
    name = names.exchange()
    arguments = {TYPE: count, "x-max-age": "1D"}
    channel.exchange_declare(name, TYPE, durable=True, arguments=arguments)
    return name, [names.adopt(f"{name}-{number}") for number in range(count)]


def publish(channel: BlockingChannel, exchange: str, count: int, keys: int = 30) -> None:
    """Publish numbers, and wait until the streams have them."""
    for number in range(count):
        channel.basic_publish(exchange, f"customer {number % keys}", b"%d" % number, mandatory=True)


class Instance:
    """An application that consumes from all partitions as one of a group, and answers what comes."""

    def __init__(self, connection: pika.BlockingConnection, partitions: list[str], *, acks: bool = True) -> None:
        self.connection = connection
        self.channel = connection.channel()
        self.channel.basic_qos(prefetch_count=5)
        self.inboxes = {partition: Inbox(self.channel, acks) for partition in partitions}
        for partition, inbox in self.inboxes.items():
            inbox.consume(partition, arguments={"x-group": "g", "x-stream-offset": "first"})

    def got(self) -> dict[str, list[bytes]]:
        """Return what came so far, by partition."""
        return {partition: inbox.bodies for partition, inbox in self.inboxes.items() if inbox.bodies}

    def count(self) -> int:
        return sum(len(bodies) for bodies in self.got().values())


def pump_all(instances: list[Instance], count: int) -> None:
    """Run all of them until they have `count` deliveries together."""
    head, *others = instances

    def done() -> bool:
        for instance in others:
            instance.connection.process_data_events(time_limit=0)
        return sum(instance.count() for instance in instances) >= count

    pump(head.connection, done, f"{count} deliveries")


def test_messages_of_a_key_are_in_one_partition_in_order(connect: Connect, names: Names) -> None:
    channel = connect().channel()
    channel.confirm_delivery()
    exchange, partitions = declare(channel, names)
    publish(channel, exchange, 90)
    instance = Instance(connect(), partitions)
    pump_all([instance], 90)
    got = instance.got()
    assert len(got) == 3
    homes = {
        key: [name for name, bodies in got.items() if any(int(each) % 30 == key for each in bodies)]
        for key in range(30)
    }
    assert all(len(found) == 1 for found in homes.values())
    assert all(bodies == sorted(bodies, key=int) for bodies in got.values())


def test_instances_share_the_partitions_and_take_over_from_one_that_dies(connect: Connect, names: Names) -> None:
    channel = connect().channel()
    channel.confirm_delivery()
    exchange, partitions = declare(channel, names, 4)
    instances = [Instance(connect(), partitions) for _ in range(2)]
    publish(channel, exchange, 120)
    pump_all(instances, 120)
    assert [sorted(instance.got()) for instance in instances] == [partitions[::2], partitions[1::2]]
    dead, left = instances
    dead.connection.close()
    publish(channel, exchange, 120)
    pump(left.connection, lambda: set(left.got()) == set(partitions), "all partitions")
    pump(left.connection, lambda: left.count() + dead.count() >= 240, "the rest")
    delivered = Counter(body for each in instances for bodies in each.got().values() for body in bodies)
    assert set(delivered) == {b"%d" % number for number in range(120)}
    assert all(count >= 2 for count in delivered.values())


def test_a_super_stream_and_how_far_its_groups_came_survive_kill_9(broker: Broker, tmp_path: Path) -> None:
    if not broker.started_here:
        pytest.skip("needs a broker of its own to kill")
    process = WarrenProcess(tmp_path)
    process.start()
    arguments = {TYPE: 2}

    def opened() -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.amqp_port))

    try:
        channel: Any = opened().channel()
        channel.exchange_declare("orders", TYPE, durable=True, arguments=arguments)
        channel.confirm_delivery()
        publish(channel, "orders", 40)
        partitions = ["orders-0", "orders-1"]
        instance = Instance(opened(), partitions, acks=False)
        pump_all([instance], 10)
        for inbox in instance.inboxes.values():
            instance.channel.basic_ack(tag_of(inbox.deliveries[1].method))
            instance.channel.basic_ack(tag_of(inbox.deliveries[0].method))
        first = instance.got()
        instance.connection.close()  # which stores how far it came, and that is on disk before this is confirmed:
        channel.queue_declare("later", durable=True)
        channel.basic_publish("", "later", b"", pika.BasicProperties(delivery_mode=2))
        process.kill()
        process.start()
        channel = opened().channel()
        channel.exchange_declare("orders", TYPE, durable=True, arguments=arguments)
        instance = Instance(opened(), partitions)
        pump_all([instance], 36)
        delivered = [body for bodies in instance.got().values() for body in bodies]
        seen = {body for bodies in first.values() for body in bodies[:2]}
        assert set(delivered) | seen == {b"%d" % number for number in range(40)}
    finally:
        process.stop()
