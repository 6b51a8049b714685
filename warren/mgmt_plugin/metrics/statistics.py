"""Samples the counters of the engine, every `history.STEP_S`, so that rates and charts have a past.

1. Everything has a rate, of the last tick. The node, the broker and its vhosts always have a past; of queues (a day),
   exchanges and connections (an hour), and channels (ten minutes) at most `KEPT_MAX` have. One that begins to change
   takes the place of one that has rested for `REST_TICKS`, if there is one; one that somebody looks at takes the place
   of the longest resting one.
2. Sampling runs in pieces of about a millisecond. An object that has gone is forgotten at the next tick, a queue at
   once. A queue in which nothing has happened costs one comparison. So does a connection that has transferred no byte:
   its channels have done nothing that is counted, or nothing that has been sent yet.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, Final

import trio

from warren.engine_view.counters import (
    CHANNEL_STATS,
    CONNECTION_FIELDS,
    EXCHANGE_STATS,
    LENGTHS,
    QUEUE_FIELDS,
    Lengths,
    message_stats,
)
from warren.engine_view.engine_view import EngineView
from warren.engine_view.refs import ConnectionRef, QueueRef
from warren.mgmt_plugin.http.numbers import integer
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.listing import PAGE_SIZE_MAX
from warren.mgmt_plugin.metrics.history import A_DAY, AN_HOUR, STEP_S, Clock, Series
from warren.queues.counters import MessageCounts, Sums
from warren.server.beats import beat_after

KEPT_MAX: Final = 2000
# Of each field, in all items of a list together; but so many of each item.
SAMPLES_IN_LIST: Final = 100_000
SAMPLES_MIN: Final = 2
REST_TICKS: Final = 12
# The memory of a series besides its rows, and of an entry for an object; about.
SERIES_BYTES: Final = 1000
ROW_BYTES: Final = 120
CHURN: Final = (
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
)
TOTAL_FIELDS: Final = (*LENGTHS, *CHANNEL_STATS, *CONNECTION_FIELDS)
BROKER_FIELDS: Final = (*TOTAL_FIELDS, *CHURN)
# How far back single objects reach. Channels come and go, and have many fields.
_COARSE: Final = {QUEUE_FIELDS: A_DAY, EXCHANGE_STATS: AN_HOUR, CONNECTION_FIELDS: AN_HOUR}
# Shared by all in which nothing has happened yet.
ZEROS: Final = {
    len(fields): (0,) * len(fields) for fields in (QUEUE_FIELDS, CHANNEL_STATS, EXCHANGE_STATS, CONNECTION_FIELDS)
}
CHUNK: Final = 500
# Levels of the node and its message store, and the counters of the store since the start.
NODE_FIELDS: Final = (
    "mem_used",
    "fd_used",
    "sockets_used",
    "disk_free",
    "proc_used",
    "store_bytes",
    "store_live_bytes",
    "msg_store_write_count",
    "msg_store_read_count",
    "io_write_bytes",
    "io_sync_count",
)


@dataclass(frozen=True, slots=True)
class Ranges:
    """How far back each group of samples is wanted, and how far apart: seconds, 0 for none."""

    lengths: tuple[int, int] = (0, 0)
    messages: tuple[int, int] = (0, 0)
    data: tuple[int, int] = (0, 0)
    node: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, query: Mapping[str, str], items: int = 1) -> Ranges:
        """Read the ranges from a query string; the more `items` a list has, the fewer samples each field gets."""
        if "page" in query:
            items = min(items, PAGE_SIZE_MAX)
        most = max(SAMPLES_MIN, SAMPLES_IN_LIST // max(1, items))
        return cls(
            _range(query, "lengths", most),
            _range(query, "msg_rates", most),
            _range(query, "data_rates", most),
            _range(query, "node_stats", most),
        )


def _range(query: Mapping[str, str], prefix: str, most: int) -> tuple[int, int]:
    try:
        age, incr = integer(query.get(f"{prefix}_age", "0")), integer(query.get(f"{prefix}_incr", "0"))
    except ValueError:
        return 0, 0
    return (min(age, incr * (most - 1)), incr) if age > 0 and incr > 0 else (0, 0)


RANGE_QUERY: Final = tuple(
    f"{prefix}_{end}" for prefix in ("lengths", "msg_rates", "data_rates", "node_stats") for end in ("age", "incr")
)


class Statistics:
    """The past of one broker. `node_row` returns `NODE_FIELDS` of its node now."""

    def __init__(self, view: EngineView, node_row: Callable[[], tuple[int, ...]]) -> None:
        self.node_row = node_row
        self._node_series = Series(NODE_FIELDS, coarse=A_DAY)
        self.clock = Clock()
        self._view = view
        self._kept: OrderedDict[object, Series] = OrderedDict()
        self._seen: dict[object, tuple[int, ...]] = {}  # the last row of everything but queues
        self._again = 0  # how many of these have been seen again in this tick
        self._queue_rows: dict[object, tuple[int, ...]] = {}  # the last row of every queue
        self._queue_lists: dict[str, list[QueueRef]] = {}  # of vhosts, as long as no queue goes
        self._before: dict[object, tuple[int, ...]] = {}  # the row before, of objects changed in the last tick
        self._octets: dict[str, list[int]] = {}  # received from and sent to all clients of a vhost, ever
        self._changed_ms: dict[object, int] = {}  # when a row was last another one
        self._broker_series = Series(BROKER_FIELDS, coarse=A_DAY)
        self._vhost_series: dict[str, Series] = {}
        view.queues.watch_gone(self.forget_queue)

    async def run(self) -> None:
        """Sample without end."""
        next_s = beat_after()
        while True:
            await self.sample()
            next_s = max(next_s + STEP_S, beat_after())
            await trio.sleep_until(next_s)

    async def sample(self) -> None:
        """Take the samples of one tick."""
        clock = self.clock
        clock.tick += 1
        clock.time_ms = int(time.time() * 1000)
        tick = clock.tick
        view = self._view
        queues, exchanges, connections = view.queues, view.exchanges, view.connections
        totals = [0, 0, 0]
        seen: dict[object, tuple[int, ...]] = {}
        changed: dict[object, tuple[int, ...]] = {}
        for connection in connections.all():
            row = connections.counters([connection])[0]
            before = self._seen.get(connection)
            rests = before is not None and before == row
            if rests and before is not None:
                seen[connection] = before
                self._again += 1
            else:
                self._count_octets(connection, row)
                self._take(connection, CONNECTION_FIELDS, row, seen, changed)
            now_s = view.now_s()
            for channel in connections.channels(connection):
                channel_before = self._seen.get(channel) if rests else None
                if channel_before is not None:
                    seen[channel] = channel_before
                    self._again += 1
                else:
                    self._take(channel, CHANNEL_STATS, connections.channel_counters([channel])[0], seen, changed)
                connections.note_time(channel, now_s)  # how old deliveries are is known to a tick then
            await give_way()
        sums = view.sums()
        for vhost in list(view.vhosts):
            lengths = Lengths()
            some_queues = self._queues_of(vhost)
            for start in range(0, len(some_queues), CHUNK):
                some = queues.changed(some_queues, start, start + CHUNK, lengths)
                for queue, row in zip(some, queues.counters(some), strict=True):
                    self._take(queue, QUEUE_FIELDS, row, self._queue_rows, changed)
                await give_way()
            some_exchanges = exchanges.in_vhost(vhost)
            for start in range(0, len(some_exchanges), CHUNK):
                chunk = some_exchanges[start : start + CHUNK]
                active = exchanges.changed(chunk)
                # Of those that rest; of the others it follows.
                seen.update(zip(chunk, map(self._seen.get, chunk, repeat(())), strict=True))
                self._again += len(chunk) - len(active)
                for exchange, row in zip(active, exchanges.counters(active), strict=True):
                    self._take(exchange, EXCHANGE_STATS, row, seen, changed)
                await give_way()
            of_vhost = (int(lengths.messages), int(lengths.ready), int(lengths.unacked))
            row = self.vhost_row(vhost, of_vhost, sums.by_vhost.get(vhost, MessageCounts()))
            self._vhost_series.setdefault(vhost, Series(TOTAL_FIELDS, coarse=A_DAY)).take(tick, row)
            totals = [before + more for before, more in zip(totals, of_vhost, strict=True)]
        self._broker_series.take(tick, self.broker_row(totals, sums))
        with suppress(OSError):  # the disk does not answer, or descriptors cannot be counted for lack of one
            self._node_series.take(tick, self.node_row())
        self._take_watched()
        self._before = changed
        self._forget_gone(seen)

    def _queues_of(self, vhost: str) -> list[QueueRef]:
        """Return the queues of a vhost, the same list until they are others: a copy takes as long as the comparison."""
        queues = self._queue_lists.get(vhost, [])
        if len(queues) != self._view.queues.count(vhost):
            queues = self._queue_lists[vhost] = self._view.queues.in_vhost(vhost)
        return queues

    def _count_octets(self, connection: ConnectionRef, row: tuple[int, ...]) -> None:
        """Add the bytes of a connection since the last tick to its vhost, received and sent: sums must not go back."""
        received, sent = self._seen.get(connection, (0, 0))
        octets = self._octets.setdefault(self._view.connections.vhost(connection), [0, 0])
        octets[0] += row[0] - received
        octets[1] += row[1] - sent

    def _take(
        self,
        item: object,
        fields: tuple[str, ...],
        row: tuple[int, ...],
        seen: dict[object, tuple[int, ...]],
        changed: dict[object, tuple[int, ...]],
    ) -> None:
        before = self._row_of(item)
        if before is not None and seen is not self._queue_rows:
            self._again += 1
        if before == row:
            seen[item] = before  # the same object: most things are idle, and there may be many
            return
        seen[item] = row if any(row) else ZEROS[len(row)]
        self._changed_ms[item] = self.clock.time_ms
        if before is not None:
            changed[item] = before
            if seen is self._queue_rows:
                self._before[item] = before  # its rate needs this row and the new one, also before all are taken
        series = self._kept.get(item)
        if series is not None:
            self._kept.move_to_end(item)
        elif (before is None and not any(row)) or not self._has_place():
            return
        else:
            series = self._keep(item, fields)
            if before is not None:
                series.take(self.clock.tick - 1, before)
        series.take(self.clock.tick, row)

    def _take_watched(self) -> None:
        """Begin the past of an unchanged object that somebody has begun to look at."""
        for item, series in self._kept.items():
            if series.is_empty() and (row := self._row_of(item)) is not None:
                series.take(self.clock.tick, row)

    def _last(self, item: object) -> tuple[int, ...]:
        row = self._row_of(item)
        assert row is not None
        return row

    def _row_of(self, item: object) -> tuple[int, ...] | None:
        """Return the last row of anything; None: it has no row yet."""
        row = self._queue_rows.get(item)
        return self._seen.get(item) if row is None else row

    def forget_queue(self, vhost: str, queue: QueueRef) -> None:
        """Forget a queue that is gone."""
        self._queue_lists.pop(vhost, None)
        self._queue_rows.pop(queue, None)
        self._changed_ms.pop(queue, None)
        self._kept.pop(queue, None)
        self._before.pop(queue, None)

    def _has_place(self) -> bool:
        """Tell whether something may begin to have a past."""
        if len(self._kept) < KEPT_MAX:
            return True
        rested_ms = self.clock.time_ms - self._changed_ms.get(next(iter(self._kept)), 0)
        return rested_ms >= REST_TICKS * STEP_S * 1000

    def _keep(self, item: object, fields: tuple[str, ...]) -> Series:
        series = Series(fields, coarse=_COARSE.get(fields, 0))
        self._kept[item] = series
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return series

    def _forget_gone(self, seen: dict[object, tuple[int, ...]]) -> None:
        for item in [item for item, of in self._kept.items() if of.fields is not QUEUE_FIELDS and item not in seen]:
            del self._kept[item]
        if self._again < len(self._seen):
            for item in self._seen.keys() - seen.keys():
                self._changed_ms.pop(item, None)
        self._seen = seen
        self._again = 0
        for name in [name for name in self._vhost_series if name not in self._view.vhosts]:
            del self._vhost_series[name]
        for name in [name for name in self._octets if name not in self._view.vhosts]:
            del self._octets[name]

    def memory_bytes(self) -> int:
        """Return about how much memory the past takes."""
        series = [self._broker_series, self._node_series, *self._vhost_series.values(), *self._kept.values()]
        seen = len(self._seen) + len(self._queue_rows) + len(self._before)
        return sum(each.memory_bytes() + SERIES_BYTES for each in series) + seen * ROW_BYTES

    # --- rows now -----------------------------------------------------------------------------------------------------

    def vhost_row(self, name: str, lengths: Sequence[int], counts: MessageCounts | None = None) -> tuple[int, ...]:
        """Return `TOTAL_FIELDS` of a vhost; `counts`, if they are known, are its totals."""
        received, sent = self._octets.get(name, (0, 0))
        return (*lengths, *message_stats(self._view.counts(name) if counts is None else counts), received, sent)

    def broker_row(self, lengths: Sequence[int], sums: Sums | None = None) -> tuple[int, ...]:
        """Return `BROKER_FIELDS`; `sums`, if they are known, are those of the broker."""
        churn = self._view.churn()
        if sums is None:
            sums = self._view.sums()
        return (
            *lengths,
            *message_stats(sums.everywhere),
            int(sums.received_bytes),
            int(sums.sent_bytes),
            churn.connections_opened,
            churn.connections_closed,
            churn.channels_opened,
            churn.channels_closed,
            churn.queues_declared,
            churn.queues_created,
            churn.queues_deleted,
        )

    # --- what is shown ------------------------------------------------------------------------------------------------

    def rate(self, item: object, fields: tuple[str, ...], field: str) -> float:
        """Return the rate of one of the `fields` of an object, per second."""
        before = self._before.get(item)
        if before is None:
            return 0.0
        at = fields.index(field)
        return (self._last(item)[at] - before[at]) / STEP_S

    def grown(self, queue: QueueRef, messages: int, span_s: int) -> int:
        """Return the growth of a queue that has `messages` now over `span_s`, or over all of its known past."""
        series = self._kept.get(queue)
        if series is None or series.is_empty():
            return 0
        return messages - int(series.before(self.clock.tick - span_s // STEP_S)[0])

    def oldest_ms(self, queue: QueueRef, messages: int, published: int) -> tuple[int, bool]:
        """Return for how long the oldest message of a queue has been there, and whether it may be longer.

        It follows from the counts: as many messages as are there now came after it. Where messages leave out of turn,
        as with priorities, it is an estimate.
        """
        clock = self.clock
        series = self._kept.get(queue)
        if series is None or series.is_empty():
            changed_ms = self._changed_ms.get(queue)
            return (0 if changed_ms is None else max(0, clock.time_ms - changed_ms)), True
        came_before = published - messages
        if came_before >= self._last(queue)[QUEUE_FIELDS.index("publish")]:
            return 0, False  # since the last tick
        tick, known = series.tick_above("publish", came_before)
        return max(0, clock.tick - tick) * STEP_S * 1000, not known

    def maybe_arrived_ms(self, queue: QueueRef, came_before: int) -> int | None:
        """Return by when the message had arrived before which `came_before` were published, in ms since the epoch.

        It follows from the counts, as in `oldest_ms`; None if it was there before the past that is known.
        """
        series = self._kept.get(queue)
        if series is None or series.is_empty():
            return None
        if came_before >= self._last(queue)[QUEUE_FIELDS.index("publish")]:
            return self.clock.time_ms
        tick, known = series.tick_above("publish", came_before)
        return self.clock.time_of(tick) if known else None

    def idle_since(self, item: object) -> str | None:
        """Return since when nothing has happened to an object, as exact as the ticks; None while something does."""
        changed_ms = self._changed_ms.get(item)
        if changed_ms is None or changed_ms >= self.clock.time_ms:
            return None
        return datetime.fromtimestamp(changed_ms / 1000, UTC).isoformat(timespec="milliseconds")

    def idle_ms(self, item: object) -> int:
        """Return for how long nothing has happened to an object, as exact as the ticks; 0 while something does."""
        now_ms = self.clock.time_ms
        return max(0, now_ms - self._changed_ms.get(item, now_ms))

    def watch(self, item: object, fields: tuple[str, ...]) -> None:
        """Keep the past of `item`: somebody looks at it."""
        if item in self._kept:
            self._kept.move_to_end(item)
        else:
            self._keep(item, fields)

    def of(self, item: object, fields: tuple[str, ...], row: Sequence[int]) -> Shown:
        """Return the statistics of an object whose fields are `row` now."""
        before = self._before.get(item)
        rates: Sequence[float] | None = None
        if before is not None:
            rates = [(now - then) / STEP_S for now, then in zip(self._last(item), before, strict=True)]
        return Shown(self._kept.get(item), self.clock, fields, row, rates)

    def of_vhost(self, name: str, lengths: Sequence[int], counts: MessageCounts | None = None) -> Shown:
        """Return the statistics of a vhost; `counts`, if they are known, are its totals."""
        return Shown(self._vhost_series.get(name), self.clock, TOTAL_FIELDS, self.vhost_row(name, lengths, counts))

    def of_vhosts(self, vhosts: Sequence[str], lengths: Sequence[int]) -> Shown:
        """Return the statistics of some vhosts together: sums, and the past only when it is one of them."""
        if len(vhosts) == 1:
            return self.of_vhost(vhosts[0], lengths)
        sums = [0] * len(TOTAL_FIELDS)
        counts = self._view.counts_by_vhost()
        for vhost in vhosts:
            row = self.vhost_row(vhost, (0, 0, 0), counts[vhost])
            sums = [before + more for before, more in zip(sums, row, strict=True)]
        return Shown(None, self.clock, TOTAL_FIELDS, (*lengths, *sums[3:]))

    def of_node(self) -> Shown:
        """Return the statistics of the node."""
        return Shown(self._node_series, self.clock, NODE_FIELDS, self.node_row())

    def of_broker(self, lengths: Sequence[int]) -> Shown:
        """Return the statistics of the whole broker."""
        return Shown(self._broker_series, self.clock, BROKER_FIELDS, self.broker_row(lengths))


@dataclass(frozen=True, slots=True)
class Shown:
    """Fields of one object with their past. `rates` where they are not those of the series; None: it rests."""

    series: Series | None
    clock: Clock
    fields: tuple[str, ...]
    row: Sequence[int]
    rates: Sequence[float] | None = None

    def add(self, to: dict[str, Any], names: Sequence[str], over: tuple[int, int] = (0, 0)) -> None:
        """Add fields and their details to a description."""
        for name in names:
            at = self.fields.index(name)
            value = self.row[at]
            to[name] = value
            details: dict[str, object] = {"rate": 0.0}
            if over[0]:
                series = Series((name,)) if self.series is None else self.series
                details = series.details(self.clock, name, value, *over)
            elif self.series is not None and self.rates is None:
                details = self.series.details(self.clock, name, value, *over)
            if self.rates is not None:
                details["rate"] = self.rates[at]
            to[f"{name}_details"] = details

    def message_stats(self, names: Sequence[str], over: tuple[int, int] = (0, 0)) -> dict[str, Any]:
        """Return the object ``message_stats``, empty when nothing has happened yet."""
        stats: dict[str, Any] = {}
        if any(self.row[self.fields.index(name)] for name in names):
            self.add(stats, names, over)
        return stats
