"""Offer plugins a view of the whole broker, and changes to it in the way of clients.

1. A plugin reads the engine's objects as they are, between two turns: they do not change while it does not await.
2. It does not change them itself. Declaring, binding, publishing and getting go through `clients`, as AMQP methods of a
   user. Users, vhosts, permissions, policies, limits and parameters go through `administer`, a file of definitions
   through `server.definitions`. `settle` follows every other call that the engine offers an operator.
3. A change that `administer` or `clients` reports as done is on disk.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from warren.channels.broker import Broker
from warren.server.catalogue.writer import CatalogueWriter
from warren.server.client_of_node import ClientOfNode
from warren.server.copies.images import Images
from warren.server.descriptors import Descriptors
from warren.server.direct_clients import DirectClients
from warren.server.held_links import HeldLinks
from warren.server.local_http import LocalHttp
from warren.server.logins.authenticator import Authenticator
from warren.server.message_store import MessageStoreService
from warren.server.network.reactor import Reactor
from warren.server.network.tls import ServerTls
from warren.server.replication import Replication
from warren.server.settings import Settings
from warren.server.supervision import Supervision
from warren.server.tracing.span_export import SpanExport
from warren.vhosts.metadata import MetadataChange

if TYPE_CHECKING:
    from warren.engine_view.engine_view import EngineView
    from warren.server.definitions.apply import Importer

# A loopback address apart from the one that local clients use: a link that keeps trying a wrong password uses up the
# attempts of links, not those of clients on this machine.
LOCAL_ADDRESS: Final = "127.0.0.2"
COMMIT_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the broker can do its work; `reason` says in one sentence why not.

    `confirm` is the promise of a confirm: ``durable``, ``os``, or ``mixed`` when it differs between vhosts.
    `degraded` names the failing tasks; only essential ones make the broker unhealthy. `held` says why shovels,
    federation links and tables are held (``held_links.py``).
    If the disk of a leader delays its followers, `degraded` names that, too.
    """

    ok: bool
    reason: str = ""
    confirm: str = "durable"
    degraded: tuple[str, ...] = ()
    held: str = ""

    def document(self) -> dict[str, Any]:
        """Return the answer of ``/health``; a stranger learns nothing more from it than names of parts."""
        found: dict[str, Any] = {"status": "ok"} if self.ok else {"status": "failed", "reason": self.reason}
        found["confirm"] = self.confirm
        degraded = [*self.degraded, *(["links"] if self.held else [])]
        if degraded:
            found["degraded"] = degraded
        if self.held:
            found["links"] = f"held: {self.held}"
        return found


# The protocol between nodes of a cluster.
CLUSTERING: Final = "clustering"


@dataclass(frozen=True, slots=True)
class Listening:
    """A port that is open: `protocol` is its setting, such as ``amqp`` or ``prometheus``, or `CLUSTERING`."""

    protocol: str
    host: str
    port: int


class CommitTimeout(Exception):
    """A change of the metadata was not on disk in time; it is not undone, and may still become durable."""


def _hang_up(sock: socket.socket, _client: ClientOfNode) -> None:
    """Close the connection: this broker has no port that serves it."""
    sock.close()


@dataclass(slots=True)
class Management:
    """One running broker, as its plugins see it. Times are in ms since the epoch.

    `clock_ms` is the time by which everything expires (`clock`), and `started_ms` its value at the start. `cluster`
    describes the followers of this node, and `replication` takes commands about them; both are None for a single node.
    """

    broker: Broker
    settings: Settings
    authenticator: Authenticator
    messages: MessageStoreService
    reactor: Reactor
    clients: DirectClients
    settle: Callable[[], None]
    health: Callable[[], Health]
    tls: ServerTls | None
    started_ms: int
    memory_limit_bytes: int
    tasks: Supervision
    descriptors: Descriptors
    clock_ms: Callable[[], int]
    images: Images
    catalogue: CatalogueWriter
    held_links: HeldLinks
    cluster: Callable[[], dict[str, Any]] | None = None
    replication: Replication | None = None
    span_export: SpanExport | None = None
    internal_password: bytes = field(default_factory=lambda: secrets.token_hex(16).encode(), repr=False)
    listening: list[Listening] = field(default_factory=list)
    stopping: bool = False
    local_http: LocalHttp = field(default_factory=LocalHttp)
    # Serves HTTP of another node's client, which comes through a socket.
    pass_on: Callable[[socket.socket, ClientOfNode], None] = _hang_up
    _committed: trio.Event = field(default_factory=trio.Event)
    _view: EngineView | None = field(default=None, init=False, repr=False)

    @property
    def view(self) -> EngineView:
        """What lists and metrics see of the engine. A broker without them does not import it."""
        if self._view is None:
            from warren.engine_view.engine_view import EngineView

            self._view = EngineView(self.broker, self.settle)
        return self._view

    @property
    def importer(self) -> Importer:
        """The import of definitions into this broker."""
        from warren.server.definitions.apply import Importer

        return Importer(self.broker, self.settle)

    async def administer(self, change: MetadataChange, by: str) -> None:
        """Apply an administrative change that the user `by` requested, and wait until it is durable.

        Raises:
            ValueError: it is not valid, for the reason said; the broker stays as it is.
            CommitTimeout: it is not on disk yet.
        """
        ticket = self.broker.administer(change, by)
        self.settle()
        await self.commit(ticket)

    async def commit(self, ticket: int, timeout_s: float = COMMIT_TIMEOUT_S) -> None:
        """Wait until the metadata change with this ticket is durable.

        Raises:
            CommitTimeout: it is not on disk yet.
        """
        journal = self.broker.journal
        with trio.move_on_after(timeout_s) as scope:
            while journal.committed_ticket < ticket:
                await self._committed.wait()
        if scope.cancelled_caught:
            raise CommitTimeout

    def open_local(self) -> socket.socket:
        """Return one end of a new connection to this broker, which serves the other end like a client's.

        The internal user (`topology_watcher.INTERNAL_USER`, with `internal_password`) can log in here only.

        Raises:
            ConnectionRefusedError: the broker is stopping and waits for its connections to end, or no descriptors are
            left for links.
        """
        if self.stopping:
            raise ConnectionRefusedError("the broker is stopping")
        ours, served = socket.socketpair()
        if max(ours.fileno(), served.fileno()) >= self.descriptors.clients_below:
            ours.close()
            served.close()
            raise ConnectionRefusedError("too many descriptors are in use")
        self.reactor.acceptor.adopt(served, LOCAL_ADDRESS)
        self.settle()
        return ours

    def note_commit(self) -> None:
        """Note that more changes are durable. For the broker itself."""
        self._committed.set()
        self._committed = trio.Event()


class Plugin(Protocol):
    """Runs beside the broker, in its process."""

    def prepare(self, management: Management) -> None:
        """Prepare the broker before it imports definitions: with validators of parameters, for instance.

        Nothing runs yet. Do not start anything here.
        """

    async def run(self, management: Management, *, task_status: trio.TaskStatus[Sequence[Listening]]) -> None:
        """Serve until cancelled; started with the ports that were opened.

        Raises:
            StartError: something outside the program prevents it.
        """
