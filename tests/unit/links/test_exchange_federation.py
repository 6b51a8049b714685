"""The bindings at the upstream are the bindings here; the cost of a change depends only on the change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
import trio
from link_host import LOOPBACK_SETTINGS, FakeHost
from trio.testing import wait_all_tasks_blocked

from warren.amqp import methods
from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.field_table import EMPTY_TABLE, ENTRIES_MAX, Table, encode_table
from warren.links import exchange_federation
from warren.links.amqp_client import Channel
from warren.links.endpoints import Endpoints
from warren.links.exchange_federation import CHANGES_MAX, ExchangeLink
from warren.links.host import LocalBinding, LocalExchange, Parameter, Policy
from warren.links.upstreams import UpstreamBook

POLICY = Policy(upstream="up")
A, B = LocalBinding("a", EMPTY_TABLE), LocalBinding("b", EMPTY_TABLE)


class PaperUpstream:
    """The channel of a link at its upstream: its bindings there, and the requests. Closed, it does not answer."""

    def __init__(self) -> None:
        self.connection = self
        self.frame_max_bytes = 1 << 17
        self.bound: set[str] = set()
        self.asked: list[str] = []
        self.opened = trio.Event()
        self.opened.set()

    async def call(self, method: Any, reply: type[Any]) -> Any:
        await trio.lowlevel.checkpoint()
        await self.opened.wait()
        if isinstance(method, methods.ExchangeBind):
            assert method.routing_key not in self.bound
            self.bound.add(method.routing_key)
            self.asked.append(f"+{method.routing_key}")
        else:
            assert isinstance(method, methods.ExchangeUnbind)
            self.bound.remove(method.routing_key)
            self.asked.append(f"-{method.routing_key}")
        return None


class Place:
    """A link that follows the exchange ``x`` of a host."""

    def __init__(self) -> None:
        self.host = FakeHost(0)
        self.upstream = PaperUpstream()
        book = UpstreamBook([Parameter("federation-upstream", "/", "up", {"uri": "amqp://up"})])
        (upstream,) = book.resolve("/", POLICY)
        exchange = LocalExchange("/", ExchangeDeclaration("x", "topic", durable=True), POLICY)
        self.link = ExchangeLink(exchange, upstream, Endpoints(self.host, LOOPBACK_SETTINGS))

    def bind(self, binding: LocalBinding) -> None:
        self.host.bound.setdefault(("/", "x"), []).append(binding)
        self.link.binding_changed(binding, 1)

    def unbind(self, binding: LocalBinding) -> None:
        self.host.bound["/", "x"].remove(binding)
        self.link.binding_changed(binding, -1)

    async def follow(self) -> None:
        await self.link._follow(cast(Channel, self.upstream), set(), "up")


def run(test: Callable[[Place], Awaitable[None]], *before: LocalBinding) -> None:
    async def main() -> None:
        place = Place()
        place.host.bound["/", "x"] = list(before)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(place.follow)
            await wait_all_tasks_blocked()
            await test(place)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_all_bindings_are_read_once_and_then_changes_only() -> None:
    async def test(place: Place) -> None:
        assert place.upstream.bound == {"a", "b"}
        for number in range(10):
            place.bind(LocalBinding(str(number), EMPTY_TABLE))
            await wait_all_tasks_blocked()
        place.unbind(A)
        await wait_all_tasks_blocked()
        assert place.upstream.bound == {"b", *map(str, range(10))}
        assert place.host.reads == 1

    run(test, A, B)


def test_a_binding_goes_there_with_the_last_of_its_kind_here() -> None:
    async def test(place: Place) -> None:
        place.bind(A)
        place.unbind(A)
        await wait_all_tasks_blocked()
        assert place.upstream.asked == ["+a"]
        place.unbind(A)
        await wait_all_tasks_blocked()
        assert place.upstream.asked == ["+a", "-a"]

    run(test, A)


def test_what_comes_and_goes_at_once_is_not_asked_for() -> None:
    async def test(place: Place) -> None:
        place.bind(B)
        place.unbind(A)
        place.unbind(B)
        place.bind(A)
        await wait_all_tasks_blocked()
        assert place.upstream.asked == ["+a"]

    run(test, A)


def test_others_in_the_place_of_all_are_read_anew() -> None:
    async def test(place: Place) -> None:
        place.host.bound["/", "x"] = [B]
        place.link.bindings_changed()
        await wait_all_tasks_blocked()
        assert (place.upstream.asked, place.host.reads) == (["+a", "+b", "-a"], 2)

    run(test, A)


def test_what_changes_while_all_are_read_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_federation, "AT_ONCE", 1)
    many = [LocalBinding(str(number), EMPTY_TABLE) for number in range(20)]

    async def main() -> None:
        place = Place()
        place.host.bound["/", "x"] = list(many)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(place.follow)
            while not place.host.reads:
                await trio.lowlevel.checkpoint()
            for number in range(10):
                place.unbind(many[2 * number])
                place.bind(LocalBinding(f"new{number}", EMPTY_TABLE))
                await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked()
            assert place.upstream.bound == {one.binding_key for one in place.host.bound["/", "x"]}
            assert place.host.reads == 1
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_changes_that_the_upstream_is_too_slow_for_are_forgotten_and_all_is_read_again() -> None:
    async def test(place: Place) -> None:
        place.upstream.opened = trio.Event()
        place.bind(LocalBinding("first", EMPTY_TABLE))
        await wait_all_tasks_blocked()
        for number in range(CHANGES_MAX + 10):
            place.bind(LocalBinding(str(number % 7), EMPTY_TABLE))
        assert len(place.link._changes) <= CHANGES_MAX
        place.upstream.opened.set()
        await wait_all_tasks_blocked()
        assert place.upstream.bound == {"a", "first", *map(str, range(7))}
        assert place.host.reads == 2

    run(test, A)


@pytest.mark.parametrize("more", [{"a": "x" * 131_000}, {f"{number:04}": True for number in range(ENTRIES_MAX)}])
def test_a_binding_without_room_to_say_where_it_comes_from_is_left_out(more: Table) -> None:
    full = LocalBinding("full", encode_table(more))

    async def test(place: Place) -> None:
        for _ in range(2):
            place.bind(full)
            await wait_all_tasks_blocked()
        place.bind(B)
        place.unbind(full)
        place.unbind(full)
        await wait_all_tasks_blocked()
        assert place.upstream.asked == ["+a", "+b"]
        assert [event for _, event, _ in place.host.logged] == ["binding_left_out"]

    run(test, A)


def test_what_has_come_far_enough_is_bound_nowhere() -> None:
    visited = LocalBinding("far", encode_table({"x-bound-from": [{"hops": 1}]}))

    async def test(place: Place) -> None:
        place.bind(visited)
        place.unbind(visited)
        await wait_all_tasks_blocked()
        assert place.upstream.asked == ["+a"]

    run(test, A)
