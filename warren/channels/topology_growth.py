"""How much topology may grow while memory is short.

1. Existing objects can be declared and bound again, and deletions are always done: clients that reconnect find their
   queues, and consumers can take messages out.
2. Each connection may add `CONNECTION_BYTES` during one alarm, all together `ALARM_BYTES`: a consumer's own queue and
   its bindings, so that a client that drains the broker can begin. A client that wants more waits like a publisher.
3. Bytes are estimates of what an exchange, queue or binding keeps in memory, its arguments decoded included.
"""

from __future__ import annotations

from typing import Any, Final

from mypy_extensions import i64

from warren.amqp import methods as m
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.errors import PRECONDITION_FAILED, ChannelException
from warren.channels.session import Session
from warren.queues.destination import Destination

CONNECTION_BYTES: Final = 1 << 16
ALARM_BYTES: Final = 1 << 24
QUEUE_BYTES: Final = 4096
EXCHANGE_BYTES: Final = 2048
BINDING_BYTES: Final = 1024
# A decoded argument takes a multiple of its encoded bytes.
_DECODED: Final = 8


class TopologyGrowth:
    """The room that is left in the current alarm."""

    def __init__(self) -> None:
        self._left_bytes: i64 = 0
        self._used_bytes: dict[int, int] = {}  # what connections have added, by their keys

    def alarm_set(self) -> None:
        """Memory has become short."""
        self._left_bytes = ALARM_BYTES

    def alarm_over(self) -> None:
        """Memory is no longer short."""
        self._used_bytes = {}

    def allows(self, key: int, size_bytes: i64) -> bool:
        """Tell whether the connection of that key may add so much although memory is short, and count it."""
        if size_bytes == 0:
            return True
        used: i64 = self._used_bytes.get(key, 0) + size_bytes
        if used > CONNECTION_BYTES or size_bytes > self._left_bytes:
            return False
        self._used_bytes[key] = int(used)
        self._left_bytes -= size_bytes
        return True

    def check(self, key: int, size_bytes: i64) -> None:
        """Make sure that the connection of that key may add so much.

        Raises:
            ChannelException: 406.
        """
        if not self.allows(key, size_bytes):
            text = "memory is short: nothing can be declared or bound until the memory alarm is over"
            raise ChannelException(PRECONDITION_FAILED, text)


def growth_bytes(channel: Session, method: Any) -> i64:
    """Return the memory that a command of `topology.handle_topology` would add, 0: none.

    Raises:
        ChannelException: 404, no queue was declared on the channel.
    """
    vhost = channel.vhost
    size: i64 = 0
    if isinstance(method, QueueDeclaration):
        if method.name == "" or method.name not in vhost.queues:
            size = QUEUE_BYTES + _DECODED * len(method.arguments)
    elif isinstance(method, ExchangeDeclaration):
        if method.name not in vhost.exchanges:
            size = EXCHANGE_BYTES + _DECODED * len(method.arguments)
    elif isinstance(method, m.QueueDeclare):
        if not method.passive:
            size = growth_bytes(channel, QueueDeclaration.of_method(method, method.queue))
    elif isinstance(method, m.ExchangeDeclare):
        if not method.passive:
            size = growth_bytes(channel, ExchangeDeclaration.of_method(method, method.exchange))
    elif isinstance(method, m.QueueBind):
        queue = vhost.queues.get(channel.queue_name(method.queue))
        size = binding_growth_bytes(channel, method.exchange, queue, method.routing_key, method.arguments)
    elif isinstance(method, m.ExchangeBind):
        exchange = vhost.exchanges.get(method.destination)
        size = binding_growth_bytes(channel, method.source, exchange, method.routing_key, method.arguments)
    return size


def binding_growth_bytes(
    channel: Session, source_name: str, destination: Destination | None, binding_key: str, arguments: bytes
) -> i64:
    """Return the memory that a binding would add: 0 when it exists already, or one of its ends does not."""
    source = channel.vhost.exchanges.get(source_name)
    if source is None or destination is None or source.has_binding(destination, binding_key, arguments):
        return 0
    return BINDING_BYTES + _DECODED * len(arguments)
