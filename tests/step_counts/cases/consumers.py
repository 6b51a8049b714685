"""Consumers that come and go, and publishes and answers beside n of them."""

from __future__ import annotations

from typing import Any

from engine_harness import Client, basic_consume, exchange_declare, publish_frames

from step_counts.cases.case import BOUNDED, EMPTY, LINEAR, Act, case, consuming, feed, publishing
from step_counts.meter import Meter, sending
from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.msgstore.log.message import Message
from warren.queues.selection import Selection


@case(m.BasicCancel, LINEAR)
def cancel_many(meter: Meter, n: int) -> Act:
    client = consuming(meter, n)
    return sending(client, 1, *[m.BasicCancel(f"c{at}", False) for at in range(n)])


@case(m.BasicConsume, LINEAR)
def consume_many(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q")
    return sending(client, 1, *[basic_consume("q", f"c{at}") for at in range(n)])


def in_a_group(meter: Meter, n: int, *, partition: bool = False, count: int = 1) -> Client:
    """Return a client with n consumers in `count` groups of stream q-0, which is a `partition` or none."""
    client = meter.channel()
    stream: dict[str, object] = {"x-queue-type": "stream"}
    if partition:
        feed(client, 1, exchange_declare("q", "x-super-stream", durable=True, arguments={"x-super-stream": 1}))
    else:
        client.declare("q-0", durable=True, arguments=stream)
    feed(client, 1, m.BasicQos(0, 10, False))
    feed(client, 1, *[consume_in_a_group(f"c{at}", at % count) for at in range(n)])
    assert len(meter.queue("q-0").consumers) == n
    return client


def consume_in_a_group(tag: str, group: int) -> m.BasicConsume:
    """Make a basic.consume of stream q-0 in a group."""
    return basic_consume("q-0", tag, arguments={"x-group": f"g{group}", "x-stream-offset": "first"})


@case(m.BasicConsume, BOUNDED)
def consume_in_a_group_of_many(meter: Meter, n: int) -> Act:
    return sending(in_a_group(meter, n), 1, consume_in_a_group("c", 0))


@case(m.BasicConsume, BOUNDED)
def consume_of_a_partition_in_a_group_of_many(meter: Meter, n: int) -> Act:
    return sending(in_a_group(meter, n, partition=True), 1, consume_in_a_group("c", 0))


@case(m.BasicConsume, BOUNDED)
def consume_in_one_of_many_groups(meter: Meter, n: int) -> Act:
    return sending(in_a_group(meter, n, count=n), 1, consume_in_a_group("c", 0))


@case(m.BasicCancel, BOUNDED)
def cancel_in_a_group_of_many(meter: Meter, n: int) -> Act:
    return sending(in_a_group(meter, n), 1, m.BasicCancel("c1" if n > 1 else "c0", False))


@case(m.BasicCancel, BOUNDED)
def cancel_of_the_one_that_a_group_of_many_serves(meter: Meter, n: int) -> Act:
    return sending(in_a_group(meter, n, partition=True), 1, m.BasicCancel("c0", False))


@case(m.BasicPublish, LINEAR)
def publish_to_a_queue_of_consumers_without_room(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q")
    feed(client, 1, m.BasicQos(0, 1, False), *[basic_consume("q", f"c{at}") for at in range(n)])
    publishing(client, n)
    client.take_bytes()
    return lambda: client.feed(publish_frames("", "q", b"x"))


@case(m.BasicConsume, LINEAR)
def consume_with_a_priority_of_their_own(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q")
    consumers = [basic_consume("q", f"c{at}", arguments={"x-priority": at * 7 % n}) for at in range(n)]
    return sending(client, 1, *consumers)


def unlike(meter: Meter, n: int) -> Client:
    """Return a client with n consumers without room, each with a priority of its own."""
    client = meter.channel()
    client.declare("q")
    feed(client, 1, m.BasicQos(0, 1, False))
    feed(client, 1, *[basic_consume("q", f"c{at}", arguments={"x-priority": at}) for at in range(n)])
    publishing(client, n)
    client.take_bytes()
    return client


@case(m.BasicPublish, BOUNDED)
def publish_beside_consumers_of_other_priorities_without_room(meter: Meter, n: int) -> Act:
    client = unlike(meter, n)
    client.feed(publish_frames("", "q", b"x"))
    data = publish_frames("", "q", b"x") * 20
    return lambda: client.feed(data)


@case(m.BasicAck, BOUNDED)
def ack_of_the_lowest_priority(meter: Meter, n: int) -> Act:
    client = unlike(meter, n)
    client.feed(publish_frames("", "q", b"x") * 20)
    return sending(client, 1, m.BasicAck(n, False))


@case(m.BasicCancel, BOUNDED)
def cancel_of_the_active_consumer_beside_other_priorities(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", arguments={"x-single-active-consumer": True})
    feed(client, 1, *[basic_consume("q", f"c{at}", arguments={"x-priority": n - at}) for at in range(n)])
    return sending(client, 1, m.BasicCancel("c0", False))


@case(m.BasicCancel, BOUNDED)
def cancel_when_half_of_the_priorities_are_gone(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q")
    feed(client, 1, *[basic_consume("q", f"c{at}", arguments={"x-priority": at}) for at in range(n)])
    feed(client, 1, *[m.BasicCancel(f"c{at}", False) for at in range(n // 2)])
    return sending(client, 1, m.BasicCancel(f"c{n // 2}", False))


@case(m.BasicAck, LINEAR)
def ack_and_publish_beside_consumers_without_room(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q")
    feed(client, 1, m.BasicQos(0, 1, False), *[basic_consume("q", f"c{at}") for at in range(n)])
    publishing(client, n)
    client.take_bytes()
    data = b"".join(method_frame(1, m.BasicAck(at + 1, False)) + publish_frames("", "q", b"x") * 2 for at in range(n))
    return lambda: client.feed(data)


@case(m.BasicAck, BOUNDED)
def ack_one_beside_consumers_without_room(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q")
    feed(client, 1, m.BasicQos(0, 1, False), *[basic_consume("q", f"c{at}") for at in range(n)])
    publishing(client, n + 10)
    feed(client, 1, m.BasicAck(n, False))
    return sending(client, 1, m.BasicAck(n // 2 if n > 1 else 2, False))


@case(m.BasicQos, LINEAR)
def qos_with_consumers(meter: Meter, n: int) -> Act:
    return sending(consuming(meter, n), 1, m.BasicQos(0, 10, True))


def sharing_keys(meter: Meter, n: int, *qos: Any) -> Client:
    """Return a client with n consumers of a key-shared queue that have no room, and a busy key; another one has."""
    client = meter.channel()
    client.declare("q", arguments={"x-key-shared": True})
    n += 64  # so many that the search for one with room is long
    feed(client, 1, *qos, *[basic_consume("q", f"c{at}") for at in range(n)])
    # With the routing key as the key, keys come through bindings.
    feed(client, 1, m.QueueBind(0, "q", "amq.fanout", "", False, EMPTY))
    client.feed(b"".join(publish_frames("amq.fanout", f"k{at}", b"x") for at in range(n)))
    meter.settle()
    idle = meter.channel()
    feed(idle, 1, basic_consume("q", "idle"))
    meter.settle()
    client.feed(publish_frames("amq.fanout", "k0", b"x"))  # those that can not be served are passed over once
    meter.settle()
    assert meter.queue("q").unacked_count > 0
    return client


@case(m.BasicPublish, BOUNDED)
def publish_to_a_busy_key_beside_consumers_with_all_they_may_have(meter: Meter, n: int) -> Act:
    client = sharing_keys(meter, n, m.BasicQos(0, 1, False))
    data = publish_frames("amq.fanout", "k0", b"x") * 20
    return lambda: client.feed(data)


@case(m.BasicPublish, BOUNDED)
def publish_to_a_busy_key_beside_consumers_of_a_channel_with_all_it_may_have(meter: Meter, n: int) -> Act:
    client = sharing_keys(meter, n, m.BasicQos(0, 1, True))
    data = publish_frames("amq.fanout", "k0", b"x") * 20
    return lambda: client.feed(data)


class Nothing(Selection):
    """Wants nothing."""

    def passes(self, message: Message, now_ms: int) -> bool:
        return False


@case(m.BasicPublish, BOUNDED)
def publish_to_a_long_queue_of_a_consumer_that_wants_nothing_of_it(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q")
    select(meter, client)
    publishing(client, n)
    return lambda: client.feed(publish_frames("", "q", b"x"))


@case(m.BasicNack, BOUNDED)
def return_to_a_long_queue_of_a_consumer_that_wants_nothing_of_it(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q")
    select(meter, client)
    publishing(client, n)
    feed(client, 1, m.BasicGet(0, "q", False))
    return sending(client, 1, m.BasicNack(1, multiple=False, requeue=True))


@case(m.BasicPublish, LINEAR)
def publish_to_a_queue_of_many_consumers_that_want_nothing(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q")
    for at in range(n):
        select(meter, client, f"c{at}")
    return lambda: client.feed(publish_frames("", "q", b"x"))


def select(meter: Meter, client: Client, tag: str = "c") -> None:
    """Make a consumer of queue q that wants nothing."""
    feed(client, 1, basic_consume("q", tag))
    queue = meter.queue("q")
    queue.select(list(queue.consumers)[-1], Nothing())
