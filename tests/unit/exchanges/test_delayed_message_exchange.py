"""Delayed message exchanges. Numbers in parentheses: the header of ``warren/exchanges/delayed_message_exchange.py``."""

from __future__ import annotations

import pytest

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.errors import ChannelException
from warren.amqp.field_table import Table, encode_table
from warren.exchanges.content import Content
from warren.exchanges.delayed_message_exchange import DelayedMessageExchange
from warren.exchanges.exchange import Exchange
from warren.exchanges.registry import EXCHANGE_TYPES, create_exchange
from warren.exchanges.routing import route
from warren.queues.destination import Destination

from .topology import bind, exchange, headers_content, queue, unbind

OTHER_TYPES = [name for name in EXCHANGE_TYPES if name != "x-delayed-message"]


def delayed(kind: str, name: str = "x") -> Exchange:
    return exchange("x-delayed-message", name, x_delayed_type=kind)


def routed(source: Exchange, key: str, content: Content, *others: Exchange) -> list[str]:
    """Return the names of the queues that a message goes to."""
    found: list[Destination] = []
    route(source, [key], content, {other.name: other for other in (source, *others)}, found)
    return [destination.name for destination in found]


def taking(content: Content) -> list[Exchange]:
    assert content.effects is not None
    assert content.effects.exchanges == content.effects.takers
    return content.effects.takers


def with_delay(due_ms: int = 5) -> Content:
    content = headers_content({"a": 1})
    content.due_ms = due_ms
    return content


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_without_a_delay_it_routes_like_its_other_type(kind: str) -> None:
    """(1)"""
    like, source = exchange(kind), delayed(kind)
    key = {"x-consistent-hash": "1", "x-local-random": "", "x-super-stream": "0"}.get(kind, "k")
    queues = [queue(str(number)) for number in range(3)]
    for made in (like, source):
        for number, destination in enumerate(queues):
            bind(made, destination, key, {"a": number})
        unbind(made, queues[0], key, {"a": 0})
        unbind(made, queues[2], key, {"a": 2})
    assert routed(source, key, headers_content({"a": 1})) == routed(like, key, headers_content({"a": 1})) == ["1"]
    assert list(source.by_destination) == [queues[1]]
    assert source.type_name == "x-delayed-message"


def test_with_a_delay_it_matches_nothing_and_holds() -> None:
    """(2)"""
    source = delayed("fanout")
    bind(source, queue("q"))
    content = with_delay()
    assert routed(source, "k", content) == []
    assert taking(content) == [source]
    assert content.is_taken_by(source)
    assert not content.is_taken_by(delayed("fanout"))


def test_each_delayed_exchange_on_the_way_holds_the_message_and_the_queues_beside_get_it() -> None:
    """(2)"""
    source = exchange("fanout")
    holders = [delayed("fanout", name) for name in ("one", "two")]
    for holder in holders:
        bind(source, holder)
        bind(holder, queue("behind " + holder.name))
    bind(source, queue("beside"))
    content = with_delay()
    assert routed(source, "k", content, *holders) == ["beside"]
    assert taking(content) == holders
    assert sorted(routed(source, "k", headers_content({}), *holders)) == ["behind one", "behind two", "beside"]


def test_the_alternate_exchange_is_asked_when_it_is_due_and_not_before() -> None:
    """(3)"""
    source, alternate = delayed("direct"), exchange("fanout", "ae")
    source.alternate = "ae"
    bind(alternate, queue("lost"))
    assert routed(source, "k", with_delay(), alternate) == []
    assert routed(source, "k", headers_content({}), alternate) == ["lost"]
    bind(source, queue("found"), "k")
    assert routed(source, "k", headers_content({}), alternate) == ["found"]


def test_bindings_are_checked_by_the_other_type() -> None:
    with pytest.raises(ChannelException, match="Non empty binding"):
        bind(delayed("x-local-random"), queue("q"), "a key")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
        ({"x-delayed-type": 5}, "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
        (
            {"x-delayed-type": "x-delayed-message"},
            "Invalid argument, 'x-delayed-message' can't be used for 'x-delayed-type'",
        ),
        ({"x-delayed-type": "x-unknown"}, "unknown exchange type 'x-unknown'"),
        ({"x-delayed-type": ""}, "unknown exchange type ''"),
        (
            {"x-delayed-type": "x-recent-history", "x-recent-history-length": 0},
            "Invalid argument 0, 'x-recent-history-length' must be a positive integer",
        ),
    ],
)
def test_a_type_that_it_cannot_route_like_is_refused(arguments: Table, text: str) -> None:
    with pytest.raises(ChannelException) as refusal:
        create_exchange(
            ExchangeDeclaration("x", "x-delayed-message", durable=True, arguments=encode_table(arguments)), seed=1
        )
    assert (refusal.value.reply_code, refusal.value.explanation) == (406, text)


def test_a_redeclaration_may_have_another_type_to_route_like() -> None:
    made = delayed("topic")
    assert isinstance(made, DelayedMessageExchange)
    made.check_equivalent(
        ExchangeDeclaration(
            "x", "x-delayed-message", durable=True, arguments=encode_table({"x-delayed-type": "direct"})
        ),
        "/",
    )
    with pytest.raises(ChannelException, match="inequivalent arg 'type'"):
        made.check_equivalent(ExchangeDeclaration("x", "topic", durable=True, arguments=encode_table({})), "/")
