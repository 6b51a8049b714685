"""Exchange types that give each message to one of their destinations: the common half.

1. ``choices`` is listed anew before the first message after a change of the bindings, never per message.
2. A message with several routing keys is still one message: it goes to one destination.
"""

from __future__ import annotations

from warren.amqp.declarations import ExchangeDeclaration
from warren.exchanges.binding import Binding
from warren.exchanges.content import Content
from warren.exchanges.destination import Destination
from warren.exchanges.exchange import Exchange


class ChoosingExchange(Exchange):
    """An exchange that chooses; types override what to choose from (`_list`) and how (`_choose`)."""

    def __init__(self, declaration: ExchangeDeclaration) -> None:
        super().__init__(declaration)
        self.choices: list[Destination] = []
        self._stale = False

    def match(self, routing_key: str, content: Content, found: list[Destination]) -> None:
        self.match_keys([routing_key], content, found)

    def match_keys(self, routing_keys: list[str], content: Content, found: list[Destination]) -> None:
        if self._stale:
            self.choices = self._list()
            self._stale = False
        if self.choices:
            chosen = self.choices[self._choose(routing_keys, content)]
            if not chosen.deleted:
                found.append(chosen)
                return
            # Its bindings go by and by; nobody is to lose a message to it meanwhile.
            self.choices = self._list()
            if self.choices:
                found.append(self.choices[self._choose(routing_keys, content)])

    def _list(self) -> list[Destination]:
        """Return the destination of each binding, in the order of binding, without those that have been deleted."""
        return [binding.destination for binding in self.bindings.values() if not binding.destination.deleted]

    def _choose(self, routing_keys: list[str], content: Content) -> int:
        """Return an index into ``choices``, which is not empty."""
        raise NotImplementedError

    def _index(self, binding: Binding) -> None:
        self._stale = True

    def _unindex(self, binding: Binding) -> None:
        self._stale = True
