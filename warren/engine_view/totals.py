"""Sums over all queues, channels and connections, for the page on which no single one is shown.

1. Counters among them never go back: queues that are deleted are remembered in a sum (`GoneQueues`), channels and
   connections by the engine.
2. A walk runs in pieces of about a millisecond. It counts the objects that existed when it began; a queue that is
   deleted meanwhile is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, TypeVar

from warren.channels.broker import Broker
from warren.channels.peer import Peer
from warren.channels.session import CHANNEL_CLOSING, Session
from warren.engine_view.connections import channel_state
from warren.engine_view.queues import queue_deliveries
from warren.queues.arguments import LONG_TYPES
from warren.queues.base_queue import BaseQueue
from warren.vhosts.topology_watcher import TopologyWatcher

CHUNK: Final = 32
DELIVERIES: Final = 7  # numbers in `queue_deliveries`
CHANNEL_STATES: Final = 7  # numbers in `channel_state`

Item = TypeVar("Item")


class GoneQueues(TopologyWatcher):
    """Deliveries from queues that have been deleted: ``deliveries`` by their type."""

    def __init__(self) -> None:
        self.deliveries = {kind: [0] * DELIVERIES for kind in LONG_TYPES}
        self._highest: list[int] = []  # the highest returned value of each counter

    def keep_up(self, totals: Totals) -> None:
        """Raise the counters of `totals` to their earlier values, if they are less.

        When a vhost is deleted its queues disappear first; `GoneQueues` remembers them some turns later. A channel or
        connection that ends while it is counted may have counted a little more than the engine remembers of it.
        """
        now = [totals.received_bytes, totals.sent_bytes, *chain.from_iterable(totals.deliveries.values())]
        if self._highest:
            now = [max(before, number) for before, number in zip(self._highest, now, strict=True)]
        self._highest = now
        totals.received_bytes, totals.sent_bytes = now[:2]
        for place, kind in enumerate(totals.deliveries):
            start = 2 + place * DELIVERIES
            totals.deliveries[kind] = now[start : start + DELIVERIES]

    def queue_deleted(self, vhost: str, queue: BaseQueue, by: str) -> None:
        _add(self.deliveries[queue.rules.queue_type], queue_deliveries(queue))

    def queue_let_go(self, queue: BaseQueue) -> None:
        _add(self.deliveries[queue.rules.queue_type], queue_deliveries(queue))


class Totals:
    """The outcome of one walk."""

    def __init__(self) -> None:
        self.queues = 0
        self.messages = 0
        self.ready = 0
        self.unacked = 0
        self.message_bytes = 0
        self.ready_bytes = 0
        self.unacked_bytes = 0
        self.persistent = 0
        self.persistent_bytes = 0
        self.memory_bytes = 0
        self.paged_out = 0
        self.paged_out_bytes = 0
        self.consumers = 0
        self.delayed = 0  # messages that wait in delayed message exchanges
        self.deliveries: dict[str, list[int]] = {}  # by queue type
        self.publishers = 0
        self.channel_state = [0] * CHANNEL_STATES
        self.received_bytes = 0
        self.sent_bytes = 0
        self.protocols: dict[str, int] = {}  # connections that have begun to log in, by protocol and version
        self.waiting_bytes = 0  # written for clients, not yet taken by the kernel

    def add_queues(self, queues: Sequence[BaseQueue]) -> None:
        """Count some queues."""
        rows: dict[str, list[tuple[int, ...]]] = {kind: [] for kind in LONG_TYPES}
        for queue in queues:
            ready = int(queue.ready_count)
            if ready:
                on_disk = queue.ready.paged_out_count()
                self.ready += ready
                self.ready_bytes += int(queue.ready_bytes)
                self.paged_out += on_disk
                self.paged_out_bytes += queue.ready.paged_out_bytes()
                self.memory_bytes += queue.ready.memory_bytes()
            self.messages += int(queue.message_count)
            self.unacked += int(queue.unacked_count)
            self.message_bytes += int(queue.message_bytes)
            self.unacked_bytes += int(queue.unacked_bytes)
            persistent, persistent_bytes = queue.persistent()
            self.persistent += persistent
            self.persistent_bytes += persistent_bytes
            self.consumers += len(queue.consumers)
            rows[queue.rules.queue_type].append(queue_deliveries(queue))
        for kind, found in rows.items():
            if found:
                _add(self.deliveries[kind], [sum(column) for column in zip(*found, strict=True)])

    def add_channels(self, channels: Sequence[object]) -> None:
        """Count some channels."""
        rows: list[tuple[int, ...]] = []
        for channel in channels:
            if isinstance(channel, Session) and channel.state != CHANNEL_CLOSING:
                rows.append(channel_state(channel))
                self.publishers += int(channel.published) > 0
        if rows:
            _add(self.channel_state, [sum(column) for column in zip(*rows, strict=True)])

    def add_connection(self, peer: Peer) -> None:
        """Count the bytes of a connection, and itself."""
        if peer.login.has_begun:
            shown = peer.origin.shown(peer.protocol)
            self.protocols[shown] = self.protocols.get(shown, 0) + 1
        self.received_bytes += int(peer.received_bytes)
        self.sent_bytes += int(peer.outbox.sent_bytes)
        self.waiting_bytes += int(peer.outbox.waiting_bytes())


class TotalsWalk:
    """Takes the sums over all objects of one engine, again and again."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._gone = GoneQueues()
        broker.watchers.add(self._gone)

    def walk(self) -> Iterator[Totals | None]:
        """Yield None after each piece of work, and the sums at last. One walk at a time."""
        broker, gone = self._broker, self._gone
        totals = Totals()
        churn = broker.churn
        # All of this without a pause: objects that end later are in these lists, and not in the sums of the gone ones.
        totals.deliveries = {kind: list(numbers) for kind, numbers in gone.deliveries.items()}
        queues = [list(vhost.queues.values()) for vhost in broker.vhosts.values()]
        delayed = [list(vhost.held.values()) for vhost in broker.vhosts.values()]
        connections = list(broker.connections.values())
        totals.received_bytes, totals.sent_bytes = churn.received_bytes, churn.sent_bytes
        for some_queues in queues:
            totals.queues += len(some_queues)
            for queue_chunk in chunks(some_queues):
                totals.add_queues(queue_chunk)
                yield None
        for some_delayed in delayed:
            for delayed_chunk in chunks(some_delayed):
                totals.delayed += sum(int(each.count) for each in delayed_chunk)
                yield None
        for peer in connections:
            if not peer.origin.is_direct:
                totals.add_connection(peer)
                for channel_chunk in chunks(list(peer.channels.values())):
                    totals.add_channels(channel_chunk)
                    yield None
        gone.keep_up(totals)
        yield totals


def chunks(items: Iterable[Item]) -> Iterable[list[Item]]:
    """Yield `items` in lists of at most `CHUNK`."""
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _add(sums: list[int], numbers: Sequence[int]) -> None:
    for at, number in enumerate(numbers):
        sums[at] += number
