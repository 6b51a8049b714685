"""Bindings and what all exchange types share: exchange (1) to (4), binding (1) to (3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren.exchanges.binding import Binding
from warren.exchanges.exchange import Exchange
from warren.exchanges.registry import EXCHANGE_TYPES
from warren.queues.destination import Destination

from .topology import bind, exchange, headers_content, matched, queue, table_bytes, unbind, unbind_all

MANY = 30_000

BindingIdentity = tuple[Destination, str, bytes]


def identity_of(binding: Binding) -> BindingIdentity:
    return (binding.destination, binding.routing_key, binding.arguments)


def assert_consistent(source: Exchange, expected: list[BindingIdentity]) -> None:
    assert list(map(identity_of, source.bindings)) == expected
    assert all(key is binding for key, binding in source.bindings.items())
    assert set(source.by_destination) == {destination for destination, _, _ in expected}
    assert {id(other) for other in source.downstream} == {
        id(destination) for destination, _, _ in expected if not destination.is_queue
    }
    for destination, first in source.by_destination.items():
        chain: list[BindingIdentity] = []
        link: Binding | None = first
        last: Binding | None = None
        while link is not None:
            chain.append(identity_of(link))
            assert link is first or link.previous_to_destination is last
            last, link = link, link.next_to_destination
        assert first.previous_to_destination is last
        assert chain == [identity for identity in expected if identity[0] is destination]


def assert_unlinked(binding: Binding) -> None:
    assert binding.next_to_destination is None
    assert binding.previous_to_destination is None
    assert binding.next_in_bucket is None
    assert binding.previous_in_bucket is None


@pytest.mark.parametrize("type_name", ["direct", "fanout", "topic", "headers", "x-random", "x-recent-history"])
@given(
    commands=st.lists(
        st.tuples(
            st.sampled_from(["bind", "bind", "bind", "unbind", "unbind destination"]),
            st.integers(0, 4),
            st.sampled_from(["", "a", "a.b", "#"]),
            st.sampled_from([None, {"a": 1}, {"a": 2}]),
        ),
        max_size=40,
    )
)
def test_binds_and_unbinds_in_any_order_leave_what_a_plain_list_would_hold(
    type_name: str, commands: list[tuple[str, int, str, dict[str, object] | None]]
) -> None:
    source = exchange(type_name)
    destinations: list[Destination] = [queue("0"), queue("1"), queue("2"), exchange("fanout", "3"), source]
    expected: list[BindingIdentity] = []
    for command, index, routing_key, arguments in commands:
        destination = destinations[index]
        identity = (destination, routing_key, table_bytes(arguments))
        if command == "bind":
            assert bind(source, destination, routing_key, arguments) is (identity not in expected)
            if identity not in expected:
                expected.append(identity)
        elif command == "unbind":
            removed = unbind(source, destination, routing_key, arguments)
            assert (removed is not None) is (identity in expected)
            if removed is not None:
                expected.remove(identity)
                assert_unlinked(removed)
        else:
            gone = unbind_all(source, destination)
            assert list(map(identity_of, gone)) == [kept for kept in expected if kept[0] is destination]
            expected = [kept for kept in expected if kept[0] is not destination]
            for binding in gone:
                assert_unlinked(binding)
        assert_consistent(source, expected)
        for other in destinations:
            assert source.is_bound_to(other) is any(kept[0] is other for kept in expected)
    everything = list(source.bindings)
    assert {id(each) for each in unbind_all(source)} == {id(each) for each in everything}
    assert_consistent(source, [])
    for binding in everything:
        assert_unlinked(binding)
    assert matched(source, "a", headers_content({"a": 1})) == []


@pytest.mark.parametrize("type_name", EXCHANGE_TYPES)
def test_many_bindings_come_and_go(type_name: str) -> None:
    source = exchange(type_name)
    queues = [queue(str(number)) for number in range(MANY)]
    key = {"x-consistent-hash": "1", "x-local-random": "", "x-super-stream": "{}"}.get(type_name, "sensor.{}.value")
    for number, destination in enumerate(queues):
        assert bind(source, destination, key.format(number), {"n": number})
    assert len(source.bindings) == MANY
    found = matched(source, "sensor.17777.value", headers_content({"n": 17777}))
    if type_name in ("direct", "topic", "headers", "x-delayed-message"):
        assert found == ["17777"]
    else:
        assert len(found) == (MANY if type_name in ("fanout", "x-federation-upstream", "x-recent-history") else 1)
    for number, destination in enumerate(queues):
        assert unbind(source, destination, key.format(number), {"n": number}) is not None
    assert matched(source, "sensor.17777.value", headers_content({"n": 17777})) == []


@pytest.mark.parametrize("type_name", ["direct", "fanout", "topic", "headers", "x-consistent-hash"])
def test_many_bindings_of_one_key_or_one_destination_can_go_one_by_one(type_name: str) -> None:
    source = exchange(type_name)
    queues = [queue(str(number)) for number in range(MANY // 2)]
    for destination in queues:
        bind(source, destination, "1", {"same": "value"})
    hub = queue("hub")
    for number in range(MANY // 2):
        bind(source, hub, "1", {"number": number})
    for destination in queues:
        assert unbind(source, destination, "1", {"same": "value"}) is not None
    for number in range(MANY // 2):
        assert unbind(source, hub, "1", {"number": number}) is not None
    assert not source.bindings
    assert not source.by_destination


def test_a_queue_declared_again_under_its_name_is_another_destination() -> None:
    source = exchange("fanout")
    bind(source, queue("q"))
    assert not source.is_bound_to(queue("q"))
    assert unbind(source, queue("q")) is None


def test_arguments_are_part_of_the_identity_of_a_binding() -> None:
    source, destination = exchange("direct"), queue("q")
    assert bind(source, destination, "k")
    assert bind(source, destination, "k", {"a": 1})
    assert not bind(source, destination, "k", {"a": 1})
    assert unbind(source, destination, "k") is not None
    assert matched(source, "k") == ["q"]


@pytest.mark.parametrize(
    ("routing_key", "arguments", "expected"),
    [
        ("", None, "~"),
        ("key", None, "key"),
        ("a.#", None, "a.%23"),
        ("a b/c", None, "a+b%2Fc"),
        ("~", None, "%7E"),
        ("ü", None, "%C3%BC"),
    ],
)
def test_the_properties_key_is_the_quoted_routing_key(
    routing_key: str, arguments: dict[str, object] | None, expected: str
) -> None:
    binding = Binding(exchange("direct"), queue("q"), routing_key, table_bytes(arguments))
    assert binding.properties_key == expected


def test_the_properties_key_tells_arguments_apart_and_never_changes() -> None:
    source, destination = exchange("headers"), queue("q")
    one = Binding(source, destination, "k", table_bytes({"a": 1})).properties_key
    two = Binding(source, destination, "k", table_bytes({"a": 2})).properties_key
    keyless = Binding(source, destination, "", table_bytes({"a": 1})).properties_key
    assert (one, two, keyless) == ("k~GRKUUw", "k~tJEnGw", "~GRKUUw")


def test_a_binding_shows_its_arguments_decoded() -> None:
    binding = Binding(exchange("headers"), queue("q"), "", table_bytes({"x-match": "any", "n": 5}))
    assert binding.table == {"x-match": "any", "n": 5}
