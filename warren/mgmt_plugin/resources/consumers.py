"""Consumers: listed and described, with what they owe, and cancelled.

1. The engine counts deliveries and acks of channels, not of consumers: a row has the rates of its channel, and for how
   long nothing has happened there, with the number of consumers that share them.
2. To cancel a consumer takes the right to close its connection: that is asked for here, since the route lets all
   through who may see the vhost. An administrator need not have permissions in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from msgspec.structs import asdict

from warren.engine_view.counters import CHANNEL_STATS
from warren.engine_view.engine_view import EngineView
from warren.engine_view.refs import ConsumerRef
from warren.mgmt_plugin.http.json_pieces import Rows
from warren.mgmt_plugin.http.numbers import integer
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import Response
from warren.mgmt_plugin.listing import QUERY, Described, answer_list
from warren.mgmt_plugin.metrics.statistics import Statistics
from warren.mgmt_plugin.names import CANCELLED_BY_MANAGEMENT, reason_of, the_connection_to_close, visible_queues
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, not_found
from warren.mgmt_plugin.terms import table_to_json


class ConsumerDescriber:
    """Describes consumers for one answer."""

    def __init__(self, view: EngineView, statistics: Statistics) -> None:
        self._consumers = view.consumers
        self._rate = statistics.rate
        self._idle_ms = statistics.idle_ms
        self._ages = view.consumers.ages()

    def describe(self, consumer: ConsumerRef) -> Described:
        """Return a consumer."""
        row = self._consumers.row(consumer)
        channel, _ = self._consumers.channel(consumer)
        active = row.is_active
        described: Described = {
            "arguments": table_to_json(row.arguments),
            "ack_required": not row.no_ack,
            "active": active,
            "activity_status": "single_active" if active and row.is_single_active else "up" if active else "waiting",
            "channel_details": {} if row.channel is None else asdict(row.channel),
            "consumer_tag": row.tag,
            "exclusive": row.exclusive,
            "prefetch_count": row.prefetch_count,
            "queue": {"name": row.queue, "vhost": row.vhost},
            "messages_unacknowledged": row.unacked,
            "channel_stats": {
                "consumers": row.sharing,
                "deliver_rate": self.deliver_rate(consumer),
                "ack_rate": 0.0 if channel is None else self._rate(channel, CHANNEL_STATS, "ack"),
                "idle_ms": self.idle_ms(consumer),
            },
        }
        if row.next_offset is not None:
            described["next_offset"] = row.next_offset if active else None
        # Absent, not null: rabbitmqadmin cannot print that.
        oldest_ms = self._ages.maybe_oldest_ms(consumer)
        if oldest_ms is not None:
            described["oldest_unacknowledged_ms"] = oldest_ms
        described["consumer_timeout"] = row.timeout_ms
        return described

    def deliver_rate(self, consumer: ConsumerRef) -> float:
        """Return the deliveries of its channel per second: those that need an answer, or the others."""
        channel, no_ack = self._consumers.channel(consumer)
        if channel is None:
            return 0.0
        return self._rate(channel, CHANNEL_STATS, "deliver_no_ack" if no_ack else "deliver")

    def idle_ms(self, consumer: ConsumerRef) -> int:
        """Return for how long nothing was published, delivered or acknowledged on its channel."""
        channel, _ = self._consumers.channel(consumer)
        return 0 if channel is None else self._idle_ms(channel)

    def keys(self) -> dict[str, Callable[[ConsumerRef], object]]:
        """Return the fields by which consumers can be sorted without a description."""
        return {
            **self._consumers.KEYS,
            "oldest_unacknowledged_ms": self._ages.maybe_oldest_ms,
            "channel_stats.deliver_rate": self.deliver_rate,
            "channel_stats.idle_ms": self.idle_ms,
        }

    def rows(self, consumers: list[ConsumerRef]) -> Rows:
        """Return some consumers as a list, those that are still there when it is sent."""
        return Rows(consumers, self.describe, self._consumers.is_gone)


class ConsumerHandlers(Handlers):
    """Handlers of consumers."""

    def __init__(self, view: EngineView, statistics: Statistics) -> None:
        self._view = view
        self._statistics = statistics

    async def list_consumers(self, call: Call) -> Response:
        view = self._view
        consumers: list[ConsumerRef] = []
        only = call.query.get("queue")
        if only is None or "vhost" not in call.params:
            for queue in await visible_queues(call, view):
                consumers += view.queues.consumers(queue)
                await give_way()
        else:
            found = view.queues.maybe(call.params["vhost"], only)
            if found is None:
                raise not_found()
            consumers += view.queues.consumers(found)
        describer = ConsumerDescriber(view, self._statistics)
        return await answer_list(call, consumers, describer.describe, describer.keys(), view.consumers.is_gone)

    async def cancel_consumer(self, call: Call) -> None:
        view = self._view
        connection = the_connection_to_close(call, view)
        if view.connections.vhost(connection) != call.params["vhost"]:
            raise not_found()
        try:
            number = integer(call.params["number"])
        except ValueError:
            raise bad_request("the channel is not a number") from None
        consumer = view.consumers.maybe(connection, number, call.params["consumer"])
        if consumer is None:
            raise not_found()
        if not view.consumers.cancel(consumer, reason_of(call, CANCELLED_BY_MANAGEMENT)):
            raise bad_request("clients of this protocol cannot be notified of that; close the connection instead")

    ROUTES: ClassVar = (
        Route("GET", "/api/consumers", Access.USER, list_consumers, "Consumers of all vhosts", query=QUERY),
        Route(
            "GET",
            "/api/consumers/{vhost}",
            Access.VHOST_VISIBLE,
            list_consumers,
            "Consumers of a vhost, or of one of its queues",
            query=(*QUERY, "queue"),
        ),
        Route(
            "DELETE",
            "/api/consumers/{vhost}/{connection}/{number}/{consumer}",
            Access.VHOST_VISIBLE,
            cancel_consumer,
            "Cancel a consumer: one's own, or any as administrator (Warren only); X-Reason: the reason",
        ),
    )
