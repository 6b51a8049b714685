"""MQTT: the sessions of clients, also of those that are away, and retained messages.

Ending a session closes the connection of its client, as if the session were not to outlive the connection. A session
without a connection ends as if its time had run out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NewType, cast

import msgspec

from warren.amqp.errors import ChannelException
from warren.channels.broker import Broker
from warren.channels.ending import force_close
from warren.engine_view.bindings import bindings_between
from warren.engine_view.connections import ConnectionEnds, connection_ends
from warren.engine_view.permissions import Rights
from warren.exchanges.binding import Binding
from warren.mqtt.conversion import QOS_HEADER as QOS_HEADER
from warren.mqtt.peer import MqttPeer
from warren.mqtt.session import MqttSession
from warren.mqtt.sessions import QOS, SharedSubscription, queue_name, sessions_of, shared_of
from warren.mqtt.subscriptions import subscription_of
from warren.mqtt.topics import EXCHANGE, routing_key
from warren.queues.base_queue import BaseQueue
from warren.queues.receiver import Receiver
from warren.vhosts.kept_sessions import KeptSession
from warren.vhosts.retained import Retained as Retained
from warren.vhosts.retained import RetainedMessages, RetainedSearch
from warren.vhosts.virtual_host import VirtualHost

AT_ONCE: Final = 500  # levels that are looked at in one go

SessionRef = NewType("SessionRef", object)
PlacedSession = tuple[str, SessionRef]  # with its vhost
SessionSubscription = Binding | SharedSubscription


class SessionRow(msgspec.Struct, frozen=True):
    """A session; the fields have the names of the API. `connection_details` is None while its client is away."""

    client_id: str
    vhost: str
    connected: bool
    user: str | None
    protocol: str | None
    expiry_s: int
    ends_at: int | None
    will_waits: bool
    messages: int
    messages_ready: int
    messages_unacknowledged: int
    queues: list[str]
    connection_details: ConnectionEnds | None


def _key(key: Callable[[tuple[str, KeptSession]], object]) -> Callable[[PlacedSession], object]:
    return cast("Callable[[PlacedSession], object]", key)


class MqttSessions:
    """The MQTT sessions of one engine. `settle` ends the turn of a command."""

    # Fields by which lists are filtered and sorted without a row of each item.
    KEYS: Final[Mapping[str, Callable[[PlacedSession], object]]] = {
        "name": _key(lambda of: of[1].name),
        "client_id": _key(lambda of: of[1].name),
        "vhost": _key(lambda of: of[0]),
        "connected": _key(lambda of: of[1].is_connected),
        "expiry_s": _key(lambda of: of[1].expiry_s),
    }

    def __init__(self, broker: Broker, settle: Callable[[], None]) -> None:
        self._broker = broker
        self._vhosts: Mapping[str, VirtualHost] = broker.vhosts
        self._settle = settle

    def in_vhost(self, vhost: str) -> list[PlacedSession]:
        """Return the sessions of a vhost, in any order."""
        return [(vhost, SessionRef(each)) for each in self._sessions(vhost).values()]

    def maybe(self, vhost: str, client_id: str) -> PlacedSession | None:
        """Return the session of a client."""
        kept = self._sessions(vhost).get(client_id)
        return None if kept is None else (vhost, SessionRef(kept))

    def is_gone(self, of: PlacedSession) -> bool:
        """Tell whether a session has ended."""
        assert isinstance(of[1], KeptSession)
        return of[1].owner is None

    def row(self, of: PlacedSession) -> SessionRow:
        """Return a session without its subscriptions."""
        vhost, kept = of
        assert isinstance(kept, KeptSession)
        peer, queues = self._maybe_peer(of), self._queues(vhost, kept)
        ready = sum(int(queue.ready_count) for queue in queues)
        unacked = sum(int(queue.unacked_count) for queue in queues)
        return SessionRow(
            kept.name,
            vhost,
            peer is not None,
            None if peer is None else peer.login.user_name,
            None if peer is None else peer.origin.shown(peer.protocol),
            kept.expiry_s,
            None if kept.is_connected else int(kept.ends_ms),
            bool(kept.will),
            ready + unacked,
            ready,
            unacked,
            [queue.name for queue in queues],
            None if peer is None else connection_ends(peer),
        )

    def queue_names(self, of: PlacedSession) -> list[str]:
        """Return the queues on which ending the session needs rights: its queues, or the one that it would have."""
        kept = _kept(of[1])
        return [queue.name for queue in self._queues(of[0], kept)] or [queue_name(kept.name, 0)]

    def subscriptions(self, of: PlacedSession) -> Iterator[list[SessionSubscription] | None]:
        """Yield None after each piece, and at last the subscriptions of a session, each for `subscription`."""
        found: list[SessionSubscription] = []
        exchange = self._vhosts[of[0]].exchange(EXCHANGE)
        peer = self._maybe_peer(of)
        receivers: list[Receiver] = list(self._queues(of[0], _kept(of[1])))
        session = None if peer is None else peer.session
        subscriber = None if session is None else session.subscriptions.subscriber
        if subscriber is not None:
            receivers.insert(0, subscriber)
        for receiver in receivers:
            for bindings in bindings_between(exchange, receiver):
                if bindings is None:
                    yield None
                else:
                    found += bindings
        found += shared_of(_kept(of[1]).notes)
        yield found

    def subscription(self, each: SessionSubscription) -> dict[str, Any]:
        """Return one of `subscriptions`, with the names of the API."""
        if isinstance(each, SharedSubscription):
            return each.described()
        return subscription_of(each, int(each.destination.name[-1])).described()

    def end(self, of: PlacedSession, reason: str) -> int:
        """End a session for good, whether its client is connected or not; return the ticket to wait for."""
        peer = self._maybe_peer(of)
        if peer is None or not _kept(of[1]).is_connected:  # one that is ending has left its session already
            sessions = sessions_of(self._broker, self._vhosts[of[0]])
            sessions.session_over(_kept(of[1]))
            sessions.end(_kept(of[1]))
        else:
            current = peer.channels.get(1)
            if isinstance(current, MqttSession):
                current.expiry_s = 0
            force_close(peer, reason)
        ticket = self._broker.journal.last_ticket
        self._settle()
        return ticket

    def _sessions(self, vhost: str) -> Mapping[str, KeptSession]:
        """Return the sessions by client id. Those that are still to be read at a start are not made here."""
        found = self._vhosts.get(vhost)
        return {} if found is None or found.kept_sessions is None else found.kept_sessions.sessions

    def _maybe_peer(self, of: PlacedSession) -> MqttPeer | None:
        assert isinstance(of[1], KeptSession)
        found = self._broker.named_clients.get((of[0], of[1].name))
        return found if isinstance(found, MqttPeer) else None

    def _queues(self, vhost: str, kept: KeptSession) -> list[BaseQueue]:
        found = self._vhosts.get(vhost)
        names = [queue_name(kept.name, qos) for qos in QOS]
        return [] if found is None else [found.queues[name] for name in names if name in found.queues]


class RetainedTopics:
    """The retained messages of one engine."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._vhosts: Mapping[str, VirtualHost] = broker.vhosts

    def authorize(self, rights: Rights, action: int, topic: str) -> None:
        """Make sure that `action` on what is retained for a topic is granted, as for publishing or subscribing there.

        Raises:
            ChannelException: 403.
        """
        rights.authorize(action, "exchange", EXCHANGE)
        rights.principal.authorize_topic(action, EXCHANGE, routing_key(topic))

    def may(self, rights: Rights, action: int, topic: str) -> bool:
        """Tell whether `action` on what is retained for a topic is granted."""
        try:
            self.authorize(rights, action, topic)
        except ChannelException:
            return False
        return True

    def matching(self, vhost: str, filter_: str) -> Iterator[list[str]]:
        """Yield the topics that a valid filter matches, found on `AT_ONCE` levels. Callers may give way meanwhile."""
        retained = self._maybe_retained(vhost)
        search = None if retained is None else RetainedSearch(retained, filter_)
        while search is not None and not search.is_over():
            topics: list[str] = []
            left = AT_ONCE
            while left and not search.is_over():
                topic = search.next()
                if topic is not None:
                    topics.append(topic)
                left -= 1
            yield topics

    def maybe(self, vhost: str, topic: str) -> Retained | None:
        """Return what is retained for a topic."""
        retained = self._maybe_retained(vhost)
        return None if retained is None else retained.maybe(topic, self._broker.now_ms())

    def remove(self, vhost: str, topic: str) -> bool:
        """Forget what is retained for a topic; False: it is nothing. The caller settles the turn."""
        retained = self._maybe_retained(vhost)
        return retained is not None and retained.remove(topic)

    def _maybe_retained(self, vhost: str) -> RetainedMessages | None:
        found = self._vhosts.get(vhost)
        return None if found is None or found.records.is_restoring else found.retained()


def _kept(ref: SessionRef) -> KeptSession:
    assert isinstance(ref, KeptSession)
    return ref
