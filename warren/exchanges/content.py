"""The content header of the message being routed, decoded only when a route asks for it.

1. A route that depends on exchange and routing key only never decodes anything.
2. Each part is decoded at most once, however many exchanges look at it.
3. Matching ends when ``steps_left`` is below 0: then some matches are missing. A step is a routing key at an exchange,
   a node of a topic exchange's trie for a word, or a demand of a headers exchange's rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.field_table import Table, decode_table
from warren.amqp.properties import BasicProperties, decode_properties
from warren.exchanges.effects import Effects

# Half a million bindings by the same header are one each; the worst trie of 10,000 patterns is gone through for a key.
STEPS_MAX: Final = 1 << 21

if TYPE_CHECKING:
    from warren.exchanges.exchange import Exchange


class Content:
    """A content header payload (class, weight, body size, flags, properties) that was scanned before."""

    def __init__(self, header_payload: bytes) -> None:
        self.header_payload = header_payload
        self.steps_left: i64 = STEPS_MAX
        self.effects: Effects | None = None  # exchanges on the route that act on the message
        self.due_ms: i64 = 0  # the end of its delay, which a delayed message exchange acts on; 0: it has none
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
        """Note that `exchange` acts on this message when it is accepted. `takes`: it takes it as a queue does."""
        effects = self.effects
        if effects is None:
            effects = Effects()
            self.effects = effects
        effects.exchanges.append(exchange)
        if takes:
            effects.takers.append(exchange)

    def is_taken_by(self, exchange: Exchange) -> bool:
        """Tell whether `exchange` takes this message as a queue does."""
        return self.effects is not None and exchange in self.effects.takers
