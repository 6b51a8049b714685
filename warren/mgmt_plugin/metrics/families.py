"""Metrics of single queues, exchanges, channels and connections: families, under the names by which a client of
``/metrics/detailed`` asks for them.

1. A family knows its metrics and, for some objects, a row each with a value for each metric; None: no value.
2. Names and labels are RabbitMQ's. Where one counter here stands for several of RabbitMQ, by channel, exchange and
   queue, the unknown label is left out: messages of a channel have ``channel`` and ``vhost``, messages that came into a
   queue ``queue_vhost`` and ``queue``.

Source: RabbitMQ, "Monitoring with Prometheus and Grafana", detailed metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from warren.engine_view.engine_view import EngineView
from warren.engine_view.exchanges import Placed
from warren.engine_view.refs import ChannelRef, ConnectionRef, QueueRef
from warren.mgmt_plugin.metrics.exposition import COUNTER, GAUGE, Metric, escape

Item = TypeVar("Item")
Row = tuple[float | None, ...]

DETAILED: Final = "detailed_"
CLUSTER: Final = "cluster_"


@dataclass(frozen=True, slots=True)
class Family(Generic[Item]):
    """Metrics of one kind of object. ``is_cluster``: on the detailed page its prefix is that of a whole cluster."""

    name: str
    metrics: tuple[Metric, ...]
    rows: Callable[[EngineView, list[Item]], Sequence[Row]]
    labels: Callable[[EngineView, list[Item]], list[str]]
    is_cluster: bool = False


# --- queues -----------------------------------------------------------------------------------------------------------


def queue_labels(view: EngineView, queues: list[QueueRef]) -> list[str]:
    """Return the labels of some queues."""
    return [f'{{vhost="{escape(vhost)}",queue="{escape(name)}"}}' for vhost, name in view.queues.names(queues)]


def _arrival_labels(view: EngineView, queues: list[QueueRef]) -> list[str]:
    return [f'{{queue_vhost="{escape(vhost)}",queue="{escape(name)}"}}' for vhost, name in view.queues.names(queues)]


def delivery_metrics(prefix: str, of: str) -> tuple[Metric, ...]:
    """Return the metrics of deliveries, in the order of `Queues.deliveries`."""
    return (
        Metric(f"{prefix}_get_ack_total", COUNTER, f"Messages got with basic.get {of}, to be acknowledged"),
        Metric(f"{prefix}_get_total", COUNTER, f"Messages got with basic.get {of}, without acknowledgement"),
        Metric(f"{prefix}_messages_delivered_ack_total", COUNTER, f"Deliveries to consumers {of}, to be acknowledged"),
        Metric(f"{prefix}_messages_delivered_total", COUNTER, f"Deliveries to consumers {of}, without acknowledgement"),
        Metric(f"{prefix}_messages_redelivered_total", COUNTER, f"Deliveries {of} of what had been delivered before"),
        Metric(f"{prefix}_messages_acked_total", COUNTER, f"Messages acknowledged {of}"),
        Metric(f"{prefix}_get_empty_total", COUNTER, f"basic.get {of} that found nothing"),
    )


LENGTHS: Final = (
    Metric("queue_messages_ready", GAUGE, "Messages that wait for a consumer"),
    Metric("queue_messages_unacked", GAUGE, "Messages delivered and not yet acknowledged"),
    Metric("queue_messages", GAUGE, "Messages that are ready or unacknowledged"),
)
CONSUMERS: Final = Metric("queue_consumers", GAUGE, "Consumers of queues")
MEMORY: Final = Metric("queue_process_memory_bytes", GAUGE, "Memory of the ready messages of queues, estimated")
IN_MEMORY: Final = (
    Metric("queue_messages_ram", GAUGE, "Ready and unacknowledged messages in memory"),
    Metric("queue_messages_ready_ram", GAUGE, "Ready messages in memory"),
    Metric("queue_messages_unacked_ram", GAUGE, "Unacknowledged messages, which are in memory"),
    Metric("queue_messages_ram_bytes", GAUGE, "Bodies of ready and unacknowledged messages in memory"),
)
PAGED_OUT: Final = (
    Metric("queue_messages_paged_out", GAUGE, "Ready messages that are on disk only"),
    Metric("queue_messages_paged_out_bytes", GAUGE, "Bodies of ready messages that are on disk only"),
)
PERSISTENT: Final = (
    Metric("queue_messages_persistent", GAUGE, "Messages that are stored and survive a restart"),
    Metric("queue_messages_persistent_bytes", GAUGE, "Bodies of messages that are stored and survive a restart"),
)
BYTES: Final = (
    Metric("queue_messages_bytes", GAUGE, "Bodies of messages, ready or unacknowledged"),
    Metric("queue_messages_ready_bytes", GAUGE, "Bodies of ready messages"),
    Metric("queue_messages_unacked_bytes", GAUGE, "Bodies of unacknowledged messages"),
)
ARRIVALS: Final = Metric(
    "queue_messages_published_total", COUNTER, "Messages published into queues, once for each queue"
)

QUEUE_COARSE: Final = Family(
    "queue_coarse_metrics", LENGTHS, lambda view, queues: view.queues.lengths(queues), queue_labels
)
QUEUE_CONSUMERS: Final = Family(
    "queue_consumer_count", (CONSUMERS,), lambda view, queues: view.queues.consumer_counts(queues), queue_labels
)
QUEUE_METRICS: Final = Family(
    "queue_metrics",
    (
        CONSUMERS,
        Metric("queue_consumer_capacity", GAUGE, "Share of the consumers that could take a message now"),
        Metric("queue_consumer_utilisation", GAUGE, "The same as queue_consumer_capacity"),
        MEMORY,
        *IN_MEMORY,
        *PAGED_OUT,
        *PERSISTENT,
        *BYTES,
        Metric("queue_head_message_timestamp", GAUGE, "Property timestamp of the first message, in seconds"),
    ),
    lambda view, queues: view.queues.details(queues),
    queue_labels,
)
QUEUE_DELIVERY: Final[Family[QueueRef]] = Family(
    "queue_delivery_metrics",
    delivery_metrics("queue", "from a queue"),
    lambda view, queues: view.queues.deliveries(queues),
    queue_labels,
)
QUEUE_EXCHANGE: Final = Family(
    "queue_exchange_metrics",
    (Metric("queue_exchange_messages_published_total", COUNTER, "Messages published into a queue"),),
    lambda view, queues: view.queues.arrivals(queues),
    _arrival_labels,
)
QUEUE_ARRIVALS: Final = Family(
    "channel_queue_exchange_metrics", (ARRIVALS,), lambda view, queues: view.queues.arrivals(queues), _arrival_labels
)
QUEUE_FAMILIES: Final[tuple[Family[QueueRef], ...]] = (
    QUEUE_COARSE,
    QUEUE_CONSUMERS,
    QUEUE_METRICS,
    QUEUE_DELIVERY,
    QUEUE_EXCHANGE,
    QUEUE_ARRIVALS,
)


# --- exchanges --------------------------------------------------------------------------------------------------------


def _exchange_labels(view: EngineView, of: list[Placed]) -> list[str]:
    names = view.exchanges.names([exchange for _, exchange in of])
    return [
        f'{{vhost="{escape(vhost)}",exchange="{escape(name)}"}}'
        for (vhost, _), (name, _) in zip(of, names, strict=True)
    ]


def _typed_labels(view: EngineView, of: list[Placed]) -> list[str]:
    names = view.exchanges.names([exchange for _, exchange in of])
    return [
        f'{{vhost="{escape(vhost)}",exchange="{escape(name)}",type="{escape(kind)}"}}'
        for (vhost, _), (name, kind) in zip(of, names, strict=True)
    ]


def _exchange_publishes(view: EngineView, of: list[Placed]) -> list[Row]:
    return [row[:1] for row in view.exchanges.counters([exchange for _, exchange in of])]


def _exchange_bindings(view: EngineView, of: list[Placed]) -> list[Row]:
    return [(count,) for count in view.exchanges.binding_counts([exchange for _, exchange in of])]


EXCHANGE_METRICS: Final[Family[Placed]] = Family(
    "exchange_metrics",
    (Metric("exchange_messages_published_total", COUNTER, "Messages published to an exchange"),),
    _exchange_publishes,
    _exchange_labels,
)
EXCHANGE_BINDINGS: Final[Family[Placed]] = Family(
    "exchange_bindings",
    (Metric("exchange_bindings", GAUGE, "Bindings of which an exchange is the source"),),
    _exchange_bindings,
    _typed_labels,
    is_cluster=True,
)
EXCHANGE_NAMES: Final[Family[Placed]] = Family(
    "exchange_names",
    (Metric("exchange_name", GAUGE, "1 for each exchange there is"),),
    lambda view, of: [(1,)] * len(of),
    _typed_labels,
    is_cluster=True,
)
EXCHANGE_FAMILIES: Final = (EXCHANGE_METRICS, EXCHANGE_BINDINGS, EXCHANGE_NAMES)


# --- channels ---------------------------------------------------------------------------------------------------------


def _channel_labels(view: EngineView, channels: list[ChannelRef]) -> list[str]:
    return [f'{{channel="{escape(name)}"}}' for name, _ in view.connections.channel_names(channels)]


def _channel_vhost_labels(view: EngineView, channels: list[ChannelRef]) -> list[str]:
    names = view.connections.channel_names(channels)
    return [f'{{channel="{escape(name)}",vhost="{escape(vhost)}"}}' for name, vhost in names]


def _channel_publishes(view: EngineView, channels: list[ChannelRef]) -> list[Row]:
    return [row[:4] for row in view.connections.channel_counters(channels)]


def _channel_deliveries(view: EngineView, channels: list[ChannelRef]) -> list[Row]:
    return [
        (get, get_no_ack, deliver, deliver_no_ack, redeliver, ack, get_empty)
        for *_, deliver, deliver_no_ack, get, get_no_ack, get_empty, redeliver, ack, _ in (
            view.connections.channel_counters(channels)
        )
    ]


CHANNEL_STATE: Final = (
    Metric("channel_consumers", GAUGE, "Consumers of channels"),
    Metric("channel_messages_unacked", GAUGE, "Messages delivered on channels and not yet acknowledged"),
    Metric("channel_messages_unconfirmed", GAUGE, "Messages published on channels and not yet confirmed"),
    Metric("channel_messages_uncommitted", GAUGE, "Messages published in transactions that are not committed yet"),
    Metric("channel_acks_uncommitted", GAUGE, "Acknowledgements in transactions that are not committed yet"),
    Metric("consumer_prefetch", GAUGE, "Prefetch of each new consumer of channels"),
    Metric("channel_prefetch", GAUGE, "Prefetch of channels as a whole"),
)
CHANNEL_PUBLISHES: Final = (
    Metric("channel_messages_published_total", COUNTER, "Messages published on channels"),
    Metric("channel_messages_confirmed_total", COUNTER, "Messages confirmed on channels"),
    Metric("channel_messages_unroutable_returned_total", COUNTER, "Mandatory messages that no queue took, returned"),
    Metric("channel_messages_unroutable_dropped_total", COUNTER, "Messages that no queue took, dropped"),
)
CHANNEL_DELIVERIES: Final = delivery_metrics("channel", "on channels")
CHANNEL_FAMILIES: Final[tuple[Family[ChannelRef], ...]] = (
    Family(
        "channel_metrics",
        CHANNEL_STATE,
        lambda view, channels: view.connections.channel_states(channels),
        _channel_labels,
    ),
    Family("channel_exchange_metrics", CHANNEL_PUBLISHES, _channel_publishes, _channel_vhost_labels),
    Family("channel_queue_metrics", CHANNEL_DELIVERIES, _channel_deliveries, _channel_vhost_labels),
)


# --- connections ------------------------------------------------------------------------------------------------------


def _connection_labels(view: EngineView, connections: list[ConnectionRef]) -> list[str]:
    return [f'{{connection="{escape(name)}"}}' for name in view.connections.names(connections)]


CONNECTION_BYTES: Final = (
    Metric("connection_incoming_bytes_total", COUNTER, "Bytes received from clients"),
    Metric("connection_outgoing_bytes_total", COUNTER, "Bytes sent to clients"),
)
CONNECTION_CHANNELS: Final = Metric("connection_channels", GAUGE, "Channels of connections")
CONNECTION_FAMILIES: Final[tuple[Family[ConnectionRef], ...]] = (
    Family(
        "connection_coarse_metrics",
        CONNECTION_BYTES,
        lambda view, connections: view.connections.counters(connections),
        _connection_labels,
    ),
    Family(
        "connection_metrics",
        (
            Metric("connection_incoming_packets_total", COUNTER, "Reads of the socket that found something"),
            Metric("connection_outgoing_packets_total", COUNTER, "Writes to the socket that took something"),
            CONNECTION_CHANNELS,
        ),
        lambda view, connections: view.connections.socket_counters(connections),
        _connection_labels,
    ),
)
