"""The messages that a delayed message exchange holds, and when they are routed.

1. A message is held once, whatever the bindings are when it comes. It is routed when it is due: by the bindings of that
   time, with its routing key and the keys of CC and BCC. If it matches nothing then, it is dropped. If its routing
   takes too many steps, it stays, and is tried again.
2. Persistent messages are stored if the exchange is durable. The store has them by the name of the exchange, in a lane
   of its own (`queues.lanes`).
3. Deleting the exchange drops the messages that it holds.
4. The store does not keep the keys of BCC in an envelope. So the header of a held message has them again.
"""

from __future__ import annotations

from mypy_extensions import i64

from warren.amqp.field_table import decode_table
from warren.amqp.properties import headers_of
from warren.exchanges.exchange import Exchange
from warren.exchanges.exchange_host import ExchangeHost, Routed
from warren.msgstore.log.message import Envelope, Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.dead_letter import with_header, without_header
from warren.queues.held_messages import RELEASED, STAYS, UNROUTED_RETRY_MS, WAITS, HeldMessages
from warren.queues.lanes import EXCHANGE
from warren.queues.timers import NEVER, Timer

_BLIND_COPIES = "BCC"


class DelayedMessages(Timer):
    """Holds messages for `exchange`, and has `host` publish them when they are due."""

    def __init__(self, exchange: Exchange, host: ExchangeHost) -> None:
        super().__init__()
        self._exchange: Exchange | None = exchange  # None: closed
        self.log = host.log
        self.held: ExchangeLane = ExchangeLane(host.log, self)
        self._timers = host.timers
        self._host: ExchangeHost | None = host
        self._routed: Routed | None = None  # of the message that is being released
        host.held[exchange.name] = self.held

    def hold(self, message: Message) -> None:
        """Hold `message` until its ``due_ms``, which is the same for all exchanges that hold the message."""
        exchange = self._exchange
        if exchange is None:
            return
        until_ms: i64 = message.due_ms
        blind_copies = message.envelope.blind_copies
        kept = message if blind_copies is None else with_header(message, _BLIND_COPIES, blind_copies)
        held = self.held
        stored: bool = message.persistent and exchange.durable
        if stored and held.index is None:
            self.begin_storing()
        held.hold(kept, until_ms, stored)
        if kept is not message and stored:
            message.awaits_batch = True
        self._timers.at(until_ms, self)

    def begin_storing(self) -> None:
        """Give the lane an index in the store."""
        exchange = self._exchange
        host = self._host
        if exchange is not None and host is not None:
            log = self.log
            index = log.new_index(log.new_queue_id(), host.name, exchange.name, EXCHANGE, not exchange.durable)
            self.held.begin_storing(index)

    def route(self, message: Message) -> i64:
        """Route a message that is about to be released; return its fate. If routing takes too many steps, it stays."""
        if self._host is None or self._exchange is None:
            return RELEASED
        routed = self._host.route_released(self._exchange, _as_published(message))
        self._routed = routed
        if not routed.is_complete:
            return STAYS
        return WAITS if routed.has_to_wait else RELEASED

    def released(self, message: Message) -> None:
        """Publish a message that is due, and was routed."""
        routed = self._routed
        self._routed = None
        if self._host is not None and self._exchange is not None and routed is not None:
            self._host.publish_released(self._exchange, _as_published(message), routed)

    def due(self, now_ms: i64) -> None:
        self._timers.worked += self.held.release_due(now_ms)
        self.plan()

    def plan(self) -> None:
        """Set the timer for the earliest message."""
        at_ms: i64 = self.held.first_ms()
        if at_ms < NEVER and self._host is not None:
            self._timers.at(at_ms, self)

    def close(self) -> None:
        """Stop holding messages: the exchange is deleted."""
        self._timers.cancel(self)
        if self._host is not None and self._exchange is not None:
            self._host.held.pop(self._exchange.name, None)
        # These references are cycles: break them, so that the cyclic collector is not needed.
        self._host = None
        self._exchange = None


def _as_published(message: Message) -> Message:
    """Return a held message without the keys of BCC in its header, see (4)."""
    headers = headers_of(message.header_payload())
    copies = decode_table(headers).get(_BLIND_COPIES) if b"\x03BCC" in headers else None
    if isinstance(copies, list):
        message = without_header(message, _BLIND_COPIES)
        message.envelope = Envelope(message.envelope.exchange, message.envelope.routing_key)
        message.copy_blindly_to([key for key in copies if isinstance(key, str)])
    return message


class ExchangeLane(HeldMessages):
    """The messages that the exchange holds."""

    def __init__(self, log: MessageLog, owner: DelayedMessages) -> None:
        super().__init__(log)
        self._owner: DelayedMessages | None = owner

    def decide(self, number: int, message: Message, purpose: i64) -> i64:
        fate = HeldMessages.decide(self, number, message, purpose)
        if fate == RELEASED and self._owner is not None:
            fate = self._owner.route(message)
            if fate == STAYS:
                self.times.add(self.log.now_ms + UNROUTED_RETRY_MS, number)
        return fate

    def released(self, message: Message) -> None:
        if self._owner is not None:
            self._owner.released(message)

    def changed(self) -> None:
        if self._owner is not None:
            self._owner.plan()

    def restore(self, index: QueueIndex, *, clean: bool = True) -> None:
        super().restore(index, clean=clean)
        self.changed()

    def page_out(self) -> None:
        if self._owner is not None and self.needs_index():
            self._owner.begin_storing()
        super().page_out()

    def close(self) -> None:
        super().close()
        if self._owner is not None:
            self._owner.close()
            self._owner = None
