"""The other nodes of a cluster, as one of them reaches them: where they are, and how far their logs go.

1. Addresses are those of the registry (``cluster/registry.py``), the current ones if etcd answers soon. Else a node
   is where it was seen last.
2. An address that makes no sense counts as none. A node that proves itself under another name has not answered.
3. A node of a version that tells nothing of its log counts as reached while it is registered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import trio

from warren.cluster.driver import ToldPosition
from warren.cluster.registry import NodeEntry, Seen
from warren.replication.elected_set import recorded
from warren.replication.format_level import POSITION_FROM
from warren.replication.handshake import Refused
from warren.replication.pre_vote import Told
from warren.server.setting_kinds import Endpoint

# For etcd to tell the address of a node: one that was not seen before, and one that most likely has not moved.
ADDRESS_S: Final = 0.5
SEEN_S: Final = 0.2


class Directory(Protocol):
    """Where the nodes are, see ``registry.py``."""

    late_renewals: int
    disk_is_low: bool
    namesake: str

    @property
    def seen(self) -> Mapping[str, Seen]: ...

    async def look(self) -> None: ...

    async def announce(self, name: str, entry: NodeEntry) -> None: ...

    async def maybe_entry(self, name: str) -> NodeEntry | None: ...

    async def is_registered(self, name: str) -> bool: ...


class Neighbours:
    """The nodes in a registry."""

    def __init__(self, registry: Directory) -> None:
        self._registry = registry

    async def address(self, node: str) -> Endpoint | None:
        """Return where a node is; None when that is not known."""
        entry = await self._maybe_entry(node)
        return None if entry is None else _endpoint(entry.cluster)

    async def ask_positions(
        self, nodes: frozenset[str], told: ToldPosition, position_of: Callable[[Endpoint], Awaitable[Told]]
    ) -> None:
        """Ask nodes how far their logs go, all at once, and tell each answer as it comes.

        `position_of` asks one of them; it raises OSError and Refused.
        """
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(self._ask, node, told, position_of)

    async def _ask(self, node: str, told: ToldPosition, position_of: Callable[[Endpoint], Awaitable[Told]]) -> None:
        entry = await self._maybe_entry(node)
        endpoint = None if entry is None else _endpoint(entry.cluster)
        if entry is None or endpoint is None:
            return
        if entry.level < POSITION_FROM:
            if await self._registry.is_registered(node):
                told(node, None, None)
            return
        try:
            answer = await position_of(endpoint)
        except (OSError, Refused):
            return
        if answer.node.name == node:
            told(node, recorded(answer.node), answer.standing)

    async def _maybe_entry(self, node: str) -> NodeEntry | None:
        """Return the entry of a node, the current one if etcd answers soon."""
        seen = self._registry.seen.get(node)
        entry = None if seen is None else seen.entry
        with trio.move_on_after(ADDRESS_S if seen is None else SEEN_S):
            entry = await self._registry.maybe_entry(node)
        return entry


def _endpoint(text: str) -> Endpoint | None:
    host, _, port = text.rpartition(":")
    return Endpoint(host.strip("[]"), int(port)) if host and port.isdecimal() and 0 < int(port) < 65536 else None
