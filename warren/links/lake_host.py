"""The broker as the host of its tables: `lake_jobs.Host` over `server.management.Management`.

1. A table writes files with the rights of the broker. So only an administrator may set its parameter, and only for
   places that the operator's setting allows. If a place is no longer allowed, the state of the table says so.
2. Two parameters never name the same table: each would take the table over from the other one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from warren.engine_view.permissions import INTERNAL_USER
from warren.lake.parameter import COMPONENT, job_of_parameter
from warren.lake.places import places_of
from warren.links.host import Parameter
from warren.links.lake_jobs import JOBS_MAX
from warren.server.logs import get_logger
from warren.server.management import Management

log = get_logger("lake")


class LakeHost:
    """One broker, as its tables see it. See `lake_jobs.Host` for the methods."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self._view = management.view
        self._listeners: list[Callable[[], None]] = []
        self.places = management.settings.lake_places
        self._places = places_of(self.places)
        self.descriptors_below = management.descriptors.clients_below
        self._view.parameters.validate_by(COMPONENT, self._problems)
        self._view.parameters.watch(self._parameter_changed)

    def _problems(self, vhost: str, name: str, value: Any, by: str) -> list[str]:
        if by not in ("", INTERNAL_USER):
            user = self._view.permissions.get(by)
            if user is None or "administrator" not in user.tags:
                return [f'user "{by}" needs the tag administrator: a table writes files where the broker may']
        try:
            tables = job_of_parameter(value, self._places).tables()
        except ValueError as error:
            return [str(error)]
        found = self.parameters()
        if len(found) >= JOBS_MAX and all((each.vhost, each.name) != (vhost, name) for each in found):
            return [f"a broker has {JOBS_MAX} tables at most"]
        for each in found:
            if (each.vhost, each.name) != (vhost, name) and not tables.isdisjoint(self._tables(each.value)):
                return [f'the table is that of the parameter "{each.name}" in vhost "{each.vhost}"']
        return []

    def _tables(self, value: object) -> Collection[object]:
        """Return the tables that a parameter names, without reading its schema, which may be large."""
        if isinstance(value, dict) and isinstance(value.get("schema"), dict):
            value = {**value, "schema": {}}
        try:
            return job_of_parameter(value, self._places).tables()
        except ValueError:
            return ()

    # --- the objects of the broker -----------------------------------------------------------------------------------

    @property
    def held_reason(self) -> str:
        return self._management.held_links.reason

    @property
    def node_name(self) -> str:
        return self._view.node_name()

    def now(self) -> float:
        return time.time()

    def is_stopping(self) -> bool:
        return self._management.stopping

    def parameters(self) -> Sequence[Parameter]:
        found = self._view.parameters.of(None, COMPONENT)
        return [Parameter(each.component, each.vhost, each.name, each.value) for each in found]

    def described(self, value: object) -> dict[str, str]:
        job = job_of_parameter(value, self._places)
        found = {"source": job.source, "source_type": "queue" if job.stream is None else "stream"}
        found |= {"table": job.to, "format": job.format}
        catalog = job.catalog.get("uri") or job.catalog.get("name")
        return found if catalog is None else {**found, "catalog": catalog}

    def subscribe(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def _parameter_changed(self) -> None:
        for listener in self._listeners:
            listener()

    # --- the way in -------------------------------------------------------------------------------------------------

    async def url(self) -> str:
        return await self._management.local_http.url()

    def admit(self, vhost: str) -> str:
        return self._management.local_http.admit(vhost)

    def dismiss(self, token: str) -> None:
        self._management.local_http.dismiss(token)

    def log(self, level: str, event: str, **details: object) -> None:
        write: Callable[..., None] = getattr(log, level)
        write(event, **details)
