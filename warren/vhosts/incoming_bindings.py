"""Which exchanges have bindings to a destination: needed to delete it, and to list its bindings.

1. A destination is here as long as it has a binding, with all exchanges that have a binding to it.
2. Most destinations have bindings of one exchange only. All of these share a set: 100,000 queues of an exchange have
   one set.
"""

from __future__ import annotations

from warren.exchanges.binding import Binding
from warren.exchanges.exchange import Exchange
from warren.queues.destination import Destination


class IncomingBindings:
    """The sources of the destinations of a vhost."""

    def __init__(self) -> None:
        self._sources: dict[Destination, set[Exchange]] = {}
        self._alone: dict[Exchange, set[Exchange]] = {}

    def sources_of(self, destination: Destination) -> list[Exchange]:
        """Return the exchanges with bindings to `destination`."""
        return list(self._sources.get(destination, ()))

    def add(self, binding: Binding) -> None:
        """Note that `binding` has been made."""
        source = binding.source
        sources = self._sources.get(binding.destination)
        if sources is None:
            self._sources[binding.destination] = self._alone_of(source)
        elif source not in sources:
            if len(sources) == 1:  # it is shared
                sources = sources.copy()
                self._sources[binding.destination] = sources
            sources.add(source)

    def forget(self, binding: Binding) -> None:
        """Note that `binding` has gone, if it was the last from its source to its destination."""
        sources = self._sources.get(binding.destination)
        if sources is not None and not binding.source.is_bound_to(binding.destination):
            if len(sources) > 2:
                sources.discard(binding.source)
                return
            left = [each for each in sources if each is not binding.source]
            if left:
                self._sources[binding.destination] = self._alone_of(left[0])
            else:
                del self._sources[binding.destination]

    def take(self, destination: Destination) -> list[Exchange]:
        """Remove a deleted `destination`, and return the exchanges with bindings to it, by name."""
        return sorted(self._sources.pop(destination, ()), key=_name)

    def forget_exchange(self, exchange: Exchange) -> None:
        """Note that `exchange` is deleted; its bindings are removed later."""
        self._alone.pop(exchange, None)

    def _alone_of(self, source: Exchange) -> set[Exchange]:
        """Return the set that has only `source`: always the same object while it is in use."""
        found = self._alone.get(source)
        if found is None:
            found = {source}
            if not source.deleted:
                self._alone[source] = found
        return found


def _name(exchange: Exchange) -> str:
    return exchange.name
