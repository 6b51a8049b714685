"""A virtual host: the exchanges, queues and bindings of one namespace, and how they come and go.

1. `topology_version` changes whenever a routing decision made before may be wrong now.
2. Everything durable that comes or goes is in the journal; the ticket of the last change is what a reply waits for.
3. A binding is durable when both of its ends are; it goes with either end. An exclusive queue is never durable.
4. An auto-delete exchange goes with its last outgoing binding, an auto-delete queue with its last consumer; both
   only after having had one.

Whether a user may do these things is decided before, in ``channels``. Telling consumers that their queue is gone is
the caller's duty: `delete_queue` returns them.
"""

from __future__ import annotations

from collections.abc import Iterator

from mypy_extensions import i64

from warren.amqp.errors import NOT_FOUND, PRECONDITION_FAILED, RESOURCE_LOCKED, ChannelException
from warren.amqp.field_table import EMPTY_TABLE
from warren.exchanges.binding import Binding
from warren.exchanges.content import Content
from warren.exchanges.destination import Destination
from warren.exchanges.exchange import Exchange
from warren.exchanges.recent_history_exchange import RecentHistoryExchange
from warren.exchanges.registry import create_exchange
from warren.exchanges.routing import is_cacheable_route, route
from warren.msgstore.message import Message
from warren.msgstore.message_log import MessageLog
from warren.queues.arguments import QueueArguments
from warren.queues.delivery import Consumer
from warren.queues.metadata import (
    BindingDelete,
    BindingPut,
    ExchangeDelete,
    ExchangePut,
    MetadataJournal,
    QueueDelete,
    QueuePut,
    VhostPut,
)
from warren.queues.queue import Queue

DEFAULT_EXCHANGE = ""
PREDECLARED = (
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.topic", "topic", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    ("amq.rabbitmq.trace", "topic", True),
)


class VirtualHost:
    """One namespace. `runnable` is the broker's list of queues with something to hand out."""

    def __init__(
        self, record: VhostPut, journal: MetadataJournal, runnable: list[Queue], seed: int, log: MessageLog
    ) -> None:
        self.record = record
        self.name = record.name
        self.topology_version: i64 = 1
        self.exchanges: dict[str, Exchange] = {}
        self.queues: dict[str, Queue] = {}
        self.reply_queues: dict[str, Queue] = {}  # direct reply-to; neither listed nor bindable
        self._incoming: dict[Destination, set[Exchange]] = {}  # who has bindings to this destination
        self._journal = journal
        self._runnable = runnable
        self._seed = seed
        self._log = log
        self._restored_id: int = 0
        self.sync_confirms: bool = True  # a confirm means synced, not just written
        self.exchanges[DEFAULT_EXCHANGE] = create_exchange("direct", "", True, False, False, EMPTY_TABLE, seed)
        for name, type_name, internal in PREDECLARED:
            self.exchanges[name] = create_exchange(type_name, name, True, False, internal, EMPTY_TABLE, seed)

    # --- look-up --------------------------------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        """Return the exchange called `name`.

        Raises:
            ChannelException: 404.
        """
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise ChannelException(NOT_FOUND, f"no exchange '{name}' in vhost '{self.name}'")
        return exchange

    def queue(self, name: str, connection: object) -> Queue:
        """Return the queue called `name` as `connection` may see it.

        Raises:
            ChannelException: 404; 405, it is exclusive to another connection.
        """
        queue = self.queues.get(name)
        if queue is None:
            raise ChannelException(NOT_FOUND, f"no queue '{name}' in vhost '{self.name}'")
        if queue.owner is not None and queue.owner is not connection:
            raise self.locked(name)
        return queue

    def locked(self, name: str) -> ChannelException:
        """Return the refusal of a queue that belongs to another connection."""
        return ChannelException(
            RESOURCE_LOCKED,
            f"cannot obtain exclusive access to locked queue '{name}' in vhost '{self.name}'. It could be "
            "originally declared on another connection or the exclusive property value does not match that of "
            "the original declaration.",
        )

    def bindings(self) -> Iterator[Binding]:
        """Yield every binding."""
        for exchange in self.exchanges.values():
            yield from exchange.bindings.values()

    # --- routing --------------------------------------------------------------------------------------------------

    def route(self, exchange: Exchange, keys: list[str], content: Content) -> list[Queue]:
        """Return the queues that a message published to `exchange` with `keys` goes to, each once."""
        if exchange.name == DEFAULT_EXCHANGE:
            direct: list[Queue] = []
            for key in keys:
                queue = self.queues.get(key)
                if queue is None:
                    queue = self.reply_queues.get(key)
                if queue is not None and queue not in direct:
                    direct.append(queue)
            return direct
        found: list[Destination] = []
        route(exchange, keys, content, self.exchanges, found)
        queues: list[Queue] = []
        for destination in found:
            if isinstance(destination, Queue):
                queues.append(destination)
        return queues

    def is_cacheable(self, exchange: Exchange) -> bool:
        """Tell whether routing from `exchange` depends on the routing key alone."""
        return exchange.name == DEFAULT_EXCHANGE or is_cacheable_route(exchange, self.exchanges)

    # --- exchanges ------------------------------------------------------------------------------------------------

    def declare_exchange(
        self, name: str, type_name: str, durable: bool, auto_delete: bool, internal: bool, arguments: bytes
    ) -> int:
        """Create the exchange, or check that the one there is equivalent. Return the ticket to wait for.

        Raises:
            ChannelException: 406, unknown type, bad argument, or inequivalent.
        """
        exchange = self.exchanges.get(name)
        if exchange is not None:
            exchange.check_equivalent(type_name, durable, auto_delete, internal, arguments, self.name)
            return self._journal.last_ticket if durable else 0
        self.exchanges[name] = create_exchange(
            type_name, name, durable, auto_delete, internal, arguments, self._seed, self.name
        )
        self.topology_version += 1
        if not durable:
            return 0
        return self._journal.append(ExchangePut(self.name, name, type_name, auto_delete, internal, arguments))

    def delete_exchange(self, exchange: Exchange) -> int:
        """Delete `exchange` with all bindings from and to it. Return the ticket to wait for."""
        if self.exchanges.pop(exchange.name, None) is None:
            return 0
        self.topology_version += 1
        ticket = 0
        if exchange.durable:
            ticket = self._journal.append(ExchangeDelete(self.name, exchange.name))
        for binding in list(exchange.bindings.values()):
            exchange.unbind(binding.destination, binding.routing_key, binding.arguments)
            self._forget_incoming(binding)
        self._unbind_destination(exchange)
        return ticket

    # --- queues ---------------------------------------------------------------------------------------------------

    def declare_queue(
        self,
        name: str,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: bytes,
        connection: object,
    ) -> int:
        """Create the queue, or check that the one there is equivalent. Return the ticket to wait for.

        Raises:
            ChannelException: 405, owned by another connection or exclusiveness differs; 406, bad or inequivalent.
        """
        durable = durable and not exclusive
        queue = self.queues.get(name)
        if queue is not None:
            if (queue.owner is not None) != exclusive or (exclusive and queue.owner is not connection):
                raise self.locked(name)
            QueueArguments.check_equivalent(queue, durable, auto_delete, arguments)
            return self._journal.last_ticket if queue.durable else 0
        parsed = QueueArguments(name, self.name, arguments)
        owner = connection if exclusive else None
        store_id = 0
        if durable:
            store_id = self._restored_id or self._log.new_queue_id()
        queue = Queue(self.name, name, durable, auto_delete, owner, arguments, self._runnable, self._log, store_id)
        queue.single_active = parsed.single_active
        self.queues[name] = queue
        self.topology_version += 1
        if not queue.durable:
            return 0
        return self._journal.append(QueuePut(self.name, name, auto_delete, arguments, queue.store_id))

    def delete_queue(self, queue: Queue) -> tuple[list[Consumer], int]:
        """Delete `queue` and its bindings; return its consumers, which know nothing yet, and the ticket."""
        if self.queues.get(queue.name) is not queue:
            return [], 0
        del self.queues[queue.name]
        self.topology_version += 1
        ticket = 0
        if queue.durable:
            ticket = self._journal.append(QueueDelete(self.name, queue.name))
        self._unbind_destination(queue)
        consumers = queue.consumers
        queue.close()
        return consumers, ticket

    def open_reply_queue(self, name: str, connection: object) -> Queue:
        """Create the queue of a direct reply-to consumer."""
        queue = Queue(self.name, name, False, False, connection, EMPTY_TABLE, self._runnable, self._log)
        self.reply_queues[name] = queue
        return queue

    def close_reply_queue(self, queue: Queue) -> None:
        """Delete it; replies that come later vanish."""
        self.reply_queues.pop(queue.name, None)
        queue.close()

    # --- bindings -------------------------------------------------------------------------------------------------

    def bind(self, source: Exchange, destination: Destination, routing_key: str, arguments: bytes) -> int:
        """Bind, once. Return the ticket to wait for.

        Raises:
            ChannelException: 406, the exchange type refuses the binding.
        """
        source.check_binding(routing_key, arguments)
        binding = Binding(source, destination, routing_key, arguments)
        durable = source.durable and destination.durable
        if not source.bind(binding):
            return self._journal.last_ticket if durable else 0
        sources = self._incoming.get(destination)
        if sources is None:
            sources = set()
            self._incoming[destination] = sources
        sources.add(source)
        self.topology_version += 1
        if isinstance(source, RecentHistoryExchange) and isinstance(destination, Queue):
            for remembered in source.history():
                if isinstance(remembered, Message):
                    destination.publish(remembered)
        if not durable:
            return 0
        return self._journal.append(
            BindingPut(
                self.name,
                source.name,
                destination.name,
                "queue" if destination.is_queue else "exchange",
                routing_key,
                arguments,
            )
        )

    def unbind(self, source: Exchange, destination: Destination, routing_key: str, arguments: bytes) -> int:
        """Remove a binding if it is there. Return the ticket to wait for."""
        binding = source.unbind(destination, routing_key, arguments)
        if binding is None:
            return 0
        self.topology_version += 1
        ticket = self._journal_unbind(binding)
        self._forget_incoming(binding)
        return max(ticket, self._maybe_auto_delete(source))

    def _unbind_destination(self, destination: Destination) -> None:
        # No BindingDelete here: the catalogue drops bindings together with either end.
        sources = self._incoming.pop(destination, None)
        if sources is None:
            return
        for source in sorted(sources, key=_name):
            source.unbind_destination(destination)
            self._maybe_auto_delete(source)

    def _forget_incoming(self, binding: Binding) -> None:
        sources = self._incoming.get(binding.destination)
        if sources is not None and not binding.source.is_bound_to(binding.destination):
            sources.discard(binding.source)
            if not sources:
                del self._incoming[binding.destination]

    def _journal_unbind(self, binding: Binding) -> int:
        if not (binding.source.durable and binding.destination.durable):
            return 0
        return self._journal.append(
            BindingDelete(
                self.name,
                binding.source.name,
                binding.destination.name,
                "queue" if binding.destination.is_queue else "exchange",
                binding.routing_key,
                binding.arguments,
            )
        )

    def _maybe_auto_delete(self, exchange: Exchange) -> int:
        if exchange.auto_delete and not exchange.bindings and exchange.name in self.exchanges:
            return self.delete_exchange(exchange)
        return 0

    # --- start ----------------------------------------------------------------------------------------------------

    def restore(self, change: ExchangePut | QueuePut | BindingPut) -> None:
        """Apply what the catalogue remembers, without journalling it again.

        Raises:
            ChannelException: the catalogue holds something that this version refuses.
        """
        journal = self._journal
        self._journal = MetadataJournal()
        try:
            if isinstance(change, ExchangePut):
                if change.name not in self.exchanges:
                    self.declare_exchange(
                        change.name, change.type, True, change.auto_delete, change.internal, change.arguments
                    )
            elif isinstance(change, QueuePut):
                self._restored_id = change.queue_id
                if change.queue_id >= self._log.next_queue_id:
                    self._log.next_queue_id = change.queue_id + 1
                self.declare_queue(change.name, True, False, change.auto_delete, change.arguments, None)
            else:
                source = self.exchange(change.source)
                destination: Destination
                if change.destination_type == "queue":
                    destination = self.queue(change.destination, None)
                else:
                    destination = self.exchange(change.destination)
                self.bind(source, destination, change.routing_key, change.arguments)
        finally:
            self._journal = journal
            self._restored_id = 0


def _name(exchange: Exchange) -> str:
    return exchange.name


def in_use(kind: str, name: str, vhost: str) -> ChannelException:
    """Return the refusal of if-unused."""
    return ChannelException(PRECONDITION_FAILED, f"{kind} '{name}' in vhost '{vhost}' in use")
