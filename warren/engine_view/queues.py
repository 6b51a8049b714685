"""Queues: rows, and the numbers of metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final, cast

import msgspec

from warren.amqp.declarations import QueueDeclaration
from warren.amqp.inequivalence import locked
from warren.amqp.properties import decode_properties
from warren.channels.broker import Broker
from warren.channels.peer import Peer
from warren.engine_view.connections import ConnectionEnds, connection_ends
from warren.engine_view.counters import Lengths, queue_counters
from warren.engine_view.refs import ConsumerRef, QueueRef
from warren.queues.activity import changed_queues
from warren.queues.arguments import CLASSIC, STREAM
from warren.queues.base_queue import BaseQueue
from warren.queues.consumer import Consumer
from warren.queues.lanes import DELAYED, PARKED, UNDELIVERED
from warren.queues.queue import Queue
from warren.streams.stream import Stream
from warren.vhosts.topology_watcher import TopologyWatcher
from warren.vhosts.virtual_host import VirtualHost

# The memory of an empty queue, about.
QUEUE_BYTES: Final = 1500
# How many consumers of a queue are asked at most whether one could take a message.
CONSUMERS_LOOKED_AT: Final = 1000
# The second octet of the property flags of a content header, and the bit in it.
_FLAGS_LOW_AT: Final = 13
_HAS_TIMESTAMP: Final = 0x40


class QueueDeclared(msgspec.Struct, frozen=True):
    """A queue as it was declared, with the type that follows. `arguments`: an encoded field table."""

    name: str
    vhost: str
    type: str
    durable: bool
    auto_delete: bool
    exclusive: bool
    arguments: bytes


class QueueRow(QueueDeclared, frozen=True):
    """A queue as lists show it; the fields have RabbitMQ's names.

    `owner` is the connection of an exclusive queue, `is_replicated` tells that RabbitMQ shows the queue with members,
    `delivery_limit` is None for queues without one, and `counters` are `QUEUE_FIELDS`.
    """

    node: str
    state: str
    paused: bool
    policy: str | None
    operator_policy: str | None
    effective_policy_definition: dict[str, Any]
    exclusive_consumer_tag: str | None
    single_active_consumer_tag: str | None
    consumers: int
    consumer_capacity: float
    consumer_utilisation: float
    message_bytes: int
    message_bytes_ready: int
    message_bytes_unacknowledged: int
    message_bytes_ram: int
    message_bytes_paged_out: int
    message_bytes_persistent: int
    messages_persistent: int
    messages_paged_out: int
    messages_ram: int
    messages_ready_ram: int
    messages_unacknowledged_ram: int
    memory: int
    head_message_timestamp: int | None
    messages_delayed: int
    messages_parked: int
    messages_dlx: int
    owner: ConnectionEnds | None
    is_replicated: bool
    delivery_limit: int | None
    offsets: tuple[int, int] | None  # of a stream: the first, and the next
    counters: tuple[int, ...]


class QueueBrief(msgspec.Struct, frozen=True):
    """The little of a queue that a map of a vhost shows."""

    name: str
    type: str
    messages: int
    consumers: int
    dead_letter_exchange: str | None
    paused: bool


class DeduplicationRow(msgspec.Struct, frozen=True):
    """The keys that a queue remembers; `size` and `window_ms` are None without a limit."""

    keys: int
    size: int | None
    window_ms: int | None
    header: str
    producers: int


class FilledRow(msgspec.Struct, frozen=True):
    """A queue with messages, and how many were published into it."""

    vhost: str
    name: str
    messages: int
    consumers: int
    paused: bool
    published: int


def head_timestamp(queue: BaseQueue) -> int | None:
    """Return the property timestamp of the message that is next, in s; None without, or when it is on disk only."""
    ready = queue.ready
    if queue.ready_count == 0:
        return None
    message = ready.maybe_head(-1)
    lane = 0
    while message is None and lane < ready.lane_count:
        backlog = ready.backlog(lane)
        # Asking the queue for its head would read it from disk.
        if backlog.head.count:
            message = backlog.oldest()
        elif not backlog.is_empty():
            return None
        lane += 1
    if message is None:
        return None
    payload = message.header_payload()
    if not payload[_FLAGS_LOW_AT] & _HAS_TIMESTAMP:
        return None
    return decode_properties(payload, 0, len(payload)).timestamp


def consumer_capacity(queue: BaseQueue) -> float:
    """Return the share of consumers that could take a message now, which stands for a share of time."""
    if not queue.consumers:
        return 0.0
    return sum(consumer.is_ready() for consumer in queue.consumers) / len(queue.consumers)


def sole_consumer(queue: BaseQueue) -> Consumer | None:
    """Return the exclusive consumer, or the one that is served in a queue with a single active one."""
    if not isinstance(queue, Queue):
        return None
    return queue.groups.active() if queue.rules.single_active else queue.groups.exclusive


def queue_deliveries(queue: BaseQueue) -> tuple[int, ...]:
    """Return get with and without ack, deliver with and without ack, redelivered, acked, and get of nothing."""
    counts = queue.counts()
    return (
        int(counts.get),
        int(counts.get_no_ack),
        int(counts.deliver),
        int(counts.deliver_no_ack),
        int(counts.redeliver),
        int(counts.ack),
        int(counts.get_empty),
    )


def _wants_messages(queue: BaseQueue) -> bool:
    if queue.ready_count > 0:
        return False
    return any(consumer.priority >= 0 and consumer.is_ready() for consumer in queue.consumers)


class _GoneQueues(TopologyWatcher):
    """Tells of queues that are gone."""

    def __init__(self, tell: Callable[[str, QueueRef], None]) -> None:
        self._tell = tell

    def queue_deleted(self, vhost: str, queue: BaseQueue, by: str) -> None:
        self._tell(vhost, QueueRef(queue))

    def queue_let_go(self, queue: BaseQueue) -> None:
        self._tell(queue.vhost_name, QueueRef(queue))


def _key(key: Callable[[BaseQueue], object]) -> Callable[[QueueRef], object]:
    return cast("Callable[[QueueRef], object]", key)


class Queues:
    """The queues of one engine. `settle` ends the turn of a command."""

    # Fields by which lists are filtered and sorted without a row of each item.
    KEYS: Final[Mapping[str, Callable[[QueueRef], object]]] = {
        "name": _key(lambda queue: queue.name),
        "vhost": _key(lambda queue: queue.vhost_name),
        "type": _key(lambda queue: queue.rules.queue_type),
        "durable": _key(lambda queue: queue.durable),
        "state": _key(lambda queue: "running"),
        "consumers": _key(lambda queue: len(queue.consumers)),
        "messages": _key(lambda queue: int(queue.message_count)),
        "messages_ready": _key(lambda queue: int(queue.ready_count)),
        "messages_unacknowledged": _key(lambda queue: int(queue.unacked_count)),
        "message_bytes": _key(lambda queue: int(queue.message_bytes)),
        "message_bytes_ready": _key(lambda queue: int(queue.ready_bytes)),
        "message_bytes_unacknowledged": _key(lambda queue: int(queue.unacked_bytes)),
        "messages_persistent": _key(lambda queue: queue.persistent()[0]),
        "message_bytes_persistent": _key(lambda queue: queue.persistent()[1]),
    }

    def __init__(self, broker: Broker, settle: Callable[[], None]) -> None:
        self._broker = broker
        self._settle = settle
        self._vhosts: Mapping[str, VirtualHost] = broker.vhosts

    # --- lists ------------------------------------------------------------------------------------------------------

    def count(self, vhost: str) -> int:
        """Return how many queues a vhost has."""
        found = self._vhosts.get(vhost)
        return 0 if found is None else len(found.queues)

    def in_vhost(self, vhost: str) -> list[QueueRef]:
        """Return the queues of a vhost, in any order. Copies the list."""
        found = self._vhosts.get(vhost)
        return [] if found is None else cast("list[QueueRef]", list(found.queues.values()))

    def maybe(self, vhost: str, name: str) -> QueueRef | None:
        """Return the queue with this name."""
        found = self._vhosts.get(vhost)
        queue = None if found is None else found.queues.get(name)
        return None if queue is None else QueueRef(queue)

    def maybe_sorted(self, vhost: str, most: int) -> list[QueueRef] | None:
        """Return the queues of a vhost by name, not to be changed; None: more than `most` would have to be sorted."""
        found = self._vhosts.get(vhost)
        if found is None:
            return []
        if len(found.queues) > most and not found.sorted_queues.are_of(found.topology_version):
            return None
        return cast("list[QueueRef]", found.sorted_queues.get(found.topology_version))

    def topology_version(self, vhost: str) -> int:
        """Return a number that changes with the queues of a vhost."""
        found = self._vhosts.get(vhost)
        return 0 if found is None else int(found.topology_version)

    def keep_sorted(self, vhost: str, queues: list[QueueRef], version: int) -> None:
        """Keep a list that the caller has sorted, if the version is still this one."""
        found = self._vhosts.get(vhost)
        if found is not None and version == found.topology_version:
            found.sorted_queues.keep(cast("list[BaseQueue]", queues), version)

    def consumers(self, queue: QueueRef) -> list[ConsumerRef]:
        """Return the consumers of a queue."""
        assert isinstance(queue, BaseQueue)
        return cast("list[ConsumerRef]", list(queue.consumers))

    def changed(self, queues: list[QueueRef], start: int, stop: int, lengths: Lengths) -> list[QueueRef]:
        """Return the queues from `start` to `stop` that changed since the last call; add all lengths to `lengths`."""
        return cast("list[QueueRef]", changed_queues(cast("list[BaseQueue]", queues), start, stop, lengths))

    def watch_gone(self, tell: Callable[[str, QueueRef], None]) -> None:
        """Call `tell` with vhost and queue in the moment in which a queue goes, with its counters as they were."""
        self._broker.watchers.add(_GoneQueues(tell))

    # --- fields -----------------------------------------------------------------------------------------------------

    def name(self, queue: QueueRef) -> str:
        """Return the name of a queue."""
        assert isinstance(queue, BaseQueue)
        return queue.name

    def is_gone(self, ref: QueueRef) -> bool:
        """Tell whether a queue, or its vhost, has been deleted."""
        assert isinstance(ref, BaseQueue)
        return ref.deleted or ref.vhost_name not in self._vhosts

    def is_shared(self, queue: QueueRef) -> bool:
        """Tell whether a queue is not exclusive to a connection."""
        assert isinstance(queue, BaseQueue)
        return queue.owner is None

    def check_shared(self, queue: QueueRef) -> None:
        """Make sure that a queue is not exclusive to a connection.

        Raises:
            ChannelException: 405.
        """
        assert isinstance(queue, BaseQueue)
        if queue.owner is not None:
            raise locked(queue.name, queue.vhost_name)

    def shared(self, vhost: str, name: str) -> QueueRef:
        """Return the queue with this name, which is not exclusive to a connection.

        Raises:
            ChannelException: 404; 405, it is exclusive. KeyError: there is no such vhost.
        """
        return QueueRef(self._vhosts[vhost].queue(name, None))

    def ready(self, queue: QueueRef) -> tuple[int, int]:
        """Return how many messages are ready, and the bytes of their bodies."""
        assert isinstance(queue, BaseQueue)
        return int(queue.ready_count), int(queue.ready_bytes)

    def published(self, queue: QueueRef) -> int:
        """Return how many messages were published into a queue."""
        assert isinstance(queue, BaseQueue)
        return int(queue.counts().publish)

    def wants_messages(self, queue: QueueRef) -> bool:
        """Tell whether a queue has no ready message, and a consumer of priority 0 or higher that could take one."""
        assert isinstance(queue, BaseQueue)
        return _wants_messages(queue)

    def counters(self, queues: list[QueueRef]) -> list[tuple[int, ...]]:
        """Return `QUEUE_FIELDS` of each."""
        return [queue_counters(queue) for queue in _queues(queues)]

    # --- rows -------------------------------------------------------------------------------------------------------

    def declared(self, ref: QueueRef) -> QueueDeclared:
        """Return a queue without its state."""
        assert isinstance(ref, BaseQueue)
        queue = ref
        declared = queue.declaration
        return QueueDeclared(
            declared.name,
            queue.vhost_name,
            queue.rules.queue_type,
            declared.durable,
            declared.auto_delete,
            declared.exclusive,
            declared.arguments,
        )

    def declaration(self, queue: QueueRef) -> QueueDeclaration:
        """Return the declaration of a queue."""
        assert isinstance(queue, BaseQueue)
        return queue.declaration

    def row(self, ref: QueueRef) -> QueueRow:
        """Return a queue."""
        assert isinstance(ref, BaseQueue)
        queue = ref
        declared, policies, rules, ready, owner = (
            queue.declaration,
            queue.policies,
            queue.rules,
            queue.ready,
            queue.owner,
        )
        counters = queue_counters(queue)
        message_bytes = int(queue.message_bytes)
        paged_out, paged_out_bytes = ready.paged_out_count(), ready.paged_out_bytes()
        persistent, persistent_bytes = queue.persistent()
        consumer = sole_consumer(queue)
        capacity = consumer_capacity(queue)
        return QueueRow(
            declared.name,
            queue.vhost_name,
            rules.queue_type,
            declared.durable,
            declared.auto_delete,
            declared.exclusive,
            declared.arguments,
            self._broker.node,
            "running",
            queue.paused,
            policies.policy_name(),
            policies.operator_policy_name(),
            policies.definition(),
            consumer.tag if consumer is not None and consumer.exclusive else None,
            consumer.tag if consumer is not None and not consumer.exclusive else None,
            len(queue.consumers),
            capacity,
            capacity,
            message_bytes,
            int(queue.ready_bytes),
            int(queue.unacked_bytes),
            message_bytes - paged_out_bytes,
            paged_out_bytes,
            persistent_bytes,
            persistent,
            paged_out,
            counters[0] - paged_out,
            counters[1] - paged_out,
            counters[2],
            # The cost of objects is counted with the bodies, but not for unacknowledged messages.
            ready.memory_bytes() + QUEUE_BYTES,
            head_timestamp(queue),
            _held(queue, DELAYED),
            _held(queue, PARKED),
            _held(queue, UNDELIVERED),
            connection_ends(owner) if isinstance(owner, Peer) else None,
            rules.queue_type != CLASSIC,
            int(rules.delivery_limit) if rules.is_quorum else None,
            (queue.first_offset(), queue.next_offset()) if isinstance(queue, Stream) else None,
            counters,
        )

    def filled(self, queues: list[QueueRef]) -> list[tuple[QueueRef, FilledRow]]:
        """Return those of some queues that have messages: no streams, which keep them, and no queues that are gone."""
        found: list[tuple[QueueRef, FilledRow]] = []
        for queue in _queues(queues):
            if queue.message_count > 0 and not queue.deleted and queue.rules.queue_type != STREAM:
                messages, published = int(queue.message_count), int(queue.counts().publish)
                row = FilledRow(queue.vhost_name, queue.name, messages, len(queue.consumers), queue.paused, published)
                found.append((QueueRef(queue), row))
        return found

    def has_taker(self, ref: QueueRef) -> bool:
        """Tell whether one of the first `CONSUMERS_LOOKED_AT` consumers of a queue could take a message now."""
        assert isinstance(ref, BaseQueue)
        return any(consumer.is_ready() for consumer in islice(ref.consumers, CONSUMERS_LOOKED_AT))

    def brief(self, ref: QueueRef) -> QueueBrief:
        """Return the little of a queue that a map shows."""
        assert isinstance(ref, BaseQueue)
        queue = ref
        return QueueBrief(
            queue.name,
            queue.rules.queue_type,
            int(queue.message_count),
            len(queue.consumers),
            queue.rules.dead_letter_exchange,
            queue.paused,
        )

    def maybe_deduplication(self, ref: QueueRef) -> DeduplicationRow | None:
        """Return which keys a queue remembers; None: it does not drop repetitions."""
        assert isinstance(ref, BaseQueue)
        seen = ref.seen
        if seen is None:
            return None
        rules = ref.rules
        size = int(rules.dedup_size) if rules.dedup_size >= 0 else None
        window_ms = int(rules.dedup_ttl_ms) if rules.dedup_ttl_ms >= 0 else None
        return DeduplicationRow(seen.count(), size, window_ms, rules.dedup_header, seen.producer_count())

    def oldest_keys(self, queue: QueueRef, most: int) -> list[tuple[str, int]]:
        """Return the keys that were remembered first, and until when, in ms since the epoch."""
        assert isinstance(queue, BaseQueue)
        return [] if queue.seen is None else list(queue.seen.oldest(most))

    # --- commands ---------------------------------------------------------------------------------------------------

    def pause(self, queue: QueueRef, *, paused: bool) -> None:
        """Pause a queue, or resume it."""
        assert isinstance(queue, BaseQueue)
        queue.pause(paused=paused)
        self._settle()

    def forget_keys(self, queue: QueueRef) -> None:
        """Forget all keys that a queue remembers."""
        assert isinstance(queue, BaseQueue)
        if queue.seen is not None:
            queue.seen.clear()
            self._settle()

    # --- numbers of metrics -----------------------------------------------------------------------------------------

    def names(self, queues: list[QueueRef]) -> list[tuple[str, str]]:
        """Return vhost and name of each."""
        return [(queue.vhost_name, queue.name) for queue in _queues(queues)]

    def lengths(self, queues: list[QueueRef]) -> list[tuple[int, ...]]:
        """Return of each the messages that are ready, that are unacknowledged, and all."""
        return [(int(each.ready_count), int(each.unacked_count), int(each.message_count)) for each in _queues(queues)]

    def consumer_counts(self, queues: list[QueueRef]) -> list[tuple[int, ...]]:
        """Return of each how many consumers it has."""
        return [(len(queue.consumers),) for queue in _queues(queues)]

    def arrivals(self, queues: list[QueueRef]) -> list[tuple[int, ...]]:
        """Return of each how many messages were published into it."""
        return [(int(queue.counts().publish),) for queue in _queues(queues)]

    def deliveries(self, queues: list[QueueRef]) -> list[tuple[int, ...]]:
        """Return of each what `queue_deliveries` does."""
        return [queue_deliveries(queue) for queue in _queues(queues)]

    def details(self, queues: list[QueueRef]) -> list[tuple[float | None, ...]]:
        """Return of each the numbers of ``queue_metrics``; ``metrics/families.py`` says in which order."""
        return [_details(queue) for queue in _queues(queues)]

    def memory(self, queues: Iterable[QueueRef]) -> dict[str, int]:
        """Return the memory of some queues, by their type."""
        found: dict[str, int] = {}
        for queue in _queues(queues):
            kind = queue.rules.queue_type
            found[kind] = found.get(kind, 0) + queue.ready.memory_bytes() + QUEUE_BYTES
        return found

    def paged_out(self, queues: Iterable[QueueRef]) -> int:
        """Return how many messages of some queues are on disk only."""
        return sum(queue.ready.paged_out_count() for queue in _queues(queues))


def _details(queue: BaseQueue) -> tuple[float | None, ...]:
    capacity = consumer_capacity(queue)
    ready, unacked, message_bytes = int(queue.ready_count), int(queue.unacked_count), int(queue.message_bytes)
    on_disk, on_disk_bytes = (queue.ready.paged_out_count(), queue.ready.paged_out_bytes()) if ready else (0, 0)
    return (
        len(queue.consumers),
        capacity,
        capacity,
        queue.ready.memory_bytes() if ready else 0,
        int(queue.message_count) - on_disk,
        ready - on_disk,
        unacked,
        message_bytes - on_disk_bytes,
        on_disk,
        on_disk_bytes,
        *queue.persistent(),
        message_bytes,
        int(queue.ready_bytes),
        int(queue.unacked_bytes),
        head_timestamp(queue),
    )


def _held(queue: BaseQueue, lane: int) -> int:
    held = queue.held(lane)
    return 0 if held is None else int(held.count)


def _queues(refs: Iterable[QueueRef]) -> Iterable[BaseQueue]:
    return cast("Iterable[BaseQueue]", refs)
