"""Consumers: listed and described, with what they owe.

1. The oldest unanswered delivery of a consumer is looked for among the oldest `LOOK_DELIVERIES` of its channel, once
   for an answer: a channel may have 10,000 consumers and half a million deliveries.
2. The engine counts deliveries and acks of channels, not of consumers: a row has the rates of its channel, with the
   number of consumers that share them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, Final

from warren.channels.broker import Broker
from warren.channels.session import Session
from warren.mgmt_plugin.http.json_pieces import Rows
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import Response
from warren.mgmt_plugin.listing import QUERY, Described, answer_list
from warren.mgmt_plugin.metrics.statistics import Statistics
from warren.mgmt_plugin.names import channel_details, channel_name, node_name, the_vhost, visible_queues
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, not_found
from warren.mgmt_plugin.terms import table_to_json
from warren.queues.delivery import Consumer, DeliveryLedger
from warren.streams.stream import Stream

LOOK_DELIVERIES: Final = 4096


class ConsumerDescriber:
    """Describes consumers for one answer."""

    def __init__(self, broker: Broker, statistics: Statistics) -> None:
        self._broker = broker
        self._node = node_name(broker)
        self._rate = statistics.rate
        self._oldest: dict[DeliveryLedger, dict[Consumer, int]] = {}

    def describe(self, consumer: Consumer) -> Described:
        """Return a consumer."""
        queue = consumer.queue
        offset = queue.offset_of(consumer) if isinstance(queue, Stream) else None
        # Of a stream's group only one is served.
        active = offset != -1 and (not queue.single_active or queue.active_consumer() is consumer)
        channel = consumer.owner
        described: Described = {
            "arguments": table_to_json(consumer.arguments),
            "ack_required": not consumer.no_ack,
            "active": active,
            "activity_status": "single_active" if active and queue.single_active else "up" if active else "waiting",
            "channel_details": channel_details(channel, self._node) if isinstance(channel, Session) else {},
            "consumer_tag": consumer.tag,
            "exclusive": consumer.exclusive,
            "prefetch_count": int(consumer.wanted_prefetch),
            "queue": {"name": queue.name, "vhost": queue.vhost_name},
            "messages_unacknowledged": int(consumer.outstanding),
            "channel_stats": {
                "consumers": len(consumer.ledger.consumers),
                "deliver_rate": self.deliver_rate(consumer),
                "ack_rate": self._rate(channel, "ack") if isinstance(channel, Session) else 0.0,
            },
        }
        if offset is not None:
            described["next_offset"] = offset if active else None
        # Absent, not null: rabbitmqadmin cannot print that.
        oldest_ms = self.maybe_oldest_ms(consumer)
        if oldest_ms is not None:
            described["oldest_unacknowledged_ms"] = oldest_ms
        described["consumer_timeout"] = self._timeout_ms(consumer)
        return described

    def _timeout_ms(self, consumer: Consumer) -> int:
        """Return for how long a delivery may be unanswered; 0: without a limit, as rabbitmqadmin needs a number."""
        if consumer.timeout_ms >= 0:
            return int(consumer.timeout_ms)
        return int(self._broker.limits.delivery_timeout_s * 1000) if consumer.queue.rules.is_quorum else 0

    def deliver_rate(self, consumer: Consumer) -> float:
        """Return the deliveries of its channel per second: those that need an answer, or the others."""
        channel = consumer.owner
        if not isinstance(channel, Session):
            return 0.0
        return self._rate(channel, "deliver_no_ack" if consumer.no_ack else "deliver")

    def maybe_oldest_ms(self, consumer: Consumer) -> int | None:
        """Return for how long its oldest delivery has been unanswered, as exact as the ticks of the statistics.

        None if it owes nothing, or if its deliveries are behind `LOOK_DELIVERIES` older ones of its channel.
        """
        if consumer.outstanding == 0:
            return None
        ledger = consumer.ledger
        oldest = self._oldest.get(ledger)
        if oldest is None:
            oldest = self._oldest[ledger] = ledger.oldest_tags(LOOK_DELIVERIES)
        tag = oldest.get(consumer)
        if tag is None:
            return None
        now_s = self._broker.now_s
        return max(0, int(1000 * (now_s - ledger.delivered_by(tag, now_s))))

    def rows(self, consumers: Iterable[Consumer]) -> Rows:
        """Return some consumers as a list, those that are still there when it is sent."""
        return Rows(list(consumers), self.describe, lambda consumer: consumer.gone)


def _channel_of(consumer: Consumer) -> str:
    channel = consumer.owner
    return channel_name(channel) if isinstance(channel, Session) else ""


def _client_of(consumer: Consumer) -> str:
    channel = consumer.owner
    return channel.connection.name if isinstance(channel, Session) else ""


def _user_of(consumer: Consumer) -> str:
    channel = consumer.owner
    return channel.connection.user_name if isinstance(channel, Session) else ""


class ConsumerHandlers(Handlers):
    """Handlers of consumers."""

    def __init__(self, broker: Broker, statistics: Statistics) -> None:
        self._broker = broker
        self._statistics = statistics

    async def list_consumers(self, call: Call) -> Response:
        consumers: list[Consumer] = []
        only = call.query.get("queue")
        if only is None or "vhost" not in call.params:
            for queue in await visible_queues(call):
                consumers += queue.consumers
                await give_way()
        else:
            found = the_vhost(call).queues.get(only)
            if found is None:
                raise not_found()
            consumers += found.consumers
        describer = ConsumerDescriber(self._broker, self._statistics)
        keys: dict[str, Callable[[Consumer], object]] = {
            "name": lambda each: f"{each.tag} {each.queue.name} {_channel_of(each)} {_client_of(each)}",
            "consumer_tag": lambda each: each.tag,
            "queue.name": lambda each: each.queue.name,
            "queue.vhost": lambda each: each.queue.vhost_name,
            "channel_details.name": _channel_of,
            "channel_details.user_provided_name": _client_of,
            "channel_details.user": _user_of,
            "prefetch_count": lambda each: int(each.wanted_prefetch),
            "messages_unacknowledged": lambda each: int(each.outstanding),
            "oldest_unacknowledged_ms": describer.maybe_oldest_ms,
            "channel_stats.deliver_rate": describer.deliver_rate,
        }
        return await answer_list(call, consumers, describer.describe, keys, lambda consumer: consumer.gone)

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
    )
