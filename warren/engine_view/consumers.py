"""Consumers: rows, what they owe, and cancelling them.

1. The oldest unanswered delivery of a consumer is looked for among the oldest `LOOK_DELIVERIES` of its channel, once
   for an answer (`DeliveryAges`): a channel may have 10,000 consumers and half a million deliveries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, cast

import msgspec

from warren.channels.broker import Broker
from warren.channels.consuming import cancel_by_operator
from warren.channels.peer import Peer
from warren.channels.session import Session
from warren.engine_view.connections import ChannelEnds, channel_ends, channel_name
from warren.engine_view.queues import sole_consumer
from warren.engine_view.refs import ChannelRef, ConnectionRef, ConsumerRef
from warren.queues.consumer import Consumer
from warren.queues.delivery import DeliveryLedger
from warren.streams.stream import Stream

LOOK_DELIVERIES: Final = 4096


class ConsumerRow(msgspec.Struct, frozen=True):
    """A consumer. `channel` is None within the broker; `next_offset` is -1 for an inactive one of a stream.

    `arguments`: an encoded field table; `timeout_ms`: for how long a delivery may be unanswered, 0 without a limit;
    `sharing`: the consumers of its channel.
    """

    tag: str
    queue: str
    vhost: str
    arguments: bytes
    no_ack: bool
    is_active: bool
    is_single_active: bool
    channel: ChannelEnds | None
    exclusive: bool
    prefetch_count: int
    unacked: int
    sharing: int
    next_offset: int | None
    timeout_ms: int


def _channel_of(consumer: Consumer) -> str:
    channel = consumer.owner
    return channel_name(channel) if isinstance(channel, Session) else ""


def _client_of(consumer: Consumer) -> str:
    channel = consumer.owner
    return channel.peer.login.name if isinstance(channel, Session) else ""


def _user_of(consumer: Consumer) -> str:
    channel = consumer.owner
    return channel.peer.login.user_name if isinstance(channel, Session) else ""


def _key(key: Callable[[Consumer], object]) -> Callable[[ConsumerRef], object]:
    return cast("Callable[[ConsumerRef], object]", key)


class Consumers:
    """The consumers of one engine. `settle` ends the turn of a command."""

    # Fields by which lists are filtered and sorted without a row of each item.
    KEYS: Final[Mapping[str, Callable[[ConsumerRef], object]]] = {
        "name": _key(lambda each: f"{each.tag} {each.queue.name} {_channel_of(each)} {_client_of(each)}"),
        "consumer_tag": _key(lambda each: each.tag),
        "queue.name": _key(lambda each: each.queue.name),
        "queue.vhost": _key(lambda each: each.queue.vhost_name),
        "channel_details.name": _key(_channel_of),
        "channel_details.user_provided_name": _key(_client_of),
        "channel_details.user": _key(_user_of),
        "prefetch_count": _key(lambda each: int(each.wanted_prefetch)),
        "messages_unacknowledged": _key(lambda each: int(each.outstanding)),
    }

    def __init__(self, broker: Broker, settle: Callable[[], None]) -> None:
        self._broker = broker
        self._settle = settle

    def maybe(self, connection: ConnectionRef, number: int, tag: str) -> ConsumerRef | None:
        """Return the consumer with this tag on the channel with this number of `connection`."""
        assert isinstance(connection, Peer)
        channel = connection.channels.get(number)
        if not isinstance(channel, Session) or not channel.is_open():
            return None
        consumer = channel.ledger.consumers.get(tag)
        return None if consumer is None else ConsumerRef(consumer)

    def row(self, ref: ConsumerRef) -> ConsumerRow:
        """Return a consumer."""
        assert isinstance(ref, Consumer)
        consumer = ref
        queue, owner = consumer.queue, consumer.owner
        offset = queue.offset_of(consumer) if isinstance(queue, Stream) else None
        is_single = queue.rules.single_active
        # Of a stream's group only one is served.
        is_active = offset != -1 and (not is_single or sole_consumer(queue) is consumer)
        return ConsumerRow(
            consumer.tag,
            queue.name,
            queue.vhost_name,
            consumer.arguments,
            consumer.no_ack,
            is_active,
            is_single,
            channel_ends(owner, self._broker.node) if isinstance(owner, Session) else None,
            consumer.exclusive,
            int(consumer.wanted_prefetch),
            int(consumer.outstanding),
            len(consumer.ledger.consumers),
            offset,
            self._timeout_ms(consumer),
        )

    def _timeout_ms(self, consumer: Consumer) -> int:
        if consumer.timeout_ms >= 0:
            return int(consumer.timeout_ms)
        return int(self._broker.limits.delivery_timeout_s * 1000) if consumer.queue.rules.is_quorum else 0

    def is_gone(self, consumer: ConsumerRef) -> bool:
        """Tell whether a consumer has been cancelled, or its queue deleted."""
        assert isinstance(consumer, Consumer)
        return consumer.gone or consumer.queue.deleted

    def channel(self, consumer: ConsumerRef) -> tuple[ChannelRef | None, bool]:
        """Return the channel of a consumer, None within the broker, and whether it consumes without acks."""
        assert isinstance(consumer, Consumer)
        owner = consumer.owner
        return ChannelRef(owner) if isinstance(owner, Session) else None, consumer.no_ack

    def ages(self) -> DeliveryAges:
        """Return what knows how long deliveries have waited, for one answer."""
        return DeliveryAges(self._broker)

    def cancel(self, ref: ConsumerRef, reason: str) -> bool:
        """Cancel a consumer of a client; False: its protocol has no way to tell the client."""
        assert isinstance(ref, Consumer)
        channel = ref.owner
        assert isinstance(channel, Session)
        cancelled = cancel_by_operator(channel, ref, reason)
        self._settle()
        return cancelled


class DeliveryAges:
    """Knows the oldest delivery of each consumer, as far as it was asked."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._oldest: dict[DeliveryLedger, dict[Consumer, int]] = {}

    def maybe_oldest_ms(self, consumer: ConsumerRef) -> int | None:
        """Return for how long its oldest delivery has been unanswered, as exact as the channel notes the time.

        None if it owes nothing, or if its deliveries are behind `LOOK_DELIVERIES` older ones of its channel.
        """
        assert isinstance(consumer, Consumer)
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
