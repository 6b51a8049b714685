"""Connections and channels: rows, and what operators do with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from warren.channels.back_pressure import TOLD
from warren.channels.broker import Broker
from warren.channels.connection_states import ENDED, STATE_NAMES
from warren.channels.ending import force_close
from warren.channels.event_values import port_of
from warren.channels.peer import Peer
from warren.channels.session import Session
from warren.channels.shared import PAUSED_TURN
from warren.engine_view.counters import channel_counters, connection_counters
from warren.engine_view.refs import ChannelRef, ConnectionRef, ConsumerRef, SubscriptionRef
from warren.queues.consumer import Consumer


class ConnectionEnds(msgspec.Struct, frozen=True):
    """A connection in the rows of objects that belong to it."""

    name: str
    user_provided_name: str
    peer_host: str
    peer_port: int


class ConnectionRow(msgspec.Struct, frozen=True):
    """A connection; the fields have RabbitMQ's names. `node` is where the client is connected.

    `details` are the fields of its protocol, and `counters` `CONNECTION_FIELDS`.
    """

    name: str
    user_provided_name: str
    node: str
    user: str
    vhost: str
    protocol: str
    type: str
    state: str
    channels: int
    channel_max: int
    frame_max: int
    timeout: int
    host: str
    port: int
    peer_host: str
    peer_port: int
    ssl: bool
    peer_cert_subject: str | None
    auth_mechanism: str
    connected_at: int
    client_properties: dict[str, Any]
    recv_cnt: int
    send_cnt: int
    send_pend: int
    details: dict[str, object]
    counters: tuple[int, ...]


class ChannelEnds(msgspec.Struct, frozen=True):
    """A channel in the rows of objects that belong to it."""

    connection_name: str
    user_provided_name: str
    name: str
    node: str
    number: int
    peer_host: str
    peer_port: int
    user: str


class ChannelRow(msgspec.Struct, frozen=True):
    """A channel; the fields have RabbitMQ's names. `counters` are `CHANNEL_STATS`."""

    name: str
    number: int
    node: str
    user: str
    vhost: str
    connection_details: ConnectionEnds
    state: str
    transactional: bool
    confirm: bool
    prefetch_count: int
    global_prefetch_count: int
    consumer_count: int
    messages_unacknowledged: int
    messages_unconfirmed: int
    messages_uncommitted: int
    acks_uncommitted: int
    counters: tuple[int, ...]


def connection_name(peer: Peer) -> str:
    """Return ``peer -> local``."""
    return peer.origin.ends()


def channel_name(channel: Session) -> str:
    """Return the connection's name and the channel's number."""
    return f"{connection_name(channel.peer)} ({int(channel.number)})"


def host_of(endpoint: str) -> str:
    """Return the host of ``host:port``."""
    return endpoint.rpartition(":")[0].strip("[]")


def connection_ends(peer: Peer) -> ConnectionEnds:
    """Return a connection as the objects that belong to it show it."""
    address = peer.origin.peer
    return ConnectionEnds(connection_name(peer), peer.login.name, host_of(address), port_of(address))


def channel_ends(channel: Session, node: str) -> ChannelEnds:
    """Return a channel as the objects that belong to it show it."""
    peer = channel.peer
    name = connection_name(peer)
    return ChannelEnds(
        name,
        peer.login.name,
        f"{name} ({int(channel.number)})",
        peer.origin.node_name or node,
        int(channel.number),
        host_of(peer.origin.peer),
        port_of(peer.origin.peer),
        peer.login.user_name,
    )


def channel_state(channel: Session) -> tuple[int, ...]:
    """Return consumers, unacked and unconfirmed messages, uncommitted messages and acks, prefetch of one and of all."""
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


def sessions_of(peer: Peer) -> list[Session]:
    """Return the channels of a connection that have begun, in any order."""
    return [channel for channel in peer.channels.values() if isinstance(channel, Session)]


def _connection_key(key: Callable[[Peer], object]) -> Callable[[ConnectionRef], object]:
    return cast("Callable[[ConnectionRef], object]", key)


def _channel_key(key: Callable[[Session], object]) -> Callable[[ChannelRef], object]:
    return cast("Callable[[ChannelRef], object]", key)


class Connections:
    """The connections of one engine. `settle` ends the turn of a command."""

    # Fields by which lists are filtered and sorted without a row of each item.
    KEYS: Final[Mapping[str, Callable[[ConnectionRef], object]]] = {
        "name": _connection_key(lambda each: f"{connection_name(each)} {each.login.name}"),
        "user_provided_name": _connection_key(lambda each: each.login.name),
        "user": _connection_key(lambda each: each.login.user_name),
        "vhost": _connection_key(lambda each: each.login.vhost_name),
        "channels": _connection_key(lambda each: len(each.channels)),
        "connected_at": _connection_key(lambda each: each.origin.connected_at_ms),
        "recv_oct": _connection_key(lambda each: int(each.received_bytes)),
        "send_oct": _connection_key(lambda each: int(each.outbox.sent_bytes)),
    }
    CHANNEL_KEYS: Final[Mapping[str, Callable[[ChannelRef], object]]] = {
        "name": _channel_key(lambda each: f"{channel_name(each)} {each.peer.login.name}"),
        "connection_details.user_provided_name": _channel_key(lambda each: each.peer.login.name),
        "user": _channel_key(lambda each: each.peer.login.user_name),
        "vhost": _channel_key(lambda each: each.peer.login.vhost_name),
        "number": _channel_key(lambda each: int(each.number)),
        "prefetch_count": _channel_key(lambda each: each.prefetch),
        "consumer_count": _channel_key(lambda each: len(each.ledger.consumers)),
        "messages_unacknowledged": _channel_key(lambda each: int(each.ledger.unacked_count)),
    }

    def __init__(self, broker: Broker, settle: Callable[[], None]) -> None:
        self._broker = broker
        self._peers: Mapping[int, Peer] = broker.connections
        self._settle = settle

    # --- lists ------------------------------------------------------------------------------------------------------

    def all(self) -> list[ConnectionRef]:
        """Return all connections of clients, logged in or not."""
        return [ConnectionRef(each) for each in self._peers.values() if not each.origin.is_direct]

    def known(self, *, user: str | None = None, vhost: str | None = None) -> list[ConnectionRef]:
        """Return the connections whose user is known, of one user or in one vhost if asked."""
        found: list[ConnectionRef] = []
        for each in self._peers.values():
            if each.origin.is_direct or not each.login.has_begun:
                continue
            if (vhost is None or each.login.vhost_name == vhost) and (user is None or each.login.user_name == user):
                found.append(ConnectionRef(each))
        return found

    def maybe_named(self, name: str) -> ConnectionRef | None:
        """Return the connection with this name."""
        for each in self._peers.values():
            if not each.origin.is_direct and connection_name(each) == name:
                return ConnectionRef(each)
        return None

    def channels_of(self, connections: Iterable[ConnectionRef]) -> list[ChannelRef]:
        """Return the channels of some connections, of each in the order of their numbers."""
        found: list[ChannelRef] = []
        for connection in connections:
            assert isinstance(connection, Peer)
            channels = connection.channels
            for number in sorted(channels):
                channel = channels[number]
                if isinstance(channel, Session):
                    found.append(ChannelRef(channel))
        return found

    def channels(self, connection: ConnectionRef) -> list[ChannelRef]:
        """Return the channels of one connection, in any order."""
        return cast("list[ChannelRef]", sessions_of(_peer(connection)))

    def maybe_channel(self, name: str, connections: Iterable[ConnectionRef]) -> ChannelRef | None:
        """Return the channel with this name, if it is on one of `connections`."""
        for peer in _peers(connections):
            if name.startswith(connection_name(peer)):
                for channel in sessions_of(peer):
                    if channel_name(channel) == name:
                        return ChannelRef(channel)
        return None

    def consumers(self, channel: ChannelRef) -> list[ConsumerRef]:
        """Return the consumers of a channel."""
        consumers: Iterable[Consumer] = _session(channel).ledger.consumers.values()
        return [ConsumerRef(each) for each in consumers]

    def subscriptions(
        self, connection: ConnectionRef
    ) -> tuple[list[SubscriptionRef], Callable[[SubscriptionRef], dict[str, object]]]:
        """Return the subscriptions of a connection, and a function that describes one with the fields of its protocol.

        The protocols that have subscriptions have one session for each connection.
        """
        for session in sessions_of(_peer(connection)):
            found = session.subscribed()
            if found:
                return cast("list[SubscriptionRef]", found), session.describe_subscription
        return [], _nothing

    # --- fields -----------------------------------------------------------------------------------------------------

    def name(self, connection: ConnectionRef) -> str:
        """Return ``peer -> local``."""
        return connection_name(_peer(connection))

    def user(self, connection: ConnectionRef) -> str:
        """Return the user of a connection."""
        return _peer(connection).login.user_name

    def vhost(self, connection: ConnectionRef) -> str:
        """Return the name of the vhost of a connection."""
        return _peer(connection).login.vhost_name

    def note_time(self, channel: ChannelRef, now_s: float) -> None:
        """Update the clock of a channel: the ages of its deliveries are as exact as this is called."""
        _session(channel).ledger.waiting_since(now_s)

    # --- numbers ----------------------------------------------------------------------------------------------------

    def names(self, connections: list[ConnectionRef]) -> list[str]:
        """Return the name of each."""
        return [connection_name(each) for each in _peers(connections)]

    def counters(self, connections: list[ConnectionRef]) -> list[tuple[int, ...]]:
        """Return `CONNECTION_FIELDS` of each."""
        return [connection_counters(each) for each in _peers(connections)]

    def socket_counters(self, connections: list[ConnectionRef]) -> list[tuple[int, ...]]:
        """Return of each the reads and writes of the socket, and the channels."""
        peers = _peers(connections)
        return [(int(each.received_reads), int(each.outbox.sent_writes), len(each.channels)) for each in peers]

    def channel_names(self, channels: list[ChannelRef]) -> list[tuple[str, str]]:
        """Return of each name and vhost."""
        return [(channel_name(each), each.peer.login.vhost_name) for each in _sessions(channels)]

    def channel_counters(self, channels: list[ChannelRef]) -> list[tuple[int, ...]]:
        """Return `CHANNEL_STATS` of each."""
        return [channel_counters(each) for each in _sessions(channels)]

    def channel_states(self, channels: list[ChannelRef]) -> list[tuple[int, ...]]:
        """Return of each what `channel_state` does."""
        return [channel_state(each) for each in _sessions(channels)]

    # --- rows -------------------------------------------------------------------------------------------------------

    def row(self, ref: ConnectionRef) -> ConnectionRow:
        """Return a connection."""
        assert isinstance(ref, Peer)
        peer = ref
        outbox = peer.outbox
        return ConnectionRow(
            connection_name(peer),
            peer.login.name,
            peer.origin.node_name or self._broker.node,
            peer.login.user_name,
            peer.login.vhost_name,
            peer.origin.shown(peer.protocol),
            # A link of this broker connects to it from within, as RabbitMQ's do.
            "direct" if peer.origin.is_internal else "network",
            "blocked" if peer.blocked_notice == TOLD else STATE_NAMES[peer.state],
            len(peer.channels),
            peer.login.channel_max,
            peer.login.frame_max_bytes,
            peer.heartbeats.interval_s,
            host_of(peer.origin.local),
            port_of(peer.origin.local),
            host_of(peer.origin.peer),
            port_of(peer.origin.peer),
            peer.origin.is_tls,
            peer.origin.certificate_user,
            peer.login.mechanism,
            peer.origin.connected_at_ms,
            peer.client_properties,
            # Reads and writes of the socket, as in RabbitMQ.
            int(peer.received_reads),
            int(outbox.sent_writes),
            int(outbox.waiting_bytes()),
            peer.details(),
            connection_counters(peer),
        )

    def is_gone(self, connection: ConnectionRef) -> bool:
        """Tell whether a connection has ended."""
        assert isinstance(connection, Peer)
        return connection.state == ENDED

    def channel(self, ref: ChannelRef) -> ChannelRow:
        """Return a channel."""
        assert isinstance(ref, Session)
        channel = ref
        peer = channel.peer
        ledger = channel.ledger
        publishes, acks = channel.uncommitted()
        ends = connection_ends(peer)
        return ChannelRow(
            f"{ends.name} ({int(channel.number)})",
            int(channel.number),
            peer.origin.node_name or self._broker.node,
            peer.login.user_name,
            peer.login.vhost_name,
            ends,
            "flow" if peer.paused & ~PAUSED_TURN else "running",
            channel.transaction is not None,
            channel.confirms is not None,
            channel.prefetch,
            int(ledger.prefetch),
            len(ledger.consumers),
            int(ledger.unacked_count),
            channel.unconfirmed_count(),
            publishes,
            acks,
            channel_counters(channel),
        )

    def is_channel_gone(self, ref: ChannelRef) -> bool:
        """Tell whether a channel has been closed."""
        assert isinstance(ref, Session)
        return ref.peer.channels.get(ref.number) is not ref

    # --- commands ---------------------------------------------------------------------------------------------------

    def close(self, connection: ConnectionRef, reason: str) -> None:
        """Close a connection of a client, who is told the `reason`."""
        force_close(_peer(connection), reason)
        self._settle()


def _nothing(ref: SubscriptionRef) -> dict[str, object]:
    raise AssertionError("there are no subscriptions")


def _peers(refs: Iterable[ConnectionRef]) -> Iterable[Peer]:
    return cast("Iterable[Peer]", refs)


def _sessions(refs: Iterable[ChannelRef]) -> Iterable[Session]:
    return cast("Iterable[Session]", refs)


def _peer(ref: ConnectionRef) -> Peer:
    assert isinstance(ref, Peer)
    return ref


def _session(ref: ChannelRef) -> Session:
    assert isinstance(ref, Session)
    return ref
