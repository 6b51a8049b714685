"""Acknowledgements, rejects and recovery of n deliveries."""

from __future__ import annotations

from engine_harness import Client, exchange_declare, publish_frames

from step_counts.cases.case import (
    BOUNDED,
    LINEAR,
    Act,
    case,
    durable_fanout,
    feed,
    owing,
    publishing,
    queues_bound_to_x,
)
from step_counts.meter import Meter, sending
from warren.amqp import methods as m
from warren.amqp.codec import method_frame


@case(m.BasicNack, BOUNDED)
def nack_multiple(meter: Meter, n: int) -> Act:
    return sending(owing(meter, n), 1, m.BasicNack(0, multiple=True, requeue=True))


@case(m.BasicRecover, BOUNDED)
def recover(meter: Meter, n: int) -> Act:
    return sending(owing(meter, n), 1, m.BasicRecover(True))


@case(m.BasicAck, BOUNDED)
def ack_multiple(meter: Meter, n: int) -> Act:
    return sending(owing(meter, n), 1, m.BasicAck(0, True))


@case(m.BasicAck, BOUNDED)
def ack_multiple_of_stored(meter: Meter, n: int) -> Act:
    return sending(owing(meter, n, delivery_mode=2), 1, m.BasicAck(0, True))


@case(m.BasicAck, BOUNDED)
def ack_multiple_after_rollback(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q")
    publishing(client, n)
    feed(client, 1, m.TxSelect(), *[m.BasicGet(0, "q", False) for _ in range(n)])
    feed(client, 1, m.BasicAck(0, True), m.TxRollback())
    return sending(client, 1, m.BasicAck(0, True))


@case(m.BasicReject, LINEAR)
def reject_one_by_one(meter: Meter, n: int) -> Act:
    client = owing(meter, n)
    return sending(client, 1, *[m.BasicReject(at + 1, True) for at in range(n)])


@case(m.BasicReject, LINEAR)
def reject_one_by_one_from_behind(meter: Meter, n: int) -> Act:
    client = owing(meter, n)
    return sending(client, 1, *[m.BasicReject(n - at, True) for at in range(n)])


@case(m.BasicNack, BOUNDED)
def nack_multiple_with_dead_letters(meter: Meter, n: int) -> Act:
    client = owing(meter, n, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    client.declare("dead")
    return sending(client, 1, m.BasicNack(0, multiple=True, requeue=False))


def owing_letters(meter: Meter, queues: int, count: int) -> Client:
    """Return a client with `count` unacknowledged messages, whose letters go to `queues` durable queues each."""
    client = durable_fanout(meter, queues)
    client.declare("q", durable=True, arguments={"x-dead-letter-exchange": "x"})
    publishing(client, count, delivery_mode=2)
    feed(client, 1, *[m.BasicGet(0, "q", False) for _ in range(count)])
    return client


@case(m.BasicReject, BOUNDED)
def reject_of_what_is_dead_lettered_to_many_queues(meter: Meter, n: int) -> Act:
    return sending(owing_letters(meter, n, 1), 1, m.BasicReject(1, False))


@case(m.BasicNack, BOUNDED)
def nack_multiple_of_what_is_dead_lettered_to_queues(meter: Meter, n: int) -> Act:
    return sending(owing_letters(meter, 10, n), 1, m.BasicNack(0, multiple=True, requeue=False))


@case(m.BasicReject, LINEAR)
def reject_one_by_one_of_what_is_dead_lettered_to_queues(meter: Meter, n: int) -> Act:
    client = owing_letters(meter, 30, n)
    return sending(client, 1, *[m.BasicReject(at + 1, False) for at in range(n)])


@case(m.BasicRecoverAsync, BOUNDED)
def recover_async(meter: Meter, n: int) -> Act:
    return sending(owing(meter, n), 1, m.BasicRecoverAsync(True))


@case(m.BasicRecover, BOUNDED)
def recover_of_many_queues(meter: Meter, n: int) -> Act:
    client = durable_fanout(meter, n)
    client.feed(publish_frames("x", "k", b"x", properties={"delivery_mode": 2}))
    feed(client, 1, *[m.BasicGet(0, f"q{at}", False) for at in range(n)])
    return sending(client, 1, m.BasicRecover(True))


@case(m.BasicAck, LINEAR)
def ack_before_the_batch_is_written(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, exchange_declare("x", "fanout"))
    feed(client, 1, *queues_bound_to_x(n, durable=True))
    gets = [m.BasicGet(0, f"q{at}", False) for at in range(n)]
    acks = [m.BasicAck(n - at, False) for at in range(n)]
    data = b"".join(method_frame(1, call) for call in gets + acks)
    return lambda: client.feed(publish_frames("x", "k", b"x", properties={"delivery_mode": 2}) + data)
