"""Metrics of single queues, exchanges, channels and connections: families, under the names by which a client of
``/metrics/detailed`` asks for them.

1. A family knows its metrics and, for one object, a row with a value for each; None: this object has no values.
2. Names and labels are RabbitMQ's. Where one counter here stands for several of RabbitMQ, by channel, exchange and
   queue, the unknown label is left out: messages of a channel have ``channel`` and ``vhost``, messages that came into a
   queue ``queue_vhost`` and ``queue``.

Source: RabbitMQ, "Monitoring with Prometheus and Grafana", detailed metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from warren.channels.peer import Peer
from warren.channels.session import Session
from warren.exchanges.exchange import Exchange
from warren.mgmt_plugin.metrics.exposition import COUNTER, GAUGE, Metric, escape
from warren.mgmt_plugin.metrics.statistics import channel_row
from warren.mgmt_plugin.names import channel_name, connection_name
from warren.mgmt_plugin.resources.queues import consumer_capacity, head_timestamp
from warren.queues.queue import Queue

Item = TypeVar("Item")
Row = tuple[float | None, ...]

DETAILED: Final = "detailed_"
CLUSTER: Final = "cluster_"


@dataclass(frozen=True, slots=True)
class Family(Generic[Item]):
    """Metrics of one kind of object. ``is_cluster``: on the detailed page its prefix is that of a whole cluster."""

    name: str
    metrics: tuple[Metric, ...]
    row: Callable[[Item], Row]
    label: Callable[[Item], str]
    is_cluster: bool = False


# --- queues -----------------------------------------------------------------------------------------------------------


def queue_label(queue: Queue) -> str:
    """Return the labels of a queue."""
    return f'{{vhost="{escape(queue.vhost_name)}",queue="{escape(queue.name)}"}}'


def _arrival_label(queue: Queue) -> str:
    return f'{{queue_vhost="{escape(queue.vhost_name)}",queue="{escape(queue.name)}"}}'


def _lengths(queue: Queue) -> Row:
    ready, unacked = int(queue.ready_count), int(queue.unacked_count)
    return ready, unacked, int(queue.message_count)


def _consumers(queue: Queue) -> Row:
    return (len(queue.consumers),)


def _details(queue: Queue) -> Row:
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


def queue_deliveries(queue: Queue) -> tuple[int, ...]:
    """Return get with and without ack, deliver with and without ack, redelivered, acked, and get of nothing."""
    return (
        int(queue.got),
        int(queue.got_no_ack),
        int(queue.delivered),
        int(queue.delivered_no_ack),
        int(queue.redelivered),
        int(queue.acked),
        int(queue.got_empty),
    )


def _arrivals(queue: Queue) -> Row:
    return (int(queue.counts().publish),)


def delivery_metrics(prefix: str, of: str) -> tuple[Metric, ...]:
    """Return the metrics of deliveries, in the order of `queue_deliveries`."""
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

QUEUE_COARSE: Final = Family("queue_coarse_metrics", LENGTHS, _lengths, queue_label)
QUEUE_CONSUMERS: Final = Family("queue_consumer_count", (CONSUMERS,), _consumers, queue_label)
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
    _details,
    queue_label,
)
QUEUE_DELIVERY: Final[Family[Queue]] = Family(
    "queue_delivery_metrics", delivery_metrics("queue", "from a queue"), queue_deliveries, queue_label
)
QUEUE_EXCHANGE: Final = Family(
    "queue_exchange_metrics",
    (Metric("queue_exchange_messages_published_total", COUNTER, "Messages published into a queue"),),
    _arrivals,
    _arrival_label,
)
QUEUE_ARRIVALS: Final = Family("channel_queue_exchange_metrics", (ARRIVALS,), _arrivals, _arrival_label)
QUEUE_FAMILIES: Final[tuple[Family[Queue], ...]] = (
    QUEUE_COARSE,
    QUEUE_CONSUMERS,
    QUEUE_METRICS,
    QUEUE_DELIVERY,
    QUEUE_EXCHANGE,
    QUEUE_ARRIVALS,
)


# --- exchanges --------------------------------------------------------------------------------------------------------

VhostExchange = tuple[str, Exchange]


def _exchange_label(of: VhostExchange) -> str:
    return f'{{vhost="{escape(of[0])}",exchange="{escape(of[1].name)}"}}'


def _typed_label(of: VhostExchange) -> str:
    vhost, exchange = of
    return f'{{vhost="{escape(vhost)}",exchange="{escape(exchange.name)}",type="{escape(exchange.type_name)}"}}'


EXCHANGE_METRICS: Final[Family[VhostExchange]] = Family(
    "exchange_metrics",
    (Metric("exchange_messages_published_total", COUNTER, "Messages published to an exchange"),),
    lambda of: (int(of[1].published_in),),
    _exchange_label,
)
EXCHANGE_BINDINGS: Final[Family[VhostExchange]] = Family(
    "exchange_bindings",
    (Metric("exchange_bindings", GAUGE, "Bindings of which an exchange is the source"),),
    lambda of: (len(of[1].bindings),),
    _typed_label,
    is_cluster=True,
)
EXCHANGE_NAMES: Final[Family[VhostExchange]] = Family(
    "exchange_names",
    (Metric("exchange_name", GAUGE, "1 for each exchange there is"),),
    lambda of: (1,),
    _typed_label,
    is_cluster=True,
)
EXCHANGE_FAMILIES: Final = (EXCHANGE_METRICS, EXCHANGE_BINDINGS, EXCHANGE_NAMES)


# --- channels ---------------------------------------------------------------------------------------------------------


def _channel_label(channel: Session) -> str:
    return f'{{channel="{escape(channel_name(channel))}"}}'


def _channel_vhost_label(channel: Session) -> str:
    return f'{{channel="{escape(channel_name(channel))}",vhost="{escape(channel.connection.vhost_name)}"}}'


def channel_state(channel: Session) -> tuple[int, ...]:
    """Return the values of `CHANNEL_STATE` for one channel."""
    ledger = channel.ledger
    publishes, acks = channel.uncommitted()
    return (
        len(ledger.consumers),
        int(ledger.unacked_count),
        channel.unconfirmed_count(),
        publishes,
        acks,
        int(channel.prefetch),
        int(ledger.prefetch),
    )


def _channel_publishes(channel: Session) -> Row:
    publish, confirm, returned, dropped, *_ = channel_row(channel)
    return publish, confirm, returned, dropped


def _channel_deliveries(channel: Session) -> Row:
    *_, deliver, deliver_no_ack, get, get_no_ack, get_empty, redeliver, ack, _ = channel_row(channel)
    return get, get_no_ack, deliver, deliver_no_ack, redeliver, ack, get_empty


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
CHANNEL_FAMILIES: Final[tuple[Family[Session], ...]] = (
    Family("channel_metrics", CHANNEL_STATE, channel_state, _channel_label),
    Family("channel_exchange_metrics", CHANNEL_PUBLISHES, _channel_publishes, _channel_vhost_label),
    Family("channel_queue_metrics", CHANNEL_DELIVERIES, _channel_deliveries, _channel_vhost_label),
)


# --- connections ------------------------------------------------------------------------------------------------------


def _connection_label(connection: Peer) -> str:
    return f'{{connection="{escape(connection_name(connection))}"}}'


CONNECTION_BYTES: Final = (
    Metric("connection_incoming_bytes_total", COUNTER, "Bytes received from clients"),
    Metric("connection_outgoing_bytes_total", COUNTER, "Bytes sent to clients"),
)
CONNECTION_CHANNELS: Final = Metric("connection_channels", GAUGE, "Channels of connections")
CONNECTION_FAMILIES: Final[tuple[Family[Peer], ...]] = (
    Family(
        "connection_coarse_metrics",
        CONNECTION_BYTES,
        lambda each: (int(each.received_bytes), int(each.outbox.sent_bytes)),
        _connection_label,
    ),
    Family(
        "connection_metrics",
        (
            Metric("connection_incoming_packets_total", COUNTER, "Reads of the socket that found something"),
            Metric("connection_outgoing_packets_total", COUNTER, "Writes to the socket that took something"),
            CONNECTION_CHANNELS,
        ),
        lambda each: (int(each.received_reads), int(each.outbox.sent_writes), len(each.channels)),
        _connection_label,
    ),
)
