"""The content header of the message being routed, decoded only when a route asks for it.

1. A route that depends only on exchange and routing key decodes nothing.
2. Each part is decoded at most once, however many exchanges look at it.
3. Matching ends when ``steps_left`` is below 0: then some matches are missing. A step is one routing key at an
   exchange, one node of a topic exchange's trie for a word, one demand of a headers exchange's rule, or one bind that
   waits for the message at a recent history exchange.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.field_table import Table, decode_table
from warren.amqp.properties import BasicProperties, decode_properties
from warren.exchanges.effects import Effects

# Enough for half a million bindings with the same header, which take a step each, and for a key in the worst trie of
# 10,000 patterns.
STEPS_MAX: Final = 1 << 21

if TYPE_CHECKING:
    from warren.exchanges.exchange import Exchange


class Content:
    """A content header payload (class, weight, body size, flags, properties) that was scanned before."""

    def __init__(self, header_payload: bytes) -> None:
        self.header_payload = header_payload
        self.steps_left: i64 = STEPS_MAX
        self.effects: Effects | None = None  # exchanges on the route that act on the message
        self.due_ms: i64 = 0  # when its delay ends, for delayed message exchanges; 0: it has none
        self._properties: BasicProperties | None = None
        self._headers: Table | None = None

    @property
    def properties(self) -> BasicProperties:
        """The decoded properties.

        Raises:
            ConnectionException: 502, only for a payload that `scan_properties` would have refused.
        """
        if self._properties is None:
            self._properties = decode_properties(self.header_payload, 0, len(self.header_payload))
        return self._properties

    @property
    def headers(self) -> Table:
        """The decoded headers table, empty when the message does not have one.

        Raises:
            ConnectionException: 501, a key is not UTF-8.
        """
        if self._headers is None:
            encoded = self.properties.headers
            self._headers = {} if encoded is None else decode_table(encoded)
        return self._headers

    def acts(self, exchange: Exchange, *, takes: bool) -> None:
        """Note that `exchange` acts on this message once it is accepted. `takes`: it takes the message like a queue."""
        effects = self.effects
        if effects is None:
            effects = Effects()
            self.effects = effects
        effects.exchanges.append(exchange)
        if takes:
            effects.takers.append(exchange)

    def is_taken_by(self, exchange: Exchange) -> bool:
        """Tell whether `exchange` takes this message like a queue."""
        return self.effects is not None and exchange in self.effects.takers
