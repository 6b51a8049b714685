"""The running broker: engine, reactor, catalogue, login, HTTP and signals, put together in one place.

Start:    lock the data directory; open the catalogue and restore the engine; listen; say where; serve.
Stop:     SIGTERM or Ctrl-C: stop listening, close every connection with 320, commit what is pending, at most
          `STOP_DEADLINE_S`. The same signal again ends at once.
Tasks:    reactor, ticker, memory watch, catalogue writer, HTTP, signals, and one short task per login.

Nothing else in the package starts tasks or opens listeners.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import secrets
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import trio

from warren import __version__
from warren.amqp.errors import AmqpError
from warren.channels import fast_path
from warren.channels.broker import Broker, Limits
from warren.channels.connection import LoginRequest
from warren.queues.metadata import UserPut
from warren.server.admission import Admission
from warren.server.authenticator import Authenticator
from warren.server.catalogue import Catalogue
from warren.server.catalogue_writer import CatalogueWriter
from warren.server.data_dir import DataDir
from warren.server.errors import StartError, listen_error
from warren.server.http import Health, serve_http
from warren.server.logs import get_logger
from warren.server.peer_address import is_loopback
from warren.server.process_memory import resident_bytes, total_memory_bytes
from warren.server.reactor import Listener, Reactor
from warren.server.settings import Endpoint, Settings
from warren.server.tls import ServerTls, maybe_user_of_certificate

STOP_DEADLINE_S: Final = 10.0
TICK_S: Final = 0.5
MEMORY_CHECK_S: Final = 0.2
MEMORY_CHECK_MIN_S: Final = 0.01
# What publishers can send at most.
FILL_BYTES_PER_S: Final = 2 << 30
# An alarm ends this far below the watermark, so that it does not flap.
MEMORY_CLEAR_SHARE: Final = 0.95
COLLECT_S: Final = 60.0
LISTEN_BACKLOG: Final = 4096

log = get_logger("server")


async def serve(settings: Settings) -> int:
    """Run the broker until it is told to stop; return the exit code.

    Raises:
        StartError: something outside the program stands in the way, said in one line.
    """
    with DataDir.open(settings.data_dir):
        return await Application(settings).run()


class Application:
    """One broker process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._broker = Broker(_engine_limits(settings), _entropy, seed=secrets.randbits(63))
        self._catalogue = Catalogue.open(settings.catalogue_url())
        self._tls = ServerTls(settings.tls) if settings.amqps is not None else None
        limits = settings.limits
        self._reactor = Reactor(
            self._broker,
            Admission(
                limits.unauthenticated_connections_max,
                limits.unauthenticated_per_network_max,
                limits.accept_rate_per_s,
            ),
            self._certificate_user,
            self._crashed,
            self._engine_settled,
            self._is_alone,
            limits.tls_handshake_timeout_s,
        )
        self._writer = CatalogueWriter(self._catalogue, self._broker.journal, self._committed)
        self._authenticator = Authenticator(self._broker.access, self._upgrade_user)
        self._nursery: trio.Nursery | None = None
        self._stopping = False
        self._logins_under_way = 0

    async def run(self) -> int:
        """Restore, listen, serve, stop."""
        try:
            _raise_descriptor_limit()
            restored = self._restore()
            listeners = self._listen()
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    places = await self._start_http(nursery) + [place for place, _ in listeners]
                    for _, listener in listeners:
                        self._reactor.listen(listener)
                    nursery.start_soon(self._writer.run)
                    nursery.start_soon(self._reactor.run)
                    nursery.start_soon(self._tick)
                    nursery.start_soon(self._watch_memory)
                    self._settle_memory()
                    self._announce(sorted(places), restored)
                    await self._obey(signals)
                    nursery.cancel_scope.cancel()
            return 0
        finally:
            self._reactor.close()
            self._catalogue.close()

    # --- start ------------------------------------------------------------------------------------------------------

    def _restore(self) -> int:
        """Bring the engine to what the catalogue remembers; return how many things that were."""
        count = 0
        for change in self._catalogue.load():
            try:
                self._broker.restore(change)
            except (AmqpError, ValueError, KeyError) as error:
                what = f"{type(change).__name__} {getattr(change, 'name', '')}".rstrip()
                raise StartError(f"metadata store: {what} cannot be restored: {error}") from None
            count += 1
        return count

    def _listen(self) -> list[tuple[str, Listener]]:
        """Open the AMQP sockets. Returns what to tell the operator, and the listeners."""
        opened: list[tuple[str, Listener]] = []
        tls = self._tls
        if self._settings.amqp is not None:
            for sock in _open_sockets("amqp", self._settings.amqp):
                opened.append((f"amqp://{_place(sock)}", Listener(sock, None)))
        if self._settings.amqps is not None and tls is not None:
            for sock in _open_sockets("amqps", self._settings.amqps):
                opened.append((f"amqps://{_place(sock)}", Listener(sock, lambda: tls.context)))
        return opened

    async def _start_http(self, nursery: trio.Nursery) -> list[str]:
        endpoint = self._settings.http
        if endpoint is None:
            return []
        address = await nursery.start(serve_http, endpoint.host, endpoint.port, self._health)
        return [f"http://{Endpoint(*address)}"]

    def _settle_memory(self) -> None:
        """The engine makes no cycles on its busy paths: what lives now is never walked again, the rest when idle."""
        gc.collect()
        gc.freeze()
        gc.disable()

    def _announce(self, places: list[str], restored: int) -> None:
        compiled = fast_path.__file__.endswith(".so")
        if not compiled:
            log.warning("the engine runs interpreted, several times slower than compiled")
        lines = [
            f"Warren {__version__}, AMQP 0-9-1",
            f"  listening   {', '.join(places)}",
            f"  data        {self._settings.data_dir.absolute()}",
            f"  stop        Ctrl-C, or kill -TERM {os.getpid()}",
        ]
        print("\n".join(lines), flush=True)
        log.info("started", version=__version__, compiled=compiled, restored=restored, pid=os.getpid())

    # --- tasks ------------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        last_collect_s = time.monotonic()
        while True:
            await trio.sleep(TICK_S)
            now_s = time.monotonic()
            self._reactor.tick(now_s)
            # Cycles come from tracebacks and libraries only: rarely enough to wait for a quiet moment.
            if now_s - last_collect_s > COLLECT_S and not self._broker.has_work():
                last_collect_s = now_s
                gc.collect(1)

    async def _watch_memory(self) -> None:
        limit = self._settings.limits.memory_high_watermark.limit_bytes(total_memory_bytes())
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        pause_s = MEMORY_CHECK_S
        while True:
            await trio.sleep(pause_s)
            if self._broker.alarm_reason and trim is not None:
                trim(0)
            resident = resident_bytes()
            if resident > limit and not self._broker.alarm_reason:
                log.warning("memory above the watermark", resident_bytes=resident, watermark_bytes=limit)
                self._broker.set_alarm("low on memory")
                self._reactor.settle()
            elif resident < limit * MEMORY_CLEAR_SHARE and self._broker.alarm_reason:
                self._broker.set_alarm("")
                self._reactor.settle()
            # The nearer the watermark, the sooner it can be crossed.
            left_s = (limit - resident) / FILL_BYTES_PER_S
            pause_s = MEMORY_CHECK_S if left_s < 0 else min(max(left_s, MEMORY_CHECK_MIN_S), MEMORY_CHECK_S)

    async def _login(self, request: LoginRequest) -> None:
        try:
            await self._check_login(request)
        finally:
            self._logins_under_way -= 1

    async def _check_login(self, request: LoginRequest) -> None:
        address = request.connection.address
        if request.certificate:
            known = self._broker.access.get(request.user) is not None
            accepted = known and self._authenticator.may_log_in_from(request.user, address)
        else:
            accepted = await self._authenticator.check(request.user, request.password, address)
        if accepted:
            request.connection.login_accepted(request.user)
        else:
            log.warning("login refused", peer=request.connection.peer, user=request.user)
            request.connection.login_refused()
        self._reactor.settle()

    async def _obey(self, signals: Any) -> None:
        """Wait for the signal to stop, then drain."""
        async for number in signals:
            if number == signal.SIGHUP:
                if self._tls is not None:
                    self._tls.reload()
                continue
            break
        self._stopping = True
        log.info("stopping", connections=self._reactor.connection_count())
        with trio.move_on_after(STOP_DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._drain, nursery.cancel_scope)
                async for number in signals:
                    if number != signal.SIGHUP:
                        log.warning("stopping at once")
                        nursery.cancel_scope.cancel()
        self._reactor.stop()
        log.info("stopped")

    async def _drain(self, scope: trio.CancelScope) -> None:
        self._reactor.stop_listening()
        self._broker.shut_down("shutdown")
        self._reactor.settle()
        await self._writer.drain(trio.current_time() + STOP_DEADLINE_S)
        while self._reactor.connection_count():
            await trio.sleep(0.02)
        scope.cancel()

    # --- what the parts call ----------------------------------------------------------------------------------------

    def _health(self) -> Health:
        if self._stopping:
            return Health(False, "stopping")
        if not self._writer.healthy:
            return Health(False, "the metadata store is unavailable")
        return Health(True)

    def _committed(self, ticket: int) -> None:
        self._broker.committed(ticket)
        self._reactor.settle()

    def _upgrade_user(self, record: UserPut) -> None:
        self._broker.administer(record)

    def _is_alone(self) -> bool:
        journal = self._broker.journal
        return self._logins_under_way == 0 and journal.committed_ticket == journal.last_ticket

    def _certificate_user(self, certificate: dict[str, object]) -> str | None:
        return maybe_user_of_certificate(certificate, self._settings.tls.cert_login_from)

    def _crashed(self, error: BaseException) -> None:
        log.error("internal error, the connection is closed", exception=error)

    def _engine_settled(self) -> None:
        broker = self._broker
        notices, broker.notices = broker.notices, []
        for notice in notices:
            write: Callable[..., None] = getattr(log, notice.level)
            write(notice.event, **notice.fields)
        logins, broker.logins = broker.logins, []
        assert self._nursery is not None
        for request in logins:
            self._logins_under_way += 1
            self._nursery.start_soon(self._login, request)


def _engine_limits(settings: Settings) -> Limits:
    given = settings.limits
    limits = Limits()
    limits.frame_max_bytes = given.frame_max_bytes
    limits.channel_max = given.channel_max
    limits.heartbeat_s = given.heartbeat_s
    limits.message_max_bytes = given.max_message_bytes
    limits.connections_max = given.connections_max
    limits.handshake_timeout_s = given.handshake_timeout_s
    limits.consumers_per_channel_max = given.consumers_per_channel_max
    limits.unacked_per_channel_max = given.unacked_per_channel_max
    limits.delivery_timeout_s = given.delivery_timeout_s
    limits.queues_per_vhost_max = given.queues_per_vhost_max
    limits.exchanges_per_vhost_max = given.exchanges_per_vhost_max
    limits.bindings_per_exchange_max = given.bindings_per_exchange_max
    limits.outbox_soft_bytes = given.outbox_bytes
    # Unfinished messages may take a quarter of what there is, and always one of the largest.
    watermark_bytes = given.memory_high_watermark.limit_bytes(total_memory_bytes())
    limits.inbound_max_bytes = max(given.max_message_bytes, min(limits.inbound_max_bytes, watermark_bytes // 4))
    return limits


def _raise_descriptor_limit() -> None:
    """Allow as many descriptors as the system lets us have: a connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _entropy() -> bytes:
    return secrets.token_bytes(16)


def _open_sockets(what: str, endpoint: Endpoint) -> list[socket.socket]:
    """Listen on every address that the host name stands for.

    Raises:
        StartError: the name means nothing, or the port is not to be had.
    """
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if is_loopback(str(address[0])):
                _spare_pacing(sock)
            sock.bind(address)
            sock.listen(LISTEN_BACKLOG)
            sock.setblocking(False)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise listen_error(what, endpoint.host, endpoint.port, error) from None
    return sockets


def _spare_pacing(sock: socket.socket) -> None:
    """Use Reno between processes of this machine: where BBR is the default, its pacing timers cost a fifth of the
    kernel's work on large messages and there is no network to be gentle with. Accepted sockets inherit it.
    """
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    except OSError as error:
        log.debug("the default congestion control stays", reason=str(error))


def _place(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
