"""Super stream exchanges: the hash of the routing key picks one of the partitions.

With N bindings a message goes to the one whose binding key is the number ``murmur3(routing key) modulo N``, written in
decimal; the stream protocol's clients hash the same way.

1. The same routing key goes to the same partition while the bindings do not change, in every process.
2. A message goes to at most one destination, by its own routing key; those of CC and BCC are ignored.

The argument ``x-super-stream`` makes an exchange of any type a super stream, whose partitions are listed
(`Exchange.is_super_stream`).

Source: RabbitMQ's ``x-super-stream`` of 3.11.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.term_text import term_text
from warren.exchanges.binding import Binding, chained_in_bucket, unchained_in_bucket
from warren.exchanges.content import Content
from warren.exchanges.exchange import Exchange
from warren.exchanges.murmur3 import murmur3
from warren.queues.destination import Destination

SUPER_STREAM_TYPE: Final = "x-super-stream"
SEED: Final[i64] = 104729


class SuperStreamExchange(Exchange):
    """An exchange of type ``x-super-stream``."""

    def __init__(self, declaration: ExchangeDeclaration) -> None:
        super().__init__(declaration)
        self._by_key: dict[str, Binding] = {}

    def match(self, routing_key: str, content: Content, found: list[Destination]) -> None:
        count: i64 = len(self.bindings)
        if count == 0:
            return
        binding = self._by_key.get(str(int(murmur3(routing_key.encode(), SEED) % count)))
        if binding is not None:
            found.append(binding.destination)

    def match_keys(self, routing_keys: list[str], content: Content, found: list[Destination]) -> None:
        self.match(routing_keys[0], content, found)

    def check_binding(self, routing_key: str, arguments: bytes) -> None:
        digits = routing_key[1:] if routing_key[:1] in ("+", "-") else routing_key
        if not (digits.isascii() and digits.isdigit()):
            raise ChannelException(PRECONDITION_FAILED, f"The binding key must be an integer: {term_text(routing_key)}")

    def _index(self, binding: Binding) -> None:
        self._by_key[binding.routing_key] = chained_in_bucket(self._by_key.get(binding.routing_key), binding)

    def _unindex(self, binding: Binding) -> None:
        first = unchained_in_bucket(self._by_key[binding.routing_key], binding)
        if first is None:
            del self._by_key[binding.routing_key]
        else:
            self._by_key[binding.routing_key] = first
