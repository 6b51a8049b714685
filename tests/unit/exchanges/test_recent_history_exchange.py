"""Recent history exchanges: recent_history_exchange (1) and (2)."""

from __future__ import annotations

import pytest

from warren.amqp.errors import ChannelException
from warren.exchanges.content import Content
from warren.exchanges.exchange import Exchange
from warren.exchanges.exchange_host import RememberedBytes
from warren.exchanges.recent_history_exchange import (
    HISTORIES_BYTES_MAX,
    HISTORY_BYTES_MAX,
    REMEMBERED_BYTES,
    RecentHistoryExchange,
)
from warren.exchanges.routing import route
from warren.queues.destination import Destination

from .topology import bind, exchange, headers_content, queue


def history_exchange(name: str = "x", **arguments: object) -> RecentHistoryExchange:
    made = exchange("x-recent-history", name, 1, **arguments)
    assert isinstance(made, RecentHistoryExchange)
    return made


def publish(source: Exchange, message: object, content: Content) -> list[str]:
    """Route, and let the exchange remember `message`, as a channel does."""
    found: list[Destination] = []
    route(source, ["k", "cc"], content, {}, found)
    effects = content.effects
    if effects is not None:
        assert not effects.takers
        for acting in effects.exchanges:
            assert isinstance(acting, RecentHistoryExchange)
            acting.remember(message, 1)
    return [destination.name for destination in found]


def test_it_is_a_fanout_that_remembers_its_last_twenty_messages() -> None:
    source = history_exchange()
    bind(source, queue("a"), "other key")
    bind(source, queue("b"))
    for number in range(30):
        assert publish(source, number, headers_content(None)) == ["a", "b"]
    assert source.history() == list(range(10, 30))


def test_the_length_is_an_argument() -> None:
    source = history_exchange(x_recent_history_length=2)
    for number in range(5):
        publish(source, number, headers_content(None))
    assert source.history() == [3, 4]


def test_what_is_remembered_has_a_bound_in_bytes() -> None:
    source = history_exchange(x_recent_history_length=1000)
    for number in range(100):
        source.remember(number, HISTORY_BYTES_MAX // 10 - REMEMBERED_BYTES)
    assert source.history() == list(range(90, 100))
    source.remember("large", 2 * HISTORY_BYTES_MAX)
    assert source.history() == ["large"]
    source.remember("small", 1)
    assert source.history() == ["small"]


def test_the_exchanges_of_a_vhost_have_a_bound_together() -> None:
    memory = RememberedBytes()
    sources = [history_exchange(str(number)) for number in range(40)]
    for source in sources:
        source.memory = memory
        for number in range(4):
            source.remember(number, HISTORY_BYTES_MAX // 8 - REMEMBERED_BYTES)
            assert memory.total <= HISTORIES_BYTES_MAX
    assert [len(source.history()) for source in sources] == [4] * 8 + [0] * 32
    for _ in range(4):
        sources[3].forget_oldest()
    sources[20].remember("small", 1)
    assert sources[20].history() == ["small"]
    for source in sources:
        while source.count:
            source.forget_oldest()
    assert memory.total == 0


def test_messages_without_bodies_have_a_bound_as_well() -> None:
    source = history_exchange(x_recent_history_length=2**31)
    most = HISTORY_BYTES_MAX // REMEMBERED_BYTES
    for number in range(most + 100):
        source.remember(number, 0)
    assert source.count == most
    assert source.history() == list(range(100, most + 100))


def test_a_length_no_machine_can_hold_is_still_a_length() -> None:
    source = history_exchange(x_recent_history_length=2**62)
    publish(source, "m", headers_content(None))
    assert source.history() == ["m"]


@pytest.mark.parametrize(("value", "stored"), [(True, False), (False, True), ("true", True), (1, True), (None, True)])
def test_no_store_has_to_be_true(value: object, stored: bool) -> None:
    source = history_exchange()
    bind(source, queue("q"))
    assert publish(source, "m", headers_content({"x-recent-history-no-store": value})) == ["q"]
    assert source.history() == (["m"] if stored else [])


def test_a_message_is_remembered_without_bindings_and_behind_another_exchange() -> None:
    source, behind = exchange("fanout"), history_exchange("behind")
    bind(source, behind)
    bind(source, queue("q"))
    assert publish(source, "m", headers_content(None)) == ["q"]
    assert behind.history() == ["m"]
    assert not behind.cacheable


def test_a_message_that_comes_round_again_is_remembered_once() -> None:
    source, other = history_exchange(), exchange("fanout", "other")
    bind(source, source)
    bind(source, other)
    bind(other, source)
    publish(source, "m", headers_content(None))
    assert source.history() == ["m"]


@pytest.mark.parametrize(
    ("value", "term"),
    [(0, "0"), (-1, "-1"), ("5", '<<"5">>'), (True, "true"), (1.5, "1.5"), (None, "undefined")],
)
def test_another_length_is_refused_in_the_words_of_rabbitmq(value: object, term: str) -> None:
    with pytest.raises(ChannelException) as refusal:
        history_exchange(x_recent_history_length=value)
    assert (refusal.value.reply_code, refusal.value.explanation) == (
        406,
        f"Invalid argument {term}, 'x-recent-history-length' must be a positive integer",
    )
