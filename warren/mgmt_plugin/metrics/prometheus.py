"""Metrics for Prometheus, under the names that RabbitMQ gives them, and Warren's own.

    /metrics                     sums; the page to scrape of a large broker
    /metrics/per-object          the same, but of every queue, channel and connection
    /metrics/detailed            families that are asked for with ?family=…, each of which may be given several times;
                                 ?vhost=… and ?queue=<pattern> choose among queues, ?vhost=… among the rest
    /metrics/memory-breakdown    the uses of memory

1. The values of a page are gathered first, in pieces of about a millisecond, to fit each other; its text is made while
   it is sent. Sums that need a walk over all objects are taken at most every `TOTALS_S`, independently of the number of
   requests. Single objects are gathered for one page at a time, and a page is not longer than `PAGE_BYTES_MAX`.
2. Counters never go back. ``rabbitmq_channel_…`` and ``rabbitmq_connection_…`` counters of ``/metrics`` include objects
   that have ended; those of RabbitMQ do not.
3. The port of the setting `prometheus` needs no login; it serves these pages and ``/health`` only.

Left out, since nothing here corresponds to it: ``erlang_*`` and ``rabbitmq_erlang_*`` except the uptime,
``rabbitmq_*_process_reductions_total``, ``rabbitmq_raft_*``, ``rabbitmq_schema_db_*``, ``rabbitmq_io_*_time_*``,
``rabbitmq_io_seek_*``, ``rabbitmq_io_reopen_*``, ``rabbitmq_io_read_bytes_total``, ``rabbitmq_queue_index_read_*``,
``rabbitmq_global_stream_*``, ``rabbitmq_stream_*``, ``telemetry_*``. Left out, since it is not counted:
``rabbitmq_queue_disk_*``, ``rabbitmq_connection_pending_packets``, confirmed, returned and dropped messages of single
exchanges, ``rabbitmq_auth_attempts_detailed_*``. Families without any metric left may be requested, and are empty.
Only for single objects: values without a sensible sum (``rabbitmq_queue_consumer_capacity``, ``…_utilisation``,
``rabbitmq_queue_head_message_timestamp``), and ``rabbitmq_connection_…_packets_total``.

Source: RabbitMQ, "Monitoring with Prometheus and Grafana"; names and labels compared with 3.10.8.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec
import trio

from warren import __version__
from warren.engine_view.engine_view import EngineView
from warren.engine_view.exchanges import Placed
from warren.engine_view.refs import ChannelRef, ConnectionRef, QueueRef
from warren.engine_view.totals import Totals, chunks
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.http.server import HttpError, HttpTraffic, Request, Response
from warren.mgmt_plugin.metrics.election import election_metrics
from warren.mgmt_plugin.metrics.exposition import COUNTER, GAUGE, UNTYPED, Metric, Page, labels, wants_open_metrics
from warren.mgmt_plugin.metrics.families import (
    ARRIVALS,
    BYTES,
    CHANNEL_DELIVERIES,
    CHANNEL_FAMILIES,
    CHANNEL_PUBLISHES,
    CHANNEL_STATE,
    CLUSTER,
    CONNECTION_BYTES,
    CONNECTION_CHANNELS,
    CONNECTION_FAMILIES,
    CONSUMERS,
    DETAILED,
    EXCHANGE_FAMILIES,
    EXCHANGE_METRICS,
    IN_MEMORY,
    LENGTHS,
    MEMORY,
    PAGED_OUT,
    PERSISTENT,
    QUEUE_ARRIVALS,
    QUEUE_COARSE,
    QUEUE_CONSUMERS,
    QUEUE_DELIVERY,
    QUEUE_FAMILIES,
    QUEUE_METRICS,
    Family,
)
from warren.mgmt_plugin.metrics.lake import lake_metrics
from warren.mgmt_plugin.names import cluster_id
from warren.mgmt_plugin.operators import Doorkeeper
from warren.mgmt_plugin.resources.linked import Links, NoLinks
from warren.mgmt_plugin.resources.overview import PRODUCT, RABBITMQ_VERSION
from warren.mgmt_plugin.routes import QUERY_FIELDS_MAX, Access, Call, Handlers, Route, bad_request, not_found
from warren.queues.arguments import CLASSIC, LONG_TYPES, QUORUM
from warren.queues.counters import AT_LEAST_ONCE, SIZE_BOUNDS, MessageCounts
from warren.server.cyclic_collector import full_collections
from warren.server.descriptors import OPEN_DESCRIPTORS, told_open
from warren.server.engine_build import engine_is_compiled
from warren.server.histogram import BOUNDS_S
from warren.server.management import Management
from warren.server.process_memory import resident_bytes
from warren.vhosts.pattern import Pattern

TOTALS_S: Final = 1.0
# A page is refused when it would be longer than that.
PAGE_BYTES_MAX: Final = 100 << 20
# Memory that a page takes until it is sent: for a text in addition to its characters, and for a value.
LABEL_BYTES: Final = 57
VALUE_BYTES: Final = 24
LEAST_VALUE_BYTES: Final = 3  # with a space and the end of the line
RABBITMQ: Final = "rabbitmq_"
WARREN: Final = "warren_"
PAGES: Final = {
    "/metrics": "aggregated",
    "/metrics/per-object": "per-object",
    "/metrics/detailed": "detailed",
    "/metrics/memory-breakdown": "memory-breakdown",
}
PROTOCOL: Final = ("protocol", "amqp091")

Item = TypeVar("Item")
Rows = Iterable[tuple[Metric, Iterable[tuple[str, float]]]]


class Metrics:
    """Makes the pages for one broker. `traffic` has the counters of its HTTP ports, `links` the tables that follow."""

    def __init__(
        self, management: Management, doorkeeper: Doorkeeper, traffic: HttpTraffic, links: Links | None = None
    ) -> None:
        self._links: Links = NoLinks() if links is None else links
        self._management = management
        self._view = management.view
        self._doorkeeper = doorkeeper
        self._traffic = traffic
        self._totals = Totals()
        self._totals_from_s = float("-inf")
        self._walking = trio.Lock()
        self._writing = trio.Lock()
        self._node: dict[str, Callable[[], Rows]] = {
            "alarms": self._alarms,
            "connection_churn_metrics": self._churn,
            "node_metrics": self._limits,
            "node_persister_metrics": self._persister,
            "auth_attempt_metrics": self._attempts,
        }

    async def answer(self, request: Request) -> Response:
        """Answer a request for one of `PAGES`.

        Raises:
            HttpError: 400, an invalid parameter; 404, an unknown page; 503, the page would be too long.
        """
        endpoint = PAGES.get(request.path.rstrip("/"))
        if endpoint is None:
            raise not_found()
        page = Page(open_metrics=wants_open_metrics(request.headers.get("accept", "")))
        _write(page, RABBITMQ, self._identity(endpoint))
        if endpoint == "aggregated":
            await self._write_aggregated(page)
        elif endpoint == "memory-breakdown":
            _write(page, RABBITMQ, await self._memory())
        else:
            choice = Choice(request.query) if endpoint == "detailed" else None
            columns = _Columns(self._view, page, request.hold)
            async with self._writing:
                if choice is None:
                    await self._write_per_object(page, columns)
                else:
                    await self._write_detailed(page, columns, choice)
        return Response(200, b"", page.content_type, pieces=page.pieces())

    # --- pages ------------------------------------------------------------------------------------------------------

    async def _write_aggregated(self, page: Page) -> None:
        totals = await self._recent_totals()
        counts = self._view.counts()
        await self._write_node(page, RABBITMQ)
        _write(page, RABBITMQ, self._sums(totals, counts))
        self._write_common(page, totals, counts)

    async def _write_per_object(self, page: Page, columns: _Columns) -> None:
        totals = await self._recent_totals()
        counts = self._view.counts()
        await self._write_node(page, RABBITMQ)
        queues = (QUEUE_COARSE, QUEUE_METRICS, QUEUE_DELIVERY, QUEUE_ARRIVALS)
        await columns.add(RABBITMQ, queues, self._queues(None))
        await columns.add(RABBITMQ, (EXCHANGE_METRICS,), self._exchanges(None))
        await columns.add(RABBITMQ, CHANNEL_FAMILIES, await self._channels(None))
        await columns.add(RABBITMQ, CONNECTION_FAMILIES, self._connections(None))
        self._write_common(page, totals, counts)

    async def _write_detailed(self, page: Page, columns: _Columns, choice: Choice) -> None:
        wanted = choice.families
        prefix = RABBITMQ + DETAILED
        if "node_coarse_metrics" in wanted:
            _write(page, prefix, await self._coarse())
        for name, rows in self._node.items():
            if name in wanted:
                _write(page, prefix, rows())
        queues = [family for family in QUEUE_FAMILIES if family.name in wanted]
        if QUEUE_METRICS in queues and QUEUE_CONSUMERS in queues:
            queues.remove(QUEUE_CONSUMERS)
        if queues:
            found = self._queues(choice.vhosts)
            if choice.queues:
                found = await choice.matching(self._view, found)
            await columns.add(prefix, queues, found)
        exchanges = [family for family in EXCHANGE_FAMILIES if family.name in wanted]
        if exchanges:
            await columns.add(prefix, exchanges, self._exchanges(choice.vhosts))
        channels = [family for family in CHANNEL_FAMILIES if family.name in wanted]
        if channels:
            await columns.add(prefix, channels, await self._channels(choice.vhosts))
        connections = [family for family in CONNECTION_FAMILIES if family.name in wanted]
        if connections:
            await columns.add(prefix, connections, self._connections(choice.vhosts))
        if "vhost_status" in wanted:
            metric = Metric("vhost_status", GAUGE, "1 for each vhost that runs")
            names = [name for name in self._view.vhosts if choice.vhosts is None or name in choice.vhosts]
            page.samples(RABBITMQ + CLUSTER, metric, [(labels(("vhost", name)), 1) for name in names])

    async def _write_node(self, page: Page, prefix: str) -> None:
        _write(page, prefix, await self._coarse())
        for rows in self._node.values():
            _write(page, prefix, rows())

    def _write_common(self, page: Page, totals: Totals, counts: MessageCounts) -> None:
        """Write the metrics that are the same with and without single objects."""
        _write(page, RABBITMQ, self._objects(totals))
        _write(page, RABBITMQ, self._global(totals, counts))
        metric = Metric("message_size_bytes", "histogram", "Bodies of the messages received from publishers")
        buckets = self._view.size_buckets(counts)
        page.histogram(RABBITMQ, metric, SIZE_BOUNDS, buckets, int(counts.published_bytes), PROTOCOL)
        self._write_own(page, totals)

    # --- objects ----------------------------------------------------------------------------------------------------

    async def _recent_totals(self) -> Totals:
        async with self._walking:
            if time.monotonic() - self._totals_from_s >= TOTALS_S:
                for totals in self._view.walk():
                    await give_way()
                    if totals is not None:
                        self._totals = totals
                self._totals_from_s = time.monotonic()
            return self._totals

    def _chosen(self, vhosts: set[str] | None) -> list[str]:
        return [name for name in self._view.vhosts if vhosts is None or name in vhosts]

    def _queues(self, vhosts: set[str] | None) -> list[QueueRef]:
        return [queue for vhost in self._chosen(vhosts) for queue in self._view.queues.in_vhost(vhost)]

    def _exchanges(self, vhosts: set[str] | None) -> list[Placed]:
        return [(vhost, each) for vhost in self._chosen(vhosts) for each in self._view.exchanges.in_vhost(vhost)]

    def _connections(self, vhosts: set[str] | None) -> list[ConnectionRef]:
        found = self._view.connections.known()
        return found if vhosts is None else [each for each in found if self._view.connections.vhost(each) in vhosts]

    async def _channels(self, vhosts: set[str] | None) -> list[ChannelRef]:
        found: list[ChannelRef] = []
        for connection in self._connections(vhosts):
            found += self._view.connections.channels(connection)
            await give_way()
        return found

    # --- the node ---------------------------------------------------------------------------------------------------

    def _identity(self, endpoint: str) -> Rows:
        view = self._view
        build = labels(
            ("rabbitmq_version", RABBITMQ_VERSION),
            ("prometheus_plugin_version", __version__),
            ("prometheus_client_version", __version__),
            ("erlang_version", ""),
            ("product_name", PRODUCT),
            ("product_version", __version__),
        )
        yield (
            Metric("build_info", UNTYPED, "Versions: of the RabbitMQ whose metrics these are, and of Warren"),
            [(build, 1)],
        )
        identity = labels(
            ("rabbitmq_node", view.node_name()),
            ("rabbitmq_cluster", view.cluster_name()),
            ("rabbitmq_cluster_permanent_id", cluster_id(view)),
            ("rabbitmq_endpoint", endpoint),
        )
        yield Metric("identity_info", UNTYPED, "Names of the node and of the cluster that it is"), [(identity, 1)]

    def _alarms(self) -> Rows:
        for name, what, resource_name in (
            ("alarms_file_descriptor_limit", "file descriptors", ""),
            ("alarms_free_disk_space_watermark", "free disk space", "disk"),
            ("alarms_memory_used_watermark", "memory", "memory"),
        ):
            metric = Metric(name, UNTYPED, f"1 while publishers wait for {what}")
            yield metric, _one(int(resource_name != "" and self._view.has_alarm(resource_name)))

    def _churn(self) -> Rows:
        churn = self._view.churn()
        for name, text, value in (
            ("connections_opened_total", "Connections opened", churn.connections_opened),
            ("connections_closed_total", "Connections closed or lost", churn.connections_closed),
            ("channels_opened_total", "Channels opened", churn.channels_opened),
            ("channels_closed_total", "Channels closed", churn.channels_closed),
            ("queues_declared_total", "Queues declared, those included that were there", churn.queues_declared),
            ("queues_created_total", "Queues created", churn.queues_created),
            ("queues_deleted_total", "Queues deleted", churn.queues_deleted),
        ):
            yield Metric(name, COUNTER, text), _one(value)

    async def _coarse(self) -> Rows:
        descriptors = await open_descriptors()
        values = (
            ("process_open_fds", "Open file descriptors", descriptors),
            ("process_open_tcp_sockets", "Sockets of AMQP clients", self._management.reactor.connection_count()),
            ("process_resident_memory_bytes", "Resident memory", resident_bytes()),
            ("disk_space_available_bytes", "Free disk space", self._disk_free_bytes()),
        )
        return [(Metric(name, GAUGE, text), _one(value)) for name, text, value in values]

    def _disk_free_bytes(self) -> int:
        return shutil.disk_usage(self._management.settings.data_dir).free

    def _limits(self) -> Rows:
        management = self._management
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        for name, text, value in (
            ("process_max_fds", "How many file descriptors may be open", descriptors),
            (
                "process_max_tcp_sockets",
                "How many connections are accepted",
                self._view.connections_max(),
            ),
            ("resident_memory_limit_bytes", "Memory above which publishers wait", management.memory_limit_bytes),
            (
                "disk_space_available_limit_bytes",
                "Free disk space below which publishers wait",
                management.settings.store.disk_free_min_bytes,
            ),
            ("erlang_uptime_seconds", "How long the broker has been running", self._uptime_s()),
        ):
            yield Metric(name, GAUGE, text), _one(value)

    def _uptime_s(self) -> float:
        return (self._management.clock_ms() - self._management.started_ms) / 1000

    def _persister(self) -> Rows:
        messages = self._management.messages
        for name, text, value in (
            ("io_read_ops_total", "Reads of the message log", messages.counts.reads),
            ("io_write_ops_total", "Batches written to the message log", messages.counts.batches),
            ("io_write_bytes_total", "Bytes written to the message log", messages.counts.written_bytes),
            ("io_sync_ops_total", "Syncs of the message log", messages.counts.syncs),
            ("msg_store_read_total", "Reads of the message log", messages.counts.reads),
            ("msg_store_write_total", "Batches written to the message log", messages.counts.batches),
            ("queue_index_write_ops_total", "Checkpoints of the message log", messages.counts.checkpoints),
        ):
            yield Metric(name, COUNTER, text), _one(value)

    def _attempts(self) -> Rows:
        churn, doorkeeper = self._view.churn(), self._doorkeeper
        found = (
            ("http", doorkeeper.succeeded, doorkeeper.failed),
            ("amqp091", churn.logins_accepted, churn.logins_refused),
        )
        of = [labels(("protocol", protocol)) for protocol, _, _ in found]
        for name, text, values in (
            ("auth_attempts_total", "Logins tried", [accepted + refused for _, accepted, refused in found]),
            ("auth_attempts_succeeded_total", "Logins accepted", [accepted for _, accepted, _ in found]),
            ("auth_attempts_failed_total", "Logins refused", [refused for _, _, refused in found]),
        ):
            yield Metric(name, COUNTER, text), list(zip(of, values, strict=True))

    # --- sums -------------------------------------------------------------------------------------------------------

    def _sums(self, totals: Totals, counts: MessageCounts) -> Rows:
        """Yield the metrics of per-object pages for single objects."""
        ready_ram = totals.ready - totals.paged_out
        in_memory = (
            totals.messages - totals.paged_out,
            ready_ram,
            totals.unacked,
            totals.message_bytes - totals.paged_out_bytes,
        )
        lengths = (totals.ready, totals.unacked, totals.messages)
        for metric, value in (
            *zip(LENGTHS, lengths, strict=True),
            (CONSUMERS, totals.consumers),
            (MEMORY, totals.memory_bytes),
            *zip(IN_MEMORY, in_memory, strict=True),
            *zip(PAGED_OUT, (totals.paged_out, totals.paged_out_bytes), strict=True),
            *zip(PERSISTENT, (totals.persistent, totals.persistent_bytes), strict=True),
            *zip(BYTES, (totals.message_bytes, totals.ready_bytes, totals.unacked_bytes), strict=True),
            (ARRIVALS, int(counts.routed)),
            *zip(CHANNEL_STATE, totals.channel_state, strict=True),
            *zip(
                CHANNEL_PUBLISHES,
                (counts.publish, counts.confirm, counts.return_unroutable, counts.drop_unroutable),
                strict=True,
            ),
            *zip(
                CHANNEL_DELIVERIES,
                (
                    counts.get,
                    counts.get_no_ack,
                    counts.deliver,
                    counts.deliver_no_ack,
                    counts.redeliver,
                    counts.ack,
                    counts.get_empty,
                ),
                strict=True,
            ),
            *zip(CONNECTION_BYTES, (totals.received_bytes, totals.sent_bytes), strict=True),
            (CONNECTION_CHANNELS, self._open_channels()),
        ):
            yield metric, _one(int(value))

    def _open_channels(self) -> int:
        churn = self._view.churn()
        return churn.channels_opened - churn.channels_closed

    def _objects(self, totals: Totals) -> Rows:
        for name, text, value in (
            ("connections", "Open connections", self._view.open_connections()),
            ("channels", "Open channels", self._open_channels()),
            ("consumers", "Consumers", totals.consumers),
            ("queues", "Queues", totals.queues),
            ("unreachable_cluster_peers_count", "Other nodes that cannot be reached: there are none", 0),
        ):
            yield Metric(name, GAUGE, text), _one(value)

    def _global(self, totals: Totals, counts: MessageCounts) -> Rows:
        protocol = labels(PROTOCOL)
        yield Metric("global_publishers", GAUGE, "Channels that have published"), [(protocol, totals.publishers)]
        yield Metric("global_consumers", GAUGE, "Consumers"), [(protocol, totals.consumers)]
        for name, text, value in (
            ("received", "Messages received from publishers", counts.publish),
            ("received_confirm", "Messages received from publishers that want confirms", counts.publish_confirm),
            ("routed", "Messages put into queues, once for each queue", counts.routed),
            ("unroutable_dropped", "Messages that no queue took, dropped", counts.drop_unroutable),
            ("unroutable_returned", "Mandatory messages that no queue took, returned", counts.return_unroutable),
            ("confirmed", "Messages confirmed to publishers", counts.confirm),
        ):
            yield Metric(f"global_messages_{name}_total", COUNTER, text), [(protocol, int(value))]
        yield from _global_deliveries(totals)
        yield from self._global_deaths()

    def _global_deaths(self) -> Rows:
        deaths = self._view.deaths()
        of = {
            (is_quorum, strategy): labels(
                ("queue_type", LONG_TYPES[QUORUM if is_quorum else CLASSIC]), ("dead_letter_strategy", strategy)
            )
            for is_quorum, strategy in deaths
        }
        for reason, text in (
            ("expired", "Messages whose time to live was over"),
            ("maxlen", "Messages for which a queue was too long"),
            ("rejected", "Messages rejected without requeue"),
            ("delivery_limit", "Messages delivered in vain too often"),
        ):
            rows = [(of[key], each[reason]) for key, each in deaths.items()]
            yield Metric(f"global_messages_dead_lettered_{reason}_total", COUNTER, text), rows
        metric = Metric("global_messages_dead_lettered_confirmed_total", COUNTER, "Dead letters taken by their queues")
        yield metric, [(of[key], each["confirmed"]) for key, each in deaths.items() if key[1] == AT_LEAST_ONCE]

    async def _memory(self) -> Rows:
        used = resident_bytes()
        totals = await self._recent_totals()
        parts = {
            "queue_messages": self._view.log().resident_bytes,
            "connection_readers": self._view.inbound().held_bytes,
            "connection_writers": totals.waiting_bytes,
        }
        parts["other_system"] = max(0, used - sum(parts.values()))
        metrics: list[tuple[Metric, Sequence[tuple[str, float]]]] = [
            (Metric(f"memory_{name}_bytes", GAUGE, f"Memory of {MEMORY_OF[name]}"), _one(value))
            for name, value in parts.items()
        ]
        metrics.append((Metric("process_resident_memory_bytes", GAUGE, "Resident memory"), _one(used)))
        return metrics

    # --- Warren's own -----------------------------------------------------------------------------------------------

    def _write_own(self, page: Page, totals: Totals) -> None:
        compiled = str(engine_is_compiled()).lower()
        build = labels(("version", __version__), ("python", platform.python_version()), ("compiled", compiled))
        page.samples(WARREN, Metric("build_info", UNTYPED, "What runs"), [(build, 1)])
        _write(page, WARREN, self._store())
        times = self._management.messages.counts.commit_times
        metric = Metric("store_commit_seconds", "histogram", "Writing and syncing one batch of the message log")
        page.histogram(WARREN, metric, BOUNDS_S, times.buckets(), times.sum_s)
        delayed = Metric("exchange_messages_delayed", GAUGE, "Messages that wait in x-delayed-message exchanges")
        _write(page, WARREN, [(delayed, _one(totals.delayed))])
        _write(page, WARREN, self._metadata())
        _write(page, WARREN, self._reactor(totals))
        _write(page, WARREN, self._replication())
        _write(page, WARREN, lake_metrics(self._links))
        times = self._management.reactor.turn_times
        metric = Metric("reactor_turn_seconds", "histogram", "Turns of the reactor, which serves all AMQP sockets")
        page.histogram(WARREN, metric, BOUNDS_S, times.buckets(), times.sum_s)
        _write(page, WARREN, self._http())
        times = self._traffic.times
        metric = Metric("http_request_seconds", "histogram", "From the head of an HTTP request to its answer")
        page.histogram(WARREN, metric, BOUNDS_S, times.buckets(), times.sum_s)
        _write(page, WARREN, self._spans())
        _write(page, WARREN, self._tasks())
        _write(page, WARREN, self._process())
        started_s = self._management.started_ms / 1000
        page.single(
            "", Metric("process_start_time_seconds", GAUGE, "When the broker started, since the epoch"), started_s
        )

    def _store(self) -> Rows:
        messages, log = self._management.messages, self._view.log()
        segments = self._view.segments()
        for name, kind, text, value in (
            ("segments", GAUGE, "Files of the message log", len(segments)),
            ("bytes", GAUGE, "Their size", sum(each.bytes for each in segments)),
            ("live_bytes", GAUGE, "What is still needed of them", sum(each.live_bytes for each in segments)),
            ("resident_bytes", GAUGE, "Memory of the messages of all queues", log.resident_bytes),
            ("resident_limit_bytes", GAUGE, "Above, stored messages leave memory", log.memory_bytes),
            (
                "unsynced_bytes",
                GAUGE,
                "Written, or to be written, and not yet synced",
                log.next_lsn - log.durable_lsn,
            ),
            ("recovery_bytes", GAUGE, "Log behind the last checkpoint", log.next_lsn - log.checkpoint_lsn),
            ("trouble", GAUGE, "1 while the disk is full or has failed", int(messages.trouble() != "")),
            ("batches_total", COUNTER, "Batches written or synced", messages.counts.batches),
            ("written_bytes_total", COUNTER, "Bytes written", messages.counts.written_bytes),
            ("syncs_total", COUNTER, "Syncs", messages.counts.syncs),
            ("synced_bytes_total", COUNTER, "Bytes written that are synced", messages.counts.synced_bytes),
            ("reads_total", COUNTER, "Reads of what is on disk only", messages.counts.reads),
            ("failed_reads_total", COUNTER, "Reads that the disk answered with an error", messages.failed_reads()),
            ("waiting_reads", GAUGE, "Reads that fail now, and are repeated", len(messages.unread())),
            ("damaged_messages", GAUGE, "Messages known to be damaged on disk", self._view.damage.messages()),
            ("checkpoints_total", COUNTER, "Checkpoints written", messages.counts.checkpoints),
            ("compacted_segments_total", COUNTER, "Files emptied by compaction", messages.upkeep.compacted_segments()),
            ("compaction_moved_bytes_total", COUNTER, "Bytes copied for that", messages.upkeep.moved_bytes()),
        ):
            yield Metric(f"store_{name}", kind, text), _one(value)

    def _metadata(self) -> Rows:
        catalogue = self._management.catalogue
        waiting = Metric("metadata_waiting_changes", GAUGE, "Changes of the metadata that SQL does not have yet")
        yield waiting, _one(catalogue.waiting())
        yield (
            Metric("metadata_behind_seconds", GAUGE, "How long the oldest of them has waited"),
            _one(catalogue.behind_s()),
        )

    def _reactor(self, totals: Totals) -> Rows:
        reactor = self._management.reactor
        inbound = self._view.inbound()
        for name, kind, text, value in (
            ("connections", GAUGE, "Sockets of clients, logged in or not", reactor.connection_count()),
            ("waiting_bytes", GAUGE, "Written for clients and not yet taken by them", totals.waiting_bytes),
            ("inbound_bytes", GAUGE, "Bodies received in part", inbound.held_bytes),
            ("inbound_limit_bytes", GAUGE, "From where their connections take turns", inbound.max_bytes),
            ("inbound_waiting_connections", GAUGE, "Connections that wait for their turn", inbound.waiting),
            ("crashes_total", COUNTER, "Connections ended by a defect of the broker", reactor.crashes),
        ):
            yield Metric(f"reactor_{name}", kind, text), _one(value)
        dropped = Metric("mqtt_dropped_total", COUNTER, "Messages of QoS 0 for clients that did not read in time")
        yield dropped, _one(self._view.churn().dropped_qos_0)
        unrouted = Metric("unrouted_total", COUNTER, "Messages of the broker whose routing takes too many steps")
        yield unrouted, _one(self._view.churn().unrouted)
        held = Metric("links_held", GAUGE, "1 while shovels, federation links and tables are held")
        yield held, _one(int(self._management.held_links.reason != ""))
        by_protocol = [(labels(("protocol", name)), count) for name, count in sorted(totals.protocols.items())]
        yield Metric("reactor_protocol_connections", GAUGE, "Connections of clients, by protocol"), by_protocol

    def _replication(self) -> Rows:
        """Yield the metrics of followers; nothing on a node that takes no followers."""
        if self._management.cluster is None:
            return
        status = self._management.cluster()
        for name, text, value in (
            ("epoch", "The life of the leader", status["epoch"]),
            ("committed_lsn", "Up to where every node in sync has synced the log", status["committed_lsn"]),
            ("in_sync", "Nodes that have every confirmed message", len(status["in_sync"])),
            ("min_in_sync", "How many there have to be", status["min_in_sync"]),
            ("mended", "Places on the leader's disk that were damaged, and mended from a follower", status["mended"]),
            ("quarantine_files", "Copies in the quarantine of the store", status["quarantine_files"]),
            ("quarantine_bytes", "How many bytes these have", status["quarantine_bytes"]),
            ("short", "1 while confirms wait because there are fewer", int(status["short"])),
        ):
            yield Metric(f"replication_{name}", GAUGE, text), _one(value)
        followers = [(labels(("follower", row["node"])), row) for row in status["followers"]]
        for name, text in (
            ("connected", "1 for each follower that is connected"),
            ("in_sync", "1 for each follower that confirms wait for"),
            ("lag_bytes", "What was written and is not synced there"),
            ("lag_s", "How long it has not had all that was committed"),
        ):
            metric = Metric(f"replication_follower_{name.replace('lag_s', 'lag_seconds')}", GAUGE, text)
            yield metric, [(label, float(row[name])) for label, row in followers if row[name] is not None]
        for metric, value in election_metrics(status):
            yield metric, _one(value)

    def _http(self) -> Rows:
        traffic = self._traffic
        yield Metric("http_connections", GAUGE, "Open HTTP connections"), _one(traffic.connections)
        rows = [(labels(("status", str(status))), count) for status, count in sorted(traffic.requests.items())]
        yield Metric("http_requests_total", COUNTER, "HTTP requests answered"), rows
        yield Metric("http_sent_bytes_total", COUNTER, "Bodies of the answers"), _one(traffic.sent_bytes)

    def _spans(self) -> Rows:
        """Yield the counters of spans; nothing if tracing is off."""
        export = self._management.span_export
        if export is None:
            return
        yield Metric("tracing_spans_exported_total", COUNTER, "Spans that a collector has taken"), _one(export.exported)
        rows = [(labels(("reason", "full")), float(export.dropped)), (labels(("reason", "failed")), export.failed)]
        text = "Spans that are lost: too many waited, or they could not be sent"
        yield Metric("tracing_spans_lost_total", COUNTER, text), rows
        yield Metric("tracing_spans_waiting", GAUGE, "Spans that wait to be sent"), _one(export.waiting)

    def _tasks(self) -> Rows:
        tasks = self._management.tasks
        failing = [(labels(("task", task.name), ("need", task.need)), 1.0) for task in tasks.failing()]
        yield Metric("task_failing", GAUGE, "1 for each task of the broker that fails or is switched off"), failing
        failed = [(labels(("task", task.name)), task.failures) for task in tasks.tasks.values() if task.failures]
        yield Metric("task_failures_total", COUNTER, "Failures of tasks; the log has the tracebacks"), failed

    def _process(self) -> Rows:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        for mode, seconds in (("user", usage.ru_utime), ("system", usage.ru_stime)):
            text = f"Processor time of the broker as {mode}"
            yield Metric(f"process_cpu_{mode}_seconds_total", COUNTER, text), _one(seconds)
        yield Metric("process_resident_memory_bytes", GAUGE, "Resident memory"), _one(resident_bytes())
        yield (
            Metric("process_allocated_blocks", GAUGE, "Blocks of memory in use by Python"),
            _one(sys.getallocatedblocks()),
        )
        yield Metric("process_threads", GAUGE, "Threads"), _one(threading.active_count())
        yield Metric("process_uptime_seconds", GAUGE, "How long the broker has been running"), _one(self._uptime_s())
        rows = [
            (labels(("generation", str(generation))), float(stats["collections"]))
            for generation, stats in enumerate(gc.get_stats())
        ]
        yield Metric("process_gc_collections_total", COUNTER, "Runs of the cyclic collector"), rows
        full = full_collections
        for name, kind, text, value in (
            ("total", COUNTER, "Collections among all containers since the start", full.count),
            ("seconds_total", COUNTER, "Processor time that these took", full.seconds),
            ("found_total", COUNTER, "Containers in cycles that these found", full.found),
            ("frozen", GAUGE, "Containers that these do not look at: too many came after the start", full.frozen),
        ):
            yield Metric(f"process_full_collections_{name}", kind, text), _one(value)


MEMORY_OF: Final = {
    "queue_messages": "messages in queues",
    "connection_readers": "bodies received in part",
    "connection_writers": "what is written for clients and not yet taken by them",
    "other_system": "everything else",
}


PATTERNS_SIZE_MAX: Final = 4096  # when compiled: all of them are tried for a queue without a pause


class Choice:
    """The choice of objects for a detailed page. ``vhosts`` None: all of them.

    Raises:
        HttpError: 400.
    """

    def __init__(self, query: str) -> None:
        try:
            pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict")
        except (ValueError, UnicodeDecodeError):
            raise bad_request("the query string is malformed") from None
        self.families = {value for name, value in pairs if name == "family"}
        vhosts = {value for name, value in pairs if name == "vhost"}
        self.vhosts = vhosts or None
        self.queues: list[Pattern] = []
        size = 0
        for name, value in pairs:
            if name == "queue" and value:
                try:
                    pattern = Pattern(value)
                except ValueError as error:
                    raise bad_request(str(error)) from None
                size += pattern.size
                if size > PATTERNS_SIZE_MAX:
                    raise bad_request("the patterns for the names of queues are too large together")
                self.queues.append(pattern)

    async def matching(self, view: EngineView, queues: Iterable[QueueRef]) -> list[QueueRef]:
        """Return those whose name one of the patterns is found in."""
        found: list[QueueRef] = []
        for queue in queues:
            name = view.queues.name(queue)
            if any(pattern.matches(name) for pattern in self.queues):
                found.append(queue)
            await give_way()
        return found


def _one(value: float) -> list[tuple[str, float]]:
    return [("", value)]


def _write(page: Page, prefix: str, rows: Rows) -> None:
    for metric, samples in rows:
        page.samples(prefix, metric, samples)


class _Columns:
    """Gathers families of single objects: of each object labels and values, whose text is made when it is sent."""

    def __init__(self, view: EngineView, page: Page, hold: Callable[[int], None]) -> None:
        self._view = view
        self._page = page
        self._hold = hold
        self._size = 0  # of the text of the page

    async def add(self, prefix: str, families: Sequence[Family[Item]], items: Sequence[Item]) -> None:
        """Add families of one kind of objects: each object is looked at once.

        Raises:
            HttpError: 503, the page would be too long, or too much memory is in use.
        """
        columns = [(family, metric) for family in families for metric in family.metrics]
        names = [(RABBITMQ + CLUSTER if family.is_cluster else prefix) + metric.name for family, metric in columns]
        values: list[list[float | None]] = [[] for _ in columns]
        view = self._view
        labels_by: dict[Callable[[EngineView, list[Item]], list[str]], list[str]] = {
            family.labels: [] for family in families
        }
        name_bytes = sum(map(len, names))
        for chunk in chunks(items):
            sizes: dict[Callable[[EngineView, list[Item]], list[str]], int] = {}
            for label, of in labels_by.items():
                more = label(view, chunk)
                sizes[label] = sum(map(len, more))
                of += more
            at = 0
            for family in families:
                for column in zip(*family.rows(view, chunk), strict=True):
                    values[at] += column
                    at += 1
                self._size += sizes[family.labels] * len(family.metrics)
            self._size += (name_bytes + LEAST_VALUE_BYTES * len(columns)) * len(chunk)
            if self._size > PAGE_BYTES_MAX:
                raise HttpError(503, "too_large", "there is too much for one page: choose families, vhosts or queues")
            self._hold(sum(sizes.values()) + (LABEL_BYTES * len(sizes) + VALUE_BYTES * len(columns)) * len(chunk))
            await give_way()
        for name, (family, metric), gathered in zip(names, columns, values, strict=True):
            self._page.column(name, metric, labels_by[family.labels], gathered)


def _global_deliveries(totals: Totals) -> Rows:
    of = {kind: labels(PROTOCOL, ("queue_type", queue_type)) for kind, queue_type in LONG_TYPES.items()}
    for name, text, places in (
        ("delivered", "Messages delivered", (0, 1, 2, 3)),
        ("delivered_consume_auto_ack", "Deliveries to consumers without acknowledgement", (3,)),
        ("delivered_consume_manual_ack", "Deliveries to consumers, to be acknowledged", (2,)),
        ("delivered_get_auto_ack", "Messages got with basic.get, without acknowledgement", (1,)),
        ("delivered_get_manual_ack", "Messages got with basic.get, to be acknowledged", (0,)),
        ("get_empty", "basic.get that found nothing", (6,)),
        ("redelivered", "Deliveries of what had been delivered before", (4,)),
        ("acknowledged", "Messages acknowledged", (5,)),
    ):
        rows = [(of[kind], sum(numbers[place] for place in places)) for kind, numbers in totals.deliveries.items()]
        yield Metric(f"global_messages_{name}_total", COUNTER, text), rows


async def open_descriptors() -> int:
    """Return the number of open file descriptors."""
    count = told_open()
    if count:
        return count
    with os.scandir(OPEN_DESCRIPTORS) as entries:
        for _ in entries:
            count += 1
            await give_way()
    return count - 1  # without the one that lists them


# --- the ports --------------------------------------------------------------------------------------------------------


class MetricsPort:
    """Answers every request on the port without logins."""

    def __init__(self, metrics: Metrics, management: Management) -> None:
        self._metrics = metrics
        self._management = management

    async def respond(self, request: Request) -> Response:
        """Answer one request.

        Raises:
            HttpError: it is refused.
        """
        path = request.path.rstrip("/")
        if path not in PAGES and path != "/health":
            raise not_found()
        if request.method not in ("GET", "HEAD"):
            raise HttpError(405, "method_not_allowed", "only GET and HEAD are allowed here", (("Allow", "GET, HEAD"),))
        if path != "/health":
            return await self._metrics.answer(request)
        health = self._management.health()
        return Response(200 if health.ok else 503, msgspec.json.encode(health.document()))


_MONITOR: Final = Access.MONITORING


class MetricsHandlers(Handlers):
    """Handlers of metrics, for users who log in."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def show_metrics(self, call: Call) -> Response:
        return await self._metrics.answer(call.request)

    ROUTES: ClassVar = (
        Route("GET", "/metrics", _MONITOR, show_metrics, "Metrics for Prometheus, summed up"),
        Route("GET", "/metrics/per-object", _MONITOR, show_metrics, "Metrics of every queue, channel and connection"),
        Route(
            "GET",
            "/metrics/detailed",
            _MONITOR,
            show_metrics,
            "Chosen families of metrics",
            query=("family", "vhost", "queue"),
        ),
        Route("GET", "/metrics/memory-breakdown", _MONITOR, show_metrics, "Memory use, for Prometheus"),
    )
