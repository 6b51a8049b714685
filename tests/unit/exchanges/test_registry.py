"""Making exchanges, and redeclaring them."""

from __future__ import annotations

import pytest

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.errors import ChannelException
from warren.amqp.field_table import Table, encode_table
from warren.exchanges.registry import EXCHANGE_TYPES, create_exchange

from .topology import exchange

IN_X = "for exchange 'x' in vhost '/'"


@pytest.mark.parametrize("type_name", EXCHANGE_TYPES)
def test_every_type_makes_an_exchange_that_knows_what_it_was_declared_with(type_name: str) -> None:
    table: Table = {"alternate-exchange": "ae", "x-unknown": [1, "two"], "x-delayed-type": "topic"}
    arguments = encode_table(table)
    made = create_exchange(
        ExchangeDeclaration("x", type_name, durable=False, auto_delete=True, internal=True, arguments=arguments), seed=1
    )
    assert (made.name, made.type_name, made.durable, made.auto_delete, made.internal) == (
        "x",
        type_name,
        False,
        True,
        True,
    )
    assert (made.alternate, made.arguments, made.is_queue) == ("ae", arguments, False)
    assert made.table == table
    assert (made.published_in, made.published_out) == (0, 0)
    assert exchange(type_name).alternate == ""


@pytest.mark.parametrize("type_name", ["", "Direct", "x-delayed", "topic "])
def test_an_unknown_type_is_refused_before_its_arguments(type_name: str) -> None:
    with pytest.raises(ChannelException) as refusal:
        create_exchange(
            ExchangeDeclaration("x", type_name, durable=True, arguments=encode_table({"alternate-exchange": 5})), seed=1
        )
    assert (refusal.value.reply_code, refusal.value.explanation) == (
        406,
        f"unknown exchange type '{type_name}'",
    )


@pytest.mark.parametrize(
    ("value", "tag"), [(5, "signedint"), (True, "bool"), (["a"], "array"), (b"a", "binary"), (None, "void")]
)
def test_an_alternate_has_to_be_a_longstr(value: object, tag: str) -> None:
    with pytest.raises(ChannelException) as refusal:
        create_exchange(
            ExchangeDeclaration("y", "topic", durable=True, arguments=encode_table({"alternate-exchange": value})),
            seed=1,
            vhost_name="v",
        )
    assert (refusal.value.reply_code, refusal.value.explanation) == (
        406,
        f"invalid type '{tag}' for arg 'alternate-exchange' in exchange 'y' in vhost 'v'",
    )


@pytest.mark.parametrize(
    ("type_name", "durable", "auto_delete", "internal", "text"),
    [
        ("topic", True, False, False, f"'type' {IN_X}: received 'topic' but current is 'direct'"),
        ("direct", False, False, False, f"'durable' {IN_X}: received 'false' but current is 'true'"),
        ("direct", True, True, False, f"'auto_delete' {IN_X}: received 'true' but current is 'false'"),
        ("direct", True, False, True, f"'internal' {IN_X}: received 'true' but current is 'false'"),
        ("topic", False, True, True, f"'type' {IN_X}: received 'topic' but current is 'direct'"),
    ],
)
def test_a_redeclaration_with_another_property_is_refused(
    type_name: str, durable: bool, auto_delete: bool, internal: bool, text: str
) -> None:
    with pytest.raises(ChannelException) as refusal:
        exchange("direct").check_equivalent(
            ExchangeDeclaration("x", type_name, durable=durable, auto_delete=auto_delete, internal=internal), "/"
        )
    assert (refusal.value.reply_code, refusal.value.explanation) == (406, f"inequivalent arg {text}")


@pytest.mark.parametrize(
    ("current", "received", "text"),
    [
        ({"alternate-exchange": "a"}, {}, "received none but current is the value 'a' of type 'longstr'"),
        ({}, {"alternate-exchange": "b"}, "received the value 'b' of type 'longstr' but current is none"),
        ({"alternate-exchange": "a"}, {"alternate-exchange": "b"}, "received 'b' but current is 'a'"),
        ({"alternate-exchange": "a"}, {"alternate-exchange": 5}, "received '5' but current is 'a'"),
    ],
)
def test_a_redeclaration_with_another_alternate_is_refused(
    current: dict[str, object], received: dict[str, object], text: str
) -> None:
    made = create_exchange(ExchangeDeclaration("x", "direct", durable=True, arguments=encode_table(current)), seed=1)
    with pytest.raises(ChannelException) as refusal:
        made.check_equivalent(ExchangeDeclaration("x", "direct", durable=True, arguments=encode_table(received)), "/")
    assert (refusal.value.reply_code, refusal.value.explanation) == (
        406,
        f"inequivalent arg 'alternate-exchange' {IN_X}: {text}",
    )


def test_a_redeclaration_may_differ_in_arguments_that_nobody_compares() -> None:
    made = create_exchange(
        ExchangeDeclaration("x", "direct", durable=True, arguments=encode_table({"x-unknown": 1})), seed=1
    )
    made.check_equivalent(
        ExchangeDeclaration("x", "direct", durable=True, arguments=encode_table({"x-unknown": 2, "x-new": 3})), "/"
    )
