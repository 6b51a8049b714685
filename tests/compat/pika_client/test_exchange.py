"""Exchanges: each standard type, names, bindings between exchanges, alternate exchanges."""

from __future__ import annotations

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from ..conftest import Names
from .dialogue import (
    drain,
    get,
)


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers"])
@pytest.mark.parametrize("durable", [False, True])
def test_an_exchange_of_each_standard_type_can_be_declared_twice(
    channel: BlockingChannel, names: Names, kind: str, durable: bool
) -> None:
    exchange = names.exchange()
    channel.exchange_declare(exchange, kind, durable=durable)
    channel.exchange_declare(exchange, kind, durable=durable)
    channel.exchange_declare(exchange, passive=True)


def test_a_name_of_255_octets_is_accepted(channel: BlockingChannel, names: Names) -> None:
    stem = names.exchange()
    exchange = stem + "é" * ((255 - len(stem)) // 2)
    channel.exchange_declare(exchange, "direct")
    channel.exchange_delete(exchange)


# exchange to exchange bindings


def test_a_message_walks_through_bound_exchanges(channel: BlockingChannel, names: Names) -> None:
    first, second, third = (names.exchange(label) for label in ("first", "second", "third"))
    queue = names.queue()
    channel.exchange_declare(first, "topic")
    channel.exchange_declare(second, "fanout")
    channel.exchange_declare(third, "direct")
    channel.exchange_bind(second, first, "logs.#")
    channel.exchange_bind(third, second)
    channel.queue_declare(queue)
    channel.queue_bind(queue, third, "logs.disk")
    channel.basic_publish(first, "logs.disk", b"full")
    channel.basic_publish(first, "logs.net", b"wrong key at the end")
    channel.basic_publish(first, "metrics.disk", b"wrong key at the start")
    method, _, body = get(channel, queue, auto_ack=True)
    assert (method.exchange, method.routing_key, body) == (first, "logs.disk", b"full")
    assert drain(channel, queue) == []


# internal and alternate exchanges


def test_an_alternate_exchange_takes_what_matched_nothing(channel: BlockingChannel, names: Names) -> None:
    exchange, spare = names.exchange(), names.exchange("spare")
    wanted, leftovers = names.queue("wanted"), names.queue("leftovers")
    channel.exchange_declare(spare, "fanout")
    channel.exchange_declare(exchange, "direct", arguments={"alternate-exchange": spare})
    channel.queue_declare(wanted)
    channel.queue_bind(wanted, exchange, "k")
    channel.queue_declare(leftovers)
    channel.queue_bind(leftovers, spare)
    channel.basic_publish(exchange, "k", b"matched")
    channel.basic_publish(exchange, "other", b"left over", mandatory=True)
    assert drain(channel, wanted) == [b"matched"]
    method, _, body = get(channel, leftovers, auto_ack=True)
    assert (method.exchange, method.routing_key, body) == (exchange, "other", b"left over")
