"""The counters of queues, exchanges, channels and connections, as tuples in the order of the names here."""

from __future__ import annotations

from typing import Final

from warren.channels.peer import Peer
from warren.channels.session import Session
from warren.exchanges.exchange import Exchange
from warren.queues.activity import Lengths as Lengths
from warren.queues.base_queue import BaseQueue
from warren.queues.counters import MessageCounts

LENGTHS: Final = ("messages", "messages_ready", "messages_unacknowledged")
DELIVERY: Final = ("deliver", "deliver_no_ack", "get", "get_no_ack", "get_empty", "redeliver", "ack", "deliver_get")
QUEUE_STATS: Final = ("publish", *DELIVERY)
CHANNEL_STATS: Final = ("publish", "confirm", "return_unroutable", "drop_unroutable", *DELIVERY)
EXCHANGE_STATS: Final = ("publish_in", "publish_out")
CONNECTION_FIELDS: Final = ("recv_oct", "send_oct")
QUEUE_FIELDS: Final = (*LENGTHS, *QUEUE_STATS)


def queue_counters(queue: BaseQueue) -> tuple[int, ...]:
    """Return `QUEUE_FIELDS` of a queue now."""
    counts = queue.counts()
    ready, unacked = int(queue.ready_count), int(queue.unacked_count)
    return (int(queue.message_count), ready, unacked, int(counts.publish), *_delivery(counts))


def channel_counters(channel: Session) -> tuple[int, ...]:
    """Return `CHANNEL_STATS` of a channel now."""
    counts = MessageCounts()
    channel.add_counts(counts)
    return message_stats(counts)


def exchange_counters(exchange: Exchange) -> tuple[int, ...]:
    """Return `EXCHANGE_STATS` of an exchange now."""
    return (int(exchange.published_in), int(exchange.published_out))


def connection_counters(peer: Peer) -> tuple[int, ...]:
    """Return `CONNECTION_FIELDS` of a connection now."""
    return (int(peer.received_bytes), int(peer.outbox.sent_bytes))


def message_stats(counts: MessageCounts) -> tuple[int, ...]:
    """Return `CHANNEL_STATS` of some counts."""
    unroutable = (int(counts.return_unroutable), int(counts.drop_unroutable))
    return (int(counts.publish), int(counts.confirm), *unroutable, *_delivery(counts))


def _delivery(counts: MessageCounts) -> tuple[int, ...]:
    return (
        int(counts.deliver),
        int(counts.deliver_no_ack),
        int(counts.get),
        int(counts.get_no_ack),
        int(counts.get_empty),
        int(counts.redeliver),
        int(counts.ack),
        counts.deliver_get,
    )
