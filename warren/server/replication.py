"""Define the interface between the broker and a leader of followers. The leader itself is ``warren.replication``.

1. A broker without followers does not use this: its store commits alone, and the gate is always open.
2. The gate is asked on the loop only. The threads of the store use the files in the same way as a `Store`.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import trio

from warren.channels.broker import Broker
from warren.msgstore.files.store import Store
from warren.msgstore.log.message_log import MessageLog
from warren.server.client_of_node import ClientOfNode
from warren.server.clock import SteadyClock
from warren.server.store_reader import Mender
from warren.server.store_threads import Gate, StoreFiles
from warren.server.supervision import Supervision
from warren.vhosts.metadata import MetadataChange


@dataclass(frozen=True, slots=True)
class Host:
    """The broker around a leader.

    Call `gate_moved` on the loop when the gate may have opened. `settle` has to follow outside of a turn of the
    reactor. A descriptor given to `watch` is read in turns of the reactor, by the function that was given with it.
    `copy_metadata` returns the number below which SQL has all changes, and its contents. `pass_on` serves a client of a
    follower through the given socket, if `may_accept` allowed it just before. `stop` ends the broker as a signal does,
    and sends its clients away.
    """

    broker: Broker
    tasks: Supervision
    settle: Callable[[], None]
    gate_moved: Callable[[], None]
    watch: Callable[[int, Callable[[], None]], None]
    unwatch: Callable[[int], None]
    copy_metadata: Callable[[], Awaitable[tuple[int, list[MetadataChange]]]]
    may_accept: Callable[[], bool]
    pass_on: Callable[[socket.socket, ClientOfNode], None]
    stop: Callable[[], None]


class ClusterRefusal(Exception):
    """A command about the cluster is refused, and has no effect. The text says why, and what to do."""


class Replication(Protocol):
    """A leader, as its broker sees it."""

    gate: Gate
    clock: SteadyClock  # the time by which everything expires

    def files(self, store: Store, log: MessageLog) -> StoreFiles:
        """Return the files that the threads use instead of `store`. Both have been recovered, and not written yet."""

    def metadata_applied(self, first: int, records: Sequence[bytes | None]) -> None:
        """Note that SQL has these records of the log; `first` is the number of the first one."""

    async def run(self, host: Host, *, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
        """Serve followers until cancelled; started with host and port. Commits may wait for it from then on.

        Raises:
            StartError: the address cannot be bound.
        """

    def may_serve(self) -> bool:
        """Tell whether clients may be served at this moment. Asked before any is served, and in every turn."""

    def stopping(self) -> None:
        """Begin to stop, as the process was told to: start nothing, and let another node lead if one can."""

    def is_handing_over(self) -> bool:
        """Tell whether another node should lead after the broker has stopped: clients should find it soon."""

    def gives_way(self) -> bool:
        """Tell whether it hands over to a node with a better disk: stopping must not wait for the disk of this one."""

    def trouble_of_disk(self) -> str:
        """Return how the disk of this node delays all clients; empty while it does not."""

    async def hand_over(self) -> None:
        """Hand leadership to another node, if one should lead. The broker has stopped, and everything is written."""

    async def transfer(self, node: str | None) -> str:
        """Stop the broker, so that another node leads: `node`, or any. Return its name.

        Raises:
            ClusterRefusal: no node can.
        """

    async def forget(self, node: str) -> None:
        """Remove a dead node from the member count.

        Raises:
            ClusterRefusal: it still counts, for the reason said.
        """

    async def drain(self, node: str) -> None:
        """Keep a node from leading until it is revived.

        Raises:
            ClusterRefusal: it may still lead, for the reason said.
        """

    async def revive(self, node: str) -> None:
        """Allow a node to lead again.

        Raises:
            ClusterRefusal: it still may not, for the reason said.
        """

    def mender(self) -> Mender:
        """Return the mender that repairs damage on disk from followers."""

    def readers(self) -> list[str]:
        """Return the URLs of the management API of followers in sync, which serve sealed chunks of streams."""

    def status(self) -> dict[str, Any]:
        """Return the answer of ``/api/cluster/status``."""
