"""Whether this node has followers, and how far they are; what a follower answers is in ``follower_api``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route


class ClusterHandlers(Handlers):
    """Handlers for the followers of the node called `node`; `status` is None for one that takes none."""

    def __init__(self, node: str, status: Callable[[], dict[str, Any]] | None) -> None:
        self._node = node
        self._status = status

    async def show_status(self, call: Call) -> Described:
        if self._status is None:
            return {"role": "single", "node": self._node, "in_sync": [self._node], "followers": [], "trouble": ""}
        return self._status()

    ROUTES: ClassVar = (
        Route("GET", "/api/cluster/status", Access.MONITORING, show_status, "Followers, and which are in sync"),
    )
