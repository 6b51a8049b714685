"""Publishes to n queues, and basic.get of n messages."""

from __future__ import annotations

from engine_harness import exchange_declare, publish_frames, queue_declare

from step_counts.cases.case import (
    BOUNDED,
    EMPTY,
    LINEAR,
    Act,
    case,
    durable_fanout,
    feed,
    publishing,
    queues_bound_to_x,
)
from step_counts.meter import Meter, sending
from warren.amqp import methods as m
from warren.amqp.field_table import encode_table


@case(m.BasicPublish, BOUNDED)
def publish_to_a_fanout(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, exchange_declare("x", "fanout"))
    feed(client, 1, *queues_bound_to_x(n))
    client.feed(publish_frames("x", "k", b"x"))  # the route is known then
    return lambda: client.feed(publish_frames("x", "k", b"x"))


@case(m.BasicPublish, BOUNDED)
def publish_to_a_durable_fanout(meter: Meter, n: int) -> Act:
    client = durable_fanout(meter, n)
    return lambda: client.feed(publish_frames("x", "k", b"x", properties={"delivery_mode": 2}))


@case(m.BasicPublish, LINEAR)
def publish_with_copies(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, *[queue_declare(f"q{at}") for at in range(n)])
    copies = encode_table({"CC": [f"q{at}" for at in range(n)]})
    return lambda: client.feed(publish_frames("", "k", b"x", properties={"headers": copies}))


@case(m.BasicPublish, LINEAR)
def publish_with_new_keys_beside_many_exchanges(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, exchange_declare("x"), *[exchange_declare(f"x{at}") for at in range(n)])
    feed(client, 1, *[m.ExchangeBind(0, f"x{at}", "x", "other", False, EMPTY) for at in range(n)])
    return lambda: client.feed(b"".join(publish_frames("x", f"k{at}", b"x") for at in range(n)))


@case(m.BasicGet, LINEAR)
def get_many(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q")
    publishing(client, n)
    return sending(client, 1, *[m.BasicGet(0, "q", True) for _ in range(n)])
