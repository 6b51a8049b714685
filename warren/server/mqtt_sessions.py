"""List and end the sessions of MQTT clients for administrators, including sessions whose client is away.

Ending a session closes the connection of its client, as if the session were not to outlive the connection. A session
without a connection ends as if its time had run out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from warren.channels.access import Principal
from warren.channels.broker import Broker
from warren.exchanges.binding import Binding
from warren.mqtt.conversion import QOS_HEADER as QOS_HEADER
from warren.mqtt.peer import MqttPeer
from warren.mqtt.session import MqttSession
from warren.mqtt.sessions import QOS, SharedSubscription, queue_name, sessions_of, shared_of
from warren.mqtt.subscriptions import subscription_of
from warren.mqtt.topics import EXCHANGE, Subscription, routing_key
from warren.queues.queue import Queue
from warren.queues.receiver import Receiver
from warren.vhosts.kept_sessions import KeptSession
from warren.vhosts.virtual_host import VirtualHost


class KnownSession:
    """A session, with the connection of its client if there is one."""

    def __init__(self, broker: Broker, vhost: VirtualHost, kept: KeptSession) -> None:
        self.vhost = vhost
        self.kept = kept
        found = broker.named_clients.get((vhost.name, kept.name))
        self.peer: MqttPeer | None = found if isinstance(found, MqttPeer) else None
        names = [queue_name(kept.name, qos) for qos in QOS]
        self.queues: list[Queue] = [vhost.queues[name] for name in names if name in vhost.queues]

    def queue_names(self) -> list[str]:
        """Return the queues on which ending the session needs rights: its queues, or the one that it would have."""
        return [queue.name for queue in self.queues] or [queue_name(self.kept.name, 0)]

    def described(self) -> dict[str, Any]:
        """Return it without its subscriptions, as the management API shows it."""
        kept, peer = self.kept, self.peer
        ready = sum(int(queue.ready_count) for queue in self.queues)
        unacked = sum(int(queue.unacked_count) for queue in self.queues)
        return {
            "client_id": kept.name,
            "vhost": self.vhost.name,
            "connected": peer is not None,
            "user": None if peer is None else peer.user_name,
            "protocol": None if peer is None else peer.protocol_shown(),
            "expiry_s": kept.expiry_s,
            "ends_at": None if kept.is_connected else int(kept.ends_ms),
            "will_waits": bool(kept.will),
            "messages": ready + unacked,
            "messages_ready": ready,
            "messages_unacknowledged": unacked,
            "queues": [queue.name for queue in self.queues],
        }

    def subscriptions(self) -> list[tuple[Binding, int] | SharedSubscription]:
        """Return its subscriptions, each for `describe_subscription`."""
        found: list[tuple[Binding, int] | SharedSubscription] = []
        exchange = self.vhost.exchange(EXCHANGE)
        receivers: list[Receiver] = list(self.queues)
        session = None if self.peer is None else self.peer.session
        if session is not None and session.subscriber is not None:
            receivers.insert(0, session.subscriber)
        for receiver in receivers:
            binding: Binding | None = exchange.by_destination.get(receiver)
            while binding is not None:
                found.append((binding, int(receiver.name[-1])))
                binding = binding.next_to_destination
        found += shared_of(self.kept.notes)
        return found


def describe_subscription(each: tuple[Binding, int] | SharedSubscription) -> dict[str, object]:
    """Return one of `KnownSession.subscriptions` as the management API shows it."""
    found: Subscription | SharedSubscription = each if isinstance(each, SharedSubscription) else subscription_of(*each)
    return found.described()


def kept_sessions(broker: Broker, vhost: VirtualHost) -> Iterator[KeptSession]:
    """Yield the sessions of `vhost`."""
    yield from sessions_of(broker, vhost).sessions.values()


def maybe_session(broker: Broker, vhost: VirtualHost, client_id: str) -> KnownSession | None:
    """Return the session of a client."""
    kept = sessions_of(broker, vhost).sessions.get(client_id)
    return None if kept is None else KnownSession(broker, vhost, kept)


def end_session(broker: Broker, session: KnownSession, reason: str) -> None:
    """End a session for good, whether its client is connected or not."""
    peer = session.peer
    if peer is None:
        sessions = sessions_of(broker, session.vhost)
        sessions.session_over(session.kept)
        sessions.end(session.kept)
        return
    current = peer.channels.get(1)
    if isinstance(current, MqttSession):
        current.expiry_s = 0
    peer.force_close(reason)


def authorize_topic(principal: Principal, action: int, topic: str) -> None:
    """Make sure that `action` on the retained messages of `topic` is granted, as for publishing or subscribing there.

    Raises:
        ChannelException: 403.
    """
    principal.authorize(action, "exchange", EXCHANGE)
    principal.authorize_topic(action, EXCHANGE, routing_key(topic))
