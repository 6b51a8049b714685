"""The common part of exchange types that give each message to one of their destinations.

1. Changes of bindings, and messages between them, cost far less than one step for each binding (`weighted_places.py`
   (2)). So a client may change a binding between any two messages.
2. A message with several routing keys is still one message: it goes to one destination.
3. A deleted destination gets nothing, even while its bindings are still being removed. If it is chosen, it is taken
   out, and another one is chosen.
"""

from __future__ import annotations

from warren.amqp.declarations import ExchangeDeclaration
from warren.exchanges.binding import Binding
from warren.exchanges.content import Content
from warren.exchanges.exchange import Exchange
from warren.exchanges.weighted_places import WeightedPlaces
from warren.queues.destination import Destination


class ChoosingExchange(Exchange):
    """An exchange that chooses. Types override `_choose`, and the order and weights of destinations."""

    def __init__(self, declaration: ExchangeDeclaration) -> None:
        super().__init__(declaration)
        self.places = WeightedPlaces()

    def match(self, routing_key: str, content: Content, found: list[Destination]) -> None:
        self.match_keys([routing_key], content, found)

    def match_keys(self, routing_keys: list[str], content: Content, found: list[Destination]) -> None:
        places = self.places
        while places.total > 0:
            chosen = places.at(self._choose(routing_keys, content))
            if not chosen.deleted:
                found.append(chosen)
                return
            places.remove(chosen)

    def _choose(self, routing_keys: list[str], content: Content) -> int:
        """Return the chosen place; there is at least one."""
        raise NotImplementedError

    def _enter(self, destination: Destination) -> None:
        """Give a destination its first place."""
        self.places.append(destination, 1)

    def _weight(self, destination: Destination, change: int) -> int:
        """Return how many places a destination has after one more binding to it (`change` 1), or one less (-1)."""
        return self.places.weight(destination) + change

    def _index(self, binding: Binding) -> None:
        destination = binding.destination
        if destination in self.places:
            self.places.set_weight(destination, self._weight(destination, 1))
        else:
            self._enter(destination)

    def _unindex(self, binding: Binding) -> None:
        destination = binding.destination
        if destination not in self.places:
            return
        if destination in self.by_destination:
            self.places.set_weight(destination, self._weight(destination, -1))
        else:
            self.places.remove(destination)
