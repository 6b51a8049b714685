"""Shovels, federation links and tables: their state, and how they are restarted. Parameters define them.

Those of a restored or copied data directory are held until an administrator releases them (`server.held_links`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final, Protocol

from warren.engine_view.parameters import Parameters
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.names import visible_vhost_names
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, not_found
from warren.server.held_links import HeldLinks
from warren.vhosts.metadata import ParameterDelete

SHOVEL: Final = "shovel"
LAKE: Final = "lake"


class Links(Protocol):
    """The component that runs the links."""

    def shovels(self, vhost: str | None = None) -> list[dict[str, Any]]: ...
    def restart_shovel(self, vhost: str, name: str) -> bool: ...
    def federation_links(self, vhost: str | None = None) -> list[dict[str, Any]]: ...
    def restart_federation_link(self, vhost: str, link_id: str) -> bool: ...
    def tables(self, vhost: str | None = None) -> list[dict[str, Any]]: ...
    def restart_table(self, vhost: str, name: str) -> bool: ...
    def table_process(self) -> tuple[int, int]: ...


class NoLinks:
    """Nobody does."""

    def shovels(self, vhost: str | None = None) -> list[dict[str, Any]]:
        return []

    def restart_shovel(self, vhost: str, name: str) -> bool:
        return False

    def federation_links(self, vhost: str | None = None) -> list[dict[str, Any]]:
        return []

    def restart_federation_link(self, vhost: str, link_id: str) -> bool:
        return False

    def tables(self, vhost: str | None = None) -> list[dict[str, Any]]:
        return []

    def restart_table(self, vhost: str, name: str) -> bool:
        return False

    def table_process(self) -> tuple[int, int]:
        return 0, 0


_S: Final = "/api/shovels/vhost/{vhost}/{name}"
_L: Final = "/api/federation-links"
_T: Final = "/api/lake/vhost/{vhost}/{name}"


def _named(call: Call, rows: Iterable[Described]) -> Described:
    """Return the row of the name that was asked for."""
    for row in rows:
        if row["name"] == call.params["name"]:
            return row
    raise not_found()


class LinkHandlers(Handlers):
    """Handlers of shovels, federation links and tables."""

    def __init__(self, links: Links, parameters: Parameters, held: HeldLinks) -> None:
        self._links = links
        self._parameters = parameters
        self._held = held

    async def show_held(self, call: Call) -> Described:
        mark = self._held.maybe_mark()
        return {"held": False} if mark is None else {"held": True, **mark.document()}

    async def release(self, call: Call) -> Described:
        return {"released": await self._held.release(call.acting.administer, call.operator.name)}

    async def list_shovels(self, call: Call) -> list[Described]:
        return [row for vhost in visible_vhost_names(call) for row in self._links.shovels(vhost)]

    async def show_shovel(self, call: Call) -> Described:
        return _named(call, self._links.shovels(call.params["vhost"]))

    async def delete_shovel(self, call: Call) -> None:
        await self._delete(call, SHOVEL)

    async def restart_shovel(self, call: Call) -> None:
        if not self._links.restart_shovel(call.params["vhost"], call.params["name"]):
            raise not_found()

    async def list_links(self, call: Call) -> list[Described]:
        return [row for vhost in visible_vhost_names(call) for row in self._links.federation_links(vhost)]

    async def list_links_down(self, call: Call) -> list[Described]:
        return [row for row in await self.list_links(call) if row["status"] != "running"]

    async def restart_link(self, call: Call) -> None:
        if not self._links.restart_federation_link(call.params["vhost"], call.params["id"]):
            raise not_found()

    async def list_tables(self, call: Call) -> list[Described]:
        return [row for vhost in visible_vhost_names(call) for row in self._links.tables(vhost)]

    async def list_tables_down(self, call: Call) -> list[Described]:
        return [row for row in await self.list_tables(call) if row["state"] != "running"]

    async def show_table(self, call: Call) -> Described:
        return _named(call, self._links.tables(call.params["vhost"]))

    async def delete_table(self, call: Call) -> None:
        await self._delete(call, LAKE)

    async def restart_table(self, call: Call) -> None:
        if not self._links.restart_table(call.params["vhost"], call.params["name"]):
            raise not_found()

    async def _delete(self, call: Call, component: str) -> None:
        vhost, name = call.params["vhost"], call.params["name"]
        if self._parameters.maybe(vhost, component, name) is None:
            raise not_found()
        await call.administer(ParameterDelete(vhost, component, name))

    ROUTES: ClassVar = (
        Route("GET", "/api/warren/links", Access.MONITORING, show_held, "Whether links are held, and why"),
        Route("POST", "/api/warren/links/release", Access.ADMINISTRATOR, release, "Start links that are held"),
        Route("GET", "/api/shovels", Access.MONITORING, list_shovels, "Shovels"),
        Route("GET", "/api/shovels/{vhost}", Access.MONITORING, list_shovels, "Shovels of a vhost"),
        Route("GET", _S, Access.MONITORING, show_shovel, "A shovel"),
        Route("DELETE", _S, Access.POLICYMAKER, delete_shovel, "Delete a shovel"),
        Route("DELETE", f"{_S}/restart", Access.POLICYMAKER, restart_shovel, "Restart a shovel"),
        Route("GET", _L, Access.MONITORING, list_links, "Federation links"),
        Route("GET", f"{_L}/state/down", Access.MONITORING, list_links_down, "Federation links that are not running"),
        Route("GET", f"{_L}/{{vhost}}", Access.MONITORING, list_links, "Federation links of a vhost"),
        Route("GET", f"{_L}/{{vhost}}/state/down", Access.MONITORING, list_links_down, "Those that are not running"),
        Route(
            "DELETE",
            f"{_L}/vhost/{{vhost}}/{{id}}/{{node}}/restart",
            Access.POLICYMAKER,
            restart_link,
            "Restart a link",
        ),
        Route("GET", "/api/lake", Access.MONITORING, list_tables, "Tables that follow streams and queues"),
        Route("GET", "/api/lake/state/down", Access.MONITORING, list_tables_down, "Tables that do not follow"),
        Route(
            "GET",
            "/api/lake/{vhost}",
            Access.MONITORING,
            list_tables,
            "Tables that follow streams and queues of a vhost",
        ),
        Route("GET", "/api/lake/{vhost}/state/down", Access.MONITORING, list_tables_down, "Those that do not follow"),
        Route("GET", _T, Access.MONITORING, show_table, "A table that follows"),
        Route("DELETE", _T, Access.POLICYMAKER, delete_table, "Stop a table from following; its data stays"),
        Route("DELETE", f"{_T}/restart", Access.POLICYMAKER, restart_table, "Restart a table where it stopped"),
    )
