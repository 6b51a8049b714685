"""The management plugin: opens its ports, and serves the API, the web UI and metrics on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import trio

from warren.mgmt_plugin import openapi
from warren.mgmt_plugin.api import Api
from warren.mgmt_plugin.http.server import Load, serve_http
from warren.mgmt_plugin.http.static_files import StaticFiles
from warren.mgmt_plugin.metrics import prometheus
from warren.mgmt_plugin.metrics.prometheus import Metrics, MetricsPort
from warren.mgmt_plugin.metrics.statistics import Statistics
from warren.mgmt_plugin.operators import Doorkeeper
from warren.mgmt_plugin.resources import (
    asked_routes,
    browsing,
    connections,
    data_port,
    definitions,
    drains,
    exchanges,
    health_checks,
    linked,
    messages,
    node,
    operations,
    overview,
    policies,
    queues,
    sessions,
    snapshots,
    stages,
    streams,
    super_streams,
    transfers,
    users,
    vhosts,
)
from warren.mgmt_plugin.resources.linked import Links, NoLinks
from warren.mgmt_plugin.resources.node import node_row
from warren.mgmt_plugin.resources.transfers import Transfers
from warren.mgmt_plugin.routes import Route, RouteTable
from warren.server.drains import Drains
from warren.server.management import Listening, Management
from warren.server.snapshots import Snapshots
from warren.server.stages import Stages

MODULES = (
    overview,
    node,
    health_checks,
    connections,
    queues,
    exchanges,
    messages,
    browsing,
    transfers,
    operations,
    asked_routes,
    streams,
    super_streams,
    data_port,
    snapshots,
    drains,
    stages,
    vhosts,
    users,
    policies,
    linked,
    definitions,
    sessions,
    prometheus,
    openapi,
)


def all_routes() -> Iterable[Route]:
    """Yield every route there is."""
    for module in MODULES:
        yield from module.ROUTES


@dataclass(frozen=True, slots=True)
class Services:
    """What handlers share."""

    table: RouteTable
    statistics: Statistics
    doorkeeper: Doorkeeper
    transfers: Transfers
    metrics: Metrics
    links: Links
    nursery: trio.Nursery
    stages: Stages
    snapshots: Snapshots
    drains: Drains
    importing: trio.Lock = field(default_factory=trio.Lock)  # definitions: a plan has to hold when it is applied


class ManagementPlugin:
    """Runs beside one broker. `links` tells how shovels and federation are."""

    def __init__(self, links: Links | None = None) -> None:
        self._links: Links = NoLinks() if links is None else links

    def prepare(self, management: Management) -> None:
        """Do nothing: it only asks."""

    async def run(self, management: Management, *, task_status: trio.TaskStatus[Sequence[Listening]]) -> None:
        """Serve until cancelled; started with the ports that were opened.

        Raises:
            StartError: a port cannot be opened.
        """
        settings = management.settings
        broker = management.broker
        tasks = management.tasks
        begin = tasks.begin
        below = management.descriptors.http_below
        hosts = {name.strip().lower() for name in settings.http_hosts.split(",") if name.strip()}
        hosts |= {settings.http.host} if settings.http is not None else set()
        hosts |= {settings.https.host} if settings.https is not None else set()
        doorkeeper = Doorkeeper(broker.access, management.authenticator, frozenset(hosts))
        table = RouteTable(all_routes())
        load = Load()
        metrics = Metrics(management, doorkeeper, load.traffic)
        opened: list[Listening] = []
        async with trio.open_nursery() as nursery:
            services = Services(
                table,
                Statistics(broker, partial(node_row, management)),
                doorkeeper,
                Transfers(),
                metrics,
                self._links,
                nursery,
                Stages(management, settings.data_dir),
                Snapshots(management, settings.data_dir),
                Drains(management),
            )
            api = Api(table, doorkeeper, management, services, StaticFiles())
            if settings.http is not None:
                host, port = settings.http.host, settings.http.port
                place = await nursery.start(
                    begin, "http", serve_http, "http", host, port, api.respond, None, load, tasks, below
                )
                opened.append(Listening("http", *place))
            tls = management.tls
            if settings.https is not None and tls is not None:
                host, port = settings.https.host, settings.https.port

                def wrap(stream: trio.SocketStream) -> trio.SSLStream[trio.SocketStream]:
                    return trio.SSLStream(stream, tls.context, server_side=True, https_compatible=True)

                place = await nursery.start(
                    begin, "https", serve_http, "https", host, port, api.respond, wrap, load, tasks, below
                )
                opened.append(Listening("https", *place))
            if settings.prometheus is not None:
                host, port = settings.prometheus.host, settings.prometheus.port
                respond = MetricsPort(metrics, management).respond
                place = await nursery.start(
                    begin, "prometheus", serve_http, "prometheus", host, port, respond, None, load, tasks, below
                )
                opened.append(Listening("prometheus", *place))
            task_status.started(opened)
            nursery.start_soon(tasks.keep, "statistics", services.statistics.run)
            nursery.start_soon(tasks.keep, "stages", services.stages.run)
            nursery.start_soon(tasks.keep, "snapshots", services.snapshots.run)
            nursery.start_soon(tasks.keep, "leases of drains", services.drains.run)
