"""Fanout exchanges: a message goes to every destination, whatever its routing key.

Source: AMQP 0-9-1 section 3.1.3.2 "the fanout exchange type".
"""

from __future__ import annotations

from warren.exchanges.content import Content
from warren.exchanges.exchange import Exchange
from warren.queues.destination import Destination


class FanoutExchange(Exchange):
    """An exchange of type ``fanout``."""

    def match(self, routing_key: str, content: Content, found: list[Destination]) -> None:
        found.extend(self.by_destination)

    def match_keys(self, routing_keys: list[str], content: Content, found: list[Destination]) -> None:
        found.extend(self.by_destination)
