"""Delayed message exchanges: a message with a delay is held here, and routed when its time has come.

1. Bindings match as in the exchange type that ``x-delayed-type`` names. A message without a delay is routed at once, as
   by that type.
2. A message with a delay matches nothing. The exchange takes it (`Content.acts`), holds it (``delayed_messages``), and
   routes it from here when it is due, by the bindings at that time.
3. A held message does not count as unroutable. The alternate exchange is asked only when the message is due.

Source: RabbitMQ's delayed message exchange plugin, its texts too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.declarations import ExchangeDeclaration
from warren.exchanges.binding import Binding
from warren.exchanges.content import Content
from warren.exchanges.delayed_messages import DelayedMessages
from warren.exchanges.exchange import BindJob, Exchange
from warren.exchanges.exchange_host import ExchangeHost
from warren.msgstore.log.message import Message
from warren.queues.delay import due_time_ms, negate_delay
from warren.queues.destination import Destination
from warren.queues.long_work import Steps
from warren.queues.outcome import ACCEPTED

if TYPE_CHECKING:
    from warren.queues.base_queue import BaseQueue

DELAYED_MESSAGE: Final = "x-delayed-message"
DELAYED_TYPE: Final = "x-delayed-type"


class DelayedMessageExchange(Exchange):
    """An exchange of type ``x-delayed-message``. `inner`: an exchange of the other type, which matches the bindings."""

    def __init__(self, declaration: ExchangeDeclaration, inner: Exchange) -> None:
        super().__init__(declaration)
        self.cacheable = False
        self.inner = inner
        inner.bindings = self.bindings
        inner.by_destination = self.by_destination
        inner.downstream = self.downstream
        self._messages: DelayedMessages | None = None  # the held messages; None: it is not in a vhost yet

    def match(self, routing_key: str, content: Content, found: list[Destination]) -> None:
        self.match_keys([routing_key], content, found)

    def match_keys(self, routing_keys: list[str], content: Content, found: list[Destination]) -> None:
        if content.due_ms:
            content.acts(self, takes=True)
        else:
            self.inner.match_keys(routing_keys, content, found)

    def check_binding(self, routing_key: str, arguments: bytes) -> None:
        self.inner.check_binding(routing_key, arguments)

    def enter(self, host: ExchangeHost) -> None:
        self.inner.enter(host)
        self._messages = DelayedMessages(self, host)

    def publish(self, message: Message) -> i64:
        messages = self._messages
        if messages is None:
            return ACCEPTED  # the exchange was deleted after the routing
        held = message
        if not message.due_ms:  # a dead letter: its queues get it at once
            held = message.copy()
            held.due_ms = due_time_ms(message.header_payload(), messages.log.now_ms)
            negate_delay(held)
        messages.hold(held)
        return ACCEPTED

    def is_used(self) -> bool:
        return self.inner.is_used()

    def maybe_bind_job(
        self, host: ExchangeHost, queue: BaseQueue, binding: Binding, by: str, done: Callable[[int], None]
    ) -> BindJob | None:
        return self.inner.maybe_bind_job(host, queue, binding, by, done)

    def forget(self, steps: Steps) -> bool:
        return self.inner.forget(steps)

    def close(self) -> None:
        self.inner.deleted = True
        if self._messages is not None:
            self._messages.held.close()
            self._messages = None

    def _index(self, binding: Binding) -> None:
        self.inner._index(binding)

    def _unindex(self, binding: Binding) -> None:
        self.inner._unindex(binding)
