"""Delayed message exchanges: a message with a delay is held here, and routed when its time has come.

1. Bindings, and what they match, are those of another type, ``x-delayed-type``. A message without a delay is routed at
   once like there.
2. A message with a delay matches nothing. The exchange notes itself in `Content.holders`. The publishing side has the
   message held for each holder (``vhosts.delayed_exchange``), which routes it from here when it is due, by the bindings
   at that time.
3. A held message is not unroutable: the alternate exchange is asked when it is due.

Source: RabbitMQ's delayed message exchange plugin, its texts too.
"""

from __future__ import annotations

from typing import Final

from warren.amqp.declarations import ExchangeDeclaration
from warren.exchanges.binding import Binding
from warren.exchanges.content import Content
from warren.exchanges.destination import Destination
from warren.exchanges.exchange import Exchange

DELAYED_MESSAGE: Final = "x-delayed-message"
DELAYED_TYPE: Final = "x-delayed-type"


class DelayedMessageExchange(Exchange):
    """An exchange of type ``x-delayed-message``. `inner` is one of the other type, made for it, with its bindings."""

    def __init__(self, declaration: ExchangeDeclaration, inner: Exchange) -> None:
        super().__init__(declaration)
        self.cacheable = False
        self.inner = inner
        inner.bindings = self.bindings
        inner.by_destination = self.by_destination
        inner.downstream = self.downstream

    def match(self, routing_key: str, content: Content, found: list[Destination]) -> None:
        self.match_keys([routing_key], content, found)

    def match_keys(self, routing_keys: list[str], content: Content, found: list[Destination]) -> None:
        if content.due_ms:
            content.held_by(self)
        else:
            self.inner.match_keys(routing_keys, content, found)

    def check_binding(self, routing_key: str, arguments: bytes) -> None:
        self.inner.check_binding(routing_key, arguments)

    def _index(self, binding: Binding) -> None:
        self.inner._index(binding)

    def _unindex(self, binding: Binding) -> None:
        self.inner._unindex(binding)
