"""The walk from exchange to queues: routing (1) to (4)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.exchanges.content import STEPS_MAX, Content
from warren.exchanges.exchange import Exchange
from warren.exchanges.registry import EXCHANGE_TYPES
from warren.exchanges.routing import is_cacheable_route, route
from warren.queues.destination import Destination

from .topology import bind, exchange, headers_content, queue, routed, unbind


def test_a_queue_bound_by_several_ways_is_found_once() -> None:
    source, middle, destination = exchange("topic"), exchange("fanout", "m"), queue("q")
    bind(source, destination, "a.*")
    bind(source, destination, "#")
    bind(source, middle, "a.b")
    bind(middle, destination)
    assert routed(source, "a.b", "a.c") == ["q"]


def test_exchanges_pass_on_to_exchanges_with_the_same_keys() -> None:
    source, middle, last = exchange("fanout"), exchange("direct", "m"), exchange("topic", "t")
    bind(source, middle)
    bind(middle, last, "a.b")
    bind(last, queue("q"), "a.#")
    assert routed(source, "a.b") == ["q"]
    assert routed(source, "a.c") == []
    assert routed(source, "a.c", "a.b") == ["q"]


def test_circles_of_exchanges_end() -> None:
    first, second = exchange("fanout", "1"), exchange("fanout", "2")
    bind(first, second)
    bind(second, first)
    bind(first, first)
    bind(second, queue("q"))
    assert routed(first, "k") == ["q"]
    assert routed(second, "k") == ["q"]


def test_what_is_found_comes_in_the_order_of_binding_nearest_first() -> None:
    source, middle = exchange("fanout"), exchange("fanout", "m")
    bind(source, middle)
    for name in "zax":
        bind(source, queue(name))
    for name in "wb":
        bind(middle, queue(name))
    assert routed(source, "k") == ["z", "a", "x", "w", "b"]


def test_every_key_is_asked_for_at_a_direct_exchange() -> None:
    source = exchange("direct")
    for name in "abc":
        bind(source, queue(name), name)
    assert routed(source, "c", "a", "c", "nobody") == ["c", "a"]


# --- alternate exchanges ------------------------------------------------------------------------------------


def test_the_same_key_again_and_again_is_one_key() -> None:
    source = exchange("direct")
    for number in range(50):
        destination = queue(str(number))
        bind(source, destination, "k")
        bind(source, destination, "l")
    content = headers_content(None)
    found: list[Destination] = []
    route(source, ["k", "l"] * 2000, content, {}, found)
    assert [destination.name for destination in found] == [str(number) for number in range(50)]
    assert STEPS_MAX - content.steps_left == 2


def test_a_walk_over_exchanges_ends_when_no_steps_are_left() -> None:
    exchanges = [exchange("fanout", str(number)) for number in range(100)]
    for source, destination in itertools.pairwise(exchanges):
        bind(source, destination)
    bind(exchanges[-1], queue("q"))
    content = headers_content(None)
    content.steps_left = 500
    found: list[Destination] = []
    route(exchanges[0], [str(number) for number in range(10)], content, {}, found)
    assert found == [] and content.steps_left == -10


def test_the_alternate_gets_what_nothing_matched() -> None:
    source, alternate = exchange("direct", alternate_exchange="ae"), exchange("fanout", "ae")
    bind(source, queue("q"), "k")
    bind(alternate, queue("rest"))
    assert routed(source, "k", others=(alternate,)) == ["q"]
    assert routed(source, "other", others=(alternate,)) == ["rest"]
    assert routed(source, "other", "k", others=(alternate,)) == ["q"]


def test_alternates_form_a_chain_each_visited_once() -> None:
    first = exchange("direct", "1", alternate_exchange="2")
    second = exchange("direct", "2", alternate_exchange="3")
    third = exchange("direct", "3", alternate_exchange="1")
    everyone = (first, second, third)
    assert routed(first, "k", others=everyone) == []
    bind(third, queue("q"), "k")
    for start in everyone:
        assert routed(start, "k", others=everyone) == ["q"]


def test_an_exchange_that_is_its_own_alternate_ends() -> None:
    assert routed(exchange("direct", "x", alternate_exchange="x"), "k") == []


def test_a_missing_alternate_is_passed_over() -> None:
    assert routed(exchange("direct", alternate_exchange="nowhere"), "k") == []


def test_a_match_that_leads_to_no_queue_still_keeps_the_alternate_out() -> None:
    source = exchange("direct", alternate_exchange="ae")
    empty, alternate = exchange("fanout", "empty"), exchange("fanout", "ae")
    bind(alternate, queue("rest"))
    bind(source, empty, "k")
    assert routed(source, "k", others=(alternate,)) == []
    bind(source, source, "self")
    assert routed(source, "self", others=(alternate,)) == []


def test_an_exchange_further_down_has_an_alternate_of_its_own() -> None:
    source, middle = exchange("fanout"), exchange("direct", "m", alternate_exchange="ae")
    alternate = exchange("fanout", "ae")
    bind(source, queue("q"))
    bind(source, middle)
    bind(alternate, queue("rest"))
    assert routed(source, "k", others=(alternate,)) == ["q", "rest"]


def test_an_alternate_may_be_set_from_outside() -> None:
    source, alternate = exchange("direct"), exchange("fanout", "ae")
    bind(alternate, queue("rest"))
    source.alternate = "ae"
    assert routed(source, "k", others=(alternate,)) == ["rest"]


# --- any graph ----------------------------------------------------------------------------------------------


def reachable(start: str, bindings: set[tuple[str, str]], alternates: dict[str, str]) -> set[str]:
    """Return the queues that fanout exchanges lead to, said as plainly as possible."""
    queues: set[str] = set()
    visited: set[str] = set()
    pending = {start}
    while pending:
        here = pending.pop()
        visited.add(here)
        targets = {target for source, target in bindings if source == here}
        if not targets and here in alternates:
            targets = {alternates[here]}
        queues |= {target for target in targets if target.startswith("q")}
        pending |= {target for target in targets if target.startswith("x")} - visited
    return queues


exchange_names = st.sampled_from([f"x{number}" for number in range(5)])
queue_names = st.sampled_from([f"q{number}" for number in range(4)])


@given(
    bindings=st.sets(st.tuples(exchange_names, exchange_names | queue_names), max_size=15),
    alternates=st.dictionaries(exchange_names, exchange_names, max_size=5),
    start=exchange_names,
    cacheless=st.sets(exchange_names, max_size=2),
)
def test_any_graph_gives_the_queues_that_can_be_reached_each_once(
    bindings: set[tuple[str, str]], alternates: dict[str, str], start: str, cacheless: set[str]
) -> None:
    exchanges = {f"x{number}": exchange("fanout", f"x{number}") for number in range(5)}
    queues = {f"q{number}": queue(f"q{number}") for number in range(4)}
    for source, target in sorted(bindings):
        bind(exchanges[source], exchanges[target] if target in exchanges else queues[target])
    for source, target in alternates.items():
        exchanges[source].alternate = target
    found = routed(exchanges[start], "k", others=tuple(exchanges.values()))
    assert len(found) == len(set(found))
    assert set(found) == reachable(start, bindings, alternates)

    for name in cacheless:
        exchanges[name].cacheable = False
    connected = {start}
    for _ in exchanges:
        connected |= {target for source, target in bindings if source in connected and target in exchanges}
        connected |= {target for source, target in alternates.items() if source in connected}
    assert is_cacheable_route(exchanges[start], exchanges, Content(b"")) is not bool(connected & cacheless)


# --- which routes may be cached -----------------------------------------------------------------------------


def test_routes_by_key_alone_may_be_cached() -> None:
    cacheable = {name for name in EXCHANGE_TYPES if is_cacheable_route(exchange(name), {}, Content(b""))}
    assert cacheable == {"direct", "fanout", "topic", "x-modulus-hash", "x-super-stream"}


@pytest.mark.parametrize("way", ["binding", "alternate"])
def test_a_route_that_can_reach_a_headers_exchange_may_not(way: str) -> None:
    source, middle, headers = exchange("direct"), exchange("topic", "m"), exchange("headers", "h")
    exchanges: dict[str, Exchange] = {made.name: made for made in (source, middle, headers)}
    bind(source, middle, "k")
    assert is_cacheable_route(source, exchanges, Content(b""))
    if way == "binding":
        bind(middle, headers, "k")
    else:
        middle.alternate = "h"
    assert not is_cacheable_route(source, exchanges, Content(b""))
    unbind(source, middle, "k")
    assert is_cacheable_route(source, exchanges, Content(b""))


# --- contents -----------------------------------------------------------------------------------------------


def test_a_content_decodes_once_and_only_when_asked() -> None:
    content = headers_content({"a": 1})
    assert content.headers is content.headers
    assert content.properties is content.properties
    assert content.headers == {"a": 1}
    assert headers_content(None).headers == {}
    assert Content(b"").effects is None
