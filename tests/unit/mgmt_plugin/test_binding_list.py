"""A part of a long list of bindings is had without the rest, and whole, whatever changes meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from engine_harness import Harness

from warren.amqp.field_table import EMPTY_TABLE, encode_table
from warren.engine_view import bindings
from warren.engine_view.engine_view import EngineView
from warren.engine_view.refs import BindingRef, DestinationRef, ExchangeRef
from warren.exchanges.binding import Binding
from warren.mgmt_plugin.resources import binding_list
from warren.mgmt_plugin.resources.binding_list import BindingList, maybe_binding

HUBS = 10


class Place:
    """A vhost with an exchange, some queues and many bindings between them; and what pauses do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.harness = Harness()
        client = self.harness.channel()
        client.declare_exchange("x", "topic")
        self.vhost = self.harness.vhost
        self.source = self.vhost.exchanges["x"]
        for number in range(HUBS):
            client.declare(f"q{number}")
        for number in range(count):
            self.bind(number)
        self.pauses = 0
        self.at_pause: dict[int, Any] = {}
        monkeypatch.setattr(binding_list, "give_way", self._pause)
        call = SimpleNamespace(request=SimpleNamespace(begin_work=trio.lowlevel.checkpoint, hold=lambda size: None))
        self.call: Any = call
        self.view = EngineView(self.harness.broker, lambda: None)

    def bind(self, number: int) -> None:
        queue = self.vhost.queues[f"q{number % HUBS}"]
        self.vhost.bind(self.source, queue, f"key.{number:06}", EMPTY_TABLE, "guest")

    def unbind(self, number: int) -> None:
        queue = self.vhost.queues[f"q{number % HUBS}"]
        self.vhost.unbind(self.source, queue, f"key.{number:06}", EMPTY_TABLE, "guest")

    async def _pause(self) -> None:
        self.pauses += 1
        self.at_pause.pop(self.pauses, lambda: None)()

    def binding(self, properties_key: str) -> BindingRef | None:
        source, queue = ExchangeRef(self.source), DestinationRef(self.vhost.queues["q0"])
        return trio.run(maybe_binding, self.view, source, queue, properties_key)

    def part(self, start: int, count: int) -> list[tuple[str, str]]:
        """Return destination and key of some bindings."""

        async def main() -> list[tuple[str, str]]:
            found = BindingList(self.call, self.view)
            found.add_exchange("/", ExchangeRef(self.source))
            rows = [self.view.bindings.row(bound) for _, bound in await found.part(start, count)]
            return [(row.destination, row.routing_key) for row in rows]

        return trio.run(main)


def test_a_part_begins_and_ends_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch, 57)
    whole = sorted((f"q{number % HUBS}", f"key.{number:06}") for number in range(57))
    assert place.part(0, 1000) == whole
    for start in range(0, 60, 7):
        for count in (1, 5, 30):
            assert place.part(start, count) == whole[start : start + count]


@pytest.mark.parametrize("routing_key", ["", "k", "a b", "a+b", "a/b~c%7E", "~", "ünï", "a~AAAAAA"])
@pytest.mark.parametrize("arguments", [EMPTY_TABLE, encode_table({"x": 1})])
def test_each_binding_is_found_by_what_the_api_calls_it(
    monkeypatch: pytest.MonkeyPatch, routing_key: str, arguments: bytes
) -> None:
    place = Place(monkeypatch, 50)
    queue = place.vhost.queues["q0"]
    place.vhost.bind(place.source, queue, routing_key, encode_table({"x": 2}), "guest")
    wanted = Binding(place.source, queue, routing_key, arguments)
    assert place.binding(wanted.properties_key) is None
    place.vhost.bind(place.source, queue, routing_key, arguments, "guest")
    assert place.binding(wanted.properties_key) == wanted


def test_a_binding_without_arguments_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch, 400)
    found = place.binding("key.000390")
    assert found is not None and place.view.bindings.routing_key(found) == "key.000390"
    assert place.binding("key.000391") is None  # that is another queue's
    assert place.pauses == 0


def test_what_is_not_written_as_the_api_does_is_no_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(monkeypatch, 1)
    assert place.binding("key%2E000000") is None
    assert place.binding("key.000000~") is None
    assert place.binding("key.000000~AAAAAA") is None


def test_a_routing_key_that_was_not_quoted_is_found_unless_it_is_the_key_of_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Place(monkeypatch, 1)
    queue = place.vhost.queues["q0"]
    place.vhost.bind(place.source, queue, "orders.#", EMPTY_TABLE, "guest")
    for written in ("orders.#", "orders.%23"):
        found = place.binding(written)
        assert found is not None and place.view.bindings.routing_key(found) == "orders.#"
    place.vhost.unbind(place.source, queue, "orders.#", EMPTY_TABLE, "guest")
    place.vhost.bind(place.source, queue, "orders.%23", EMPTY_TABLE, "guest")
    assert place.binding("orders.%23") is None  # what the API calls orders.#


@pytest.mark.parametrize("gone", [0, 9, 19, 29])
def test_what_goes_while_a_long_chain_is_read_takes_nothing_else_with_it(
    monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    place = Place(monkeypatch, 400)
    monkeypatch.setattr(bindings, "PIECE", 10)
    place.at_pause = {1: lambda: place.unbind(gone * HUBS), 3: lambda: place.bind(1000)}
    found = place.part(0, 1000)
    left = {(f"q{number % HUBS}", f"key.{number:06}") for number in range(400)}
    left -= {("q0", f"key.{gone * HUBS:06}")}
    assert left <= set(found) and len(found) == len(set(found))
