"""Everything that has a name, for a search: one walk over queues, vhosts, connections and users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from warren.channels.broker import Broker
from warren.channels.connection_states import ENDED
from warren.channels.peer import Peer
from warren.engine_view.connections import channel_name, connection_name, sessions_of
from warren.engine_view.refs import ConnectionRef, QueueRef
from warren.queues.base_queue import BaseQueue
from warren.vhosts.virtual_host import VirtualHost

Named = tuple[str, str | None, str, str]  # kind, vhost, name, and a further text in which it is looked for


class Names:
    """The names of one engine."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._vhosts: Mapping[str, VirtualHost] = broker.vhosts

    def each(
        self, queues: list[QueueRef], vhosts: list[str], connections: list[ConnectionRef], *, users: bool
    ) -> Iterator[Named]:
        """Yield these objects, with what is in the vhosts and on the connections. Callers may give way meanwhile."""
        for queue in queues:
            assert isinstance(queue, BaseQueue)
            yield "queue", queue.vhost_name, queue.name, queue.rules.queue_type
        for vhost in [self._vhosts[name] for name in vhosts if name in self._vhosts]:
            yield "vhost", vhost.name, vhost.name, vhost.record.description
            for exchange in list(vhost.exchanges.values()):
                yield "exchange", vhost.name, exchange.name, exchange.type_name
            for policy in list(vhost.policies.policies.values()):
                yield "policy", vhost.name, policy.name, policy.put.pattern
        for connection in connections:
            assert isinstance(connection, Peer)
            if connection.state == ENDED:
                continue
            place, given = connection.login.vhost_name, f"{connection.login.user_name} {connection.login.name}".strip()
            yield "connection", place, connection_name(connection), given
            for channel in sessions_of(connection):
                for consumer in list(channel.ledger.consumers.values()):
                    yield "consumer", place, consumer.tag, f"{consumer.queue.name} {channel_name(channel)}"
        for user in list(self._broker.access.users.values()) if users else ():
            yield "user", None, user.name, ", ".join(user.tags)
