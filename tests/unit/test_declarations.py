"""One value says what is declared: whatever it is made of or turned into, nothing is lost or swapped."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from engine_harness import Harness
from hypothesis import given
from hypothesis import strategies as st

from warren.amqp import methods as m
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.errors import ChannelException
from warren.amqp.field_table import EMPTY_TABLE, encode_table
from warren.exchanges.registry import create_exchange
from warren.queues.arguments import QueueArguments
from warren.vhosts.metadata import ExchangePut, QueuePut

ARGUMENTS = encode_table({"x-unknown": 5})
TABLES = st.sampled_from([EMPTY_TABLE, ARGUMENTS])
QUEUES = st.builds(
    QueueDeclaration,
    st.sampled_from(["q", "other"]),
    durable=st.booleans(),
    exclusive=st.booleans(),
    auto_delete=st.booleans(),
    arguments=TABLES,
)
EXCHANGES = st.builds(
    ExchangeDeclaration,
    st.sampled_from(["e", "other"]),
    st.sampled_from(["direct", "topic"]),
    durable=st.booleans(),
    auto_delete=st.booleans(),
    internal=st.booleans(),
    arguments=TABLES,
)


@given(QUEUES, st.booleans())
def test_a_queue_goes_through_its_method(declaration: QueueDeclaration, passive: bool) -> None:
    method = declaration.method(passive=passive)
    assert (method.passive, method.no_wait) == (passive, False)
    assert (method.durable, method.exclusive, method.auto_delete) == (
        declaration.durable,
        declaration.exclusive,
        declaration.auto_delete,
    )
    assert QueueDeclaration.of_method(method, method.queue) == declaration


@given(EXCHANGES, st.booleans())
def test_an_exchange_goes_through_its_method(declaration: ExchangeDeclaration, passive: bool) -> None:
    method = declaration.method(passive=passive)
    assert (method.passive, method.no_wait) == (passive, False)
    assert (method.type, method.durable, method.auto_delete, method.internal) == (
        declaration.type,
        declaration.durable,
        declaration.auto_delete,
        declaration.internal,
    )
    assert ExchangeDeclaration.of_method(method, method.exchange) == declaration


@given(EXCHANGES)
def test_an_exchange_is_what_was_declared(declaration: ExchangeDeclaration) -> None:
    made = create_exchange(declaration, seed=1)
    assert made.declaration == declaration
    made.check_equivalent(declaration, "/")


@given(EXCHANGES, EXCHANGES)
def test_an_exchange_is_equivalent_to_what_says_the_same(
    first: ExchangeDeclaration, second: ExchangeDeclaration
) -> None:
    made = create_exchange(first, seed=1)
    properties = [(each.type, each.durable, each.auto_delete, each.internal) for each in (first, second)]
    if properties[0] == properties[1]:  # arguments that nobody knows are not compared
        made.check_equivalent(second, "/")
    else:
        with pytest.raises(ChannelException, match="inequivalent"):
            made.check_equivalent(second, "/")


@given(EXCHANGES, QUEUES)
def test_a_row_brings_back_what_is_durable(exchange: ExchangeDeclaration, queue: QueueDeclaration) -> None:
    if exchange.durable:
        made = ExchangePut.of("v", exchange, "alice")
        assert (made.declaration, made.declared_by) == (exchange, "alice")
    if queue.durable and not queue.exclusive:
        row = QueuePut.of("v", queue, 7)
        assert (row.vhost, row.queue_id, row.declaration) == ("v", 7, queue)


@given(QUEUES)
def test_a_queue_is_what_was_declared(declaration: QueueDeclaration) -> None:
    harness = Harness()
    me = object()
    harness.vhost.declare_queue(declaration, me if declaration.exclusive else None)
    queue = harness.vhost.queues[declaration.name]
    # Objects that belong to a connection do not outlive it.
    assert queue.durable == (declaration.durable and not declaration.exclusive)
    assert queue.declaration.exclusive == declaration.exclusive
    assert (queue.auto_delete, queue.arguments) == (declaration.auto_delete, declaration.arguments)
    QueueArguments.check_equivalent(queue, queue.declaration)
    harness.vhost.declare_queue(declaration, queue.owner)


def test_clients_and_the_vhost_declare_the_same() -> None:
    harness = Harness()
    client = harness.channel()
    client.call(1, m.QueueDeclare(0, "q", False, True, False, True, False, ARGUMENTS))
    client.call(1, m.ExchangeDeclare(0, "e", "topic", False, True, True, True, False, ARGUMENTS))
    queue, exchange = harness.vhost.queues["q"], harness.vhost.exchanges["e"]
    assert queue.declaration == QueueDeclaration("q", durable=True, auto_delete=True, arguments=ARGUMENTS)
    assert exchange.declaration == ExchangeDeclaration(
        "e", "topic", durable=True, auto_delete=True, internal=True, arguments=ARGUMENTS
    )


def test_a_declaration_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(QueueDeclaration("q", durable=True), "durable", False)  # noqa: B010
    with pytest.raises(FrozenInstanceError):
        setattr(ExchangeDeclaration("e", "direct", durable=True), "name", "other")  # noqa: B010
