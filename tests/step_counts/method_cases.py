"""Cases: a method, or another input of the engine, and n of what it multiplies.

A case prepares an engine with n things and returns the act to be measured. `BOUNDED`: no turn grows with n. `TIDIED`:
one does by a few steps for each thing, as when the gaps in a list are closed. `LINEAR`: the turn grows with n, which
the bytes of the input pay for, or of which there cannot be many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from engine_harness import USER, Client, basic_consume, exchange_declare, publish_frames, queue_declare

from step_counts.meter import Meter, sending
from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.field_table import encode_table
from warren.vhosts.metadata import PermissionPut, PolicyPut, TopicPermissionPut, UserDelete, VhostDelete, VhostPut
from warren.vhosts.virtual_host import EVENT_EXCHANGE, VirtualHost

BOUNDED = "bounded"
TIDIED = "tidied"
LINEAR = "linear"
SIZE = 300
EMPTY = encode_table({})

Act = Callable[[], Any]
Prepare = Callable[[Meter, int], Act]


class Case(NamedTuple):
    """`method`: the method that a client sends, None: another input."""

    name: str
    method: type[Any] | None
    growth: str
    prepare: Prepare


CASES: list[Case] = []


def case(method: type[Any] | None, growth: str) -> Callable[[Prepare], Prepare]:
    """Add the decorated function to `CASES`."""

    def add(prepare: Prepare) -> Prepare:
        CASES.append(Case(prepare.__name__, method, growth, prepare))
        return prepare

    return add


# --- preparing ----------------------------------------------------------------------------------------------------


def feed(client: Client, number: int, *calls: Any) -> None:
    """Send methods whose answers do not matter."""
    client.send(number, *calls)
    client.take_bytes()


def consuming(meter: Meter, n: int, **options: Any) -> Client:
    """Return a client with n consumers of queue q on channel 1."""
    client = meter.channel()
    client.declare("q")
    feed(client, 1, *[basic_consume("q", f"c{at}", **options) for at in range(n)])
    return client


def publishing(client: Client, n: int, queue: str = "q", **properties: Any) -> None:
    """Publish n messages."""
    client.feed(publish_frames("", queue, b"x", properties=properties) * n)
    client.harness.broker.log.force()
    client.harness.settle()


def owing(meter: Meter, n: int, arguments: dict[str, Any] | None = None, **properties: Any) -> Client:
    """Return a client with n unacknowledged messages of queue q, and no consumer."""
    client = meter.channel()
    client.declare("q", arguments=arguments, durable=bool(properties))
    publishing(client, n, **properties)
    feed(client, 1, *[m.BasicGet(0, "q", False) for _ in range(n)])
    assert meter.queue("q").unacked_count == n
    return client


def durable_fanout(meter: Meter, n: int) -> Client:
    """Return a client, and exchange x with n durable queues."""
    client = meter.channel()
    feed(client, 1, exchange_declare("x", "fanout"))
    for at in range(n):
        feed(client, 1, queue_declare(f"q{at}", durable=True), m.QueueBind(0, f"q{at}", "x", "", False, EMPTY))
    return client


def watched(meter: Meter) -> None:
    """Have a queue get all events."""
    client = meter.channel()
    client.declare("events")
    client.bind("events", EVENT_EXCHANGE, "#")


def another_vhost(meter: Meter) -> VirtualHost:
    """Return a vhost beside that of the events."""
    meter.broker.administer(VhostPut("v"))
    return meter.broker.vhosts["v"]


# --- ends ---------------------------------------------------------------------------------------------------------


@case(None, TIDIED)
def lost_with_consumers(meter: Meter, n: int) -> Act:
    client = consuming(meter, n)
    return client.hang_up


@case(None, TIDIED)
def lost_with_consumers_that_are_watched(meter: Meter, n: int) -> Act:
    client = consuming(meter, n)
    watched(meter)
    return client.hang_up


@case(m.ConnectionClose, TIDIED)
def connection_close_with_consumers(meter: Meter, n: int) -> Act:
    return sending(consuming(meter, n), 0, m.ConnectionClose(200, "", 0, 0))


@case(m.ChannelClose, TIDIED)
def channel_close_with_consumers(meter: Meter, n: int) -> Act:
    return sending(consuming(meter, n), 1, m.ChannelClose(200, "", 0, 0))


@case(m.ChannelClose, TIDIED)
def channel_close_with_consumers_of_one_active(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", arguments={"x-single-active-consumer": True})
    feed(client, 1, *[basic_consume("q", f"c{at}") for at in range(n)])
    return sending(client, 1, m.ChannelClose(200, "", 0, 0))


@case(m.ChannelClose, TIDIED)
def channel_close_with_consumers_of_many_priorities(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q")
    feed(client, 1, *[basic_consume("q", f"c{at}", arguments={"x-priority": at}) for at in range(n)])
    return sending(client, 1, m.ChannelClose(200, "", 0, 0))


@case(m.ChannelClose, TIDIED)
def channel_close_with_consumers_of_a_stream(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", arguments={"x-queue-type": "stream"}, durable=True)
    feed(client, 1, m.BasicQos(0, 10, False), *[basic_consume("q", f"c{at}") for at in range(n)])
    return sending(client, 1, m.ChannelClose(200, "", 0, 0))


@case(m.ChannelClose, BOUNDED)
def channel_close_with_unacked(meter: Meter, n: int) -> Act:
    return sending(owing(meter, n), 1, m.ChannelClose(200, "", 0, 0))


@case(m.ChannelClose, BOUNDED)
def channel_close_with_unacked_of_a_quorum_queue(meter: Meter, n: int) -> Act:
    client = owing(meter, n, {"x-queue-type": "quorum"}, delivery_mode=2)
    return sending(client, 1, m.ChannelClose(200, "", 0, 0))


@case(m.ConnectionClose, BOUNDED)
def connection_close_with_exclusive_queues(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, *[queue_declare(f"q{at}", exclusive=True) for at in range(n)])
    return sending(client, 0, m.ConnectionClose(200, "", 0, 0))


@case(m.ConnectionClose, LINEAR)
def connection_close_with_channels(meter: Meter, n: int) -> Act:
    client = meter.client()
    client.feed(b"".join(method_frame(1 + at, m.ChannelOpen("")) for at in range(n)))
    return sending(client, 0, m.ConnectionClose(200, "", 0, 0))


# --- consuming ----------------------------------------------------------------------------------------------------


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


# --- acknowledging ------------------------------------------------------------------------------------------------


@case(m.BasicNack, BOUNDED)
def nack_multiple(meter: Meter, n: int) -> Act:
    return sending(owing(meter, n), 1, m.BasicNack(0, True, True))


@case(m.BasicRecover, BOUNDED)
def recover(meter: Meter, n: int) -> Act:
    return sending(owing(meter, n), 1, m.BasicRecover(True))


# --- topology -----------------------------------------------------------------------------------------------------


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
    return sending(exchange_with_bindings(meter, n), 1, m.ExchangeDelete(0, "x", False, False))


@case(m.ExchangeDelete, BOUNDED)
def exchange_delete_with_bindings_of_a_topic(meter: Meter, n: int) -> Act:
    return sending(exchange_with_bindings(meter, n, "topic"), 1, m.ExchangeDelete(0, "x", False, False))


@case(m.ExchangeDelete, BOUNDED)
def exchange_delete_with_bindings_of_headers(meter: Meter, n: int) -> Act:
    return sending(exchange_with_bindings(meter, n, "headers"), 1, m.ExchangeDelete(0, "x", False, False))


@case(m.ExchangeDelete, BOUNDED)
def exchange_delete_with_queues(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, exchange_declare("x", "x-consistent-hash"))
    for at in range(n):
        feed(client, 1, queue_declare(f"q{at}"), queue_bind(f"q{at}", "x", "", "x-consistent-hash"))
    return sending(client, 1, m.ExchangeDelete(0, "x", False, False))


@case(m.ExchangeDelete, TIDIED)
def exchange_delete_bound_to_exchanges(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, exchange_declare("x"))
    for at in range(n):
        feed(client, 1, exchange_declare(f"s{at}"), m.ExchangeBind(0, "x", f"s{at}", "k", False, EMPTY))
    return sending(client, 1, m.ExchangeDelete(0, "x", False, False))


@case(m.ExchangeDelete, BOUNDED)
def exchange_delete_with_a_chain_of_auto_delete(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, exchange_declare("x0"))
    for at in range(n):
        feed(client, 1, exchange_declare(f"x{at + 1}", auto_delete=True))
        feed(client, 1, m.ExchangeBind(0, f"x{at}", f"x{at + 1}", "k", False, EMPTY))
    return sending(client, 1, m.ExchangeDelete(0, "x0", False, False))


@case(m.QueueDelete, BOUNDED)
def queue_delete_with_bindings(meter: Meter, n: int) -> Act:
    return sending(exchange_with_bindings(meter, n), 1, m.QueueDelete(0, "q", False, False, False))


@case(m.QueueDelete, TIDIED)
def queue_delete_with_bindings_of_consistent_hash(meter: Meter, n: int) -> Act:
    client = meter.channel()
    for at in range(n):
        feed(client, 1, exchange_declare(f"x{at}", "x-consistent-hash"), queue_declare("q"))
        feed(client, 1, queue_bind("q", f"x{at}", "", "x-consistent-hash"))
    return sending(client, 1, m.QueueDelete(0, "q", False, False, False))


@case(m.QueueDelete, BOUNDED)
def queue_delete_with_consumers(meter: Meter, n: int) -> Act:
    return sending(consuming(meter, n), 1, m.QueueDelete(0, "q", False, False, False))


@case(m.QueueDelete, BOUNDED)
def queue_delete_with_messages(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", durable=True)
    publishing(client, n, delivery_mode=2)
    return sending(client, 1, m.QueueDelete(0, "q", False, False, False))


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
    return sending(client, 1, m.QueueDelete(0, "q", False, False, False))


@case(m.QueueDelete, BOUNDED)
def queue_delete_with_returned(meter: Meter, n: int) -> Act:
    client = owing(meter, n, delivery_mode=2)
    feed(client, 1, m.BasicRecover(True))
    return sending(client, 1, m.QueueDelete(0, "q", False, False, False))


@case(m.QueuePurge, BOUNDED)
def queue_purge_in_the_open_batch(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", durable=True)
    meter.broker.log.hold()
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


# --- acknowledging, continued -------------------------------------------------------------------------------------


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
    return sending(client, 1, m.BasicNack(0, True, False))


def owing_letters(meter: Meter, queues: int, count: int) -> Client:
    """Return a client with so many unacknowledged messages, whose letters go to so many durable queues each."""
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
    return sending(owing_letters(meter, 10, n), 1, m.BasicNack(0, True, False))


@case(m.BasicReject, LINEAR)
def reject_one_by_one_of_what_is_dead_lettered_to_queues(meter: Meter, n: int) -> Act:
    client = owing_letters(meter, 30, n)
    return sending(client, 1, *[m.BasicReject(at + 1, False) for at in range(n)])


@case(None, BOUNDED)
def expiry_of_what_is_dead_lettered_to_queues(meter: Meter, n: int) -> Act:
    client = durable_fanout(meter, 30)
    client.declare("q", durable=True, arguments={"x-dead-letter-exchange": "x", "x-message-ttl": 1000})
    publishing(client, n, delivery_mode=2)

    def expire() -> None:
        meter.broker.keep_time(int(meter.broker.log.now_ms) + 2000)

    return expire


@case(m.BasicNack, BOUNDED)
def nack_multiple_in_a_transaction(meter: Meter, n: int) -> Act:
    client = owing(meter, n)
    feed(client, 1, m.TxSelect())
    return sending(client, 1, m.BasicNack(0, True, False))


@case(m.BasicRecoverAsync, BOUNDED)
def recover_async(meter: Meter, n: int) -> Act:
    return sending(owing(meter, n), 1, m.BasicRecoverAsync(True))


@case(m.QueueDeclare, BOUNDED)
def declare_of_a_queue_with_priorities(meter: Meter, n: int) -> Act:
    return sending(meter.channel(), 1, queue_declare("q", arguments={"x-max-priority": min(n // 3, 255)}))


@case(m.QueueDelete, BOUNDED)
def delete_of_a_queue_with_priorities(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", arguments={"x-max-priority": min(n // 3, 255)})
    return sending(client, 1, m.QueueDelete(0, "q", False, False, False))


# --- what an exchange remembers -----------------------------------------------------------------------------------


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
    return sending(remembering(meter, n), 1, m.ExchangeDelete(0, "h", False, False))


# --- transactions -------------------------------------------------------------------------------------------------


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
    feed(client, 1, m.TxSelect(), m.BasicNack(0, True, True))
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


# --- publishing and getting ---------------------------------------------------------------------------------------


@case(m.BasicPublish, BOUNDED)
def publish_to_a_fanout(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, exchange_declare("x", "fanout"))
    for at in range(n):
        feed(client, 1, queue_declare(f"q{at}"), m.QueueBind(0, f"q{at}", "x", "", False, EMPTY))
    client.feed(publish_frames("x", "k", b"x"))  # the route is known then
    return lambda: client.feed(publish_frames("x", "k", b"x"))


@case(m.TxCommit, BOUNDED)
def commit_of_a_publish_to_a_fanout(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, exchange_declare("x", "fanout"), m.TxSelect())
    for at in range(n):
        feed(client, 1, queue_declare(f"q{at}"), m.QueueBind(0, f"q{at}", "x", "", False, EMPTY))
    client.feed(publish_frames("x", "k", b"x"))
    return sending(client, 1, m.TxCommit())


@case(m.BasicPublish, BOUNDED)
def publish_to_a_durable_fanout(meter: Meter, n: int) -> Act:
    client = durable_fanout(meter, n)
    return lambda: client.feed(publish_frames("x", "k", b"x", properties={"delivery_mode": 2}))


@case(m.TxCommit, BOUNDED)
def commit_of_publishes_to_durable_queues(meter: Meter, n: int) -> Act:
    client = durable_fanout(meter, 10)
    feed(client, 1, m.TxSelect())
    for _ in range(n):
        client.feed(publish_frames("x", "k", b"x", properties={"delivery_mode": 2}))
    return sending(client, 1, m.TxCommit())


@case(m.TxCommit, BOUNDED)
def commit_of_acks_in_many_queues(meter: Meter, n: int) -> Act:
    client = durable_fanout(meter, n)
    client.feed(publish_frames("x", "k", b"x", properties={"delivery_mode": 2}))
    feed(client, 1, m.TxSelect(), *[m.BasicGet(0, f"q{at}", False) for at in range(n)], m.BasicAck(0, True))
    return sending(client, 1, m.TxCommit())


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
    for at in range(n):
        feed(client, 1, queue_declare(f"q{at}", durable=True), m.QueueBind(0, f"q{at}", "x", "", False, EMPTY))
    gets = [m.BasicGet(0, f"q{at}", False) for at in range(n)]
    acks = [m.BasicAck(n - at, False) for at in range(n)]
    data = b"".join(method_frame(1, call) for call in gets + acks)
    return lambda: client.feed(publish_frames("x", "k", b"x", properties={"delivery_mode": 2}) + data)


@case(m.BasicPublish, LINEAR)
def publish_with_copies(meter: Meter, n: int) -> Act:
    client = meter.channel()
    for at in range(n):
        feed(client, 1, queue_declare(f"q{at}"))
    copies = encode_table({"CC": [f"q{at}" for at in range(n)]})
    return lambda: client.feed(publish_frames("", "k", b"x", properties={"headers": copies}))


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


@case(m.BasicGet, LINEAR)
def get_many(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q")
    publishing(client, n)
    return sending(client, 1, *[m.BasicGet(0, "q", True) for _ in range(n)])


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


# --- time -----------------------------------------------------------------------------------------------------------


def expiring(meter: Meter, n: int, **properties: Any) -> None:
    """Have n messages expire in 1 s, into a queue of dead letters."""
    client = meter.channel()
    client.declare("dead")
    ttl = {} if properties else {"x-message-ttl": 1000}
    client.declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", **ttl})
    publishing(client, n, **properties)


@case(None, BOUNDED)
def expiry_of_messages(meter: Meter, n: int) -> Act:
    expiring(meter, n)
    return lambda: meter.pass_time(2)


@case(None, BOUNDED)
def expiry_of_messages_with_a_time_of_their_own(meter: Meter, n: int) -> Act:
    expiring(meter, n, expiration="1000")
    return lambda: meter.pass_time(2)


@case(None, BOUNDED)
def expiry_of_queues(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, *[queue_declare(f"q{at}", arguments={"x-expires": 1000}) for at in range(n)])
    return lambda: meter.pass_time(2)


@case(m.BasicGet, BOUNDED)
def get_from_behind_what_has_expired(meter: Meter, n: int) -> Act:
    expiring(meter, n)
    meter.broker.log.now_ms += 2000
    client = meter.channel()
    client.connection.feed(method_frame(1, m.BasicGet(0, "q", True)))
    return lambda: meter.pass_time(2)


@case(None, BOUNDED)
def visibility_timeouts(meter: Meter, n: int) -> Act:
    client = meter.channel()
    client.declare("q", arguments={"x-visibility-timeout": 1000})
    publishing(client, n)
    feed(client, 1, *[m.BasicGet(0, "q", False) for _ in range(n)])
    return lambda: meter.pass_time(2)


# --- administration and the shell ---------------------------------------------------------------------------------


@case(None, BOUNDED)
def policy_of_many_queues(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, *[queue_declare(f"q{at}") for at in range(n)])
    policy = PolicyPut("/", "p", ".*", "all", 0, '{"max-length":10}')
    return lambda: meter.broker.administer(policy)


@case(None, BOUNDED)
def policy_of_many_queues_that_is_watched(meter: Meter, n: int) -> Act:
    act = policy_of_many_queues(meter, n)
    watched(meter)
    return act


@case(None, BOUNDED)
def deletion_of_a_vhost_with_queues(meter: Meter, n: int) -> Act:
    client = meter.channel()
    feed(client, 1, *[queue_declare(f"q{at}", durable=True) for at in range(n)])
    return lambda: meter.broker.administer(VhostDelete("/"))


@case(None, BOUNDED)
def deletion_of_a_vhost_with_queues_that_is_watched(meter: Meter, n: int) -> Act:
    watched(meter)
    vhost = another_vhost(meter)
    for at in range(n):
        vhost.declare_queue(QueueDeclaration(f"q{at}", durable=True))
    return lambda: meter.broker.administer(VhostDelete("v"))


@case(None, BOUNDED)
def deletion_of_a_vhost_with_exchanges_that_is_watched(meter: Meter, n: int) -> Act:
    watched(meter)
    vhost = another_vhost(meter)
    for at in range(n):
        vhost.declare_exchange(ExchangeDeclaration(f"x{at}", "direct", durable=True))
    return lambda: meter.broker.administer(VhostDelete("v"))


@case(None, BOUNDED)
def deletion_of_a_vhost_with_policies_that_is_watched(meter: Meter, n: int) -> Act:
    watched(meter)
    vhost = another_vhost(meter)
    for at in range(n):
        vhost.policies.put(PolicyPut("v", f"p{at}", ".*", "all", 0, '{"max-length":10}'))
    return lambda: meter.broker.administer(VhostDelete("v"))


@case(None, TIDIED)
def deletion_of_a_vhost_with_connections(meter: Meter, n: int) -> Act:
    for _ in range(n):
        meter.channel()
    return lambda: meter.broker.administer(VhostDelete("/"))


@case(None, TIDIED)
def deletion_of_a_user_with_connections(meter: Meter, n: int) -> Act:
    for _ in range(n):
        meter.channel()
    return lambda: meter.broker.administer(UserDelete(USER))


@case(None, BOUNDED)
def deletion_of_a_user_beside_connections(meter: Meter, n: int) -> Act:
    meter.add_user("u")
    for _ in range(n):
        meter.client()
    return lambda: meter.broker.administer(UserDelete("u"))


@case(None, TIDIED)
def permission_of_a_user_with_connections(meter: Meter, n: int) -> Act:
    for _ in range(n):
        consumer = meter.channel()
        consumer.declare("q")
        feed(consumer, 1, basic_consume("q", "c"))
    return lambda: meter.broker.administer(PermissionPut(USER, "/", ".*", ".*", ""))


@case(None, BOUNDED)
def permission_of_a_user_beside_connections(meter: Meter, n: int) -> Act:
    meter.add_user("u")
    for _ in range(n):
        meter.client()
    return lambda: meter.broker.administer(PermissionPut("u", "/", ".*", ".*", ""))


@case(None, LINEAR)
def deletion_of_a_vhost_with_permissions(meter: Meter, n: int) -> Act:
    for at in range(n):
        meter.add_user(f"u{at}")
        assert meter.broker.access.maybe_principal(f"u{at}", "/") is not None
    return lambda: meter.broker.administer(VhostDelete("/"))


@case(None, LINEAR)
def deletion_of_a_vhost_with_permissions_that_is_watched(meter: Meter, n: int) -> Act:
    watched(meter)
    another_vhost(meter)
    for at in range(n):
        meter.add_user(f"u{at}")
        meter.permit(f"u{at}", vhost="v")
        meter.broker.administer(TopicPermissionPut(f"u{at}", "v", "amq.topic", "", ""))
    return lambda: meter.broker.administer(VhostDelete("v"))


@case(None, TIDIED)
def permission_that_consumers_had(meter: Meter, n: int) -> Act:
    consuming(meter, n)
    return lambda: meter.broker.administer(PermissionPut(USER, "/", ".*", ".*", ""))


@case(None, LINEAR)
def tick_of_many_connections(meter: Meter, n: int) -> Act:
    for _ in range(n):
        meter.client()
    return lambda: meter.broker.tick(meter.now_s)


@case(None, LINEAR)
def alarm_with_many_connections(meter: Meter, n: int) -> Act:
    for _ in range(n):
        meter.client()
    return lambda: meter.broker.set_alarm("memory", True)


@case(None, BOUNDED)
def end_of_an_alarm_with_many_publishers(meter: Meter, n: int) -> Act:
    clients = [meter.channel() for _ in range(n)]
    meter.broker.set_alarm("memory", True)
    for client in clients:
        publishing(client, 1)
    return lambda: meter.broker.set_alarm("memory", False)


# --- methods whose work is always the same ------------------------------------------------------------------------

_SMALL: dict[str, tuple[int, Any]] = {
    "connection_update_secret": (0, m.ConnectionUpdateSecret(b"", "")),
    "connection_close_ok": (0, m.ConnectionCloseOk()),
    "channel_open": (2000, m.ChannelOpen("")),
    "channel_flow": (1, m.ChannelFlow(True)),
    "channel_close_ok": (2000, m.ChannelCloseOk()),
    "access_request": (1, m.AccessRequest("", False, False, False, False, False)),
    "cancel_ok": (1, m.BasicCancelOk("c0")),
    "confirm_select": (1, m.ConfirmSelect(False)),
    "tx_select": (1, m.TxSelect()),
}


def _small(number: int, method: Any) -> Prepare:
    def prepare(meter: Meter, n: int) -> Act:
        client = consuming(meter, n)
        client.feed(b"".join(method_frame(2 + at, m.ChannelOpen("")) for at in range(n)))
        client.take_bytes()
        return sending(client, number, method)

    return prepare


for _name, (_number, _method) in _SMALL.items():
    CASES.append(Case(_name, type(_method), BOUNDED, _small(_number, _method)))


@case(m.ConnectionOpen, BOUNDED)
def open_beside_others(meter: Meter, n: int) -> Act:
    for _ in range(n):
        meter.client()
    client = meter.raw_client()
    client.start()
    client.start_ok()
    client.expect(m.ConnectionTune)
    data = method_frame(0, m.ConnectionTuneOk(2047, 131072, 0)) + method_frame(0, m.ConnectionOpen("/", "", False))
    return lambda: client.feed(data)


@case(m.ConnectionStartOk, BOUNDED)
def login_beside_others(meter: Meter, n: int) -> Act:
    for _ in range(n):
        meter.client()
    client = meter.raw_client()
    client.start()
    return client.start_ok
