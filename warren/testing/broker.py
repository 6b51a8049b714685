"""A broker in a thread of the process that tests something else.

    Broker.start  ->  a thread with a trio loop  ->  Application, as `warren serve` runs it, with one plugin: `_Life`

1. Everything of the broker happens on its loop. What a test calls is carried out there between two turns, and the
   caller waits for it: well under a millisecond, so that asyncio tests may call it on their loop. What does wait for
   something is named in its docstring, and refuses to wait on an event loop.
2. The ports are the same in all lives of a broker, and nobody else's while it is down: connecting is refused then.
3. What was committed and synced survives `stop`, `crash` and `restart`: in `data_dir`, else in this object. A crash
   loses what was not; with a `data_dir` that is what was not written, as for a killed process.
4. After `close` there is no thread, socket or open file of it.
5. A forked child has none of its sockets: connections end for their peers when they end here.
6. Signals, resource limits, the collector and standard output belong to whoever runs the tests.
7. `advance` has everything due in the order in which it would have been due: what one thing leads to, such as the
   letter of a message that expires, is done before time passes any further. Clients are not waited for.
"""

from __future__ import annotations

import logging
import os
import select
import shutil
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self, TypeVar, Unpack
from urllib.parse import quote
from weakref import WeakSet, finalize

import trio

from warren.amqp import methods as m
from warren.amqp.declarations import ExchangeDeclaration, QueueDeclaration
from warren.amqp.field_table import Table, encode_table
from warren.channels.broker import Broker as Engine
from warren.channels.peer import Peer
from warren.msgstore.files.file_system import FileSystem, OsFileSystem
from warren.server.application import MESSAGES, Application, MetadataStore
from warren.server.data_dir import DataDir
from warren.server.errors import StartError
from warren.server.management import Listening, Management, Plugin
from warren.server.network.reactor import Listener
from warren.server.settings import Endpoint, LimitSettings, MemoryWatermark, Settings, StoreSettings
from warren.server.threads import Purpose, Threads, use
from warren.testing.assertions import POLL_S, Assertions, AsyncAssertions, PublishedFilter
from warren.testing.catalogue import MemoryCatalogue
from warren.testing.clock import MovableClock
from warren.testing.disk import Disk, MemoryFiles
from warren.testing.faults import FaultyPublishes
from warren.testing.logins import LoginsInTests, hash_cheaply
from warren.testing.messages import Properties, PublishedMessage, Wanted
from warren.testing.sockets import BACKLOG, ClientSocket, ListeningSocket
from warren.testing.views import ConnectionView, QueueView
from warren.vhosts.metadata import (
    GlobalParameterDelete,
    PermissionPut,
    UserDelete,
    UserPut,
    VhostDelete,
    VhostPut,
)

CALL_TIMEOUT_S: Final = 30.0
# How long clients have for close-ok when the broker stops in order.
GOODBYE_S: Final = 0.25
# Longer than a broker takes at most to stop.
JOIN_S: Final = 20.0
NOTHING: Final = 1 << 40
_NS_PER_MS: Final = 1_000_000

_Result = TypeVar("_Result")

# Lines are for whoever asks for them: pytest does, others would have them on stderr.
logging.getLogger("warren").addHandler(logging.NullHandler())


class BrokerDown(RuntimeError):
    """The broker was asked for something while it is not running."""


class Broker(Assertions):
    """A broker on a free port of this machine; a context manager that starts and closes it.

    `users` maps names to passwords; each has all permissions in each of `vhosts`. With `data_dir` it keeps its data
    there, as `warren serve` would, else in memory. `port` 0 chooses a free one. With `management` it serves the
    management API, too, at a free port.
    """

    def __init__(
        self,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        users: Mapping[str, str] | None = None,
        vhosts: Sequence[str] = ("/",),
        host: str = "127.0.0.1",
        port: int = 0,
        management: bool = False,
    ) -> None:
        self.users = dict(users) if users is not None else {"guest": "guest"}
        self.vhosts = tuple(vhosts)
        if not self.users or not self.vhosts:
            raise ValueError("a broker needs a user and a vhost")
        self._hashes = {name: hash_cheaply(password) for name, password in self.users.items()}
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._files: FileSystem = MemoryFiles()
        self._catalogue = MemoryCatalogue()
        self._clock = MovableClock()
        self._publishes = FaultyPublishes()
        self._publishes.drop = self._tear_soon
        self._sockets: WeakSet[ClientSocket] = WeakSet()
        self._life: _Life | None = None
        self._listening: ListeningSocket | None = None
        self.stalled: set[int] = set()  # the keys of connections whose consumers get nothing; of the views
        # Bound and never listening: it keeps the port between two lives.
        self._place = ListeningSocket((host, port), self._sockets)
        self.host = host
        self.port: int = self._place.getsockname()[1]
        self._management_place = ListeningSocket((host, 0), self._sockets) if management else None
        self._scratch = _Scratch() if management and data_dir is None else None
        _brokers.add(self)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Broker {self.url} {'up' if self.is_up else 'down'}>"

    # --- where it is ------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The URL for the first user in the first vhost."""
        return self.url_of()

    def url_of(self, user: str | None = None, vhost: str | None = None) -> str:
        """Return the URL for `user`, by default the first, in `vhost`, by default the first."""
        name = next(iter(self.users)) if user is None else user
        password = self.users.get(name, "")
        host = f"[{self.host}]" if ":" in self.host else self.host
        path = quote(self.vhosts[0] if vhost is None else vhost, safe="")
        return f"amqp://{quote(name, safe='')}:{quote(password, safe='')}@{host}:{self.port}/{path}"

    @property
    def management_url(self) -> str:
        """The URL of the management API, without a user: those of the broker are administrators, with their passwords.

        Raises:
            RuntimeError: the broker was made without it.
        """
        port = self.management_port
        if port is None:
            raise RuntimeError("this broker has no management API: Broker(management=True) has one")
        return f"http://{Endpoint(self.host, port)}"

    @property
    def management_port(self) -> int | None:
        """The port of the management API; None without it."""
        return None if self._management_place is None else int(self._management_place.getsockname()[1])

    # --- life -------------------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        """Whether it runs."""
        return self._life is not None and not self._life.ended.is_set()

    def start(self) -> Self:
        """Run; return when clients can connect.

        Raises:
            RuntimeError: it runs already, or is closed.
            StartError: the data directory cannot be used, and why.
        """
        if self._life is not None or self._place.fileno() < 0:
            raise RuntimeError("the broker runs already" if self._life is not None else "the broker is closed")
        life = _Life(self)
        self._life = life
        life.thread.start()
        life.started.wait()
        if life.error is not None:
            self._life = None
            life.thread.join()
            raise life.error
        return self

    def stop(self) -> None:
        """Stop in order: clients are told with 320, messages and metadata are kept. Waits for it."""
        life = self._require_life()
        self._say_goodbye(GOODBYE_S)
        life.call(life.application.stop)
        self._end(life)

    def crash(self) -> None:
        """Stop as a killed process does: nobody is told, what was not synced is lost. `start` brings it up again."""
        life = self._require_life()
        life.call(life.crash)
        self._end(life)

    def restart(self) -> None:
        """Stop in order and start again, at the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End it for good, and give everything back. Connections that are open get 320."""
        life = self._life
        if life is not None and not life.ended.is_set():
            self._say_goodbye(0)
            # Nothing in memory is worth a checkpoint: nobody will read it again.
            life.call(life.crash if self._data_dir is None else life.application.stop)
        if life is not None:
            self._end(life)
        self._place.close()
        if self._management_place is not None:
            self._management_place.close()
        if self._scratch is not None:
            self._scratch.remove()

    def _say_goodbye(self, within_s: float) -> None:
        """Have clients told that the broker stops, and do not wait for those that do not answer."""
        life = self._require_life()

        def tell() -> None:
            life.management.reactor.stop_listening()
            self.engine.shut_down("shutdown")

        life.call(tell)
        deadline_s = time.monotonic() + within_s
        while life.call(life.management.reactor.connection_count) and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        life.call(lambda: self._tear_all(reset=False))

    def _end(self, life: _Life) -> None:
        life.thread.join(JOIN_S)
        self._life = None
        if life.thread.is_alive():
            raise RuntimeError("the broker does not end")
        if life.error is not None:
            raise life.error

    def _require_life(self) -> _Life:
        if self._life is None or self._life.ended.is_set():
            raise BrokerDown("the broker is not running")
        return self._life

    def reset(self) -> None:
        """Bring everything back to how it was after the start: for use between tests. Waits for its disk.

        Connections are dropped; queues, exchanges, bindings, policies, users and vhosts are those of the start; what
        was published is forgotten, and no fault is left. A broker that is down is started. Where the test has moved the
        clock, the broker is restarted: time goes back between two lives only.
        """
        if not self.is_up:
            if self._life is not None:
                self._end(self._life)
            self.start()
        life = self._require_life()
        life.call(life.reset)
        life.wait_for(life.commit)
        if self._clock.is_moved:
            self.stop()
            self._clock.reset()
            self.start()

    # --- time -------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The broker's time, in UTC, also while it is down."""
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)

    def advance(self, seconds: float) -> None:
        """Let so much time pass at once, for everything in queues and exchanges: what falls due meanwhile is done.

        Expiry of messages and queues, delays, retries, visibility and consumer timeouts, deduplication and retention
        go by this time; heartbeats and whatever else is between the broker and its clients do not, so that no
        connection is lost. Things happen in their order, and each with what follows from it, such as a dead letter
        that expires in its turn. Not waited for is what clients do in answer. While the broker is down time passes too.

        Raises:
            ValueError: `seconds` is negative.
        """
        ns = round(seconds * 1e9)
        if ns < 0:
            raise ValueError("time does not go back; `reset` has the time of this machine again")
        if self.is_up:
            life = self._require_life()
            life.wait_for(lambda: life.advance(ns))
        else:
            self._clock.advance(ns)

    @contextmanager
    def stopped_clock(self) -> Iterator[None]:
        """Let time pass by `advance` only, so that nothing falls due because a test is slow."""
        self._clock.stop()
        try:
            yield
        finally:
            self._clock.go_on()

    # --- what the parts need ----------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The engine itself, for what nothing here offers; to be touched in `on_loop` only."""
        return self._require_life().management.broker

    @property
    def disk(self) -> Disk:
        """The disk of this life."""
        return self._require_life().disk

    def on_loop(self, work: Callable[[], _Result]) -> _Result:
        """Call `work` between two turns of the broker, let its engine finish the turn, and return what it returned.

        Raises:
            BrokerDown: it is not running.
        """
        return self._require_life().call(work)

    def tear(self, connection: Peer, *, reset: bool) -> None:
        """End the socket of `connection` at once. On the loop."""
        for sock in list(self._sockets):
            if sock.peer == connection.peer and not sock.is_torn and sock.fileno() >= 0:
                sock.tear(reset=reset)
                self._require_life().management.reactor.turn([(sock.fileno(), select.EPOLLIN)])

    def _tear_soon(self, connection: Peer) -> None:
        life = self._require_life()
        for sock in list(self._sockets):
            if sock.peer == connection.peer and not sock.is_torn:
                sock.tear(reset=True)
                # Not now: the engine is reading from it.
                life.token.run_sync_soon(life.management.reactor.turn, [(sock.fileno(), select.EPOLLIN)])

    def _tear_all(self, *, reset: bool) -> None:
        torn = [sock for sock in list(self._sockets) if sock.fileno() >= 0 and not sock.is_torn]
        for sock in torn:
            sock.tear(reset=reset)
        self._require_life().management.reactor.turn([(sock.fileno(), select.EPOLLIN) for sock in torn])

    # --- preparing --------------------------------------------------------------------------------------------------

    def declare_queue(
        self,
        name: str,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        arguments: Table | None = None,
        vhost: str | None = None,
    ) -> QueueView:
        """Declare a queue, as a client would. Waits until it is committed; raises AmqpError as the client would get."""
        table = encode_table(arguments or {})
        declaration = QueueDeclaration(name, durable=durable, auto_delete=auto_delete, arguments=table)
        self._act(vhost, declaration.method())
        return self.queue(name, vhost)

    def declare_exchange(
        self,
        name: str,
        type: str = "topic",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Table | None = None,
        vhost: str | None = None,
    ) -> None:
        """Declare an exchange, likewise."""
        table = encode_table(arguments or {})
        declaration = ExchangeDeclaration(
            name, type, durable=durable, auto_delete=auto_delete, internal=internal, arguments=table
        )
        self._act(vhost, declaration.method())

    def bind(
        self,
        queue: str,
        exchange: str,
        binding_key: str = "",
        *,
        arguments: Table | None = None,
        vhost: str | None = None,
    ) -> None:
        """Bind a queue to an exchange, likewise."""
        self._act(
            vhost, m.QueueBind(0, queue, exchange, binding_key, no_wait=False, arguments=encode_table(arguments or {}))
        )

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes | str = b"",
        *,
        properties: Properties | None = None,
        vhost: str | None = None,
    ) -> bool:
        """Publish into the engine; tell whether a queue took it. Persistent unless `properties` say otherwise.

        Waits until it is stored. It is not in `published`, and no fault hits it: that is for clients.

        Raises:
            AmqpError: the broker refused it.
            RuntimeError: confirms are held back, so it is not known what became of it.
        """
        raw = body.encode() if isinstance(body, str) else body
        sent = (properties if properties is not None else Properties(delivery_mode=2)).encoded()
        life = self._require_life()
        if life.call(lambda: self.engine.shared.confirms.is_held):
            raise RuntimeError("the test holds confirms back, and this waits for one")

        async def publish() -> bool:
            with life.management.clients.open(self._acting_user(), vhost or self.vhosts[0]) as client:
                published = await client.publish(exchange, routing_key, sent, raw)
                return published.routed and published.accepted

        return life.wait_for(publish)

    def _act(self, vhost: str | None, method: Any) -> None:
        life = self._require_life()

        async def act() -> None:
            with life.management.clients.open(self._acting_user(), vhost or self.vhosts[0]) as client:
                await client.call(method)

        life.wait_for(act)

    def _acting_user(self) -> str:
        return next(iter(self.users))

    # --- looking ----------------------------------------------------------------------------------------------------

    @property
    def published(self) -> list[PublishedMessage]:
        """What clients published and the broker accepted, in order, since the start or `reset`; a list of your own."""
        return list(self._publishes.published)

    @property
    def nacked(self) -> list[PublishedMessage]:
        """What it refused because of `nack_next`."""
        return list(self._publishes.nacked)

    def find_published(self, **wanted: Unpack[PublishedFilter]) -> list[PublishedMessage]:
        """Return those of `published` that fit everything given.

        ``exchange``, ``routing_key``, ``body``, ``headers``, ``vhost`` and ``queue``: see `PublishedFilter`.
        """
        meant = Wanted(**wanted)
        return [message for message in self.published if meant.fits(message)]

    @property
    def aio(self) -> AsyncAssertions:
        """The assertions and `wait_until`, to be awaited on an event loop, asyncio's or trio's."""
        return AsyncAssertions(self)

    def _broker(self) -> Broker:
        return self

    def queues(self, vhost: str | None = None) -> list[str]:
        """Return the names of the queues in `vhost`, by default the first."""
        name = self.vhosts[0] if vhost is None else vhost

        def names() -> list[str]:
            found = self.engine.vhosts.get(name)
            return [] if found is None else sorted(found.queues)

        return self.on_loop(names)

    def queue(self, name: str, vhost: str | None = None) -> QueueView:
        """Return a view of a queue, which need not exist."""
        return QueueView(self, name, self.vhosts[0] if vhost is None else vhost)

    @property
    def connections(self) -> list[ConnectionView]:
        """The connections that have been opened, oldest first."""
        return self.on_loop(
            lambda: [
                ConnectionView(self, connection)
                for connection in self.engine.connections.values()
                if connection.running and not connection.is_direct
            ]
        )

    def connection(self, name: str) -> ConnectionView:
        """Return the connection that its client called `name`, or that comes from the peer `name`.

        Raises:
            LookupError: there is none.
        """
        found = [each for each in self.connections if name in (each.name, each.peer)]
        if not found:
            raise LookupError(f"no connection {name!r}, only {[each.name for each in self.connections]}")
        return found[0]

    # --- faults -----------------------------------------------------------------------------------------------------

    def drop_connections(self) -> None:
        """End all connections without a word, with RST, as a network does. For one: `connection(name).drop()`."""
        self.on_loop(lambda: self._tear_all(reset=True))

    def drop_next_publisher(self, count: int = 1) -> None:
        """End the next `count` connections that publish, at their publish: it is lost, and never confirmed."""
        self.on_loop(lambda: self._publishes.drop_next(count))

    @contextmanager
    def refusing_connections(self) -> Iterator[None]:
        """Refuse new connections, as a host where nothing listens; those that are open go on."""
        life = self._require_life()
        life.call(life.management.reactor.stop_listening)
        try:
            yield
        finally:
            if self._life is life and self.is_up:
                life.call(life.listen)

    @contextmanager
    def holding_confirms(self) -> Iterator[None]:
        """Confirm no publish meanwhile; what was not confirmed is at the end. Messages are delivered all the same."""
        self.on_loop(lambda: self.engine.hold_confirms(held=True))
        try:
            yield
        finally:
            if self.is_up:
                self.on_loop(lambda: self.engine.hold_confirms(held=False))

    def delay_confirms(self, delay_s: float) -> None:
        """Confirm no publish for the next `delay_s`, and then all."""
        life = self._require_life()

        async def release() -> None:
            await trio.sleep(delay_s)
            life.management.broker.hold_confirms(held=False)
            life.management.settle()

        def hold() -> None:
            self.engine.hold_confirms(held=True)
            life.spawn(release)

        life.call(hold)

    def nack_next(self, count: int = 1) -> None:
        """Answer the next `count` publishes on channels with confirms by basic.nack; no queue gets them."""
        self.on_loop(lambda: self._publishes.nack_next(count))

    def return_next(self, count: int = 1) -> None:
        """Have the next `count` publishes find no queue: they are returned if they are mandatory, else dropped."""
        self.on_loop(lambda: self._publishes.return_next(count))

    @contextmanager
    def blocking_publishers(self, resource: str = "memory") -> Iterator[None]:
        """Be short of ``memory`` or ``disk``: whoever publishes gets connection.blocked and is not read meanwhile."""
        self.on_loop(lambda: self.engine.set_alarm(resource, True))
        try:
            yield
        finally:
            if self.is_up:
                self.on_loop(lambda: self.engine.set_alarm(resource, False))

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Have no space on the disk: publishers are blocked, and nothing persistent is stored or confirmed."""
        disk = self.disk
        disk.full = True
        try:
            with self.blocking_publishers("disk"):
                yield
        finally:
            disk.full = False


class _Life:
    """One run of a broker, from start to stop or crash; to the application it is a plugin."""

    def __init__(self, broker: Broker) -> None:
        self.started = threading.Event()
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._main, name=f"warren-{broker.port}", daemon=True)
        self.disk = Disk(broker._files)
        self._broker = broker
        self.token: trio.lowlevel.TrioToken
        self.application: Application
        self.management: Management
        self._nursery: trio.Nursery

    # --- the thread -------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            trio.run(self._live)
        except BaseException as error:
            self.error = _innermost(error)
        finally:
            self.ended.set()
            self.started.set()

    async def _live(self) -> None:
        broker = self._broker
        data_dir = broker._data_dir
        self.token = trio.lowlevel.current_trio_token()
        with nullcontext() if data_dir is None else DataDir.open(data_dir):
            catalogue: MetadataStore = broker._catalogue
            if data_dir is not None:
                # As in `serve`: it is a third of all there is to import.
                from warren.server.catalogue.catalogue import Catalogue

                directory = data_dir / MESSAGES
                directory.mkdir(mode=0o700, exist_ok=True)
                self.disk = Disk(OsFileSystem(str(directory)))
                settings = _settings(data_dir, broker)
                catalogue = Catalogue.open(settings.catalogue_url())
            else:
                settings = _settings(Path("memory") if broker._scratch is None else broker._scratch.path, broker)
            use(_AtOnce())
            self.application = Application(
                settings,
                catalogue,
                self.disk,
                self._plugins(),
                make_authenticator=LoginsInTests,
                abandon=_nothing,
                clock=broker._clock.steady(),
            )
            try:
                await self.application.run(self._serving)
            finally:
                self.disk.cut()
                self.application.join(JOIN_S)

    def _plugins(self) -> list[Plugin]:
        if self._broker.management_port is None:
            return [self]
        # It takes as long to import as everything else together.
        from warren.mgmt_plugin.plugin import ManagementPlugin

        return [self, ManagementPlugin()]

    def prepare(self, management: Management) -> None:
        """Do nothing."""

    async def run(self, management: Management, *, task_status: trio.TaskStatus[Sequence[Listening]]) -> None:
        """Be there as long as the broker is."""
        self.management = management
        async with trio.open_nursery() as self._nursery:
            task_status.started([])
            await trio.sleep_forever()

    def _serving(self) -> None:
        engine = self.management.broker
        engine.judge_publishes(self._broker._publishes.judge)
        self._furnish()
        self.management.settle()
        self.spawn(self._begin)

    async def _begin(self) -> None:
        await self.commit()
        self.listen()
        self.started.set()

    def _furnish(self) -> None:
        """Have the vhosts, users and permissions of a start, whatever there was."""
        engine = self.management.broker
        for name in self._broker.vhosts:
            if name not in engine.vhosts:
                engine.administer(VhostPut(name))
        for name, password_hash in self._broker._hashes.items():
            user = UserPut(name, password_hash.text, password_hash.algorithm, ("administrator",))
            if engine.access.get(name) != user:
                engine.administer(user)
            for vhost in self._broker.vhosts:
                permission = PermissionPut(name, vhost, ".*", ".*", ".*")
                if engine.access.permissions.get((name, vhost)) != permission:
                    engine.administer(permission)

    def listen(self) -> None:
        """Accept connections. On the loop."""
        broker = self._broker
        sock = ListeningSocket((broker.host, broker.port), broker._sockets)
        sock.listen(BACKLOG)
        broker._listening = sock
        self.management.reactor.listen(Listener(sock, None))

    def crash(self) -> None:
        """Have nothing reach the disk any more, and end. On the loop."""
        self.disk.cut()
        if isinstance(self._broker._files, MemoryFiles):
            self._broker._files.crash()
        self.application.abort()

    def reset(self) -> None:
        """As `Broker.reset`. On the loop."""
        broker = self._broker
        engine = self.management.broker
        broker._tear_all(reset=True)
        broker._publishes.clear()
        self.disk.full = False
        engine.hold_confirms(held=False)
        for resource in ("memory", "disk"):
            engine.set_alarm(resource, False)
        for name, vhost in list(engine.vhosts.items()):
            if vhost.record.protected_from_deletion:
                engine.administer(VhostPut(name))
            engine.administer(VhostDelete(name))
        for user in list(engine.access.users):
            engine.administer(UserDelete(user))  # with its limits
        for parameter in engine.parameters.global_parameters():
            engine.administer(GlobalParameterDelete(parameter.name))
        broker.stalled.clear()
        self._furnish()

    async def commit(self) -> None:
        """Wait until all changes of metadata are committed."""
        self.management.settle()
        await self.management.commit(self.management.broker.journal.last_ticket)

    async def advance(self, ns: int) -> None:
        """As `Broker.advance`."""
        clock = self._broker._clock
        end_ns = clock.ahead_ns + ns
        timers = self.management.broker.timers
        while True:
            self.management.broker.keep_time(self.management.clock_ms())
            self.management.settle()
            await trio.lowlevel.checkpoint()
            await self._quiet()
            wait_ms = timers.next_ms() - self.management.clock_ms()
            if wait_ms <= 0:
                continue
            left_ns = end_ns - clock.ahead_ns
            if left_ns <= 0:
                if timers.on_earlier is not None:
                    timers.on_earlier()  # who waits for the next one has counted on more time
                return
            clock.advance(min(left_ns, wait_ms * _NS_PER_MS))

    async def _quiet(self) -> None:
        """Wait until the engine has done what it can do without input, and has what it reads from the disk."""
        messages = self.management.messages
        while self.management.broker.has_work() or (messages.errands and not self.disk.full):
            await trio.sleep(POLL_S / 4)

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Begin a task that ends with the broker. On the loop."""
        self._nursery.start_soon(work)

    # --- other threads ----------------------------------------------------------------------------------------------

    def call(self, work: Callable[[], _Result]) -> _Result:
        """Call `work` on the loop, let the engine finish its turn, and return what it returned."""
        future: Future[_Result] = Future()

        def call() -> None:
            try:
                self._tell_time()
                result = work()
                if not self.ended.is_set():
                    self.management.settle()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        return self._result(call, future)

    def wait_for(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        """Run `work` on the loop and return what it returned."""
        future: Future[_Result] = Future()

        async def wait() -> None:
            try:
                self._tell_time()
                future.set_result(await work())
            except trio.Cancelled:
                future.set_exception(BrokerDown("the broker has ended meanwhile"))
                raise
            except BaseException as error:
                future.set_exception(_innermost(error))

        return self._result(lambda: self.spawn(wait), future)

    def _tell_time(self) -> None:
        """Have what is done now happen now: the engine learns the time at its turns, and the last may be long ago."""
        self.management.broker.log.now_ms = self.management.clock_ms()

    def _result(self, begin: Callable[[], None], future: Future[_Result]) -> _Result:
        if threading.current_thread() is self.thread:
            raise RuntimeError("a call from the broker's own thread would wait for itself")
        try:
            self.token.run_sync_soon(begin)
        except trio.RunFinishedError:
            raise BrokerDown("the broker is not running") from None
        deadline_s = time.monotonic() + CALL_TIMEOUT_S
        while True:
            try:
                return future.result(0.1)
            except TimeoutError:
                if future.done():
                    raise
                if self.ended.is_set():
                    raise BrokerDown("the broker has ended meanwhile") from None
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"the broker did not answer within {CALL_TIMEOUT_S:g} s") from None


def _settings(data_dir: Path, broker: Broker) -> Settings:
    """Return the settings of a broker under test: the defaults, but no limit that other things in the process reach."""
    port = broker.management_port
    return Settings(
        data_dir=data_dir,
        amqp=None,
        http=None if port is None else Endpoint(broker.host, port),
        prometheus=None,
        limits=LimitSettings(accept_rate_per_s=1_000_000, memory_high_watermark=MemoryWatermark(size_bytes=NOTHING)),
        store=StoreSettings(segment_bytes=4 << 20, memory_bytes=NOTHING, disk_free_min_bytes=0, scrub_bytes_per_s=0),
    )


class _AtOnce(Threads):
    """Makes calls that block on the loop: in memory they do not, and milliseconds of a disk matter to nobody here.

    Trio would keep a thread for them, for ten seconds after the last call.
    """

    async def run(self, purpose: Purpose, work: Callable[[], _Result], *, abandon: bool) -> _Result:
        return work()


class _Scratch:
    """A directory for what the management API keeps in files; it goes with the process at the latest."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="warren-testing-"))
        self.remove = finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a child that was forked
        shutil.rmtree(path, ignore_errors=True)


def _innermost(error: BaseException) -> BaseException:
    """Return the one error in groups of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _nothing() -> None:
    """Do nothing."""


_brokers: WeakSet[Broker] = WeakSet()


def _forget_in_child() -> None:
    """In a forked child: let go of all sockets, so that peers see an end when the parent ends a connection (5)."""
    for broker in list(_brokers):
        broker._life = None
        for sock in (*broker._sockets, broker._place, broker._listening):
            if sock is not None:
                sock.close()
        if broker._management_place is not None:
            _let_go(broker._management_place)


def _let_go(place: socket.socket) -> None:
    """Have /dev/null for every socket at the port of `place`: to whoever owns one it is as if it had been closed."""
    port = place.getsockname()[1]
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                sock = socket.socket(fileno=os.dup(descriptor))
                with sock:
                    if sock.family != socket.AF_UNIX and sock.getsockname()[1] == port:
                        os.dup2(nothing, descriptor, inheritable=False)
        except OSError:
            continue  # that of the listing itself, or no socket of the internet
    os.close(nothing)


os.register_at_fork(after_in_child=_forget_in_child)

__all__ = ["Broker", "BrokerDown", "StartError"]
