"""The running broker: engine, reactor, catalogue, login, plugins and signals, put together in one place.

Start:    lock the data directory; open the catalogue; recover the message store; apply to the catalogue what only the
          log has; restore the engine from the catalogue and give the queues their messages; import definitions, and
          wait until they are durable; read what decides on publishes; listen; say where; serve.
Stop:     SIGTERM or Ctrl-C: stop listening, close every connection with 320, have the catalogue catch up if it can be
          reached, wait a moment for the peers, write the checkpoint of a clean stop, at most `STOP_DEADLINE_S`. The
          same signal again ends at once. A leader that hands over stops in the same way; then another node leads. A
          single node that still restores ends with nothing written.
Failure:  when the message store fails, all sockets are closed and the exit code is 3.
Tasks:    reactor, ticker, time keeper, memory watch, freed memory, catalogue writer, message store, plugins, signals,
          and one short task per login, all of them supervised (`supervision`): only the message store's failure ends
          the process. Plugins start tasks of their own under the same supervision, and open the listeners of HTTP.
Process:  what `warren serve` does to its process besides is in `process`.
Threads:  those of the message store; and of trio, for logins and commits of the catalogue.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import trio

from warren import __version__
from warren.mqtt.sessions import restore_sessions
from warren.msgstore.files.file_system import FileSystem
from warren.server.catalogue.writer import CatalogueWriter, InThread
from warren.server.catalogue.writer import Store as MetadataFiles
from warren.server.client_of_node import AMQP, ClientOfNode
from warren.server.clock import SteadyClock
from warren.server.copies.images import Images
from warren.server.copies.images import Metadata as CopiedMetadata
from warren.server.descriptors import UNLIMITED, Descriptors
from warren.server.direct_clients import DirectClients
from warren.server.engine import make_broker
from warren.server.engine_build import engine_is_compiled
from warren.server.freed_memory import return_freed_memory
from warren.server.held_links import HeldLinks
from warren.server.logins.authenticator import Authenticator, Users
from warren.server.logins.client_logins import ClientLogins
from warren.server.logs import get_logger
from warren.server.management import CLUSTERING, CommitTimeout, Listening, Management, Plugin
from warren.server.memory_watch import watch_memory
from warren.server.message_store import EXIT_CODE, MessageStoreService, end_process
from warren.server.network.acceptor import Listener
from warren.server.network.admission import Admission
from warren.server.network.listening import open_sockets
from warren.server.network.reactor import Reactor
from warren.server.network.tls import maybe_server_tls, maybe_user_of_certificate
from warren.server.network.web_rules import Origins, WebRules
from warren.server.node_health import NodeHealth
from warren.server.process_memory import total_memory_bytes
from warren.server.protocols import LISTENERS
from warren.server.recovered_messages import Recovered, recover_messages
from warren.server.reloading import reloaded
from warren.server.replication import Host, Replication
from warren.server.restoring import restore_messages, restore_metadata
from warren.server.setting_kinds import Endpoint
from warren.server.settings import Settings
from warren.server.supervision import ESSENTIAL, Supervision
from warren.server.threads import in_thread
from warren.server.time_keeper import TimeKeeper
from warren.server.tracing.span_export import maybe_span_export
from warren.vhosts.metadata import UserPut

STOP_DEADLINE_S: Final = 10.0
# Time for peers to answer connection.close. A blocking client that is not called at the moment never does.
CLOSE_GRACE_S: Final = 3.0
HAND_OVER_GRACE_S: Final = 0.25  # if another node waits to serve them
# Time for the catalogue to catch up; the log has the rest.
CATCH_UP_S: Final = 3.0
BEGIN_WITHIN_S: Final = 2.0
PERMISSION_CHECK_S: Final = 0.02
_REACHED: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # how this machine reaches a listener on all addresses
log = get_logger("server")


class MetadataStore(MetadataFiles, CopiedMetadata, Protocol):
    """What the application needs of a catalogue."""

    def interrupt(self) -> None: ...
    def close(self) -> None: ...


class Application:
    """One broker, with its metadata in `catalogue` and its messages in the root of `files`.

    `recovered`: the result of `recover_messages`, if the caller has called that already. `make_authenticator` gets the
    users, and a callback for upgraded records. `in_thread` makes the calls that block. `abandon` ends the process when
    the disk has failed and a thread hangs on it. `clock` is the time by which everything expires. `marked`: the
    directory that may have a mark of held links. Run an application once.
    """

    def __init__(
        self,
        settings: Settings,
        catalogue: MetadataStore,
        files: FileSystem,
        plugins: Sequence[Plugin] = (),
        *,
        make_authenticator: Callable[[Users, Callable[[UserPut], None]], Authenticator] = Authenticator,
        in_thread: InThread = in_thread,
        abandon: Callable[[], None] = end_process,
        descriptors: Descriptors = UNLIMITED,
        replication: Replication | None = None,
        recovered: Recovered | None = None,
        clock: SteadyClock | None = None,
        marked: Path | None = None,
    ) -> None:
        self._settings = settings
        self._plugins = plugins
        self.tasks = Supervision(self._task_lost)
        self._tls = maybe_server_tls(settings)
        self._catalogue = catalogue
        found = recovered or recover_messages(settings, files, descriptors.store_handles)
        store, message_log = found.store, found.log
        self._recovery, self._recovery_s = found.recovery, found.seconds
        self._clock = SteadyClock() if clock is None else clock
        message_log.now_ms = self._clock.now_ms()
        clients_max = descriptors.clients_max()
        self._broker = make_broker(settings, clients_max, message_log)
        self._broker.syncs_confirms = self._syncs_confirms
        self._span_export = maybe_span_export(settings, self._broker)
        self._replication = replication
        self._messages = MessageStoreService(
            store if replication is None else replication.files(store, message_log),
            self._broker,
            settings.store,
            wake=self._wake,
            settle=self._settle,
            on_failed=self._store_failed,
            abandon=abandon,
            clock_ms=self._clock.now_ms,
            in_thread=in_thread,
            tasks=self.tasks,
            gate=None if replication is None else replication.gate,
            mender=None if replication is None else replication.mender(),
        )
        self._messages.losses = found.losses
        limits = settings.limits
        self._reactor = Reactor(
            self._broker,
            Admission(
                min(limits.unauthenticated_connections_max, clients_max // 2),
                limits.unauthenticated_per_network_max,
                limits.accept_rate_per_s,
                descriptors.clients_below,
            ),
            certificate_user=self._certificate_user,
            on_crash=self._crashed,
            on_settled=self._engine_settled,
            on_closed=lambda key: self._logins.hung_up(key),
            is_alone=lambda: self._logins.is_idle(),
            dispatch=self._messages.dispatch,
            on_wake=self._messages.completed,
            tls_handshake_timeout_s=limits.tls_handshake_timeout_s,
            clock_ms=self._clock.now_ms,
            keepalive=limits.keepalive(),
        )
        self._writer = CatalogueWriter(
            catalogue, self._broker.journal, self._settle, in_thread, self._metadata_applied, losses=found.losses
        )
        self._broker.journal.on_durable = self._metadata_durable
        self._images = Images(self._messages, files, catalogue, self._writer, settings.data_dir, in_thread)
        self._held_links = HeldLinks(self._broker.parameters, marked)
        self._health = NodeHealth(self._broker, self._messages, self._writer, self._held_links, self.tasks, replication)
        self._authenticator = make_authenticator(self._broker.access, self._upgrade_user)
        self._management = Management(
            broker=self._broker,
            settings=settings,
            authenticator=self._authenticator,
            messages=self._messages,
            reactor=self._reactor,
            clients=DirectClients(self._broker.open_direct, self._settle),
            settle=self._settle,
            health=lambda: self._health.look(is_stopping=self._management.stopping),
            tls=self._tls,
            started_ms=self._clock.now_ms(),
            memory_limit_bytes=settings.limits.memory_high_watermark.limit_bytes(total_memory_bytes()),
            tasks=self.tasks,
            descriptors=descriptors,
            clock_ms=self._clock.now_ms,
            images=self._images,
            catalogue=self._writer,
            held_links=self._held_links,
            cluster=None if replication is None else replication.status,
            replication=replication,
            span_export=self._span_export,
        )
        self._logins = ClientLogins(
            self._broker,
            self._authenticator,
            self._management.internal_password,
            start=self._start_login,
            settle=self._settle,
            wake=self._wake,
            on_crash=self._crashed,
        )
        self._time_keeper = TimeKeeper(self._broker, self._clock, self._reactor.tick, self._settle)
        self._nursery: trio.Nursery | None = None
        self._asked_to_stop = trio.Event()
        self._was_told_to_stop = False  # by a signal, and not by its own replication only
        self._drain_scope = trio.CancelScope()
        self._stopped_clean = False
        self._exit_code = 0

    @property
    def messages(self) -> MessageStoreService:
        """The message store."""
        return self._messages

    def places(self) -> list[str]:
        """Return the addresses of the listeners, as URLs without a path."""
        opened = self._management.listening
        return sorted(f"{each.protocol}://{Endpoint(each.host, each.port)}" for each in opened)

    def pages(self) -> list[str]:
        """Return where a browser on this machine finds the web UI."""
        return sorted(
            f"{each.protocol}://{Endpoint(_REACHED.get(each.host, each.host), each.port)}/"
            for each in self._management.listening
            if each.protocol in ("http", "https")
        )

    async def run(self, serving: Callable[[], None], restored: Callable[[], None] = lambda: None) -> int:
        """Restore, tell `restored`, listen, tell `serving`, serve until `stop`, drain; return the exit code.

        Nothing is written to the message store before `restored` has returned.
        """
        try:
            self._images.clear()
            self._writer.catch_up(self._messages.read_at_once)
            count = await restore_metadata(self._broker, self._catalogue.load(), self._ends_early)
            if not self._ends_early():
                await restore_messages(self._broker, self._messages.losses, clean=self._recovery.clean)
            if self._ends_early():
                log.info("stopped before it served")
                return self._exit_code
            restored()
            listeners = self._listen()
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                tasks = self.tasks
                for plugin in self._plugins:
                    plugin.prepare(self._management)
                self._messages.start()
                nursery.start_soon(tasks.keep, "catalogue writer", self._writer.run, ESSENTIAL)
                nursery.start_soon(tasks.keep, "log position", self._writer.keep_position)
                nursery.start_soon(tasks.keep, "store timers", self._messages.run, ESSENTIAL)
                nursery.start_soon(tasks.keep, "reactor", self._reactor.run, ESSENTIAL)
                await self._start_replication(nursery)
                await self._load_definitions()
                nursery.start_soon(tasks.once, "held links", self._begin_held_links)
                await self._start_plugins(nursery)
                nursery.start_soon(tasks.keep, "ticker", self._time_keeper.beat, ESSENTIAL)
                nursery.start_soon(tasks.keep, "time keeper", self._time_keeper.run_timers, ESSENTIAL)
                if self._span_export is not None:
                    nursery.start_soon(tasks.keep, "span export", self._span_export.run)
                # Unless there is no space, the disk shows that this process has begun before it delivers anything.
                with trio.move_on_after(BEGIN_WITHIN_S):
                    await self._messages.deleted()
                await self._messages.restored(self._broker.is_restoring)
                for _ in restore_sessions(self._broker):
                    await trio.lowlevel.checkpoint()
                await self._permission_to_serve()
                for listener in listeners:
                    self._reactor.acceptor.listen(listener)
                self._reactor.acceptor.begin_serving()
                serving()
                self._tell_started(count)
                await self._asked_to_stop.wait()
                await self._stop()
                # The log has what the catalogue lacks: a database that does not answer must not keep the process alive.
                self._catalogue.interrupt()
                nursery.cancel_scope.cancel()
            return self._exit_code
        finally:
            self._catalogue.close()
            self._messages.end()
            self._reactor.close()

    def stop(self) -> None:
        """Tell `run` to drain and end; the second call ends it immediately."""
        if self._replication is not None:
            self._replication.stopping()
        if self._asked_to_stop.is_set() and self._was_told_to_stop and not self._drain_scope.cancel_called:
            log.warning("stopping at once")
            self._drain_scope.cancel()
        self._was_told_to_stop = True
        self._asked_to_stop.set()

    def abort(self) -> None:
        """Close all sockets, and end `run` without committing more. Call only after `run` serves."""
        self._reactor.stop()
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads of the message store, when `run` is over; tell whether they ended in time."""
        return self._messages.join(timeout_s)

    def reload(self, read_again: Callable[[], Settings] | None) -> None:
        """Bring the settings that `read_again` returns into force, and read the files of TLS again (`reloading`)."""
        settings = self._settings
        self._settings = reloaded(settings, read_again or (lambda: settings), self._tls)
        self._management.settings = self._settings

    # --- start ------------------------------------------------------------------------------------------------------

    def _ends_early(self) -> bool:
        """Tell whether to stop with nothing written; a leader has to hand over, for which it starts first."""
        return self._asked_to_stop.is_set() and self._replication is None

    def _syncs_confirms(self, vhost: str) -> bool:
        store = self._settings.store
        return store.vhosts.get(vhost, store.confirm) == "durable"

    async def _load_definitions(self) -> None:
        """Import the file of definitions, if there is one, and wait until they are durable."""
        path = self._settings.load_definitions
        if path is None:
            return
        # Imported only when needed: it brings msgspec.
        from warren.server.definitions.at_start import load_definitions, wait_until_durable

        skip = self._settings.definitions_skip_if_unchanged
        ticket = await load_definitions(path, self._broker, skip_if_unchanged=skip)
        self._settle()
        await wait_until_durable(path, self._management, ticket, self._asked_to_stop.is_set)

    async def _begin_held_links(self) -> None:
        with_links = self._settings.with_links
        try:
            await self._held_links.begin(self._management.administer, with_links=with_links)
        except CommitTimeout:
            log.warning("whether links are held is not durable yet; the next start looks again", with_links=with_links)

    def _listen(self) -> list[Listener]:
        """Open the sockets of all protocols; they do not accept yet."""
        opened: list[Listener] = []
        admit = Origins(self._settings.ws_origins, f"{self._settings.http_hosts},{socket.gethostname()}").admit
        for setting, kind in LISTENERS.items():
            endpoint = self._settings.endpoint(setting)
            if endpoint is None:
                continue
            protocol = kind.protocol
            context = self._tls_context if kind.is_tls else None
            rules = WebRules(protocol.subprotocols, protocol.may_name_none, protocol.takes_text, admit)
            for sock in open_sockets(setting, endpoint):
                opened.append(Listener(sock, context, protocol.peer_maker(), rules if kind.is_web else None))
                self._management.listening.append(Listening(setting, *sock.getsockname()[:2]))
        return opened

    def _tls_context(self) -> ssl.SSLContext:
        """Return the context for new connections."""
        assert self._tls is not None
        return self._tls.context

    async def _permission_to_serve(self) -> None:
        """Wait until clients may be served, or this process should stop; from then on each turn asks."""
        replication = self._replication
        if replication is None:
            return
        while not replication.may_serve() and not self._asked_to_stop.is_set():
            await trio.sleep(PERMISSION_CHECK_S)
        self._reactor.may_serve = replication.may_serve

    async def _start_replication(self, nursery: trio.Nursery) -> None:
        replication = self._replication
        if replication is not None:
            host = Host(
                self._broker,
                self.tasks,
                self._settle,
                self._messages.gate_moved,
                self._reactor.poller.watch,
                self._reactor.poller.unwatch,
                self._writer.copy,
                self._reactor.acceptor.may_accept,
                self._pass_on,
                self._asked_to_stop.set,
            )
            place = await nursery.start(self.tasks.begin, "replication", replication.run, host)
            self._management.listening.append(Listening(CLUSTERING, *place))

    def _pass_on(self, sock: socket.socket, client: ClientOfNode) -> None:
        """Serve a client of another node, which comes through `sock`."""
        if client.protocol == AMQP:
            self._reactor.acceptor.pass_on(sock, client)
            self._reactor.settle()
        else:
            self._management.pass_on(sock, client)

    async def _start_plugins(self, nursery: trio.Nursery) -> None:
        for plugin in self._plugins:
            name = type(plugin).__name__
            self._management.listening += await nursery.start(self.tasks.begin, name, plugin.run, self._management)

    def _tell_started(self, restored: int) -> None:
        compiled = engine_is_compiled()
        if not compiled:
            log.warning("the engine runs interpreted, several times slower than compiled")
        recovery = self._recovery
        log.info(
            "message store recovered",
            clean=recovery.clean or recovery.is_new,
            segments=recovery.segments,
            frames=recovery.frames,
            messages=recovery.messages,
            seconds=round(self._recovery_s, 3),
        )
        accepted = self._broker.limits.connections_max
        if accepted < self._settings.limits.connections_max:
            log.warning(
                "fewer connections than limits.connections_max: the limit of open files (ulimit -n) allows no more",
                connections=accepted,
                descriptors=self._management.descriptors.limit,
            )
        log.info("started", version=__version__, compiled=compiled, restored=restored, pid=os.getpid())

    # --- tasks ------------------------------------------------------------------------------------------------------

    async def watch_memory(self) -> None:
        """Block publishers, and move messages to disk, while this process takes too much. For ever."""
        await watch_memory(self._broker, self._settings, self._settle)

    async def return_freed_memory(self) -> None:
        """Return unused memory to the system. For ever."""
        broker = self._broker
        await return_freed_memory(
            lambda: broker.has_alarm("memory") or broker.log.under_pressure, lambda: int(broker.log.resident_bytes)
        )

    async def _stop(self) -> None:
        """Drain, however long that takes."""
        self._management.stopping = True
        log.info("stopping", connections=self._reactor.connection_count())
        with trio.move_on_after(STOP_DEADLINE_S), self._drain_scope:
            await self.tasks.once("stop", self._drain)
        self._reactor.stop()
        log.info("stopped", clean=self._stopped_clean)

    async def _drain(self) -> None:
        deadline = trio.current_time() + STOP_DEADLINE_S
        replication = self._replication
        hands_over = replication is not None and replication.is_handing_over()
        gives_way = replication is not None and replication.gives_way()
        self._reactor.acceptor.stop()
        self._broker.shut_down("another node is the leader now: connect again" if hands_over else "shutdown")
        self._settle()
        if not gives_way:
            await self._writer.drain(trio.current_time() + CATCH_UP_S)
        with trio.move_on_after(HAND_OVER_GRACE_S if hands_over else CLOSE_GRACE_S):
            while self._reactor.connection_count():
                await trio.sleep(0.02)
        if not gives_way:
            self._stopped_clean = await self._messages.stop(deadline)
        if replication is not None:
            await replication.hand_over()
        if self._span_export is not None:
            await self._span_export.finish()  # last: no other task waits for it

    # --- what the parts call ----------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._reactor.poller.wake()

    def _settle(self) -> None:
        self._reactor.settle()

    def _task_lost(self, name: str) -> None:
        log.error("an essential task fails again and again; the broker stops", task=name)
        self._store_failed()

    def _store_failed(self) -> None:
        """Close all sockets and end: the broker can no longer confirm anything."""
        self._exit_code = EXIT_CODE
        self.abort()

    def _metadata_durable(self) -> None:
        self._management.note_commit()
        self._writer.note_durable()

    def _metadata_applied(self, first: int, records: Sequence[bytes | None]) -> None:
        if self._replication is not None:
            self._replication.metadata_applied(first, records)

    def _start_login(self, login: Callable[[], Awaitable[None]]) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self.tasks.once, "login", login)

    def _upgrade_user(self, record: UserPut) -> None:
        self._broker.administer(record)

    def _certificate_user(self, certificate: dict[str, object]) -> str | None:
        return maybe_user_of_certificate(certificate, self._settings.tls.cert_login_from)

    def _crashed(self, error: BaseException) -> None:
        with contextlib.suppress(MemoryError):  # the repair must continue even without memory to report it
            log.error("internal error, the connection is closed", exception=error)

    def _engine_settled(self) -> None:
        broker = self._broker
        notices, broker.notices = broker.notices, []
        for notice in notices:
            write: Callable[..., None] = getattr(log, notice.level)
            write(notice.event, **notice.fields)
        for error in broker.work.take_defects():
            self._reactor.crashes += 1
            with contextlib.suppress(MemoryError):
                log.error("internal error, the work continues later", exception=error)
        self._logins.begin()
