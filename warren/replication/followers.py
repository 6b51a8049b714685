"""The followers that are connected to a leader, each with its link.

1. A node has one link at a time. Another link of it, or of another node with its name or its incarnation, is refused
   while the first one answers, and ends the first one otherwise.
2. A replica is connected (``in_sync``) while its link is here. Only the end of its last link disconnects it.
"""

from __future__ import annotations

from typing import Any

from warren.replication.catching_up import CatchingUp, CatchUps
from warren.replication.entries import Entry, encoded
from warren.replication.format_level import ANSWERS_FROM, LEVEL
from warren.replication.handshake import Node
from warren.replication.in_sync import InSyncSet, Replica
from warren.replication.link_to_follower import LinkToFollower
from warren.replication.questions import Questions


class Followers:
    """The links of the nodes of `in_sync`, and how far these nodes have come."""

    def __init__(self, in_sync: InSyncSet, catch_ups: CatchUps) -> None:
        self._in_sync = in_sync
        self._catch_ups = catch_ups
        self._links: dict[Node, LinkToFollower] = {}

    def all(self) -> list[LinkToFollower]:
        """Return the links."""
        return list(self._links.values())

    def link(self, replica: Replica) -> LinkToFollower:
        """Return the link of a replica that is connected."""
        return self._links[replica.node]

    def maybe_link(self, node: Node) -> LinkToFollower | None:
        """Return the link of a node."""
        return self._links.get(node)

    def add(self, link: LinkToFollower) -> None:
        """Register a follower that has proved its identity."""
        self._links[link.node] = link

    def remove(self, link: LinkToFollower, now_s: float) -> None:
        """Note that a link has ended."""
        if self._links.get(link.node) is link:
            del self._links[link.node]
            self._in_sync.disconnected(link.replica, now_s)
            self._in_sync.forget_strangers()

    def rival(self, node: Node, now_s: float) -> Node | None:
        """Return the node that keeps `node` from connecting: itself, or another one of that name."""
        for other, link in self._links.items():
            is_same = other.name == node.name or other.incarnation == node.incarnation
            if is_same and self._in_sync.answers(link.replica, now_s):
                return other
            if is_same:
                link.end("it has connected again")
        return None

    def send(self, entry: Entry) -> None:
        """Send an entry to all."""
        for link in self.all():
            link.wire.put(encoded(entry))

    def level(self) -> int:
        """Return the format level of the oldest version that is connected."""
        return min([LEVEL, *(link.level for link in self._links.values())])

    def askable(self) -> list[Questions]:
        """Return the links of followers in sync that answer questions. Any thread."""
        links = self.all()
        return [link.questions for link in links if self._is_member(link) and link.level >= ANSWERS_FROM]

    def readers(self) -> list[str]:
        """Return where sealed chunks can be read of followers in sync, by the names of these."""
        links = sorted(self.all(), key=lambda link: str(link.node))
        return [url for link in links if self._is_member(link) for url in link.urls]

    def _is_member(self, link: LinkToFollower) -> bool:
        return link.node in self._in_sync.members

    # --- status -----------------------------------------------------------------------------------------------------

    def rows(self, end_lsn: int, now_s: float) -> list[dict[str, Any]]:
        """Return a row for each node that is known, for ``/api/cluster/status``."""
        return [self._row(replica, end_lsn, now_s) for replica in self._in_sync.replicas()]

    def _row(self, replica: Replica, end_lsn: int, now_s: float) -> dict[str, Any]:
        link = self._links.get(replica.node)
        catching_up = self._catch_ups.maybe(replica.node)
        is_current = replica.synced_lsn >= self._in_sync.committed_lsn
        return {
            "node": replica.node.name,
            "id": replica.node.incarnation.hex(),
            "address": None if link is None else link.address,
            "connected": replica.is_connected,
            "in_sync": replica.node in self._in_sync.members,
            "catching_up": replica.is_connected and not replica.is_noted,
            "waits_s": 0.0 if catching_up is None else round(catching_up.waits_s(now_s), 3),
            "trouble": _trouble_of(replica, link, catching_up),
            "version": None if link is None else link.version,
            "format_level": None if link is None else link.level,
            "received_lsn": replica.received_lsn,
            "synced_lsn": replica.synced_lsn,
            "lag_bytes": max(0, end_lsn - replica.synced_lsn) if replica.is_connected else None,
            "lag_s": 0.0 if is_current and replica.is_connected else round(now_s - replica.current_s, 3),
            "silent_s": None if replica.is_awaited else round(now_s - replica.heard_s, 3),
        }


def _trouble_of(replica: Replica, link: LinkToFollower | None, catching_up: CatchingUp | None) -> str:
    """Return why a follower was given up, or the trouble of its directory until it has caught up."""
    if catching_up is not None and catching_up.given_up:
        return catching_up.given_up
    return "" if link is None or replica.is_noted else link.trouble
