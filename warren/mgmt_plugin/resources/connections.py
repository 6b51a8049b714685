"""Connections and channels: listed, described, closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from warren.channels.broker import Broker
from warren.channels.connection_states import ENDED, STATE_NAMES
from warren.channels.event_values import port_of
from warren.channels.peer import Peer
from warren.channels.session import Session
from warren.channels.shared import PAUSED_TURN
from warren.mgmt_plugin.http.json_pieces import Rows
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import Response
from warren.mgmt_plugin.listing import QUERY, Described, answer_list
from warren.mgmt_plugin.metrics.statistics import (
    CHANNEL_STATS,
    CONNECTION_FIELDS,
    RANGE_QUERY,
    Ranges,
    Statistics,
    channel_row,
    connection_row,
)
from warren.mgmt_plugin.names import (
    channel_name,
    connection_details,
    connection_name,
    host_of,
    node_of,
    visible_connections,
)
from warren.mgmt_plugin.resources.consumers import ConsumerDescriber
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, not_authorised, not_found
from warren.mgmt_plugin.terms import value_to_json

CLOSED_BY_MANAGEMENT: Final = "Closed via management plugin"


def _may_close(call: Call, user: str) -> bool:
    return call.operator.is_administrator or user == call.operator.name


def _reason(call: Call) -> str:
    return call.request.headers.get("x-reason") or CLOSED_BY_MANAGEMENT


def channels_of(connections: list[Peer]) -> list[Session]:
    """Return the channels of some connections."""
    found = [connection.channels[number] for connection in connections for number in sorted(connection.channels)]
    return [channel for channel in found if isinstance(channel, Session)]


_LIST_QUERY: Final = (*QUERY, *RANGE_QUERY)
_C: Final = "/api/connections/{connection}"
_U: Final = "/api/connections/username/{user}"


class ConnectionHandlers(Handlers):
    """Handlers of connections and channels."""

    def __init__(self, broker: Broker, statistics: Statistics, settle: Callable[[], None]) -> None:
        self._broker = broker
        self._statistics = statistics
        self._settle = settle

    def describe_connection(self, call: Call, connection: Peer, ranges: Ranges) -> Described:
        """Return a connection."""
        described: Described = {
            "name": connection_name(connection),
            "user_provided_name": connection.name,
            "node": node_of(connection, self._broker),
            "user": connection.user_name,
            "user_who_performed_action": connection.user_name,
            "vhost": connection.vhost_name,
            "protocol": connection.protocol_shown(),
            # A link of this broker connects to it from within, as RabbitMQ's do.
            "type": "direct" if connection.is_internal else "network",
            "state": "blocked" if connection.told_blocked else STATE_NAMES[connection.state],
            "channels": len(connection.channels),
            "channel_max": connection.channel_max,
            "frame_max": connection.frame_max_bytes,
            "timeout": connection.heartbeat_s,
            "host": host_of(connection.local),
            "port": port_of(connection.local),
            "peer_host": host_of(connection.peer),
            "peer_port": port_of(connection.peer),
            "ssl": connection.is_tls,
            "ssl_protocol": None,
            "ssl_key_exchange": None,
            "ssl_cipher": None,
            "ssl_hash": None,
            "peer_cert_subject": connection.certificate_user,
            "peer_cert_issuer": None,
            "peer_cert_validity": None,
            "auth_mechanism": connection.mechanism,
            "connected_at": connection.connected_at_ms,
            "client_properties": value_to_json(connection.client_properties),
            # Reads and writes of the socket, as in RabbitMQ.
            "recv_cnt": int(connection.received_reads),
            "send_cnt": int(connection.outbox.sent_writes),
            "send_pend": int(connection.outbox.waiting_bytes()),
            **connection.details(),
        }
        shown = self._statistics.of(connection, CONNECTION_FIELDS, connection_row(connection))
        shown.add(described, CONNECTION_FIELDS, ranges.data)
        return described

    def describe_channel(self, call: Call, channel: Session, ranges: Ranges) -> Described:
        """Return a channel."""
        connection = channel.connection
        ledger = channel.ledger
        described: Described = {
            "name": channel_name(channel),
            "number": int(channel.number),
            "node": node_of(connection, self._broker),
            "user": connection.user_name,
            "user_who_performed_action": connection.user_name,
            "vhost": connection.vhost_name,
            "connection_details": connection_details(connection),
            "state": "flow" if connection.paused & ~PAUSED_TURN else "running",
            "transactional": channel.transaction is not None,
            "confirm": channel.confirms is not None,
            "prefetch_count": channel.prefetch,
            "global_prefetch_count": int(ledger.prefetch),
            "consumer_count": len(ledger.consumers),
            "messages_unacknowledged": int(ledger.unacked_count),
            "messages_unconfirmed": channel.unconfirmed_count(),
            "messages_uncommitted": channel.uncommitted()[0],
            "acks_uncommitted": channel.uncommitted()[1],
            "pending_raft_commands": 0,
            "idle_since": self._statistics.idle_since(channel),
        }
        shown = self._statistics.of(channel, CHANNEL_STATS, channel_row(channel))
        stats = shown.message_stats(CHANNEL_STATS, ranges.messages)
        if stats:
            described["message_stats"] = stats
        return described

    # --- connections --------------------------------------------------------------------------------------------------

    async def list_connections(self, call: Call) -> Response:
        return await self._answer_connections(call, visible_connections(call, self._broker))

    async def _answer_connections(self, call: Call, connections: list[Peer]) -> Response:
        ranges = Ranges.of(call.query, len(connections))
        rate = self._statistics.rate
        return await answer_list(
            call,
            connections,
            lambda connection: self.describe_connection(call, connection, ranges),
            {
                "name": lambda each: f"{connection_name(each)} {each.name}",
                "user_provided_name": lambda each: each.name,
                "user": lambda each: each.user_name,
                "vhost": lambda each: each.vhost_name,
                "channels": lambda each: len(each.channels),
                "connected_at": lambda each: each.connected_at_ms,
                "recv_oct": lambda each: int(each.received_bytes),
                "send_oct": lambda each: int(each.outbox.sent_bytes),
                "recv_oct_details.rate": lambda each: rate(each, "recv_oct"),
                "send_oct_details.rate": lambda each: rate(each, "send_oct"),
            },
            lambda each: each.state == ENDED,
        )

    def the_connection(self, call: Call) -> Peer:
        """Return the connection of the path.

        Raises:
            HttpError: 404; 401, it belongs to another user.
        """
        name = call.params["connection"]
        for connection in self._broker.connections.values():
            if not connection.is_direct and connection_name(connection) == name:
                if call.operator.is_monitor or connection.user_name == call.operator.name:
                    return connection
                raise not_authorised(Access.POLICYMAKER.value)
        raise not_found()

    async def show_connection(self, call: Call) -> Described:
        connection = self.the_connection(call)
        self._statistics.watch(connection, CONNECTION_FIELDS)
        return self.describe_connection(call, connection, Ranges.of(call.query))

    async def close_connection(self, call: Call) -> None:
        connection = self.the_connection(call)
        if not _may_close(call, connection.user_name):
            raise not_authorised(Access.POLICYMAKER.value)
        connection.force_close(_reason(call))
        self._settle()

    async def list_user_connections(self, call: Call) -> Response:
        return await self._answer_connections(call, self._of_user(call))

    async def close_user_connections(self, call: Call) -> None:
        if not _may_close(call, call.params["user"]):
            raise not_authorised(Access.POLICYMAKER.value)
        for connection in self._of_user(call):
            connection.force_close(_reason(call))
            self._settle()
            await give_way()

    def _of_user(self, call: Call) -> list[Peer]:
        return [each for each in visible_connections(call, self._broker) if each.user_name == call.params["user"]]

    # --- channels -----------------------------------------------------------------------------------------------------

    async def list_channels(self, call: Call) -> Response:
        return await self._answer_channels(call, channels_of(visible_connections(call, self._broker)))

    async def list_connection_channels(self, call: Call) -> Response:
        return await self._answer_channels(call, channels_of([self.the_connection(call)]))

    async def _answer_channels(self, call: Call, channels: list[Session]) -> Response:
        ranges = Ranges.of(call.query, len(channels))
        rate = self._statistics.rate
        keys: dict[str, Any] = {
            "name": lambda each: f"{channel_name(each)} {each.connection.name}",
            "connection_details.user_provided_name": lambda each: each.connection.name,
            "user": lambda each: each.connection.user_name,
            "vhost": lambda each: each.connection.vhost_name,
            "number": lambda each: int(each.number),
            "prefetch_count": lambda each: each.prefetch,
            "consumer_count": lambda each: len(each.ledger.consumers),
            "messages_unacknowledged": lambda each: int(each.ledger.unacked_count),
        }
        for field in CHANNEL_STATS:
            keys[f"message_stats.{field}_details.rate"] = lambda each, field=field: rate(each, field)
        return await answer_list(
            call,
            channels,
            lambda channel: self.describe_channel(call, channel, ranges),
            keys,
            lambda channel: channel.connection.channels.get(channel.number) is not channel,
        )

    async def show_channel(self, call: Call) -> Described:
        name = call.params["channel"]
        named = [each for each in visible_connections(call, self._broker) if name.startswith(connection_name(each))]
        for channel in channels_of(named):
            if channel_name(channel) == name:
                self._statistics.watch(channel, CHANNEL_STATS)
                described = self.describe_channel(call, channel, Ranges.of(call.query))
                describer = ConsumerDescriber(self._broker, self._statistics)
                described["consumer_details"] = describer.rows(channel.ledger.consumers.values())
                described["publishes"] = []
                described["deliveries"] = []
                return described
        raise not_found()

    async def list_subscriptions(self, call: Call) -> Rows:
        found = [(each, it) for each in channels_of([self.the_connection(call)]) for it in each.subscribed()]
        return Rows(found, lambda one: one[0].describe_subscription(one[1]))

    async def list_sessions(self, call: Call) -> list[Described]:
        self.the_connection(call)
        return []  # sessions are AMQP 1.0's

    ROUTES: ClassVar = (
        Route("GET", "/api/connections", Access.USER, list_connections, "Client connections", query=_LIST_QUERY),
        Route(
            "GET",
            "/api/vhosts/{vhost}/connections",
            Access.VHOST_VISIBLE,
            list_connections,
            "Client connections of a vhost",
            query=_LIST_QUERY,
        ),
        Route("GET", _C, Access.USER, show_connection, "A connection", query=RANGE_QUERY),
        Route("DELETE", _C, Access.USER, close_connection, "Close a connection; X-Reason says why"),
        Route(
            "GET",
            f"{_C}/channels",
            Access.USER,
            list_connection_channels,
            "Channels of a connection",
            query=_LIST_QUERY,
        ),
        Route(
            "GET",
            f"{_C}/subscriptions",
            Access.USER,
            list_subscriptions,
            "What an MQTT or STOMP client has subscribed to",
        ),
        Route("GET", f"{_C}/sessions", Access.USER, list_sessions, "AMQP 1.0 sessions of a connection"),
        Route("GET", _U, Access.USER, list_user_connections, "Connections of a user", query=_LIST_QUERY),
        Route("DELETE", _U, Access.USER, close_user_connections, "Close the connections of a user"),
        Route("GET", "/api/channels", Access.USER, list_channels, "Channels", query=_LIST_QUERY),
        Route(
            "GET",
            "/api/vhosts/{vhost}/channels",
            Access.VHOST_VISIBLE,
            list_channels,
            "Channels of a vhost",
            query=_LIST_QUERY,
        ),
        Route("GET", "/api/channels/{channel}", Access.USER, show_channel, "A channel", query=RANGE_QUERY),
    )
