"""Direct, fanout and the default exchange."""

from __future__ import annotations

from warren.exchanges.content import Content
from warren.exchanges.routing import route
from warren.queues.destination import Destination

from .topology import UNREADABLE, bind, exchange, matched, queue, routed, unbind


def test_direct_matches_equal_keys_only_in_the_order_of_binding() -> None:
    source = exchange("direct")
    for name, key in [("b", "k"), ("a", "k"), ("c", "other"), ("d", "K"), ("e", "")]:
        bind(source, queue(name), key)
    assert matched(source, "k") == ["b", "a"]
    assert matched(source, "") == ["e"]
    assert matched(source, "*") == []


def test_direct_keeps_the_other_bindings_of_a_key_when_one_goes() -> None:
    source = exchange("direct")
    queues = [queue(name) for name in "abcd"]
    for destination in queues:
        bind(source, destination, "k")
    for gone, left in [(1, "acd"), (0, "cd"), (3, "c"), (2, "")]:
        unbind(source, queues[gone], "k")
        assert matched(source, "k") == list(left)
    bind(source, queues[0], "k")
    assert matched(source, "k") == ["a"]


def test_fanout_ignores_keys_and_finds_each_destination_once() -> None:
    source, first = exchange("fanout"), queue("first")
    bind(source, first, "k")
    bind(source, queue("second"), "k")
    bind(source, first, "other")
    assert matched(source, "whatever") == ["first", "second"]
    unbind(source, first, "k")
    assert matched(source, "whatever") == ["first", "second"]
    unbind(source, first, "other")
    assert routed(source, "a", "b", "c") == ["second"]


def test_direct_and_fanout_routes_never_read_the_content() -> None:
    direct, fanout, destination = exchange("direct"), exchange("fanout", "f"), queue("q")
    bind(direct, destination, "k")
    bind(fanout, destination)
    for source in (direct, fanout):
        found: list[Destination] = []
        route(source, ["k", "l"], Content(UNREADABLE), {}, found)
        assert found == [destination]
        assert source.cacheable
