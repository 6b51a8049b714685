"""Bindings in the order of vhost, source, destination and key, of which any part can be had without sorting the rest.

1. The binding of each queue to the default exchange comes before those of its vhost.
2. For a page, sections that lie before it are skipped by their counts; of the exchange in which it begins only the
   destinations are sorted, and of those only the bindings of which some are on the page.
3. If bindings change meanwhile, pages may miss one or have it twice, like any list in pages.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote_plus

from warren.engine_view.engine_view import EngineView
from warren.engine_view.refs import BindingRef, DestinationRef, ExchangeRef
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.listing import MANY, RANK_BYTES, in_order
from warren.mgmt_plugin.names import sorted_queues
from warren.mgmt_plugin.routes import Call

Row = tuple[str, BindingRef]  # with the name of its vhost


class _Section(NamedTuple):
    """The bindings of one exchange, or those of all queues to the default exchange (None), and their number."""

    vhost: str
    source: ExchangeRef | None
    length: int


class BindingList:
    """The bindings of some exchanges. Its length stays what it was at the beginning."""

    def __init__(self, call: Call, view: EngineView) -> None:
        self._call = call
        self._view = view
        self._sections: list[_Section] = []
        self.count = 0

    async def add_vhost(self, vhost: str) -> None:
        """Add all bindings of a vhost."""
        self.add_queues(vhost)
        exchanges = self._view.exchanges
        for source in await in_order(exchanges.in_vhost(vhost), exchanges.name):
            self.add_exchange(vhost, source)

    def add_queues(self, vhost: str) -> None:
        """Add the destinations of the default exchange of a vhost."""
        self._add(_Section(vhost, None, self._view.queues.count(vhost)))

    def add_exchange(self, vhost: str, source: ExchangeRef) -> None:
        """Add the bindings of an exchange."""
        self._add(_Section(vhost, source, self._view.bindings.count(source)))

    def _add(self, section: _Section) -> None:
        self._sections.append(section)
        self.count += section.length

    async def _implicit(self, vhost: str) -> list[BindingRef]:
        return self._view.bindings.implicit(await sorted_queues(self._call, self._view, vhost))

    async def all(self) -> list[Row]:
        """Return all rows."""
        found: list[Row] = []
        for vhost, source, _ in self._sections:
            if source is None:
                found += [(vhost, each) for each in await self._implicit(vhost)]
                continue
            bindings = self._view.bindings.of(source)
            await self._hold(len(bindings))
            for binding in await in_order(bindings, self._view.bindings.order_of):
                found.append((vhost, binding))
                await give_way()
        return found

    async def part(self, start: int, count: int) -> list[Row]:
        """Return at most `count` rows from number `start` on."""
        found: list[Row] = []
        for vhost, source, length in self._sections:
            if start >= length:
                start -= length
                continue
            if len(found) == count:
                break
            wanted = count - len(found)
            if source is None:
                implicit = await self._implicit(vhost)
                found += [(vhost, each) for each in implicit[start : start + wanted]]
            else:
                found += [(vhost, each) for each in await self._part_of(source, start, wanted)]
            start = 0
        return found

    async def _part_of(self, source: ExchangeRef, start: int, count: int) -> list[BindingRef]:
        found: list[BindingRef] = []
        bindings = self._view.bindings
        destinations = bindings.destinations_of(source)
        await self._hold(len(destinations))
        for destination in await in_order(destinations, bindings.place_of):
            chain = await bindings_between(self._view, source, destination)
            if start >= len(chain):
                start -= len(chain)
                continue
            await self._hold(len(chain))
            chain = await in_order(chain, bindings.routing_key, most=start + count - len(found))
            found += chain[start:]
            start = 0
            if len(found) >= count:
                break
        return found

    async def _hold(self, count: int) -> None:
        if count > MANY:
            await self._call.request.begin_work()
            self._call.request.hold(count * RANK_BYTES)


async def bindings_between(view: EngineView, source: ExchangeRef, destination: DestinationRef) -> list[BindingRef]:
    """Return the bindings that lead from an exchange to a destination, in the order of binding."""
    for found in view.bindings.between(source, destination):
        if found is not None:
            return found
        await give_way()
    raise AssertionError("the walk ends with the bindings")


async def maybe_binding(
    view: EngineView, source: ExchangeRef, destination: DestinationRef, properties_key: str
) -> BindingRef | None:
    """Return the binding between two that the API calls so. One without arguments is found without a look at others."""
    bindings = view.bindings
    quoted, _, digest = properties_key.partition("~")
    if not digest:
        return bindings.maybe_without_arguments(source, destination, unquote_plus(quoted), properties_key)
    routing_key = unquote_plus(quoted)
    for binding in await bindings_between(view, source, destination):
        if bindings.routing_key(binding) == routing_key and bindings.properties_key(binding) == properties_key:
            return None if bindings.is_removed(binding) else binding
        await give_way()
    return None
