"""A virtual host: the exchanges, queues and bindings of one namespace, and how they come and go.

1. `topology_version` changes whenever a routing decision made before may be wrong now.
2. Each creation and deletion of something durable is in the journal. A reply waits for the ticket of the last change.
3. A binding is durable when both of its ends are; it goes with either end. An exclusive queue is never durable.
4. An auto-delete exchange is deleted with its last outgoing binding, and an auto-delete queue with its last consumer.
   One that never had any stays.
5. In a vhost with a default queue type, a declaration without a type means the default, if the queue may be of that
   type. A queue that was declared without a type before the vhost had a default can be declared so again.

``channels`` checks the permissions before it calls this module. It also notifies the consumers of a deleted queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from mypy_extensions import i64

from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.errors import NOT_FOUND, PRECONDITION_FAILED, ChannelException
from warren.amqp.field_table import encode_table, find_tag, with_length
from warren.amqp.inequivalence import locked
from warren.exchanges.binding import Binding
from warren.exchanges.content import Content
from warren.exchanges.exchange import BindJob, Exchange
from warren.exchanges.exchange_host import ExchangeHost, Routed
from warren.exchanges.registry import create_exchange
from warren.exchanges.routing import is_cacheable_route, route
from warren.msgstore.log.batch import BatchWaiter
from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.queues.arguments import CLASSIC, QUORUM, STREAM, QueueArguments
from warren.queues.base_queue import BaseQueue
from warren.queues.claim_names import is_claims_name
from warren.queues.claims import ClaimQueue
from warren.queues.counters import Churn, MessageCounts
from warren.queues.delivery import DeliveryLedger
from warren.queues.destination import Destination
from warren.queues.effective_policy import NO_POLICY
from warren.queues.lanes import EXCHANGE_PRODUCERS, EXCHANGE_SEEN_KEYS
from warren.queues.queue import Queue
from warren.queues.receiver import Receiver
from warren.queues.rules import QueueRules, rules_of
from warren.queues.seen_keys import SeenKeys, check_equivalent, exchange_rules
from warren.queues.timers import Timer, TimerQueue
from warren.streams.stream import Stream
from warren.vhosts.dead_lettering import DeadLettering
from warren.vhosts.incoming_bindings import IncomingBindings
from warren.vhosts.kept_sessions import KeptSessions
from warren.vhosts.metadata import (
    BindingDelete,
    BindingPut,
    ExchangeDelete,
    ExchangePut,
    PolicyDelete,
    PolicyPut,
    QueueDelete,
    QueuePut,
    VhostPut,
)
from warren.vhosts.metadata_journal import Journal
from warren.vhosts.own_publishes import publish_released, route_released
from warren.vhosts.policies import PolicyBook
from warren.vhosts.policy_run import PolicyRun
from warren.vhosts.records import VhostRecords
from warren.vhosts.retained import RetainedMessages
from warren.vhosts.sorted_queues import SortedQueues
from warren.vhosts.super_streams import partition_places, partitions_moved
from warren.vhosts.topology_watcher import INTERNAL_USER, TopologyWatcher
from warren.vhosts.unbinding import Unbinding

DEFAULT_EXCHANGE: Final = ""
CONTROL_EXCHANGE: Final = "amq.control"
PREDECLARED: Final = (
    ExchangeDeclaration("amq.direct", "direct", durable=True),
    ExchangeDeclaration("amq.fanout", "fanout", durable=True),
    ExchangeDeclaration("amq.topic", "topic", durable=True),
    ExchangeDeclaration("amq.headers", "headers", durable=True),
    ExchangeDeclaration("amq.match", "headers", durable=True),
    ExchangeDeclaration(CONTROL_EXCHANGE, "direct", durable=True),
    ExchangeDeclaration("amq.rabbitmq.trace", "topic", durable=True, internal=True),
)
EVENT_EXCHANGE: Final = "amq.rabbitmq.event"
EVENT_VHOST: Final = "/"
QUEUE_TYPE: Final = "x-queue-type"
# The values for a default queue type of a vhost, with the type; ``""``: no default, a queue without a type is classic.
DEFAULT_QUEUE_TYPES: Final = {"": "", "undefined": "", "classic": CLASSIC, "quorum": QUORUM, "stream": STREAM}


class VirtualHost(ExchangeHost):
    """One namespace. `runnable` is the broker's list of queues with messages to deliver."""

    def __init__(
        self,
        record: VhostPut,
        journal: Journal,
        runnable: list[BaseQueue],
        seed: int,
        log: MessageLog,
        timers: TimerQueue,
    ) -> None:
        super().__init__(record.name, log, timers)
        self.record = record
        self.topology_version: i64 = 1
        self.exchanges: dict[str, Exchange] = {}
        self.seen_keys: dict[str, SeenKeys] = {}  # by exchange: those that drop repetitions
        self.queues: dict[str, BaseQueue] = {}
        self.claims_of: dict[str, dict[str, ClaimQueue]] = {}  # the claims of drains, by the queue they belong to
        self.reply_queues: dict[str, Queue] = {}  # direct reply-to; neither listed nor bindable
        self.records = VhostRecords(log, record.name)
        self._retained: RetainedMessages | None = None  # made on demand
        self.kept_sessions: KeptSessions | None = None  # made by the protocol that has such sessions
        self.incoming = IncomingBindings()
        self._journal = journal
        self._runnable = runnable
        self._seed = seed
        self.expired_queues: list[Queue] = []  # the broker deletes them, since it can notify their consumers
        self.overdue: list[tuple[DeliveryLedger, int, int]] = []  # tags of messages not answered in time, and the time
        # A cycle of references, until the vhost is empty (`taken_apart`).
        self._letters: DeadLettering | None = DeadLettering(self)
        self._policy_run: PolicyRun | None = PolicyRun(self)
        self.is_crowded: bool = False  # whether publishers wait, because too many dead letters are in line
        self._restored_id: int = 0
        self._restoring: bool = False
        self.policies = PolicyBook()
        self.limits: dict[str, int] = {}  # as `vhosts.limits` reads them
        self.open_connections: int = 0
        self.sorted_queues = SortedQueues(self.queues)
        self.tracing: bool = False  # copies go to amq.rabbitmq.trace; switched by the broker
        self.watcher = TopologyWatcher()
        self.churn = Churn()  # shared by all vhosts of a broker
        self.counted = MessageCounts()  # the counts of channels that have ended
        for exchange in standard_exchanges(record.name, seed):
            self.exchanges[exchange.name] = exchange

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

    def queue(self, name: str, connection: object) -> BaseQueue:
        """Return the queue called `name` as `connection` may see it.

        Raises:
            ChannelException: 404; 405, it is exclusive to another connection.
        """
        queue = self.queues.get(name)
        if queue is None:
            raise ChannelException(NOT_FOUND, f"no queue '{name}' in vhost '{self.name}'")
        if queue.owner is not None and queue.owner is not connection:
            raise locked(name, self.name)
        return queue

    def retained(self) -> RetainedMessages:
        """Return the retained messages of the vhost's topics."""
        found = self._retained
        if found is None:
            found = RetainedMessages(self.records)
            for _ in found.read():
                pass
            self._retained = found
        return found

    def read_retained(self) -> Iterator[None]:
        """Find the retained messages before somebody needs them; yield None after each piece."""
        found = RetainedMessages(self.records)
        yield from found.read()
        if self._retained is None:  # they may have been read on demand meanwhile
            self._retained = found

    def bindings(self) -> Iterator[Binding]:
        """Yield every binding."""
        for exchange in self.exchanges.values():
            for binding in exchange.bindings.values():
                if not binding.destination.deleted:
                    yield binding

    def partition_of(self, queue: BaseQueue) -> int:
        found: Exchange | None = None  # the first by name, if there are several super streams
        for source in self.incoming.sources_of(queue):
            if source.is_super_stream and (found is None or source.name < found.name):
                found = source
        return -1 if found is None else partition_places(found)[queue]

    # --- routing --------------------------------------------------------------------------------------------------

    def route(self, exchange: Exchange, keys: list[str], content: Content) -> list[Receiver]:
        """Return the queues that a message published to `exchange` with `keys` goes to, each once."""
        if exchange.name == DEFAULT_EXCHANGE:
            direct: dict[Receiver, None] = {}
            for key in keys:
                queue = self.queues.get(key)
                if queue is None:
                    queue = self.reply_queues.get(key)
                if queue is not None:
                    direct[queue] = None
            return list(direct)
        found: list[Destination] = []
        route(exchange, keys, content, self.exchanges, found)
        queues: list[Receiver] = []
        for destination in found:
            if isinstance(destination, Receiver):
                queues.append(destination)
        return queues

    def is_cacheable(self, exchange: Exchange, content: Content) -> bool:
        """Tell whether routing from `exchange` depends on the routing key alone, and messages are not inspected.

        This takes steps of `content`, once for each version of the topology.
        """
        if self.tracing:
            return False
        if exchange.name == DEFAULT_EXCHANGE:
            return True
        if exchange.looked_at != self.topology_version:
            exchange.looked_at = self.topology_version
            exchange.has_cacheable_routes = is_cacheable_route(exchange, self.exchanges, content)
        return exchange.has_cacheable_routes

    def has_claims(self) -> bool:
        """Tell whether a message that is still going to very many queues may make other messages repetitions."""
        return any(seen.has_claims() for seen in self.seen_keys.values())

    # --- exchanges ------------------------------------------------------------------------------------------------

    def declare_exchange(self, declaration: ExchangeDeclaration, by: str = INTERNAL_USER) -> int:
        """Create the exchange, or check that the existing one is equivalent. Return the ticket to wait for.

        Raises:
            ChannelException: 406, unknown type, bad argument, or inequivalent.
        """
        name = declaration.name
        durable: bool = declaration.durable
        exchange = self.exchanges.get(name)
        if exchange is not None:
            exchange.check_equivalent(declaration, self.name)
            check_equivalent(declaration, self.name, exchange.arguments)
            return self._journal.last_ticket if durable else 0
        exchange = create_exchange(declaration, seed=self._seed, vhost_name=self.name)
        exchange.declared_by = by
        rules = exchange_rules(declaration, self.name, stored=self._restoring)
        if rules is not None:
            lane, producer_lane = EXCHANGE_SEEN_KEYS, EXCHANGE_PRODUCERS
            self.seen_keys[name] = SeenKeys(self.log, self.timers, self.name, name, durable, rules, lane, producer_lane)
        self.exchanges[name] = exchange
        exchange.enter(self)
        self.policies.fit_exchange(exchange)
        self.topology_version += 1
        self.watcher.exchange_created(self.name, exchange, by)
        if not durable:
            return 0
        return self._journal.append(ExchangePut.of(self.name, declaration, by))

    def delete_exchange(self, exchange: Exchange, by: str = INTERNAL_USER) -> int:
        """Delete `exchange`; all bindings from and to it are removed later. Return the ticket to wait for."""
        if self.exchanges.get(exchange.name) is not exchange:
            return 0
        ticket = self.take_exchange_out(exchange, by)
        self.work.begin(Unbinding(self, exchange, by))
        return ticket

    def take_exchange_out(self, exchange: Exchange, by: str) -> int:
        """Delete `exchange`; the caller does the `Unbinding` of it. Return the ticket to wait for."""
        del self.exchanges[exchange.name]
        self.incoming.forget_exchange(exchange)
        exchange.deleted = True
        seen = self.seen_keys.pop(exchange.name, None)
        if seen is not None:
            seen.close()
        exchange.close()
        self.topology_version += 1
        ticket = 0
        if exchange.durable:
            ticket = self._journal.append(ExchangeDelete(self.name, exchange.name))
        self.watcher.exchange_deleted(self.name, exchange, by)
        return ticket

    # --- queues ---------------------------------------------------------------------------------------------------

    def declare_queue(
        self,
        declaration: QueueDeclaration,
        connection: object | None = None,
        by: str = INTERNAL_USER,
        *,
        follows_policies: bool = True,
    ) -> int:
        """Create the queue, or check that the existing one is equivalent. Return the ticket to wait for.

        `connection` is the one that declares, and owns an exclusive queue. Without `follows_policies` the caller has to
        apply the policies of a new queue, by `FirstPolicies`.

        Raises:
            ChannelException: 405, owned by another connection or exclusiveness differs; 406, bad or inequivalent.
        """
        name = declaration.name
        exclusive: bool = declaration.exclusive
        if exclusive and declaration.durable:
            declaration = replace(declaration, durable=False)
        queue = self.queues.get(name)
        if self.record.default_queue_type and not self._restoring and not is_claims_name(name):
            declaration = _with_default_type(self.record.default_queue_type, queue, declaration)
        if queue is not None:
            return self._redeclare_queue(queue, declaration, connection)
        stored = self._restored_id > 0
        parsed = QueueArguments(declaration, self.name, stored=stored)
        store_id = 0
        if declaration.durable:
            store_id = self._restored_id or self.log.new_queue_id()
        policies = self.policies.of_queue(name, parsed.queue_type) if follows_policies else NO_POLICY
        rules = rules_of(parsed, policies)
        queue = self._new_queue(declaration, parsed, rules, connection if exclusive else None, store_id)
        queue.parsed = parsed
        queue.policies = policies
        queue.apply_rules(rules)
        self.queues[name] = queue
        self.topology_version += 1
        if not self._restoring:
            self.churn.queues_declared += 1
            self.churn.queues_created += 1
        self.watcher.queue_created(self.name, queue, by)
        if not queue.durable:
            return 0
        ticket = self._journal.append(QueuePut.of(self.name, declaration, queue.store_id))
        if not self._restoring:
            queue.ticket = ticket
        return ticket

    def _redeclare_queue(self, queue: BaseQueue, declaration: QueueDeclaration, connection: object | None) -> int:
        """Check that `queue` is what is declared. Return the ticket of its declaration; raises as `declare_queue`."""
        exclusive: bool = declaration.exclusive
        if (queue.owner is not None) != exclusive or (exclusive and queue.owner is not connection):
            raise locked(queue.name, self.name)
        QueueArguments.check_equivalent(queue, declaration)
        self.churn.queues_declared += 1
        queue.used()
        return int(queue.ticket)

    def _new_queue(
        self,
        declaration: QueueDeclaration,
        parsed: QueueArguments,
        rules: QueueRules,
        owner: object | None,
        store_id: int,
    ) -> BaseQueue:
        name = declaration.name
        if parsed.queue_type == STREAM:
            return Stream(declaration, self._runnable, self, store_id)
        if is_claims_name(name):
            claims = ClaimQueue(declaration, self._runnable, self, store_id)
            self.claims_of.setdefault(claims.source_name, {})[name] = claims
            return claims
        queue = Queue(declaration, owner, self._runnable, self, store_id)
        if rules.max_priority > 0:
            queue.ready.make_lanes(int(rules.max_priority) + 1)
        return queue

    def change_arguments(self, queue: BaseQueue, arguments: bytes) -> int:
        """Replace the arguments of a durable `queue`. Return the ticket to wait for.

        Raises:
            ChannelException: 406, they are not acceptable; nothing is changed then.
        """
        declaration = replace(queue.declaration, arguments=arguments)
        queue.parsed = QueueArguments(declaration, self.name)
        queue.arguments = arguments
        self.policies.fit_queue(queue)
        queue.ticket = self._journal.append(QueuePut.of(self.name, declaration, queue.store_id))
        return int(queue.ticket)

    def take_queue_out(self, queue: BaseQueue) -> int:
        """Delete `queue`; the caller takes care of its consumers and its bindings. Return the ticket to wait for."""
        del self.queues[queue.name]
        if isinstance(queue, ClaimQueue):
            claims = self.claims_of[queue.source_name]
            del claims[queue.name]
            if not claims:
                del self.claims_of[queue.source_name]
        self.topology_version += 1
        self.sorted_queues.forget()  # otherwise it would keep deleted queues in memory
        ticket = 0
        if queue.durable:
            ticket = self._journal.append(QueueDelete(self.name, queue.name))
        self.churn.queues_deleted += 1
        queue.close()
        return ticket

    def end_subscriber(self, subscriber: Receiver) -> None:
        """Route nothing more to a subscriber without a queue; its bindings are removed later."""
        subscriber.deleted = True
        self.topology_version += 1
        self.work.begin(Unbinding(self, subscriber, INTERNAL_USER))

    # --- bindings -------------------------------------------------------------------------------------------------

    def bind(
        self,
        source: Exchange,
        destination: Destination,
        routing_key: str,
        arguments: bytes,
        by: str = INTERNAL_USER,
        *,
        is_last: bool = True,
    ) -> int:
        """Make a binding unless it exists. Return the ticket to wait for.

        `is_last=False`: more bindings follow; partitions are updated with the last one.

        A queue gets earlier messages that `source` remembers before this, or never (`maybe_bind_job`).

        Raises:
            ChannelException: 406, the exchange type refuses the binding.
        """
        source.check_binding(routing_key, arguments)
        binding = Binding(source, destination, routing_key, arguments)
        durable = source.durable and destination.durable
        if not self._add_binding(binding):
            return self._journal.last_ticket if durable else 0
        if is_last:
            partitions_moved(source, [])
        self.topology_version += 1
        self.watcher.binding_created(self.name, binding, by)
        if not durable:
            return 0
        return self._journal.append(
            BindingPut(
                self.name,
                source.name,
                destination.name,
                destination.kind,
                routing_key,
                arguments,
            )
        )

    def maybe_bind_job(
        self,
        source: Exchange,
        destination: Destination,
        routing_key: str,
        arguments: bytes,
        by: str,
        done: Callable[[int], None],
    ) -> BindJob | None:
        """Return the job of a bind that takes several turns; None: `bind` does it.

        `done` gets the ticket to wait for.

        Raises:
            ChannelException: 406, the exchange type refuses the binding.
        """
        if not isinstance(destination, BaseQueue) or source.has_binding(destination, routing_key, arguments):
            return None
        binding = Binding(source, destination, routing_key, arguments)
        return source.maybe_bind_job(self, destination, binding, by, done)

    def make_binding(self, binding: Binding, by: str) -> int:
        return self.bind(binding.source, binding.destination, binding.routing_key, binding.arguments, by)

    def _add_binding(self, binding: Binding) -> bool:
        """Add `binding` to its source; return False if an identical binding existed."""
        source = binding.source
        if not source.bind(binding):
            return False
        self.incoming.add(binding)
        return True

    def unbind(
        self,
        source: Exchange,
        destination: Destination,
        routing_key: str,
        arguments: bytes,
        by: str = INTERNAL_USER,
    ) -> int:
        """Remove a binding if it is there. Return the ticket to wait for."""
        binding = source.unbind(destination, routing_key, arguments)
        if binding is None:
            return self.last_ticket()  # another client may have removed it just now
        self.topology_version += 1
        ticket = 0
        if source.durable and destination.durable:
            ticket = self._journal.append(
                BindingDelete(
                    self.name,
                    source.name,
                    destination.name,
                    destination.kind,
                    routing_key,
                    arguments,
                )
            )
        self.incoming.forget(binding)
        partitions_moved(source, [destination])
        auto_deleted = self.delete_exchange(source, by) if self.is_to_auto_delete(source) else 0
        self.watcher.binding_deleted(self.name, binding, by)
        return max(ticket, auto_deleted)

    def last_ticket(self) -> int:
        """Return the ticket that a client has to wait for if something that it deletes is already gone."""
        return self._journal.last_ticket

    def is_to_auto_delete(self, exchange: Exchange) -> bool:
        """Tell whether `exchange` has to be deleted because its last binding has gone."""
        return exchange.auto_delete and not exchange.is_used() and self.exchanges.get(exchange.name) is exchange

    def delete_unused(self, exchange: Exchange, by: str) -> None:
        if self.is_to_auto_delete(exchange):
            self.delete_exchange(exchange, by)

    # --- policies ---------------------------------------------------------------------------------------------------

    def follow_policies(self, change: PolicyPut | PolicyDelete, by: str) -> None:
        """Apply the current policies to everything, step by step, after `by` has made `change`."""
        run = self._policy_run
        if run is not None and run.is_to_begin(change, by):
            self.work.begin(run)

    def abandon(self) -> None:
        """Stop journalling: the vhost is deleted, and changes in it no longer matter to the catalogue."""
        self._journal = Journal()
        if self._policy_run is not None:
            self._policy_run.abandon()

    def taken_apart(self) -> None:
        """Break the remaining cycles of an empty vhost: otherwise only the cyclic collector could free it."""
        self._letters = None
        self._policy_run = None
        self.sorted_queues.forget()
        if self._retained is not None:
            self._retained.close()
            self._retained = None

    # --- dead letters and time ------------------------------------------------------------------------------------

    def post_letter(self, queue: Queue, message: Message, place: i64, reason: str) -> None:
        # An exclusive queue may be deleted after the vhost, with its connection. Its letters have no way to go.
        if self._letters is not None:
            self._letters.post(queue, message, place, reason)

    def awaits_declaration(self, queue: BaseQueue, waiter: BatchWaiter) -> bool:
        return self._journal.awaits(int(queue.ticket), waiter)

    def has_letters_waiting(self, timer: Timer) -> bool:
        return self._letters is not None and self._letters.must_wait(timer)

    def dead_letter(self, queue: Queue, message: Message, reason: str) -> Message | None:
        return None if self._letters is None else self._letters.send(queue, message, reason)

    def send_letter(self, queue: Queue, letter: Message) -> i64:
        return 0 if self._letters is None else self._letters.send_again(letter)

    @property
    def letters(self) -> DeadLettering:
        """The dead letters that wait here."""
        letters = self._letters
        assert letters is not None
        return letters

    def route_released(self, exchange: Exchange, message: Message) -> Routed:
        return route_released(self, exchange, message)

    def publish_released(self, exchange: Exchange, message: Message, routed: Routed) -> None:
        publish_released(self, exchange, message, routed)

    def delivery_overdue(self, ledger: DeliveryLedger, tag: int, timeout_ms: int) -> None:
        self.overdue.append((ledger, tag, timeout_ms))

    def queue_expired(self, queue: Queue) -> None:
        self.expired_queues.append(queue)

    # --- start ----------------------------------------------------------------------------------------------------

    def restore(self, change: ExchangePut | QueuePut | BindingPut) -> None:
        """Apply a record of the catalogue, without journalling it again.

        Raises:
            ChannelException: the catalogue holds something that this version refuses.
        """
        if isinstance(change, BindingPut):
            self._restore_binding(change)
            return
        journal = self._journal
        watcher = self.watcher
        self._journal = Journal()
        self.watcher = TopologyWatcher()
        self._restoring = True
        try:
            if isinstance(change, ExchangePut):
                if change.name not in self.exchanges:
                    self.declare_exchange(change.declaration, change.declared_by)
            else:
                self._restored_id = change.queue_id
                if change.queue_id >= self.log.next_queue_id:
                    self.log.next_queue_id = change.queue_id + 1
                self.declare_queue(change.declaration)
        finally:
            self._journal = journal
            self.watcher = watcher
            self._restored_id = 0
            self._restoring = False

    def maybe_remembered(self, name: str) -> bytes | None:
        return self.records.maybe_value(name)

    def remember(self, name: str, value: bytes) -> bool:
        if self.records.is_restoring:
            return False
        self.records.store(name, value)
        return True

    def forget(self, name: str) -> None:
        if not self.records.is_restoring:
            self.records.forget(name)

    def _restore_binding(self, change: BindingPut) -> None:
        source = self.exchange(change.source)
        destination: Destination
        if change.destination_type == "queue":
            destination = self.queue(change.destination, None)
        else:
            destination = self.exchange(change.destination)
        source.check_binding(change.routing_key, change.arguments)
        self._add_binding(Binding(source, destination, change.routing_key, change.arguments))
        source.partition_places = None  # no consumer has come yet


def standard_exchanges(vhost_name: str, seed: int = 0) -> list[Exchange]:
    """Return the exchanges of a new vhost of this name, the default exchange first."""
    wanted = [ExchangeDeclaration(DEFAULT_EXCHANGE, "direct", durable=True), *PREDECLARED]
    if vhost_name == EVENT_VHOST:
        wanted.append(ExchangeDeclaration(EVENT_EXCHANGE, "topic", durable=True, internal=True))
    made = [create_exchange(declaration, seed=seed) for declaration in wanted]
    for exchange in made:
        exchange.declared_by = INTERNAL_USER
    return made


def in_use(kind: str, name: str, vhost: str) -> ChannelException:
    """Return the refusal of if-unused."""
    return ChannelException(PRECONDITION_FAILED, f"{kind} '{name}' in vhost '{vhost}' in use")


def _with_default_type(default_type: str, queue: BaseQueue | None, declaration: QueueDeclaration) -> QueueDeclaration:
    """Return the declaration of `queue`, or of a new one, with the type that the client left out (5)."""
    arguments: bytes = declaration.arguments
    default = DEFAULT_QUEUE_TYPES.get(default_type, "")
    if default == "" or find_tag(arguments, QUEUE_TYPE):
        return declaration
    if default != CLASSIC and (not declaration.durable or declaration.auto_delete):
        return declaration
    if queue is not None and not find_tag(queue.arguments, QUEUE_TYPE):
        return declaration
    return replace(declaration, arguments=with_length(arguments[4:] + encode_table({QUEUE_TYPE: default})[4:]))
