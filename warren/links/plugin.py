"""The plugin that runs the links of a broker: shovels, federation, and tables that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from warren import __version__
from warren.links.address_guard import AddressGuard, networks
from warren.links.amqp_client import ClientSettings
from warren.links.broker_host import BrokerHost
from warren.links.lake_host import LakeHost
from warren.links.lake_jobs import LakeJobs
from warren.links.supervisor import Supervisor
from warren.server.host_names import resolve
from warren.server.management import Listening, Management


class LinksPlugin:
    """Runs beside one broker, and reports the state of its links."""

    def __init__(self) -> None:
        self._supervisor: Supervisor | None = None
        self._host: BrokerHost | None = None
        self._tables: LakeJobs | None = None

    def prepare(self, management: Management) -> None:
        """Register the parameters of links with the broker."""
        self._host = BrokerHost(management)
        self._tables = LakeJobs(LakeHost(management))

    async def run(self, management: Management, *, task_status: trio.TaskStatus[Sequence[Listening]]) -> None:
        """Keep the links as parameters and policies require, until cancelled."""
        guard = AddressGuard(networks(management.settings.link_networks.split(",")))
        limits = management.settings.limits
        below = management.descriptors.clients_below
        settings = ClientSettings(
            guard, limits.max_message_bytes, version=__version__, descriptors_below=below, resolve=resolve
        )
        host, tables = self._host, self._tables
        assert host is not None and tables is not None, "prepare comes first"
        self._supervisor = Supervisor(host, settings)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(management.tasks.keep, "links and their tasks", self._supervisor.run)
            nursery.start_soon(management.tasks.keep, "demand of federated queues", host.watch_demand)
            nursery.start_soon(management.tasks.keep, "tables and their process", tables.run)
            task_status.started([])

    # --- for the management API -------------------------------------------------------------------------------------

    def shovels(self, vhost: str | None = None) -> list[dict[str, Any]]:
        """Return the state of all shovels, or of those of a vhost."""
        return [] if self._supervisor is None else list(self._supervisor.shovels(vhost))

    def restart_shovel(self, vhost: str, name: str) -> bool:
        """Restart a shovel; return False when the name is unknown."""
        return self._supervisor is not None and self._supervisor.restart_shovel(vhost, name)

    def federation_links(self, vhost: str | None = None) -> list[dict[str, Any]]:
        """Return the state of all federation links, or of those of a vhost."""
        return [] if self._supervisor is None else list(self._supervisor.federation_links(vhost))

    def restart_federation_link(self, vhost: str, link_id: str) -> bool:
        """Restart a federation link; return False when the id is unknown."""
        return self._supervisor is not None and self._supervisor.restart_federation_link(vhost, link_id)

    def tables(self, vhost: str | None = None) -> list[dict[str, Any]]:
        """Return the state of all tables that follow, or of those of a vhost."""
        return [] if self._tables is None else self._tables.status(vhost)

    def restart_table(self, vhost: str, name: str) -> bool:
        """Restart a table; return False when the name is unknown."""
        return self._tables is not None and self._tables.restart(vhost, name)

    def table_process(self) -> tuple[int, int]:
        """Return how often the process of tables was started, and its memory."""
        return (0, 0) if self._tables is None else (self._tables.processes, self._tables.memory_bytes)
