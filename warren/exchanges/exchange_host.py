"""The services of a vhost for exchanges that do more than route: that hold messages, or make bindings later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.exchanges.effects import Effects
from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.queues.held_messages import HeldMessages
from warren.queues.queue_host import QueueHost
from warren.queues.receiver import Receiver
from warren.queues.timers import TimerQueue

if TYPE_CHECKING:
    from warren.exchanges.binding import Binding
    from warren.exchanges.exchange import Exchange


class RememberedBytes:
    """The memory of all messages that the exchanges of a vhost remember."""

    def __init__(self) -> None:
        self.total: i64 = 0


class Routed:
    """Where a message goes: its queues, and the exchanges that act on it.

    `cost`: of the routing; the unit is the cost of giving a message to one queue. ``is_complete``: False if routing
    took too many steps; then `queues` is empty. ``has_to_wait``: the message waits for a batch that it can hold open.
    """

    def __init__(self, queues: list[Receiver], effects: Effects | None, cost: i64) -> None:
        self.queues = queues
        self.effects = effects
        self.cost: i64 = cost
        self.is_complete: bool = True
        self.has_to_wait: bool = False

    def is_held(self) -> bool:
        """Tell whether an exchange on the way takes the message."""
        return self.effects is not None and self.effects.has_takers()


class ExchangeHost(QueueHost):
    """The surroundings of exchanges. `held`: the messages that exchanges hold until later, by the exchange's name."""

    def __init__(self, name: str, log: MessageLog, timers: TimerQueue) -> None:
        super().__init__(name, log, timers)
        self.held: dict[str, HeldMessages] = {}
        self.remembered_bytes = RememberedBytes()

    def route_released(self, exchange: Exchange, message: Message) -> Routed:
        """Route a message that `exchange` has held, by the current bindings."""
        raise AssertionError("overridden")

    def publish_released(self, exchange: Exchange, message: Message, routed: Routed) -> None:
        """Publish a message that `exchange` has held, and that was routed."""
        raise AssertionError("overridden")

    def make_binding(self, binding: Binding, by: str) -> int:
        """Make a binding at the end of its job. Return the ticket to wait for."""
        raise AssertionError("overridden")

    def delete_unused(self, exchange: Exchange, by: str) -> None:
        """Delete `exchange` if it is auto-delete and no longer in use."""
        raise AssertionError("overridden")
