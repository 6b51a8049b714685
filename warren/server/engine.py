"""Make the engine: as the settings and the resources of the process want it."""

from __future__ import annotations

import secrets
import socket
from typing import Final

from warren.amqp10.peer import Amqp10Peer
from warren.amqp10.performatives import AMQP_HEADER, SASL_HEADER, TLS_HEADER
from warren.channels.broker import Broker, Limits
from warren.msgstore.log.message_log import MessageLog
from warren.server.process_memory import total_memory_bytes
from warren.server.settings import Settings

NODE: Final = "rabbit"  # RabbitMQ's default node name
# How long a batch takes more while much is published, though it could be committed.
GATHER_S: Final = 0.001


def make_broker(settings: Settings, clients_max: int, message_log: MessageLog) -> Broker:
    """Return an engine over `message_log`; `clients_max`: so many descriptors there are for connections."""
    broker = Broker(engine_limits(settings, clients_max), _entropy, secrets.randbits(63), message_log)
    broker.gathering.most_s = GATHER_S
    if settings.amqp_1_0:
        broker.other_protocols = dict.fromkeys((SASL_HEADER, AMQP_HEADER, TLS_HEADER), Amqp10Peer)
    broker.node = settings.node_name or f"{NODE}@{socket.gethostname().partition('.')[0]}"
    if settings.etcd:
        broker.cluster = f"{NODE}@{settings.cluster_name}"  # the same name on every leader
    return broker


def _entropy() -> bytes:
    return secrets.token_bytes(16)


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
