"""The destinations of a binding: a queue, a subscriber without one, or another exchange.

1. A destination is the object itself: two destinations are the same only if they are the same object. A
   queue that is deleted and declared again under its name is another destination.
"""

from __future__ import annotations


class Destination:
    """A queue, subscriber or exchange, as routing sees it. Subclassed by `Exchange` and by `queues.receiver`."""

    def __init__(self, name: str, *, is_queue: bool = False, durable: bool = False) -> None:
        self.name = name
        self.is_queue: bool = is_queue
        self.durable: bool = durable
        self.deleted: bool = False  # nothing is routed to it, though bindings may still lead there

    @property
    def kind(self) -> str:
        """Its kind in the management API, events and the catalogue."""
        return "queue" if self.is_queue else "exchange"
