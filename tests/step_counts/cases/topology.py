"""Declarations, deletions, bindings and purges of, or beside, n things."""

from __future__ import annotations

from typing import Any

from engine_harness import Client, exchange_declare, publish_frames, queue_declare

from step_counts.cases.case import (
    BOUNDED,
    EMPTY,
    LINEAR,
    SIZE,
    TIDIED,
    Act,
    case,
    consuming,
    feed,
    feed_each,
    owing,
    publishing,
)
from step_counts.meter import Meter, sending
from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.field_table import encode_table


def exchange_with_bindings(meter: Meter, n: int, kind: str = "direct", **options: Any) -> Client:
    """Return a client, and exchange x with n bindings to queue q."""
    client = meter.channel()
    client.declare("q")
    feed(client, 1, exchange_declare("x", kind, **options))
    feed(client, 1, *[queue_bind("q", "x", f"k.{at}", kind) for at in range(n)])
    assert len(meter.vhost.exchanges["x"].bindings) == n
    return client


def queue_bind(queue: str, exchange: str, key: str, kind: str) -> m.QueueBind:
    """Make a queue.bind that `kind` accepts."""
    arguments: dict[str, object] = {"k": key} if kind == "headers" else {}
    return m.QueueBind(0, queue, exchange, "1" if kind.startswith("x-") else key, False, encode_table(arguments))


@case(m.ExchangeDelete, BOUNDED)
def exchange_delete_with_bindings(meter: Meter, n: int) -> Act:
    return sending(exchange_with_bindings(meter, n), 1, m.ExchangeDelete(0, "x", if_unused=False, no_wait=False))


@case(m.ExchangeDelete, BOUNDED)
def exchange_delete_with_bindings_of_a_topic(meter: Meter, n: int) -> Act:
    return sending(
        exchange_with_bindings(meter, n, "topic"), 1, m.ExchangeDelete(0, "x", if_unused=False, no_wait=False)
    )


@case(m.ExchangeDelete, BOUNDED)
def exchange_delete_with_bindings_of_headers(meter: Meter, n: int) -> Act:
    return sending(
        exchange_with_bindings(meter, n, "headers"), 1, m.ExchangeDelete(0, "x", if_unused=False, no_wait=False)
    )


@case(m.ExchangeDelete, TIDIED)  # the list of its bindings is turned around
def exchange_delete_with_queues(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, exchange_declare("x", "x-consistent-hash"))
    feed_each(client, n, lambda at: [queue_declare(f"q{at}"), queue_bind(f"q{at}", "x", "", "x-consistent-hash")])
    return sending(client, 1, m.ExchangeDelete(0, "x", if_unused=False, no_wait=False))


@case(m.ExchangeDelete, TIDIED)
def exchange_delete_bound_to_exchanges(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, exchange_declare("x"))
    feed_each(client, n, lambda at: [exchange_declare(f"s{at}"), m.ExchangeBind(0, "x", f"s{at}", "k", False, EMPTY)])
    return sending(client, 1, m.ExchangeDelete(0, "x", if_unused=False, no_wait=False))


@case(m.ExchangeDelete, BOUNDED)
def exchange_delete_with_a_chain_of_auto_delete(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, exchange_declare("x0"))
    feed_each(
        client,
        n,
        lambda at: [
            exchange_declare(f"x{at + 1}", auto_delete=True),
            m.ExchangeBind(0, f"x{at}", f"x{at + 1}", "k", False, EMPTY),
        ],
    )
    return sending(client, 1, m.ExchangeDelete(0, "x0", if_unused=False, no_wait=False))


@case(m.QueueDelete, BOUNDED)
def queue_delete_with_bindings(meter: Meter, n: int) -> Act:
    return sending(
        exchange_with_bindings(meter, n), 1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False)
    )


@case(m.QueueDelete, TIDIED)
def queue_delete_with_bindings_of_consistent_hash(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed_each(
        client,
        n,
        lambda at: [
            exchange_declare(f"x{at}", "x-consistent-hash"),
            queue_declare("q"),
            queue_bind("q", f"x{at}", "", "x-consistent-hash"),
        ],
    )
    return sending(client, 1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))


@case(m.QueueDelete, BOUNDED)
def queue_delete_with_consumers(meter: Meter, n: int) -> Act:
    return sending(consuming(meter, n), 1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))


@case(m.QueueDelete, BOUNDED)
def queue_delete_with_messages(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", durable=True)
    publishing(client, n, delivery_mode=2)
    return sending(client, 1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))


@case(m.QueuePurge, BOUNDED)
def queue_purge(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", durable=True)
    publishing(client, n, delivery_mode=2)
    return sending(client, 1, m.QueuePurge(0, "q", False))


@case(m.QueueDelete, BOUNDED)
def queue_delete_with_delayed_messages(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q")
    publishing(client, n, headers=encode_table({"x-delay": 100000}))
    return sending(client, 1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))


@case(m.QueueDelete, BOUNDED)
def queue_delete_with_returned(meter: Meter, n: int) -> Act:
    client = owing(meter, n, delivery_mode=2)
    feed(client, 1, m.BasicRecover(True))
    return sending(client, 1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))


@case(m.QueuePurge, BOUNDED)
def queue_purge_in_the_open_batch(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", durable=True)
    meter.broker.log.hold_batch()
    publishing(client, n, delivery_mode=2)
    return sending(client, 1, m.QueuePurge(0, "q", False))


@case(m.QueuePurge, BOUNDED)
def queue_purge_of_a_key_shared_queue(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", durable=True, arguments={"x-key-shared": True})
    publishing(client, n, delivery_mode=2)
    return sending(client, 1, m.QueuePurge(0, "q", False))


@case(m.QueuePurge, BOUNDED)
def queue_purge_of_returned(meter: Meter, n: int) -> Act:
    client = owing(meter, n, delivery_mode=2)
    feed(client, 1, m.BasicRecover(True))
    return sending(client, 1, m.QueuePurge(0, "q", False))


@case(m.QueuePurge, BOUNDED)
def queue_purge_of_priorities(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", durable=True, arguments={"x-max-priority": 10})
    publishing(client, n, delivery_mode=2, priority=5)
    return sending(client, 1, m.QueuePurge(0, "q", False))


@case(m.QueuePurge, BOUNDED)
def queue_purge_with_expirations(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", durable=True)
    publishing(client, n, delivery_mode=2, expiration="100000")
    return sending(client, 1, m.QueuePurge(0, "q", False))


@case(m.QueueDeclare, BOUNDED)
def queue_declare_beside_others(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, *[queue_declare(f"q{at}") for at in range(n)])
    return sending(client, 1, queue_declare("q"))


@case(m.QueueBind, BOUNDED)
def queue_bind_beside_others(meter: Meter, n: int) -> Act:
    return sending(exchange_with_bindings(meter, n, "topic"), 1, queue_bind("q", "x", "new.#.k.#", "topic"))


@case(m.QueueUnbind, BOUNDED)
def queue_unbind_beside_others(meter: Meter, n: int) -> Act:
    client = exchange_with_bindings(meter, n, "topic")
    return sending(client, 1, m.QueueUnbind(0, "q", "x", "k.0", EMPTY))


@case(m.ExchangeDeclare, BOUNDED)
def exchange_declare_beside_others(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, *[exchange_declare(f"x{at}") for at in range(n)])
    return sending(client, 1, exchange_declare("x"))


@case(m.ExchangeDeclare, LINEAR)
def exchange_declare_of_a_super_stream(meter: Meter, n: int) -> Act:
    declare = exchange_declare("x", "x-super-stream", durable=True, arguments={"x-super-stream": n})
    return sending(meter.channel(), 1, declare)


@case(m.ExchangeDeclare, LINEAR)
def exchange_declare_of_a_super_stream_again(meter: Meter, n: int) -> Act:
    declare = exchange_declare("x", "x-super-stream", durable=True, arguments={"x-super-stream": n})
    client = meter.channel()
    feed(client, 1, declare)
    assert len(meter.vhost.exchanges["x"].bindings) == n
    return sending(client, 1, declare)


@case(m.ExchangeBind, BOUNDED)
def exchange_bind_beside_others(meter: Meter, n: int) -> Act:
    client = exchange_with_bindings(meter, n)
    feed(client, 1, exchange_declare("y"))
    return sending(client, 1, m.ExchangeBind(0, "y", "x", "k", False, EMPTY))


@case(m.ExchangeUnbind, BOUNDED)
def exchange_unbind_beside_others(meter: Meter, n: int) -> Act:
    client = exchange_with_bindings(meter, n)
    feed(client, 1, exchange_declare("y"), m.ExchangeBind(0, "y", "x", "k", False, EMPTY))
    return sending(client, 1, m.ExchangeUnbind(0, "y", "x", "k", False, EMPTY))


@case(m.QueueDeclare, BOUNDED)
def declare_of_a_queue_with_priorities(meter: Meter, n: int) -> Act:
    return sending(meter.channel(), 1, queue_declare("q", arguments={"x-max-priority": min(n // 3, 255)}))


@case(m.QueueDelete, BOUNDED)
def delete_of_a_queue_with_priorities(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", arguments={"x-max-priority": min(n // 3, 255)})
    return sending(client, 1, m.QueueDelete(0, "q", if_unused=False, if_empty=False, no_wait=False))


def remembering(meter: Meter, n: int) -> Client:
    """Return a client with a queue q, and an exchange that remembers n messages."""
    client = meter.channel()
    client.declare("q")
    feed(client, 1, exchange_declare("h", "x-recent-history", arguments={"x-recent-history-length": 2 * SIZE}))
    client.feed(publish_frames("h", "k", b"x") * n)
    client.take_bytes()
    return client


@case(m.QueueBind, BOUNDED)
def bind_to_an_exchange_that_remembers(meter: Meter, n: int) -> Act:
    return sending(remembering(meter, n), 1, m.QueueBind(0, "q", "h", "", False, EMPTY))


@case(m.QueueBind, BOUNDED)
def bind_by_many_connections_to_an_exchange_that_remembers(meter: Meter, n: int) -> Act:
    remembering(meter, SIZE)
    for at in range(n // 10):
        client = meter.channel()
        client.connection.feed(method_frame(1, m.QueueBind(0, "q", "h", f"k{at}", False, EMPTY)))
    return sending(meter.channel(), 1, m.QueueBind(0, "q", "h", "", False, EMPTY))


@case(m.ExchangeDelete, BOUNDED)
def delete_of_an_exchange_that_remembers(meter: Meter, n: int) -> Act:
    return sending(remembering(meter, n), 1, m.ExchangeDelete(0, "h", if_unused=False, no_wait=False))
