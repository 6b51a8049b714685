"""The limits of the engine, as the settings and the resources of the process give them."""

from __future__ import annotations

from warren.channels.broker import Limits
from warren.server.process_memory import total_memory_bytes
from warren.server.settings import Settings


def engine_limits(settings: Settings, clients_max: int) -> Limits:
    """Return them; `clients_max`: so many descriptors there are for connections."""
    given = settings.limits
    limits = Limits()
    limits.frame_max_bytes = given.frame_max_bytes
    limits.channel_max = given.channel_max
    limits.heartbeat_s = given.heartbeat_s
    limits.message_max_bytes = given.max_message_bytes
    limits.content_timeout_s = given.content_timeout_s
    # Some descriptors stay spare, so that the broker can tell excess clients why it refuses them.
    limits.connections_max = min(given.connections_max, clients_max - min(clients_max // 8, 64))
    limits.handshake_timeout_s = given.handshake_timeout_s
    limits.consumers_per_channel_max = given.consumers_per_channel_max
    limits.unacked_per_channel_max = given.unacked_per_channel_max
    limits.transaction_max_bytes = given.transaction_max_bytes
    limits.delivery_timeout_s = given.delivery_timeout_s
    limits.send_timeout_s = given.send_timeout_s
    limits.queues_per_vhost_max = given.queues_per_vhost_max
    limits.exchanges_per_vhost_max = given.exchanges_per_vhost_max
    limits.bindings_per_exchange_max = given.bindings_per_exchange_max
    limits.outbox_soft_bytes = given.outbox_bytes
    limits.mqtt_qos0_outbox_bytes = given.mqtt_qos0_outbox_bytes
    # Unfinished messages may take a quarter of the memory, and always one of the largest.
    watermark_bytes = given.memory_high_watermark.limit_bytes(total_memory_bytes())
    limits.inbound_max_bytes = max(given.max_message_bytes, min(limits.inbound_max_bytes, watermark_bytes // 4))
    limits.transactions_max_bytes = watermark_bytes // 4
    return limits
