"""The messages of a queue, looked at without a change, and taken out of it one by one.

1. A look is told when the messages have been read from disk. It is told within the engine's turn: the messages are
   still where they were seen, and may be taken out (`take`) or copied (`publish_copy`) there, in one frame of the log.
2. A message does not change. Its body is shared with the engine, and is not joined: it may be large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Final

import msgspec

from warren.channels.broker import Broker
from warren.channels.session import Session
from warren.engine_view.connections import channel_name, connection_name
from warren.engine_view.permissions import Rights
from warren.engine_view.refs import QueueRef
from warren.msgstore.log.message import Message as Message
from warren.queues.base_queue import BaseQueue
from warren.queues.browse import Cursor as Cursor
from warren.queues.browse import Seen as Seen
from warren.queues.browse import look, settle_seen, still_waits
from warren.queues.claims import ends_of, mark_of
from warren.queues.lanes import LANE_SHIFT as LANE_SHIFT
from warren.queues.lanes import NUMBER_MASK as NUMBER_MASK
from warren.queues.offset_queue import OffsetQueue
from warren.queues.queue import Queue
from warren.queues.unacked import Delivery, deliveries_of
from warren.vhosts.own_publishes import publish_copy
from warren.vhosts.virtual_host import VirtualHost

RUN_DELIVERIES: Final = 1024


class Holder(msgspec.Struct, frozen=True):
    """The client that has not answered a delivery."""

    connection: str
    channel: str
    user: str
    consumer_tag: str | None
    delivery_tag: int
    delivered_ms_ago: int


class Outstanding:
    """The deliveries of a queue that were not answered when this was made, some at a time: there may be a million.

    One that is answered meanwhile is among them.
    """

    def __init__(self, queue: BaseQueue, entries: list[Delivery | None]) -> None:
        self._runs = _runs(queue, entries)

    def __iter__(self) -> Iterator[list[tuple[int, Message]]]:
        """Yield places and messages, no more of them than one turn is good for. Callers give way meanwhile."""
        for run in self._runs:
            yield [(int(each.sequence_number), each.message) for each in run]


def _runs(queue: BaseQueue, entries: list[Delivery | None]) -> Iterator[list[Delivery]]:
    """Yield the deliveries of a queue, and forget them: a million would take long to be freed at once."""
    entries.reverse()
    while entries:
        run = entries[-RUN_DELIVERIES:]
        del entries[-RUN_DELIVERIES:]
        run.reverse()
        yield deliveries_of(queue, run)


class Browsing:
    """Looks into the queues of one engine. `settle` ends the turn of a command."""

    def __init__(self, broker: Broker, settle: Callable[[], None]) -> None:
        self._broker = broker
        self._vhosts: Mapping[str, VirtualHost] = broker.vhosts
        self._settle = settle

    def identity(self, queue: QueueRef) -> str:
        """Return what names a queue in this life of the broker, unlike any other of its name: its places mean the same.

        After a restart other messages may have the numbers of those that were only in memory.
        """
        assert isinstance(queue, BaseQueue)
        life = sha256(self._broker.log.life_id + b"queue").hexdigest()[:16]
        return f"{life}-{queue.ready.indexes.need_store_id()}"

    def cursor_at(self, place: int, *, in_backlog: bool) -> Cursor:
        """Return a cursor that looks at a place first, among messages that came back or in the backlog."""
        cursor = Cursor()
        cursor.lane = place >> LANE_SHIFT
        cursor.in_backlog = in_backlog
        cursor.number = place & NUMBER_MASK
        return cursor

    def look(self, queue: QueueRef, cursor: Cursor, most: int, told: Callable[[list[Seen]], None]) -> None:
        """Report the next messages that wait, and move the cursor."""
        assert isinstance(queue, BaseQueue)
        look(queue, cursor, most, told)
        self._settle()

    def is_in_order(self, queue: QueueRef) -> bool:
        """Tell whether messages leave a queue in the order in which they were published."""
        assert isinstance(queue, BaseQueue)
        return queue.ready.lane_count == 1 and not isinstance(queue, OffsetQueue)

    def lane_count(self, queue: QueueRef) -> int:
        """Return how many lanes of messages that wait a queue has."""
        assert isinstance(queue, BaseQueue)
        return queue.ready.lane_count

    def mark(self, queue: QueueRef) -> int:
        """Return a mark of the current end of a queue."""
        assert isinstance(queue, BaseQueue)
        return mark_of(queue)

    def ends(self, queue: QueueRef, mark: int) -> list[int]:
        """Return for each lane the number up to which messages came before `mark`."""
        assert isinstance(queue, BaseQueue)
        return ends_of(queue, mark)

    def outstanding(self, queue: QueueRef) -> Outstanding:
        """Return the deliveries that are not answered at present."""
        assert isinstance(queue, BaseQueue)
        found: list[Delivery | None] = []
        for peer in self._broker.connections.values():
            if peer.login.vhost_name == queue.vhost_name:
                for channel in peer.channels.values():
                    if isinstance(channel, Session) and channel.ledger.unacked_count:
                        found += channel.ledger.unanswered()
        return Outstanding(queue, found)

    def unacked(self, queue: QueueRef) -> Iterator[tuple[Message, Holder] | None]:
        """Yield each delivery that was not answered, and None before each channel and each part of a long one.

        Callers may give way meanwhile.
        """
        assert isinstance(queue, BaseQueue)
        now_s = self._broker.now_s
        for peer in list(self._broker.connections.values()):
            if peer.login.vhost_name != queue.vhost_name:
                continue
            for channel in list(peer.channels.values()):
                if not isinstance(channel, Session):
                    continue
                yield None
                for run in _runs(queue, channel.ledger.unanswered()):
                    yield None
                    for delivery in run:
                        tag, consumer = int(delivery.tag), delivery.consumer
                        holder = Holder(
                            connection_name(peer),
                            channel_name(channel),
                            peer.login.user_name,
                            None if consumer is None else consumer.tag,
                            tag,
                            max(0, int(1000 * (now_s - channel.ledger.delivered_by(tag, now_s)))),
                        )
                        yield delivery.message, holder

    # --- in the turn of a look --------------------------------------------------------------------------------------

    def waits(self, queue: QueueRef, seen: Seen) -> bool:
        """Tell whether a message still waits where it was seen."""
        assert isinstance(queue, BaseQueue)
        return still_waits(queue, seen)

    def is_expired(self, queue: QueueRef, message: Message) -> bool:
        """Tell whether a message of a queue only waits to be dropped."""
        keeper = queue.keeper if isinstance(queue, Queue) else None
        return keeper is not None and keeper.expiry.is_expired(message)

    def take(self, queue: QueueRef, seen: Seen) -> None:
        """Take a message out of its queue and forget it, if it still waits where it was seen."""
        assert isinstance(queue, BaseQueue)
        if still_waits(queue, seen):
            settle_seen(queue, seen)

    def check_publish(self, vhost: str, exchange: str, routing_key: str, rights: Rights) -> None:
        """Make sure that a user may publish to an exchange.

        Raises:
            ChannelException: 403, the user may not; 404, the exchange does not exist.
        """
        rights.principal.publishable(self._vhosts[vhost], exchange, routing_key)

    def publish_copy(
        self, vhost: str, message: Message, exchange: str, routing_key: str, rights: Rights
    ) -> tuple[int, bool]:
        """Publish a copy; return how many queues took it, and whether one refused it.

        Raises:
            ChannelException: as of `check_publish`.
        """
        found = self._vhosts[vhost]
        publishable = rights.principal.publishable(found, exchange, routing_key)
        return publish_copy(found, message, publishable, routing_key)
