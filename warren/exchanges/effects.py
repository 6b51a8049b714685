"""The exchanges on the route of a message that act on the message, besides routing it.

Routing runs before there is a message object. So `Exchange.match` notes the exchange here (`Content.acts`), and the
publishing side calls `publish` once the message is accepted, right before its queues get it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.msgstore.log.message import Message

if TYPE_CHECKING:
    from warren.exchanges.exchange import Exchange


class Effects:
    """These exchanges, each once. `takers`: those of them that take the message like a queue."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.takers: list[Exchange] = []

    def publish(self, message: Message) -> i64:
        """Let all of them act on `message`. Return the greatest outcome, for the publisher."""
        outcome: i64 = 0
        for exchange in self.exchanges:
            found: i64 = exchange.publish(message)
            if found > outcome:
                outcome = found
        return outcome

    def has_takers(self) -> bool:
        """Tell whether any of them takes the message like a queue."""
        return len(self.takers) > 0

    def stores(self) -> bool:
        """Tell whether any of them stores a persistent message."""
        return any(exchange.durable for exchange in self.takers)
