"""Connections and channels: listed, described, closed."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Final

from msgspec.structs import asdict

from warren.engine_view.counters import CHANNEL_STATS, CONNECTION_FIELDS
from warren.engine_view.engine_view import EngineView
from warren.engine_view.refs import ChannelRef, ConnectionRef
from warren.mgmt_plugin.http.json_pieces import Rows
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import Response
from warren.mgmt_plugin.listing import QUERY, Described, answer_list
from warren.mgmt_plugin.metrics.statistics import RANGE_QUERY, Ranges, Statistics
from warren.mgmt_plugin.names import (
    check_may_close,
    reason_of,
    the_connection,
    the_connection_to_close,
    visible_connections,
)
from warren.mgmt_plugin.resources.consumers import ConsumerDescriber
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, not_found
from warren.mgmt_plugin.terms import value_to_json

# What RabbitMQ tells of TLS, and the engine does not know.
_NOT_KNOWN: Final = (
    *(f"ssl_{name}" for name in ("protocol", "key_exchange", "cipher", "hash")),
    *(f"peer_cert_{name}" for name in ("issuer", "validity")),
)
_LIST_QUERY: Final = (*QUERY, *RANGE_QUERY)
_C: Final = "/api/connections/{connection}"
_U: Final = "/api/connections/username/{user}"


class ConnectionHandlers(Handlers):
    """Handlers of connections and channels."""

    def __init__(self, view: EngineView, statistics: Statistics) -> None:
        self._view = view
        self._connections = view.connections
        self._statistics = statistics

    def describe_connection(self, connection: ConnectionRef, ranges: Ranges) -> Described:
        """Return a connection."""
        row = self._connections.row(connection)
        described: Described = asdict(row)
        del described["counters"], described["details"]
        described |= dict.fromkeys(_NOT_KNOWN)
        described |= row.details
        described["user_who_performed_action"] = row.user
        described["client_properties"] = value_to_json(row.client_properties)
        shown = self._statistics.of(connection, CONNECTION_FIELDS, row.counters)
        shown.add(described, CONNECTION_FIELDS, ranges.data)
        return described

    def describe_channel(self, channel: ChannelRef, ranges: Ranges) -> Described:
        """Return a channel."""
        row = self._connections.channel(channel)
        described: Described = asdict(row)
        del described["counters"]
        described["connection_details"] = asdict(row.connection_details)
        described["user_who_performed_action"] = row.user
        described["pending_raft_commands"] = 0
        described["idle_since"] = self._statistics.idle_since(channel)
        stats = self._statistics.of(channel, CHANNEL_STATS, row.counters).message_stats(CHANNEL_STATS, ranges.messages)
        if stats:
            described["message_stats"] = stats
        return described

    # --- connections --------------------------------------------------------------------------------------------------

    async def list_connections(self, call: Call) -> Response:
        return await self._answer_connections(call, visible_connections(call, self._view))

    async def _answer_connections(self, call: Call, connections: list[ConnectionRef]) -> Response:
        ranges = Ranges.of(call.query, len(connections))
        keys = dict(self._connections.KEYS)
        for field in CONNECTION_FIELDS:
            keys[f"{field}_details.rate"] = partial(self._statistics.rate, fields=CONNECTION_FIELDS, field=field)
        describe = partial(self.describe_connection, ranges=ranges)
        return await answer_list(call, connections, describe, keys, self._connections.is_gone)

    async def show_connection(self, call: Call) -> Described:
        connection = the_connection(call, self._view)
        self._statistics.watch(connection, CONNECTION_FIELDS)
        return self.describe_connection(connection, Ranges.of(call.query))

    async def close_connection(self, call: Call) -> None:
        self._connections.close(the_connection_to_close(call, self._view), reason_of(call))

    async def list_user_connections(self, call: Call) -> Response:
        return await self._answer_connections(call, self._of_user(call))

    async def close_user_connections(self, call: Call) -> None:
        check_may_close(call, call.params["user"])
        for connection in self._of_user(call):
            self._connections.close(connection, reason_of(call))
            await give_way()

    def _of_user(self, call: Call) -> list[ConnectionRef]:
        user = call.params["user"]
        if not call.operator.is_monitor and call.operator.name != user:
            return []
        return self._connections.known(user=user)

    # --- channels -----------------------------------------------------------------------------------------------------

    async def list_channels(self, call: Call) -> Response:
        return await self._answer_channels(call, visible_connections(call, self._view))

    async def list_connection_channels(self, call: Call) -> Response:
        return await self._answer_channels(call, [the_connection(call, self._view)])

    async def _answer_channels(self, call: Call, connections: list[ConnectionRef]) -> Response:
        channels = self._connections.channels_of(connections)
        ranges = Ranges.of(call.query, len(channels))
        keys: dict[str, Any] = dict(self._connections.CHANNEL_KEYS)
        for field in CHANNEL_STATS:
            rate = partial(self._statistics.rate, fields=CHANNEL_STATS, field=field)
            keys[f"message_stats.{field}_details.rate"] = rate
        describe = partial(self.describe_channel, ranges=ranges)
        return await answer_list(call, channels, describe, keys, self._connections.is_channel_gone)

    async def show_channel(self, call: Call) -> Described:
        channel = self._connections.maybe_channel(call.params["channel"], visible_connections(call, self._view))
        if channel is None:
            raise not_found()
        self._statistics.watch(channel, CHANNEL_STATS)
        described = self.describe_channel(channel, Ranges.of(call.query))
        describer = ConsumerDescriber(self._view, self._statistics)
        described["consumer_details"] = describer.rows(self._connections.consumers(channel))
        described["publishes"] = []
        described["deliveries"] = []
        return described

    async def list_subscriptions(self, call: Call) -> Rows:
        return Rows(*self._connections.subscriptions(the_connection(call, self._view)))

    async def list_sessions(self, call: Call) -> list[Described]:
        the_connection(call, self._view)
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
        Route("DELETE", _C, Access.USER, close_connection, "Close a connection; X-Reason: the reason"),
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
            "Subscriptions of an MQTT or STOMP client",
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
