"""Modulus hash exchanges: the routing key picks the destination, by its hash modulo the number of bindings.

1. The choice depends on the names of the destinations and on the key. It does not depend on the order of binding or on
   the process.

Source: RabbitMQ's ``x-modulus-hash``, the exchange of its sharding plugin.
"""

from __future__ import annotations

from mypy_extensions import i64

from warren.exchanges.choosing_exchange import ChoosingExchange
from warren.exchanges.content import Content
from warren.exchanges.stable_hash import FNV_BASIS, stable_hash
from warren.queues.destination import Destination


class ModulusHashExchange(ChoosingExchange):
    """An exchange of type ``x-modulus-hash``. The binding key is ignored."""

    def _enter(self, destination: Destination) -> None:
        self.places.insert_sorted(destination, 1)

    def _choose(self, routing_keys: list[str], content: Content) -> int:
        value: i64 = FNV_BASIS
        for routing_key in routing_keys:
            value = stable_hash(routing_key.encode(), value)
        return int(value % self.places.total)
