"""How much topology may grow while memory or disk space is short, and how many consumers may come then.

1. Existing objects can be declared and bound again, and deletions are always done: clients that reconnect find their
   queues, and consumers can take messages out.
2. Each connection may add `CONNECTION_BYTES` during one alarm, all together `ALARM_BYTES`: a consumer's own queue and
   its bindings, so that a client that drains the broker can begin. A client that wants more waits like a publisher.
3. While memory is short, consumers have bytes of their own, `CONSUMERS_CONNECTION_BYTES` and `CONSUMERS_ALARM_BYTES`:
   they take messages out, so all of a usual application may come back. One beyond is refused and does not wait: a
   connection that waits is not read, and its acknowledgements are needed.
4. Bytes are estimates of what an exchange, queue, binding or consumer keeps in memory, its arguments decoded included.
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
CONSUMERS_CONNECTION_BYTES: Final = 1 << 21
CONSUMERS_ALARM_BYTES: Final = 1 << 25
CONSUMER_BYTES: Final = 768
QUEUE_BYTES: Final = 4096
EXCHANGE_BYTES: Final = 2048
BINDING_BYTES: Final = 1024
# A decoded argument takes a multiple of its encoded bytes.
_DECODED: Final = 8


class TopologyGrowth:
    """The room that is left in the current alarm."""

    def __init__(self) -> None:
        self.is_limited: bool = False
        self._short: set[str] = set()
        self._left_bytes: i64 = 0
        self._used_bytes: dict[int, int] = {}  # what connections have added, by their keys
        self._left_for_consumers: i64 = 0
        self._used_by_consumers: dict[int, int] = {}

    def alarm_set(self, resource: str) -> None:
        """Limit growth: `resource`, ``memory`` or ``disk``, has become short."""
        if not self._short:
            self._left_bytes = ALARM_BYTES
            self._left_for_consumers = CONSUMERS_ALARM_BYTES
        self._short.add(resource)
        self.is_limited = True

    def alarm_over(self, resource: str) -> None:
        """Lift the limit of `resource`: it is no longer short."""
        self._short.discard(resource)
        if not self._short:
            self.is_limited = False
            self._used_bytes = {}
            self._used_by_consumers = {}

    def allows(self, key: int, size_bytes: i64) -> bool:
        """Tell whether the connection of that key may add so much during an alarm, and count it."""
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
            what = "memory" if "memory" in self._short else "disk"
            text = f"{what} is short: nothing can be declared or bound until the {what} alarm is over"
            raise ChannelException(PRECONDITION_FAILED, text)

    def check_consumer(self, key: int, tag: str, arguments: bytes) -> None:
        """Make sure that the connection of that key may have another consumer, and count it.

        Raises:
            ChannelException: 406.
        """
        size: i64 = CONSUMER_BYTES + 2 * len(tag) + _DECODED * len(arguments)
        used: i64 = self._used_by_consumers.get(key, 0) + size
        if used > CONSUMERS_CONNECTION_BYTES or size > self._left_for_consumers:
            text = "memory is short: no more consumers are accepted until the memory alarm is over"
            raise ChannelException(PRECONDITION_FAILED, text)
        self._used_by_consumers[key] = int(used)
        self._left_for_consumers -= size


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
