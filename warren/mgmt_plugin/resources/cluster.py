"""The nodes of a cluster: how far they are, whether enough of them are there, and which of them is to lead.

A leader answers, for the node that was asked where that makes a difference (`Request.node`). The requests that a
follower answers by itself are in ``follower_api``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

import msgspec

from warren.mgmt_plugin.http.server import HttpError
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.resources.health_checks import OK, check_health, checks, failed
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, not_found
from warren.server.management import Health
from warren.server.replication import ClusterRefusal, Replication

# The parameter of a request for the status: a follower forwards it to its leader with this value.
OF: Final = "of"
LEADER: Final = "leader"


class Successor(msgspec.Struct):
    """The node that should lead next, by its name; None: any node that can."""

    node: str | None = None


Command = Callable[[str], Awaitable[None]]


class NodeChange(msgspec.Struct):
    """The body of a request about a node."""

    node: str


def member_row(member: Described) -> Described:
    """Return another node, by its row in ``/api/cluster/status``. Only the node itself knows its resources."""
    row = {name: value for name, value in member.items() if name != "node"}
    return {"name": member["node"], "type": "disc", "being_drained": False, "partitions": [], **row}


def quorum_critical(status: Described, node: str) -> str:
    """Return why nothing would be confirmed without the node of that name; nothing if there would be enough others."""
    there = {row["node"] for row in status["members"] if row["running"] and row["in_sync"]}
    left, least = len(there - {node}), status["min_in_sync"]
    if node not in there or left >= least:
        return ""
    return f"without {node} {left} nodes would be in sync, but {least} are required (min_in_sync)"


class ClusterHandlers(Handlers):
    """Handlers for the cluster of the node called `node`; `status` and `replication` are None for a single one."""

    def __init__(
        self,
        node: str,
        health: Callable[[], Health],
        status: Callable[[], dict[str, Any]] | None,
        replication: Replication | None = None,
    ) -> None:
        self._node = node
        self._health = health
        self._status = status
        self._replication = replication

    async def show_status(self, call: Call) -> Described:
        if self._status is None:
            return {
                "role": "single",
                "node": self._node,
                "in_sync": [self._node],
                "followers": [],
                "members": [],
                "trouble": "",
            }
        return self._status()

    async def transfer(self, call: Call) -> Described:
        wanted = await call.body(Successor)
        try:
            return {"from": self._node, "node": await self._cluster().transfer(wanted.node or None)}
        except ClusterRefusal as refusal:
            raise self._refused(refusal, wanted.node) from None

    async def forget(self, call: Call) -> Described:
        return await self._change(call, lambda cluster: cluster.forget)

    async def drain(self, call: Call) -> Described:
        return await self._change(call, lambda cluster: cluster.drain)

    async def revive(self, call: Call) -> Described:
        return await self._change(call, lambda cluster: cluster.revive)

    async def _change(self, call: Call, command: Callable[[Replication], Command]) -> Described:
        wanted = await call.body(NodeChange)
        try:
            await command(self._cluster())(wanted.node)
        except ClusterRefusal as refusal:
            raise self._refused(refusal, wanted.node) from None
        return {"node": wanted.node}

    def _refused(self, refusal: ClusterRefusal, node: str | None) -> HttpError:
        """Return the answer to a refused command: an unknown node, or a node in another state."""
        if node and self._status is not None:
            status = self._status()
            if node not in {row["node"] for row in status["members"]}.union(status.get("forgotten", ())):
                return not_found(str(refusal))
        return HttpError(409, "conflict", str(refusal))

    def _cluster(self) -> Replication:
        if self._replication is None:
            raise ClusterRefusal("this is a single node: there is no other node")
        return self._replication

    async def check_quorum_critical(self, call: Call) -> Described:
        if self._status is None:
            return {"status": "ok", "reason": "single node cluster"}
        reason = quorum_critical(self._status(), self._asked_node(call))
        if reason:
            raise failed(reason)
        return dict(OK)

    async def check_in_service(self, call: Call) -> Described:
        check_health(self._health())
        node = self._asked_node(call)
        if self._status is not None and node in self._status().get("drained", ()):
            raise failed(f"{node} is drained: it does not lead until it is revived")
        return dict(OK)

    def _asked_node(self, call: Call) -> str:
        return call.request.node or self._node

    async def check_size(self, call: Call) -> Described:
        status = {} if self._status is None else self._status()
        target = status.get("replicas", 0)
        running = sum(bool(row["running"]) for row in status.get("members", ()))
        if running < target:
            raise failed(f"{running} of {target} nodes run", running=running, target=target)
        return dict(OK)

    async def show_live(self, call: Call) -> Described:
        return dict(OK)

    async def show_ready(self, call: Call) -> Described:
        """Answer whether clients should come here: alarms do not matter, since consumers make room."""
        if self._replication is not None and not self._replication.may_serve():
            raise failed("this node leads, but may not serve clients at the moment")
        return dict(OK)

    ROUTES: ClassVar = (
        Route("GET", "/health/live", Access.PUBLIC, show_live, "The broker's event loop runs"),
        Route("GET", "/health/ready", Access.PUBLIC, show_ready, "Clients are served here, alarms or not"),
        Route(
            "GET",
            "/api/cluster/status",
            Access.MONITORING,
            show_status,
            "Followers, and which are in sync",
            query=(OF,),
        ),
        Route(
            "POST",
            "/api/cluster/transfer",
            Access.ADMINISTRATOR,
            transfer,
            "Transfer leadership to the named node, or to any",
            Successor,
        ),
        Route(
            "POST",
            "/api/cluster/forget",
            Access.ADMINISTRATOR,
            forget,
            "Remove a dead node from the member count",
            NodeChange,
        ),
        Route("POST", "/api/cluster/drain", Access.ADMINISTRATOR, drain, "Bar a node from leading", NodeChange),
        Route("POST", "/api/cluster/revive", Access.ADMINISTRATOR, revive, "Allow a node to lead again", NodeChange),
        *checks(
            {
                "is-in-service": (check_in_service, "The node is not in maintenance"),
                "node-is-quorum-critical": (check_quorum_critical, "Enough other nodes are in sync"),
                "node-is-mirror-sync-critical": (check_quorum_critical, "The same, as older tools ask"),
                "reached-target-cluster-size": (check_size, "All configured nodes run"),
            }
        ),
    )
