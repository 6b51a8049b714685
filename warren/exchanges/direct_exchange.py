"""Direct exchanges: a message goes where its routing key equals the binding key.

1. A key is in the index as long as a binding has it, and no longer.

Source: AMQP 0-9-1 section 3.1.3.1 "the direct exchange type".
"""

from __future__ import annotations

from warren.amqp.declarations import ExchangeDeclaration
from warren.exchanges.binding import Binding, append_bucket, chained_in_bucket, unchained_in_bucket
from warren.exchanges.content import Content
from warren.exchanges.exchange import Exchange
from warren.queues.destination import Destination


class DirectExchange(Exchange):
    """An exchange of type ``direct``."""

    def __init__(self, declaration: ExchangeDeclaration) -> None:
        super().__init__(declaration)
        self._by_key: dict[str, Binding] = {}

    def match(self, routing_key: str, content: Content, found: list[Destination]) -> None:
        append_bucket(self._by_key.get(routing_key), found)

    def _index(self, binding: Binding) -> None:
        self._by_key[binding.routing_key] = chained_in_bucket(self._by_key.get(binding.routing_key), binding)

    def _unindex(self, binding: Binding) -> None:
        first = unchained_in_bucket(self._by_key[binding.routing_key], binding)
        if first is None:
            del self._by_key[binding.routing_key]
        else:
            self._by_key[binding.routing_key] = first
