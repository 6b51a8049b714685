"""Who is told what comes and goes in a vhost: `channels.events`, which tells the event exchange.

`by` is the user whose doing it was, `INTERNAL_USER` where it was nobody's: what goes along with something else, with
its last consumer or with its connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warren.exchanges.binding import Binding
from warren.exchanges.exchange import Exchange
from warren.queues.delivery import Consumer

if TYPE_CHECKING:
    from warren.queues.queue import Queue

INTERNAL_USER: Final = "rmq-internal"  # as RabbitMQ calls it


class TopologyWatcher:
    """Listens to one vhost or several. This one does not care: what a vhost has until it is given another."""

    def exchange_created(self, vhost: str, exchange: Exchange, by: str) -> None:
        """`exchange` was declared."""

    def exchange_deleted(self, vhost: str, exchange: Exchange, by: str) -> None:
        """`exchange` is gone; its bindings go next."""

    def queue_created(self, vhost: str, queue: Queue, by: str) -> None:
        """`queue` was declared."""

    def queue_deleted(self, vhost: str, queue: Queue, by: str) -> None:
        """`queue` is gone, with its consumers and bindings."""

    def binding_created(self, vhost: str, binding: Binding, by: str) -> None:
        """`binding` was made."""

    def binding_deleted(self, vhost: str, binding: Binding, by: str) -> None:
        """`binding` is gone."""

    def consumer_deleted(self, consumer: Consumer) -> None:
        """`consumer` is gone; its channel is still its owner."""
