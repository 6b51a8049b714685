"""The management plugin: opens its ports, and serves the API, the web UI and metrics on them."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

import trio

from warren.mgmt_plugin.api import Api
from warren.mgmt_plugin.data_listener import DataListener
from warren.mgmt_plugin.data_tokens import DataTokens, key_of
from warren.mgmt_plugin.follower_api import FollowerApi
from warren.mgmt_plugin.http.server import HttpTraffic, Load, Port, Respond, converse_through_node, serve_http
from warren.mgmt_plugin.http.static_files import StaticFiles
from warren.mgmt_plugin.local_listener import LocalListener
from warren.mgmt_plugin.metrics.prometheus import Metrics, MetricsHandlers, MetricsPort
from warren.mgmt_plugin.metrics.statistics import Statistics
from warren.mgmt_plugin.openapi import DocumentHandlers
from warren.mgmt_plugin.operators import Doorkeeper
from warren.mgmt_plugin.resources.asked_routes import AskedRouteHandlers
from warren.mgmt_plugin.resources.attention import AttentionHandlers
from warren.mgmt_plugin.resources.backups import BackupHandlers
from warren.mgmt_plugin.resources.browsing import BrowsingHandlers
from warren.mgmt_plugin.resources.cluster import ClusterHandlers
from warren.mgmt_plugin.resources.connections import ConnectionHandlers
from warren.mgmt_plugin.resources.consumers import ConsumerHandlers
from warren.mgmt_plugin.resources.damage import DamageHandlers
from warren.mgmt_plugin.resources.data_port import DataPortHandlers
from warren.mgmt_plugin.resources.data_tokens import DataTokenHandlers
from warren.mgmt_plugin.resources.definitions import DefinitionHandlers
from warren.mgmt_plugin.resources.drains import DrainHandlers
from warren.mgmt_plugin.resources.exchanges import ExchangeHandlers
from warren.mgmt_plugin.resources.health_checks import HealthHandlers
from warren.mgmt_plugin.resources.linked import LinkHandlers, Links, NoLinks
from warren.mgmt_plugin.resources.log_lines import LogLineHandlers
from warren.mgmt_plugin.resources.messages import MessageHandlers
from warren.mgmt_plugin.resources.mqtt import MqttHandlers
from warren.mgmt_plugin.resources.node import NodeHandlers, node_row
from warren.mgmt_plugin.resources.operations import (
    QueueOperationHandlers,
    SearchHandlers,
    StoreHandlers,
    TopologyHandlers,
)
from warren.mgmt_plugin.resources.overview import OverviewHandlers
from warren.mgmt_plugin.resources.policies import ParameterHandlers, PolicyHandlers
from warren.mgmt_plugin.resources.queues import QueueHandlers
from warren.mgmt_plugin.resources.ranges import BESIDE_BYTES, Sources
from warren.mgmt_plugin.resources.sessions import SessionHandlers
from warren.mgmt_plugin.resources.snapshots import SnapshotHandlers
from warren.mgmt_plugin.resources.stages import StageHandlers
from warren.mgmt_plugin.resources.streams import StreamHandlers
from warren.mgmt_plugin.resources.super_streams import SuperStreamHandlers
from warren.mgmt_plugin.resources.transfers import TransferHandlers, Transfers
from warren.mgmt_plugin.resources.users import UserHandlers
from warren.mgmt_plugin.resources.vhosts import VhostHandlers
from warren.mgmt_plugin.routes import Handlers, Route, RouteTable
from warren.server.client_of_node import ClientOfNode
from warren.server.copies.backups import Backups
from warren.server.copies.snapshots import Snapshots
from warren.server.data_dir import MESSAGES
from warren.server.descriptors import raise_limit
from warren.server.draining.drains import Drains
from warren.server.following import Following
from warren.server.logs import RECENT
from warren.server.management import Listening, Management
from warren.server.network.tls import ServerTls
from warren.server.network.tls_stream import TlsStream
from warren.server.setting_kinds import Endpoint
from warren.server.settings import Settings
from warren.server.staging.stages import Stages
from warren.server.supervision import Supervision


class Services:
    """The services that the plugin runs beside the broker, for the handlers that need them."""

    def __init__(self, management: Management, *, doorkeeper: Doorkeeper, traffic: HttpTraffic, links: Links) -> None:
        data_dir = management.settings.data_dir
        self.doorkeeper = doorkeeper
        self.links = links
        view, messages = management.view, management.messages
        self.statistics = Statistics(view, partial(node_row, management.reactor, view, messages, data_dir))
        self.metrics = Metrics(management, doorkeeper, traffic, links)
        self.transfers = Transfers(view)
        self.stages = Stages(management, data_dir)
        self.snapshots = Snapshots(management, data_dir)
        self.drains = Drains(management)
        self.backups = Backups(management)
        self.tokens = DataTokens(_token_key(management.settings), view.permissions)


def _token_key(settings: Settings) -> bytes:
    """Return the key of tokens; without a listener for them none is made that would last."""
    if settings.data is None and settings.datas is None:
        return secrets.token_bytes(32)
    return key_of(settings.data_dir, settings.cluster_secret_file)


class Given:
    """The sources of the arguments in `_ROWS`."""

    def __init__(self, management: Management, services: Services, nursery: trio.Nursery) -> None:
        self.management = management
        self.view = management.view
        self.settings = management.settings
        self.listening = management.listening
        self.services = services
        self.statistics = services.statistics
        self.nursery = nursery


_H = TypeVar("_H", bound=Handlers)
_Row = tuple[type[Handlers], Callable[[Given], Handlers]]


def _row(kind: type[_H], make: Callable[[type[_H], Given], _H]) -> _Row:
    return kind, partial(make, kind)


# All handlers, and what each is given: its routes can touch nothing else.
_ROWS: Final[tuple[_Row, ...]] = (
    _row(OverviewHandlers, lambda kind, of: kind(of.view, of.statistics, of.listening, of.management.cluster)),
    _row(AttentionHandlers, lambda kind, of: kind(of.view, of.statistics)),
    _row(NodeHandlers, lambda kind, of: kind(of.management, of.statistics, of.services.doorkeeper)),
    _row(LogLineHandlers, lambda kind, of: kind(RECENT)),
    _row(HealthHandlers, lambda kind, of: kind(of.view, of.management.health, of.listening, of.management.tls)),
    _row(
        ClusterHandlers,
        lambda kind, of: kind(
            of.view.node_name(), of.management.health, of.management.cluster, of.management.replication
        ),
    ),
    _row(ConnectionHandlers, lambda kind, of: kind(of.view, of.statistics)),
    _row(QueueHandlers, lambda kind, of: kind(of.view, of.statistics)),
    _row(ConsumerHandlers, lambda kind, of: kind(of.view, of.statistics)),
    _row(ExchangeHandlers, lambda kind, of: kind(of.view, of.statistics)),
    _row(MessageHandlers, lambda kind, of: kind(of.view, of.settings.limits.max_message_bytes)),
    _row(BrowsingHandlers, lambda kind, of: kind(of.view, of.statistics)),
    _row(TransferHandlers, lambda kind, of: kind(of.view, of.services.transfers, of.management.tasks, of.nursery)),
    _row(QueueOperationHandlers, lambda kind, of: kind(of.view)),
    _row(TopologyHandlers, lambda kind, of: kind(of.view, of.statistics)),
    _row(SearchHandlers, lambda kind, of: kind(of.view)),
    _row(StoreHandlers, lambda kind, of: kind(of.view, of.management.messages, of.management.reactor)),
    _row(DamageHandlers, lambda kind, of: kind(of.view.damage, of.management.messages)),
    _row(AskedRouteHandlers, lambda kind, of: kind(of.view)),
    _row(StreamHandlers, lambda kind, of: kind(of.view)),
    _row(MqttHandlers, lambda kind, of: kind(of.view, of.management.settle, of.management.commit)),
    _row(SuperStreamHandlers, lambda kind, of: kind(of.view)),
    _row(
        DataPortHandlers,
        lambda kind, of: kind(
            Sources(of.view, of.services.drains),
            of.services.snapshots,
            of.settings.data_dir.resolve() / MESSAGES,
            list if of.management.replication is None else of.management.replication.readers,
        ),
    ),
    _row(DataTokenHandlers, lambda kind, of: kind(of.view, of.services.tokens, of.listening)),
    _row(SnapshotHandlers, lambda kind, of: kind(of.view, of.services.snapshots, of.nursery)),
    _row(DrainHandlers, lambda kind, of: kind(of.view, of.services.drains)),
    _row(StageHandlers, lambda kind, of: kind(of.services.stages)),
    _row(BackupHandlers, lambda kind, of: kind(of.services.backups, of.nursery)),
    _row(VhostHandlers, lambda kind, of: kind(of.view, of.statistics)),
    _row(UserHandlers, lambda kind, of: kind(of.view.permissions)),
    _row(PolicyHandlers, lambda kind, of: kind(of.view)),
    _row(ParameterHandlers, lambda kind, of: kind(of.view)),
    _row(LinkHandlers, lambda kind, of: kind(of.services.links, of.view.parameters, of.management.held_links)),
    _row(DefinitionHandlers, lambda kind, of: kind(of.view, of.management.importer, of.management.commit)),
    _row(SessionHandlers, lambda kind, of: kind(of.services.doorkeeper, of.view.permissions)),
    _row(MetricsHandlers, lambda kind, of: kind(of.services.metrics)),
    _row(DocumentHandlers, lambda kind, of: kind(tuple(all_routes()))),
)
HANDLERS: Final = tuple(kind for kind, _ in _ROWS)


def all_routes() -> Iterable[Route]:
    """Yield all routes."""
    for handlers in HANDLERS:
        yield from handlers.ROUTES


def handlers_of(management: Management, services: Services, nursery: trio.Nursery) -> tuple[Handlers, ...]:
    """Make the handlers."""
    given = Given(management, services, nursery)
    return tuple(make(given) for _, make in _ROWS)


def table_of(handlers: Iterable[Handlers]) -> RouteTable:
    """Return the table of the routes of all `handlers`."""
    return RouteTable(route for each in handlers for route in each.routes())


# A port by its setting, where it is, what answers there, and whether it speaks TLS.
_Port = tuple[str, Endpoint | None, Respond, bool]


async def _open(
    nursery: trio.Nursery, ports: Iterable[_Port], tls: ServerTls | None, load: Load, tasks: Supervision, below: int
) -> list[Listening]:
    """Serve the ports that have an address. Descriptors from `below` on are not for HTTP. Raises StartError."""

    def wrap(stream: trio.SocketStream) -> TlsStream:
        assert tls is not None
        return TlsStream(stream, tls.context)

    opened: list[Listening] = []
    for name, endpoint, respond, speaks_tls in ports:
        if endpoint is not None:
            wrapped = wrap if speaks_tls else None
            host, port = endpoint.host, endpoint.port
            place = await nursery.start(
                tasks.begin, name, serve_http, name, host, port, respond, wrapped, load, tasks, below
            )
            opened.append(Listening(name, *place))
    return opened


class ManagementPlugin:
    """Runs beside one broker. `links` gives the state of shovels, federation and tables."""

    def __init__(self, links: Links | None = None) -> None:
        self._links: Links = NoLinks() if links is None else links

    def prepare(self, management: Management) -> None:
        """Do nothing: it only asks."""

    async def follow(self, following: Following, *, task_status: trio.TaskStatus[Sequence[Listening]]) -> None:
        """Serve the pages and actions of a follower until cancelled; it has started when its ports are open.

        Raises:
            StartError: a port cannot be opened.
        """
        settings, tasks = following.settings, following.tasks
        descriptors = raise_limit()
        below = descriptors.http_below
        load = Load(settings.limits.max_message_bytes, descriptors.http_max)
        api = FollowerApi(following)
        ports = (
            ("http", settings.http, api.respond, False),
            ("prometheus", settings.prometheus, api.respond_to_anybody, False),
            ("https", settings.https, api.respond, True),
        )
        async with trio.open_nursery() as nursery:
            opened = await _open(nursery, ports, following.tls, load, tasks, below)
            task_status.started(opened)

    async def run(self, management: Management, *, task_status: trio.TaskStatus[Sequence[Listening]]) -> None:
        """Serve until cancelled; started with the ports that were opened.

        Raises:
            StartError: a port cannot be opened.
        """
        settings = management.settings
        tasks = management.tasks
        below = management.descriptors.http_below
        hosts = {name.strip().lower() for name in settings.http_hosts.split(",") if name.strip()}
        hosts |= {settings.http.host} if settings.http is not None else set()
        hosts |= {settings.https.host} if settings.https is not None else set()
        doorkeeper = Doorkeeper(management.view.permissions, management.authenticator, frozenset(hosts))
        load = Load(settings.limits.max_message_bytes + BESIDE_BYTES, management.descriptors.http_max)
        services = Services(management, doorkeeper=doorkeeper, traffic=load.traffic, links=self._links)
        async with trio.open_nursery() as nursery:
            handlers = handlers_of(management, services, nursery)
            api = Api(table_of(handlers), doorkeeper, management, StaticFiles())
            data_port = next(each for each in handlers if isinstance(each, DataPortHandlers))
            data = DataListener(data_port, services.tokens, management).respond
            metrics = MetricsPort(services.metrics, management).respond
            ports = (
                ("http", settings.http, api.respond, False),
                ("https", settings.https, api.respond, True),
                ("prometheus", settings.prometheus, metrics, False),
                ("data", settings.data, data, False),
                ("datas", settings.datas, data, True),
            )
            opened = await _open(nursery, ports, management.tls, load, tasks, below)
            of_nodes = Port(api.respond, load)

            def pass_on(sock: socket.socket, client: ClientOfNode) -> None:
                converse = partial(
                    converse_through_node, sock, client.host, of_nodes, is_tls=client.is_tls, node=client.node
                )
                nursery.start_soon(tasks.once, "http client of a node", converse)

            management.pass_on = pass_on
            # Programs that the broker starts get no other nodes: they read from the node that started them.
            apart = (data_port.for_one_node(), *(each for each in handlers if each is not data_port))
            local = LocalListener(apart, management.local_http, management).respond

            async def serve_locally() -> None:
                """Serve the programs that the broker starts, as soon as one is started."""
                await management.local_http.wanted()
                try:
                    async with trio.open_nursery() as own_nursery:
                        place = await own_nursery.start(
                            serve_http, "local", "127.0.0.1", 0, local, None, load, tasks, below
                        )
                        management.local_http.opened(f"http://{place[0]}:{place[1]}")
                finally:
                    management.local_http.closed()

            task_status.started(opened)
            nursery.start_soon(tasks.keep, "local http", serve_locally)
            nursery.start_soon(tasks.keep, "statistics", services.statistics.run)
            nursery.start_soon(tasks.keep, "stages", services.stages.run)
            nursery.start_soon(tasks.keep, "snapshots", services.snapshots.run)
            nursery.start_soon(tasks.keep, "leases of drains", services.drains.run)
