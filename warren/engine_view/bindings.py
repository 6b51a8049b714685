"""Bindings: of an exchange, to a destination, between two, and by the key under which the API knows one.

A ref stands for a binding, or for the one that every queue has to the default exchange; that one has no object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, cast
from urllib.parse import quote

import msgspec

from warren.amqp.field_table import EMPTY_TABLE
from warren.engine_view.refs import BindingRef, DestinationRef, ExchangeRef, QueueRef
from warren.exchanges.binding import Binding
from warren.exchanges.exchange import Exchange
from warren.queues.base_queue import BaseQueue
from warren.queues.destination import Destination
from warren.vhosts.virtual_host import VirtualHost

QUEUE: Final = "queue"
PIECE: Final = 1000


def bindings_between(source: Exchange, destination: Destination) -> Iterator[list[Binding] | None]:
    """Yield None after each piece, and the bindings between two at last, as `Bindings.between` does."""
    found: list[Binding] = []
    binding = source.by_destination.get(destination)
    while binding is not None:
        found.append(binding)
        if len(found) % PIECE == 0:
            yield None
            if source.bindings.get(binding) is not binding:
                found = []
                binding = source.by_destination.get(destination)
                continue
        binding = binding.next_to_destination
    yield found


class BindingRow(msgspec.Struct, frozen=True):
    """A binding. `arguments`: an encoded field table; `source` is empty for the default exchange."""

    source: str
    destination: str
    destination_type: str
    routing_key: str
    arguments: bytes


class Bindings:
    """The bindings of one engine."""

    def __init__(self, vhosts: Mapping[str, VirtualHost]) -> None:
        self._vhosts = vhosts

    # --- ends -------------------------------------------------------------------------------------------------------

    def maybe_destination(self, vhost: str, kind: str, name: str) -> DestinationRef | None:
        """Return the queue or exchange with this name."""
        found = self._vhosts.get(vhost)
        if found is None:
            return None
        destination = found.queues.get(name) if kind == QUEUE else found.exchanges.get(name)
        return None if destination is None else DestinationRef(destination)

    def sources_of(self, vhost: str, destination: DestinationRef) -> list[ExchangeRef]:
        """Return the exchanges from which bindings lead to a destination."""
        assert isinstance(destination, Destination)
        found = self._vhosts.get(vhost)
        return [] if found is None else cast("list[ExchangeRef]", list(found.incoming.sources_of(destination)))

    def destinations_of(self, source: ExchangeRef) -> list[DestinationRef]:
        """Return the destinations to which bindings lead from an exchange. Copies the list."""
        assert isinstance(source, Exchange)
        return cast("list[DestinationRef]", list(source.by_destination))

    def place_of(self, destination: DestinationRef) -> tuple[str, bool]:
        """Return the sort key for destinations."""
        assert isinstance(destination, Destination)
        return _place_of(destination)

    # --- lists ------------------------------------------------------------------------------------------------------

    def count(self, source: ExchangeRef) -> int:
        """Return how many bindings lead from an exchange."""
        assert isinstance(source, Exchange)
        return len(source.bindings)

    def implicit(self, queues: Iterable[QueueRef]) -> list[BindingRef]:
        """Return the bindings of some queues to the default exchange."""
        return cast("list[BindingRef]", list(queues))

    def of(self, source: ExchangeRef) -> list[BindingRef]:
        """Return the bindings that lead from an exchange. Copies the list."""
        assert isinstance(source, Exchange)
        return cast("list[BindingRef]", list(source.bindings.values()))

    def between(self, source: ExchangeRef, destination: DestinationRef) -> Iterator[list[BindingRef] | None]:
        """Yield None after each piece, and the bindings between two in the order of binding at last.

        They are read again from the beginning when the binding where it paused is gone.
        """
        assert isinstance(source, Exchange) and isinstance(destination, Destination)
        return cast("Iterator[list[BindingRef] | None]", bindings_between(source, destination))

    def maybe_without_arguments(
        self, source: ExchangeRef, destination: DestinationRef, routing_key: str, properties_key: str
    ) -> BindingRef | None:
        """Return the binding without arguments that has these keys, found without a look at others.

        A key that is not one of any binding is a routing key that was not quoted, as the topology operator sends it.
        """
        assert isinstance(source, Exchange) and isinstance(destination, Destination)
        named = Binding(source, destination, routing_key, EMPTY_TABLE)
        if named.properties_key != properties_key:
            named = Binding(source, destination, properties_key, EMPTY_TABLE)
        found = source.bindings.get(named)
        return None if found is None else BindingRef(found)

    # --- rows -------------------------------------------------------------------------------------------------------

    def row(self, ref: BindingRef) -> BindingRow:
        """Return a binding."""
        if isinstance(ref, BaseQueue):
            return BindingRow("", ref.name, QUEUE, ref.name, EMPTY_TABLE)
        assert isinstance(ref, Binding)
        return BindingRow(ref.source.name, ref.destination.name, ref.destination.kind, ref.routing_key, ref.arguments)

    def keyed(self, ref: BindingRef) -> tuple[BindingRow, str]:
        """Return a binding, and what `properties_key` does."""
        if isinstance(ref, BaseQueue):
            return BindingRow("", ref.name, QUEUE, ref.name, EMPTY_TABLE), quote(ref.name, safe="")
        assert isinstance(ref, Binding)
        end = ref.destination
        return BindingRow(ref.source.name, end.name, end.kind, ref.routing_key, ref.arguments), ref.properties_key

    def properties_key(self, ref: BindingRef) -> str:
        """Return the key under which the API knows a binding, among those of the same ends."""
        if isinstance(ref, BaseQueue):
            return quote(ref.name, safe="")
        assert isinstance(ref, Binding)
        return ref.properties_key

    def key_of_new(self, source: ExchangeRef, destination: DestinationRef, routing_key: str, arguments: bytes) -> str:
        """Return the key that a binding has, or would have."""
        assert isinstance(source, Exchange) and isinstance(destination, Destination)
        return Binding(source, destination, routing_key, arguments).properties_key

    def routing_key(self, ref: BindingRef) -> str:
        """Return the routing key of a binding that has an object."""
        assert isinstance(ref, Binding)
        return ref.routing_key

    def order_of(self, ref: BindingRef) -> tuple[str, str, bool, str]:
        """Return the sort key for the bindings of a vhost that have objects."""
        assert isinstance(ref, Binding)
        return (ref.source.name, *_place_of(ref.destination), ref.routing_key)

    def is_shared(self, ref: BindingRef) -> bool:
        """Tell whether a binding with an object leads to an exchange, or to a queue that no connection owns."""
        assert isinstance(ref, Binding)
        destination = ref.destination
        return isinstance(destination, Exchange) or (isinstance(destination, BaseQueue) and destination.owner is None)

    def is_gone(self, of: tuple[str, BindingRef]) -> bool:
        """Tell whether an end of a binding of a vhost has been deleted."""
        ref = of[1]
        if isinstance(ref, BaseQueue):
            return ref.deleted
        assert isinstance(ref, Binding)
        return ref.destination.deleted or ref.source.deleted

    def is_removed(self, ref: BindingRef) -> bool:
        """Tell whether a binding that has an object was removed."""
        assert isinstance(ref, Binding)
        return ref not in ref.source.bindings


def _place_of(destination: Destination) -> tuple[str, bool]:
    return (destination.name, destination.is_queue)
