"""Transactions of n publishes or answers."""

from __future__ import annotations

from engine_harness import exchange_declare, publish_frames

from step_counts.cases.case import BOUNDED, Act, case, durable_fanout, feed, owing, publishing, queues_bound_to_x
from step_counts.meter import Meter, sending
from warren.amqp import methods as m


@case(m.BasicNack, BOUNDED)
def nack_multiple_in_a_transaction(meter: Meter, n: int) -> Act:
    client = owing(meter, n)
    feed(client, 1, m.TxSelect())
    return sending(client, 1, m.BasicNack(0, multiple=True, requeue=False))


@case(m.TxCommit, BOUNDED)
def commit_of_publishes(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", durable=True)
    feed(client, 1, m.TxSelect())
    publishing(client, n, delivery_mode=2)
    return sending(client, 1, m.TxCommit())


@case(m.TxCommit, BOUNDED)
def commit_of_acks(meter: Meter, n: int) -> Act:
    client = owing(meter, n, delivery_mode=2)
    feed(client, 1, m.TxSelect(), m.BasicAck(0, True))
    return sending(client, 1, m.TxCommit())


@case(m.TxCommit, BOUNDED)
def commit_of_rejects(meter: Meter, n: int) -> Act:
    client = owing(meter, n, delivery_mode=2)
    feed(client, 1, m.TxSelect(), m.BasicNack(0, multiple=True, requeue=True))
    return sending(client, 1, m.TxCommit())


@case(m.TxRollback, BOUNDED)
def rollback_of_publishes(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q")
    feed(client, 1, m.TxSelect())
    publishing(client, n)
    return sending(client, 1, m.TxRollback())


@case(m.TxRollback, BOUNDED)
def rollback_of_acks(meter: Meter, n: int) -> Act:
    client = owing(meter, n)
    feed(client, 1, m.TxSelect(), m.BasicAck(0, True))
    return sending(client, 1, m.TxRollback())


@case(m.ChannelClose, BOUNDED)
def channel_close_in_a_transaction(meter: Meter, n: int) -> Act:
    client = owing(meter, n)
    feed(client, 1, m.TxSelect(), m.BasicAck(0, True))
    return sending(client, 1, m.ChannelClose(200, "", 0, 0))


@case(m.TxCommit, BOUNDED)
def commit_of_a_publish_to_a_fanout(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, exchange_declare("x", "fanout"), m.TxSelect())
    feed(client, 1, *queues_bound_to_x(n))
    client.feed(publish_frames("x", "k", b"x"))
    return sending(client, 1, m.TxCommit())


@case(m.TxCommit, BOUNDED)
def commit_of_publishes_to_durable_queues(meter: Meter, n: int) -> Act:
    client = durable_fanout(meter, 10)
    feed(client, 1, m.TxSelect())
    client.feed(publish_frames("x", "k", b"x", properties={"delivery_mode": 2}) * n)
    return sending(client, 1, m.TxCommit())


@case(m.TxCommit, BOUNDED)
def commit_of_acks_in_many_queues(meter: Meter, n: int) -> Act:
    client = durable_fanout(meter, n)
    client.feed(publish_frames("x", "k", b"x", properties={"delivery_mode": 2}))
    feed(client, 1, m.TxSelect(), *[m.BasicGet(0, f"q{at}", False) for at in range(n)], m.BasicAck(0, True))
    return sending(client, 1, m.TxCommit())


@case(m.TxCommit, BOUNDED)
def commits_that_wait_for_a_long_one(meter: Meter, n: int) -> Act:
    """The batch of the log is held by one commit; n others wait for it, each on a connection of its own."""
    clients = [meter.channel() for _ in range(1 + n // 10)]
    clients[0].declare("q", durable=True)
    for client in clients:
        feed(client, 1, m.TxSelect())
        publishing(client, 60, delivery_mode=2)
    waiting = [sending(client, 1, m.TxCommit()) for client in clients]

    def act() -> None:
        for each in waiting:
            each()

    return act
