"""Consistent hash exchanges: a hash picks the destination, and a new destination takes only its own share.

The binding key is a weight: the number of buckets that the destination owns. Buckets are numbered in the
order of binding. Jump consistent hashing maps a hash to a bucket, and the running totals of the weights map a
bucket to its owner.

1. A message goes to exactly one destination. Equal hashed values go to the same destination while the bindings stay the
   same, in every process.
2. Only the oldest binding to a destination counts. Later ones to the same destination are kept and ignored.
3. Memory does not grow with the weights.

Source: RabbitMQ's ``x-consistent-hash``.
"""

from __future__ import annotations

from typing import Final

from warren.amqp.declarations import ExchangeDeclaration
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.amqp.properties import BasicProperties
from warren.amqp.term_text import term_text
from warren.exchanges.binding import Binding
from warren.exchanges.choosing_exchange import ChoosingExchange
from warren.exchanges.content import Content
from warren.exchanges.stable_hash import JUMP_BUCKETS_MAX, jump, stable_hash
from warren.queues.destination import Destination

WEIGHT_MAX: Final = 1_000_000
HASH_HEADER: Final = "hash-header"
HASH_PROPERTY: Final = "hash-property"
_HASHABLE_PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")


class ConsistentHashExchange(ChoosingExchange):
    """An exchange of type ``x-consistent-hash``.

    Raises:
        ChannelException: 406, ``hash-header`` and ``hash-property`` together, or another property than
            ``correlation_id``, ``message_id``, ``timestamp``.
    """

    def __init__(self, declaration: ExchangeDeclaration) -> None:
        super().__init__(declaration)
        self.cacheable = False
        table = self.table
        self._header: object = table.get(HASH_HEADER)
        self._property: object = table.get(HASH_PROPERTY)
        # The weights of all bindings, ignored ones included: an upper bound of the number of buckets.
        self._weight_total = 0
        if self._property is not None:
            if self._header is not None:
                raise ChannelException(PRECONDITION_FAILED, "hash-header and hash-property are mutually exclusive")
            if self._property not in _HASHABLE_PROPERTIES:
                raise ChannelException(PRECONDITION_FAILED, f"Unsupported property: {self._property}")

    def check_binding(self, routing_key: str, arguments: bytes) -> None:
        digits = routing_key[1:] if routing_key[:1] in ("+", "-") else routing_key
        if not (digits.isascii() and digits.isdigit()):
            raise ChannelException(PRECONDITION_FAILED, f"The binding key must be an integer: {term_text(routing_key)}")
        weight = int(routing_key)
        if weight < 1:
            raise ChannelException(PRECONDITION_FAILED, "The binding key must be greater than 0")
        most = min(WEIGHT_MAX, JUMP_BUCKETS_MAX - self._weight_total)
        if weight > most:
            raise ChannelException(PRECONDITION_FAILED, f"The binding key must not exceed {most}")

    def _enter(self, destination: Destination) -> None:
        self.places.append(destination, self._weight(destination, 1))

    def _weight(self, destination: Destination, change: int) -> int:
        return int(self.by_destination[destination].routing_key)

    def _choose(self, routing_keys: list[str], content: Content) -> int:
        return int(jump(stable_hash(self._hashed(routing_keys[0], content)), self.places.total))

    def _hashed(self, routing_key: str, content: Content) -> bytes:
        """Return the bytes to hash; a message without the header or property counts as one with an empty value."""
        if self._header is not None:
            return _value_bytes(content.headers.get(str(self._header)))
        if self._property is not None:
            return _value_bytes(_property_value(content.properties, self._property))
        return routing_key.encode()

    def _index(self, binding: Binding) -> None:
        super()._index(binding)
        self._weight_total += int(binding.routing_key)

    def _unindex(self, binding: Binding) -> None:
        super()._unindex(binding)
        self._weight_total -= int(binding.routing_key)


def _property_value(properties: BasicProperties, name: object) -> object:
    if name == "correlation_id":
        return properties.correlation_id
    if name == "message_id":
        return properties.message_id
    return properties.timestamp


def _value_bytes(value: object) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "surrogateescape")
