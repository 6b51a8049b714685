"""Bindings in the order of vhost, source, destination and key, of which any part can be had without sorting the rest.

1. The binding of each queue to the default exchange comes before those of its vhost.
2. For a page, sections that lie before it are skipped by their counts; of the exchange in which it begins only the
   destinations are sorted, and of those only the bindings of which some are on the page.
3. If bindings change meanwhile, pages may miss one or have it twice, like any list in pages.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import unquote_plus

from warren.amqp.field_table import EMPTY_TABLE
from warren.exchanges.binding import Binding
from warren.exchanges.exchange import Exchange
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.listing import MANY, RANK_BYTES, in_order
from warren.mgmt_plugin.names import sorted_queues
from warren.mgmt_plugin.routes import Call
from warren.queues.destination import Destination
from warren.queues.queue import Queue
from warren.vhosts.virtual_host import VirtualHost

PIECE: Final = 1000

# A vhost's name with one of its bindings, or with a queue: its binding to the default exchange.
Row = tuple[str, Binding | Queue]


class _Section(NamedTuple):
    """The bindings of one exchange, or those of all queues to the default exchange (None), and their number."""

    vhost: VirtualHost
    source: Exchange | None
    length: int


class BindingList:
    """The bindings of some exchanges. Its length stays what it was at the beginning."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._sections: list[_Section] = []
        self.count = 0

    async def add_vhost(self, vhost: VirtualHost) -> None:
        """Add all bindings of a vhost."""
        self.add_queues(vhost)
        for source in await in_order(list(vhost.exchanges.values()), lambda each: each.name):
            self.add_exchange(vhost, source)

    def add_queues(self, vhost: VirtualHost) -> None:
        """Add the destinations of the default exchange of a vhost."""
        self._add(_Section(vhost, None, len(vhost.queues)))

    def add_exchange(self, vhost: VirtualHost, source: Exchange) -> None:
        """Add the bindings of an exchange."""
        self._add(_Section(vhost, source, len(source.bindings)))

    def _add(self, section: _Section) -> None:
        self._sections.append(section)
        self.count += section.length

    async def all(self) -> list[Row]:
        """Return all rows."""
        found: list[Row] = []
        for vhost, source, _ in self._sections:
            if source is None:
                found += [(vhost.name, queue) for queue in await sorted_queues(self._call, vhost)]
                continue
            bindings = list(source.bindings.values())
            await self._hold(len(bindings))
            for binding in await in_order(bindings, order_of):
                found.append((vhost.name, binding))
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
                queues = await sorted_queues(self._call, vhost)
                found += [(vhost.name, queue) for queue in queues[start : start + wanted]]
            else:
                found += [(vhost.name, each) for each in await self._part_of(source, start, wanted)]
            start = 0
        return found

    async def _part_of(self, source: Exchange, start: int, count: int) -> list[Binding]:
        found: list[Binding] = []
        await self._hold(len(source.by_destination))
        for destination in await in_order(list(source.by_destination), _place_of):
            chain = await bindings_between(source, destination)
            if start >= len(chain):
                start -= len(chain)
                continue
            await self._hold(len(chain))
            chain = await in_order(chain, lambda each: each.routing_key, most=start + count - len(found))
            found += chain[start:]
            start = 0
            if len(found) >= count:
                break
        return found

    async def _hold(self, count: int) -> None:
        if count > MANY:
            await self._call.request.begin_work()
            self._call.request.hold(count * RANK_BYTES)


async def bindings_between(source: Exchange, destination: Destination) -> list[Binding]:
    """Return the bindings that lead from an exchange to a destination, in the order of binding.

    They are read in pieces; from the beginning again when the one where it paused is gone.
    """
    found: list[Binding] = []
    binding = source.by_destination.get(destination)
    while binding is not None:
        found.append(binding)
        if len(found) % PIECE == 0:
            await give_way()
            if source.bindings.get(binding) is not binding:
                found = []
                binding = source.by_destination.get(destination)
                continue
        binding = binding.next_to_destination
    return found


async def maybe_binding(source: Exchange, destination: Destination, properties_key: str) -> Binding | None:
    """Return the binding between two that the API calls so. One without arguments is found without a look at others.

    A text that is not the key of any binding is a routing key that was not quoted, as the topology operator sends it.
    """
    quoted, _, digest = properties_key.partition("~")
    routing_key = unquote_plus(quoted)
    if not digest:
        named = Binding(source, destination, routing_key, EMPTY_TABLE)
        if named.properties_key != properties_key:
            named = Binding(source, destination, properties_key, EMPTY_TABLE)
        return source.bindings.get(named)
    for binding in await bindings_between(source, destination):
        if binding.routing_key == routing_key and binding.properties_key == properties_key:
            return source.bindings.get(binding)
        await give_way()
    return None


def order_of(binding: Binding) -> tuple[str, str, bool, str]:
    """Return the sort key for the bindings of a vhost."""
    return (binding.source.name, *_place_of(binding.destination), binding.routing_key)


def _place_of(destination: Destination) -> tuple[str, bool]:
    return (destination.name, destination.is_queue)
