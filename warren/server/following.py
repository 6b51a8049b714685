"""Offer plugins a view of a node that follows another one: it runs no engine."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import trio

from warren.server.client_of_node import ClientOfNode
from warren.server.management import Health, Listening
from warren.server.network.tls import ServerTls
from warren.server.settings import Settings
from warren.server.supervision import Supervision
from warren.vhosts.metadata import UserPut


class NotPromoted(Exception):
    """A follower cannot be promoted, for the reason said."""


class NoLeader(Exception):
    """The leader cannot be reached, or accepts no clients at the moment, for the reason said."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A connection to the leader for one client; it carries the client's bytes unchanged. `leader`: its name."""

    sock: socket.socket
    leader: object


class ReadableCopy(Protocol):
    """The streams that a follower in sync can serve, and the users who may read them."""

    served_bytes: int  # of chunks

    @property
    def store_id(self) -> bytes:
        """The id of the store that it copies."""

    def maybe_stream(self, vhost: str, name: str) -> int | None:
        """Return the id of a stream in the store."""

    def maybe_pattern(self, user: str, vhost: str) -> str | None:
        """Return a pattern of the queues in a vhost that a user may read; None if the user may not enter it."""

    def read(self, stream_id: int, first: int, end: int, most_bytes: int) -> tuple[list[bytes], int]:
        """Return sealed chunks, see ``msgstore.files.sealed_copy``. Blocks. Raises OSError."""


def _nothing_readable() -> ReadableCopy | None:
    """Return None: readers have to ask the leader."""
    return None


async def _not_recovered(_accept_loss: bool) -> dict[str, Any]:
    """Refuse: this node cannot recover anything."""
    raise NotPromoted("this node cannot be recovered")


@dataclass(frozen=True, slots=True)
class Following:
    """A node that follows another one, as its plugins see it: it does not run an engine.

    `users` returns the users in its metadata, `status` the answer of ``/api/cluster/status``. `promote` makes it a
    leader; it takes whether loss is accepted, and returns what to report about it, or raises `NotPromoted`. `leader`
    returns the leader as far as known, `silent_s` for how long the leader has been silent. `to_leader` connects a
    client to it, or raises `NoLeader`. `gauges` are numbers that plugins add to the metrics, by name: the meaning of
    each, and how it is read. `recover` declares the data of this node the truth for all nodes, and is called like
    `promote`. `readable` returns what this node can serve to readers itself, None while it is not in sync. `tls` has
    the context of all its listeners, if any speaks TLS.
    """

    settings: Settings
    tasks: Supervision
    users: Callable[[], dict[str, UserPut]]
    health: Callable[[], Health]
    status: Callable[[], dict[str, Any]]
    promote: Callable[[bool], Awaitable[dict[str, Any]]]
    leader: Callable[[], object]
    to_leader: Callable[[ClientOfNode], Awaitable[Passage]]
    gauges: dict[str, tuple[str, Callable[[], int]]] = field(default_factory=dict)
    recover: Callable[[bool], Awaitable[dict[str, Any]]] = _not_recovered
    readable: Callable[[], ReadableCopy | None] = _nothing_readable
    silent_s: Callable[[], float] = lambda: 0.0
    tls: ServerTls | None = None


@runtime_checkable
class FollowerPlugin(Protocol):
    """A plugin that also works beside a follower."""

    async def follow(self, following: Following, *, task_status: trio.TaskStatus[Sequence[Listening]]) -> None:
        """Serve until cancelled; started with the ports that were opened.

        Raises:
            StartError: something outside the program prevents it.
        """
