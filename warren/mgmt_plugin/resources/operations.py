"""Operator functions beyond RabbitMQ's API: pause queues, release held messages, see topology and store."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec
import trio
from msgspec.structs import asdict

from warren.engine_view.counters import EXCHANGE_STATS, QUEUE_FIELDS
from warren.engine_view.engine_view import EngineView
from warren.engine_view.permissions import CONFIGURE, READ, WRITE
from warren.engine_view.refs import BindingRef, ExchangeRef, QueueRef
from warren.engine_view.totals import chunks
from warren.mgmt_plugin.http.json_pieces import Rows
from warren.mgmt_plugin.http.numbers import integer
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.listing import Described, in_order
from warren.mgmt_plugin.metrics.statistics import Statistics
from warren.mgmt_plugin.names import (
    the_queue,
    the_shared_queue,
    visible_connections,
    visible_queues,
    visible_vhost_names,
)
from warren.mgmt_plugin.resources.browsing import held_messages, lane_of
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request
from warren.mgmt_plugin.terms import table_to_json
from warren.server.histogram import Histogram
from warren.server.message_store import MessageStoreService
from warren.server.network.reactor import Reactor

RELEASE_PIECE: Final = 1000
# If all messages shall be released and there are more than this, the broker releases them in the background.
RELEASED_AT_ONCE: Final = 10_000
SEARCH_MAX: Final = 500


class Release(msgspec.Struct, forbid_unknown_fields=True):
    """The number of held messages to release, the earliest first; all of them without a number."""

    count: int | None = None


def times_ms(histogram: Histogram) -> Described:
    """Return the values of a histogram of seconds, in milliseconds."""
    quantiles = {name: histogram.maybe_quantile(share) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}
    shown: Described = {name: None if value is None else round(value * 1000, 3) for name, value in quantiles.items()}
    shown["count"] = int(histogram.count)
    return shown


_Q: Final = "/api/warren/queues/{vhost}/{queue}"
_USE: Final = Access.VHOST
_SEE: Final = Access.VHOST_VISIBLE


class QueueOperationHandlers(Handlers):
    """Handlers of actions on queues."""

    def __init__(self, view: EngineView) -> None:
        self._view = view

    async def pause(self, call: Call) -> None:
        await self._set_paused(call, paused=True)

    async def resume(self, call: Call) -> None:
        await self._set_paused(call, paused=False)

    async def _set_paused(self, call: Call, *, paused: bool) -> None:
        queue = the_shared_queue(call, self._view)
        call.authorize(CONFIGURE, "queue", call.params["queue"])
        self._view.queues.pause(queue, paused=paused)

    async def release_held(self, call: Call) -> Described:
        wanted = await call.body(Release)
        queue = the_shared_queue(call, self._view)
        lane = lane_of(call)
        call.authorize(READ, "queue", call.params["queue"])
        call.authorize(WRITE, "queue", call.params["queue"])
        held = self._view.held
        there = held.row(queue, lane).messages
        if there == 0:
            return {"released": 0}
        count = there if wanted.count is None else wanted.count
        if wanted.count is None and count > RELEASED_AT_ONCE:
            held.release_all(queue, lane)  # continues after the answer
            return {"released": count}
        if count < 0:
            raise bad_request("count must not be negative")
        released = 0
        while released < count:
            listed = await held_messages(self._view, queue, lane, min(RELEASE_PIECE, count - released))
            if not listed:
                break
            done = trio.Event()
            taken: list[int] = []

            def told(count: int, taken: list[int] = taken, done: trio.Event = done) -> None:
                taken.append(count)
                done.set()

            held.release(queue, lane, [each.number for each in listed], told)
            await done.wait()
            if taken[0] == 0:
                break
            released += taken[0]
        return {"released": released}

    async def purge_held(self, call: Call) -> None:
        queue = the_shared_queue(call, self._view)
        lane = lane_of(call)
        call.authorize(READ, "queue", call.params["queue"])
        self._view.held.clear(queue, lane)

    async def show_deduplication(self, call: Call) -> Described:
        queues = self._view.queues
        queue = the_queue(call, self._view)
        row = queues.maybe_deduplication(queue)
        if row is None:
            return {"enabled": False, "keys": 0, "window_ms": None, "header": None, "producers": 0}
        shown: Described = {
            "enabled": True,
            "keys": row.keys,
            "size": row.size,
            "window_ms": row.window_ms,
            "header": row.header,
            "producers": row.producers,
        }
        # The keys come from headers, which are content: they are hidden from users without the right to read the queue.
        if queues.is_shared(queue) and call.may(READ, call.params["queue"]):
            shown["oldest"] = [{"key": key, "until_ms": until_ms} for key, until_ms in queues.oldest_keys(queue, 100)]
        return shown

    async def forget_deduplication(self, call: Call) -> None:
        queue = the_shared_queue(call, self._view)
        call.authorize(WRITE, "queue", call.params["queue"])
        self._view.queues.forget_keys(queue)

    ROUTES: ClassVar = (
        Route("PUT", f"{_Q}/pause", _USE, pause, "Pause deliveries of a queue"),
        Route("DELETE", f"{_Q}/pause", _USE, resume, "Resume deliveries of a queue"),
        Route(
            "POST",
            f"{_Q}/held/{{lane}}/release",
            _USE,
            release_held,
            "Release held messages, the earliest first",
            Release,
        ),
        Route("DELETE", f"{_Q}/held/{{lane}}", _USE, purge_held, "Drop held messages"),
        Route("GET", f"{_Q}/deduplication", _SEE, show_deduplication, "Keys that a queue remembers"),
        Route("DELETE", f"{_Q}/deduplication", _USE, forget_deduplication, "Forget all keys"),
    )


class TopologyHandlers(Handlers):
    """The handler of the topology of a vhost."""

    def __init__(self, view: EngineView, statistics: Statistics) -> None:
        self._view = view
        self._statistics = statistics

    async def show_topology(self, call: Call) -> Described:
        view = self._view
        vhost = call.params["vhost"]
        exchanges = await in_order(view.exchanges.in_vhost(vhost), view.exchanges.name)
        bindings: list[BindingRef] = []
        for exchange in exchanges:
            bindings += view.bindings.of(exchange)
            await give_way()
        queues = await in_order(view.queues.in_vhost(vhost), view.queues.name)
        return {
            "exchanges": Rows(exchanges, self._exchange_in_topology),
            "queues": Rows(queues, self._in_topology, view.queues.is_gone),
            "bindings": Rows(bindings, self._binding_in_topology, view.bindings.is_removed),
        }

    def _exchange_in_topology(self, exchange: ExchangeRef) -> Described:
        rate = self._statistics.rate
        row = self._view.exchanges.brief(exchange)
        return {
            "name": row.name,
            "type": row.type,
            "durable": row.durable,
            "internal": row.internal,
            "alternate": row.alternate or None,
            **{f"{field}_rate": rate(exchange, EXCHANGE_STATS, field) for field in EXCHANGE_STATS},
        }

    def _in_topology(self, queue: QueueRef) -> Described:
        rate = self._statistics.rate
        row = self._view.queues.brief(queue)
        return {
            "name": row.name,
            "type": row.type,
            "messages": row.messages,
            "consumers": row.consumers,
            "publish_rate": rate(queue, QUEUE_FIELDS, "publish"),
            "deliver_rate": rate(queue, QUEUE_FIELDS, "deliver_get"),
            "dead_letter_exchange": row.dead_letter_exchange,
            "state": "paused" if row.paused else "running",
        }

    def _binding_in_topology(self, binding: BindingRef) -> Described:
        row = self._view.bindings.row(binding)
        return {
            "source": row.source,
            "destination": row.destination,
            "destination_type": row.destination_type,
            "routing_key": row.routing_key,
            "arguments": table_to_json(row.arguments),
        }

    ROUTES: ClassVar = (
        Route(
            "GET",
            "/api/warren/topology/{vhost}",
            _SEE,
            show_topology,
            "Exchanges, bindings and queues with their rates",
        ),
    )


def _some_of_each(kinds: list[list[Described]], limit: int) -> list[Described]:
    """Return at most `limit` items, kind by kind: the first of each kind are chosen, then the second, and so on."""
    shares = [0] * len(kinds)
    most = min(limit, sum(map(len, kinds)))
    while sum(shares) < most:
        for at, items in enumerate(kinds):
            if shares[at] < len(items) and sum(shares) < most:
                shares[at] += 1
    return [item for items, share in zip(kinds, shares, strict=True) for item in items[:share]]


class SearchHandlers(Handlers):
    """The handler of the search for anything by a part of its name."""

    def __init__(self, view: EngineView) -> None:
        self._view = view

    async def search(self, call: Call) -> Described:
        wanted = call.query.get("q", "").lower()
        try:
            limit = min(SEARCH_MAX, max(1, integer(call.query.get("limit", "50"))))
        except ValueError:
            raise bad_request("limit must be a number") from None
        # Of each kind: those of that name, those that begin with it, the others.
        found: dict[str, tuple[list[Described], list[Described], list[Described]]] = {}
        more = False
        if wanted:
            queues = await visible_queues(call, self._view)
            vhosts = visible_vhost_names(call)
            await give_way()
            connections = visible_connections(call, self._view)
            await give_way()
            users = call.operator.is_administrator
            for kind, vhost, name, detail in self._view.names.each(queues, vhosts, connections, users=users):
                await give_way()
                known_as = name.lower()
                if wanted not in known_as and wanted not in detail.lower():
                    continue
                nearness = 0 if known_as == wanted else 1 if known_as.startswith(wanted) else 2
                as_near = found.setdefault(kind, ([], [], []))[nearness]
                if len(as_near) == limit:
                    more = True
                    continue
                as_near.append({"kind": kind, "vhost": vhost, "name": name, "detail": detail})
        kinds = [[*same, *beginning, *others] for same, beginning, others in found.values()]
        items = _some_of_each(kinds, limit)
        return {"items": items, "more": more or len(items) < sum(map(len, kinds))}

    ROUTES: ClassVar = (
        Route("GET", "/api/warren/search", Access.USER, search, "Find by a part of a name", query=("q", "limit")),
    )


class StoreHandlers(Handlers):
    """Handlers of the message store and the reactor."""

    def __init__(self, view: EngineView, messages: MessageStoreService, reactor: Reactor) -> None:
        self._view = view
        self._messages = messages
        self._reactor = reactor

    async def show_store(self, call: Call) -> Described:
        service = self._messages
        view = self._view
        segments = view.segments()
        paged = 0
        for vhost in list(view.vhosts):
            for some in chunks(view.queues.in_vhost(vhost)):
                paged += view.queues.paged_out(some)
                await give_way()
        log = view.log()
        return {
            "segments": [asdict(each) for each in segments],
            "segment_count": len(segments),
            "bytes": sum(each.bytes for each in segments),
            "live_bytes": sum(each.live_bytes for each in segments),
            "written_lsn": log.written_lsn,
            "durable_lsn": log.durable_lsn,
            "checkpoint_lsn": log.checkpoint_lsn,
            "epoch": log.epoch,
            "batches": service.counts.batches,
            "syncs": service.counts.syncs,
            "written_bytes": service.counts.written_bytes,
            "synced_bytes": service.counts.synced_bytes,
            "reads": service.counts.reads,
            "checkpoints": service.counts.checkpoints,
            "commit_ms": times_ms(service.counts.commit_times),
            "compactions": service.upkeep.compacted_segments(),
            "compacted_bytes": service.upkeep.moved_bytes(),
            "paged_messages": paged,
            "resident_bytes": log.resident_bytes,
            "failed_reads": service.failed_reads(),
            "trouble": service.trouble(),
            "losses": service.losses.found,
            "created_by": None if service.versions is None else service.versions.created_by,
            "last_written_by": None if service.versions is None else service.versions.last_written_by,
        }

    async def show_reactor(self, call: Call) -> Described:
        reactor = self._reactor
        return {
            "turns": int(reactor.turn_times.count),
            "turn_ms": times_ms(reactor.turn_times),
            "connections": reactor.connection_count(),
            "crashes": reactor.crashes,
        }

    ROUTES: ClassVar = (
        Route("GET", "/api/warren/store", Access.MONITORING, show_store, "The message store"),
        Route("GET", "/api/warren/reactor", Access.MONITORING, show_reactor, "The reactor"),
    )
