"""Words for tests of super streams: declarations, partitions and their bindings."""

from __future__ import annotations

from typing import Any

from engine_harness import Client, Harness, exchange_declare

from warren.amqp import methods as m
from warren.amqp.field_table import Table, decode_table, encode_table
from warren.streams.stream import Stream
from warren.vhosts.super_streams import partitions_of

from .stream_clients import precondition

TYPE = "x-super-stream"
ORDER = "x-stream-partition-order"
ME = "exchange 'e' in vhost '/'"


def super_stream(
    client: Client, wanted: object = 3, kind: str = TYPE, *, name: str = "e", more: Table | None = None
) -> None:
    """Declare a super stream, which is accepted."""
    assert client.call(1, declaration(wanted, kind, name=name, more=more)) == m.ExchangeDeclareOk()


def declaration(
    wanted: object,
    kind: str = TYPE,
    *,
    name: str = "e",
    more: Table | None = None,
    durable: bool = True,
    auto_delete: bool = False,
) -> m.ExchangeDeclare:
    arguments: Table = {TYPE: wanted} | (more or {})
    return exchange_declare(name, kind, durable=durable, auto_delete=auto_delete, arguments=arguments)


def refused(client: Client, wanted: object, explanation: str, kind: str = TYPE, **options: Any) -> None:
    """Declare a super stream, which is refused: nothing of it is there then."""
    vhost = client.harness.vhost
    before = list(vhost.exchanges), list(vhost.queues)
    refusal = client.refused(1, declaration(wanted, kind, **options))
    assert refusal == precondition(explanation, m.ExchangeDeclare)
    assert (list(vhost.exchanges), list(vhost.queues)) == before


def partitions(harness: Harness, name: str = "e") -> list[str] | None:
    return partitions_of(harness.vhost, name)


def stream_of(harness: Harness, name: str) -> Stream:
    queue = harness.queue(name)
    assert isinstance(queue, Stream)
    return queue


def arguments_of(harness: Harness, name: str) -> Table:
    return decode_table(harness.queue(name).arguments)


def bindings(harness: Harness, name: str = "e") -> list[tuple[str, str, Table]]:
    return [
        (binding.destination.name, binding.routing_key, binding.table)
        for binding in harness.vhost.exchanges[name].bindings.values()
    ]


def topology(*keys: str, name: str = "e") -> list[tuple[str, str, Table]]:
    return [(f"{name}-{key}", key, {ORDER: order}) for order, key in enumerate(keys)]


def bind(client: Client, queue: str, key: str, order: object = None, exchange: str = "e") -> None:
    client.bind(queue, exchange, key, None if order is None else {ORDER: order})


def unbind(client: Client, queue: str, key: str, order: int) -> None:
    assert client.call(1, m.QueueUnbind(0, queue, "e", key, encode_table({ORDER: order}))) == m.QueueUnbindOk()


def counts(harness: Harness, *names: str) -> list[int]:
    return [int(harness.queue(name).message_count) for name in names]
