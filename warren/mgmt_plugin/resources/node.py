"""The node: its resources and their past, its memory, its settings, logins."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
import trio

from warren import __version__
from warren.engine_view.engine_view import EngineView
from warren.engine_view.totals import chunks
from warren.mgmt_plugin.http.scheduler import give_way
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.metrics.statistics import CHURN, NODE_FIELDS, RANGE_QUERY, Ranges, Statistics
from warren.mgmt_plugin.operators import Doorkeeper
from warren.mgmt_plugin.resources.cluster import member_row
from warren.mgmt_plugin.resources.overview import PRODUCT, context_rows, exchange_types
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request, not_found
from warren.queues.arguments import CLASSIC, QUORUM, STREAM
from warren.server import logs
from warren.server.descriptors import OPEN_DESCRIPTORS, told_open
from warren.server.management import Management
from warren.server.message_store import MessageStoreService
from warren.server.network.reactor import Reactor
from warren.server.process_memory import program_bytes, resident_bytes

MECHANISMS: Final = ("PLAIN", "AMQPLAIN", "EXTERNAL")
QUEUE_PARTS: Final = {CLASSIC: "queue_procs", QUORUM: "quorum_queue_procs", STREAM: "stream_queue_procs"}
# RabbitMQ's parts of the memory. Those that nothing here stands for are 0.
MEMORY_PARTS: Final = (
    "connection_readers",
    "connection_writers",
    "connection_channels",
    "connection_other",
    "queue_procs",
    "quorum_queue_procs",
    "quorum_queue_dlx_procs",
    "stream_queue_procs",
    "stream_queue_replica_reader_procs",
    "stream_queue_coordinator_procs",
    "plugins",
    "metadata_store",
    "other_proc",
    "metrics",
    "mgmt_db",
    "mnesia",
    "quorum_ets",
    "metadata_store_ets",
    "other_ets",
    "binary",
    "msg_index",
    "code",
    "atom",
    "other_system",
    "allocated_unused",
    "reserved_unallocated",
)


class LogLevel(msgspec.Struct, forbid_unknown_fields=True):
    """The least level that is logged: debug, info, warning or error."""

    level: str


def open_descriptors() -> int:
    """Return the number of open file descriptors."""
    return told_open() or len(os.listdir(OPEN_DESCRIPTORS))


def node_row(reactor: Reactor, view: EngineView, messages: MessageStoreService, data_dir: Path) -> tuple[int, ...]:
    """Return `statistics.NODE_FIELDS` now."""
    segments = view.segments()
    return (
        resident_bytes(),
        open_descriptors(),
        reactor.connection_count(),
        shutil.disk_usage(data_dir).free,
        trio.lowlevel.current_statistics().tasks_living,
        sum(segment.bytes for segment in segments),
        sum(segment.live_bytes for segment in segments),
        messages.counts.batches,
        messages.counts.reads,
        messages.counts.written_bytes,
        messages.counts.syncs,
    )


def _config_files(origins: Any) -> set[str]:
    return {origin.removeprefix("file ") for origin in origins.values() if origin.startswith("file ")}


_N: Final = "/api/nodes/{node}"
_LOG_LEVEL: Final = "/api/warren/log-level"
_MONITOR: Final = Access.MONITORING
_QUERY: Final = (*RANGE_QUERY, "memory")


class NodeHandlers(Handlers):
    """Handlers of the node. They show all of the process, so they are given all of it."""

    def __init__(self, management: Management, statistics: Statistics, doorkeeper: Doorkeeper) -> None:
        self._management = management
        self._statistics = statistics
        self._doorkeeper = doorkeeper

    def describe_node(self, call: Call) -> Described:
        """Return the node."""
        management = self._management
        view = management.view
        inbound = view.inbound()
        settings = management.settings
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        messages = management.messages
        churn: Described = {}
        self._statistics.of_broker((0, 0, 0)).add(churn, CHURN)
        described: Described = churn | {
            "name": view.node_name(),
            "type": "disc",
            "running": True,
            "being_drained": False,
            **self._role(),
            "uptime": management.clock_ms() - management.started_ms,
            "os_pid": str(os.getpid()),
            "fd_total": descriptors,
            "sockets_total": descriptors,
            "mem_limit": management.memory_limit_bytes,
            "mem_alarm": view.has_alarm("memory"),
            "inbound_alarm": inbound.is_short,
            "inbound_bytes": inbound.held_bytes,
            "inbound_limit": inbound.max_bytes,
            "mem_calculation_strategy": "rss",
            "disk_free_limit": settings.store.disk_free_min_bytes,
            "disk_free_alarm": view.has_alarm("disk"),
            "replicas_alarm": view.has_alarm("replicas"),
            "links_held": management.held_links.reason or None,
            "proc_total": view.connections_max(),
            "processors": os.cpu_count() or 1,
            "run_queue": 0,
            "rates_mode": "basic",
            "net_ticktime": 60,
            "partitions": [],
            "enabled_plugins": ["warren_management", "warren_prometheus"],
            "exchange_types": exchange_types(),
            "auth_mechanisms": [{"name": name, "description": name, "enabled": True} for name in MECHANISMS],
            "applications": [{"name": "warren", "description": PRODUCT, "version": __version__}],
            "contexts": context_rows(view.node_name(), management.listening),
            "log_files": ["<stderr>"],
            "config_files": sorted(_config_files(settings.origins)),
            "db_dir": str(settings.data_dir.absolute()),
            "cluster_links": [],
            "metrics_gc_queue_length": {},
            "queue_index_write_count": messages.counts.checkpoints,
            "failing_tasks": [
                {
                    "name": task.name,
                    "need": task.need,
                    "state": task.state,
                    "failures": task.failures,
                    "reason": task.reason,
                }
                for task in management.tasks.failing()
            ],
        }
        self._statistics.of_node().add(described, NODE_FIELDS, Ranges.of(call.query).node)
        return described

    def _role(self) -> Described:
        """Return the role of this node among others."""
        cluster = self._management.cluster
        if cluster is None:
            return {"role": "single"}
        return {name: value for name, value in cluster()["members"][0].items() if name != "node"}

    async def _with_memory(self, call: Call) -> Described:
        """Return the node, with the uses of its memory if the query asks for that."""
        described = self.describe_node(call)
        if call.flag("memory"):
            described["memory"] = await self._memory(call)
        return described

    def _others(self) -> list[Described]:
        """Return the other nodes of the cluster, also those that are gone."""
        cluster = self._management.cluster
        return [] if cluster is None else [member_row(row) for row in cluster()["members"][1:]]

    async def list_nodes(self, call: Call) -> list[Described]:
        """Return this node first, which leads."""
        return [await self._with_memory(call), *self._others()]

    def _the_node(self, call: Call) -> None:
        if call.params["node"] != self._management.view.node_name():
            raise not_found()

    async def show_node(self, call: Call) -> Described:
        for row in self._others():
            if row["name"] == call.params["node"]:
                return row
        self._the_node(call)
        return await self._with_memory(call)

    async def show_memory(self, call: Call) -> Described:
        self._the_node(call)
        return {"memory": await self._memory(call)}

    async def show_relative_memory(self, call: Call) -> Described:
        self._the_node(call)
        used = resident_bytes()
        breakdown = await self._memory_breakdown(used)
        return {"memory": {**{name: round(100 * value / used) for name, value in breakdown.items()}, "total": 100}}

    async def _memory(self, call: Call) -> Described:
        used = resident_bytes()
        total = {"rss": used, "allocated": used, "erlang": used}
        return {**await self._memory_breakdown(used), "strategy": "rss", "total": total}

    async def _memory_breakdown(self, used: int) -> dict[str, int]:
        """Return the known uses of memory, in bytes, under RabbitMQ's names.

        ``code`` is what the process took at its start. The rest of `used` is of connections, channels, bindings, and
        memory that is kept for reuse.
        """
        view = self._management.view
        found = dict.fromkeys(MEMORY_PARTS, 0)
        found["connection_readers"] = view.inbound().held_bytes
        found["connection_writers"] = view.waiting_bytes()
        for vhost in list(view.vhosts):
            for some in chunks(view.queues.in_vhost(vhost)):
                for kind, size in view.queues.memory(some).items():
                    found[QUEUE_PARTS[kind]] += size
                await give_way()
        found["mgmt_db"] = self._statistics.memory_bytes()
        found["code"] = min(program_bytes(), max(0, used - sum(found.values())))
        found["other_system"] = max(0, used - sum(found.values()))
        return found

    async def show_environment(self, call: Call) -> Described:
        settings = self._management.settings
        from warren.server.settings_reader import shown_values

        return {key: {"value": value, "origin": origin} for key, value, origin in shown_values(settings)}

    async def show_log_level(self, call: Call) -> Described:
        return {"level": logs.level(), "configured": self._management.settings.log_level}

    async def set_log_level(self, call: Call) -> None:
        level = (await call.body(LogLevel)).level
        if level not in logs.LEVELS:
            raise bad_request(f"level must be one of {', '.join(logs.LEVELS)}")
        logs.set_level(level, f"user {call.operator.name}")

    async def list_attempts(self, call: Call) -> list[Described]:
        self._the_node(call)
        churn = self._management.view.churn()
        doorkeeper = self._doorkeeper
        rows: list[tuple[str, int, int]] = [
            ("http", doorkeeper.succeeded, doorkeeper.failed),
            ("amqp091", churn.logins_accepted, churn.logins_refused),
        ]
        return [
            {
                "protocol": protocol,
                "auth_attempts": succeeded + failed,
                "auth_attempts_succeeded": succeeded,
                "auth_attempts_failed": failed,
            }
            for protocol, succeeded, failed in rows
        ]

    ROUTES: ClassVar = (
        Route("GET", "/api/nodes", _MONITOR, list_nodes, "The nodes", query=_QUERY),
        Route("GET", _N, _MONITOR, show_node, "A node", query=_QUERY),
        Route("GET", f"{_N}/memory", _MONITOR, show_memory, "Memory use of a node"),
        Route("GET", f"{_N}/memory/relative", _MONITOR, show_relative_memory, "Memory use of a node in per cent"),
        Route("GET", "/api/config/effective", Access.ADMINISTRATOR, show_environment, "All settings, and their origin"),
        Route("GET", _LOG_LEVEL, _MONITOR, show_log_level, "The current log level, and that of the settings"),
        Route(
            "PUT",
            _LOG_LEVEL,
            Access.ADMINISTRATOR,
            set_log_level,
            "Log from this level up, until the next start or SIGHUP",
            LogLevel,
        ),
        Route("GET", "/api/auth/attempts/{node}", _MONITOR, list_attempts, "Logins, accepted and refused"),
    )
