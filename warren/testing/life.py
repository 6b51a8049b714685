"""One life of a broker under test: a thread with a trio loop, on which all of it happens.

Broker.start  ->  Life: a thread with a trio loop  ->  Application, as `warren serve` runs it, with one plugin: the Life
Kept: the state that the lives of one broker share, from its ports to the disk in memory
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Final, TypeVar
from weakref import WeakSet, finalize

import trio

from warren.channels.peer import Peer
from warren.msgstore.files.file_system import FileSystem, OsFileSystem
from warren.server.application import Application, MetadataStore
from warren.server.data_dir import MESSAGES, DataDir
from warren.server.descriptors import OPEN_DESCRIPTORS
from warren.server.management import Listening, Management, Plugin
from warren.server.network.acceptor import Listener
from warren.server.network.readiness import READABLE
from warren.server.setting_kinds import Endpoint, MemoryWatermark
from warren.server.settings import LimitSettings, Settings, StoreSettings
from warren.server.threads import Purpose, Threads, use
from warren.testing.assertions import POLL_S
from warren.testing.catalogue import MemoryCatalogue
from warren.testing.clock import MovableClock
from warren.testing.disk import Disk, MemoryFiles
from warren.testing.faults import FaultyPublishes
from warren.testing.logins import LoginsInTests, hash_cheaply
from warren.testing.sockets import BACKLOG, ClientSocket, ListeningSocket
from warren.vhosts.metadata import (
    GlobalParameterDelete,
    PermissionPut,
    UserDelete,
    UserPut,
    VhostDelete,
    VhostPut,
)

CALL_TIMEOUT_S: Final = 30.0
# Longer than a broker takes at most to stop.
JOIN_S: Final = 20.0
NOTHING: Final = 1 << 40
_NS_PER_MS: Final = 1_000_000

_Result = TypeVar("_Result")


class BrokerDown(RuntimeError):
    """The broker was asked for something while it is not running."""


class Kept:
    """The parts of a broker in all its lives: its ports and data, its users, and its faults.

    `port` 0 chooses a free one. The management API has a port of its own, if there is one.
    """

    def __init__(
        self,
        *,
        data_dir: Path | None,
        users: Mapping[str, str],
        vhosts: Sequence[str],
        host: str,
        port: int,
        management: bool,
    ) -> None:
        self.data_dir = data_dir
        self.vhosts = tuple(vhosts)
        self.hashes = {name: hash_cheaply(password) for name, password in users.items()}
        self.files: FileSystem = MemoryFiles()
        self.catalogue = MemoryCatalogue()
        self.clock = MovableClock()
        self.publishes = FaultyPublishes()
        self.stalled: set[int] = set()  # the keys of connections whose consumers get nothing
        self.sockets: WeakSet[ClientSocket] = WeakSet()
        self.listening: ListeningSocket | None = None
        # Bound and never listening: it keeps the port between two lives.
        self._place = ListeningSocket((host, port), self.sockets)
        self.host = host
        self.port: int = self._place.getsockname()[1]
        self._management_place = ListeningSocket((host, 0), self.sockets) if management else None
        self.scratch = _Scratch() if management and data_dir is None else None

    @property
    def management_port(self) -> int | None:
        """The port of the management API; None without it."""
        return None if self._management_place is None else int(self._management_place.getsockname()[1])

    @property
    def is_closed(self) -> bool:
        """Whether the ports were given back."""
        return self._place.fileno() < 0

    def sockets_of(self, peer: Peer) -> list[ClientSocket]:
        """Return the sockets of `peer` that no fault has ended."""
        return [sock for sock in list(self.sockets) if sock.peer == peer.origin.peer and not sock.is_torn]

    def close(self) -> None:
        """Give the ports and files back, after the last life."""
        self._place.close()
        if self._management_place is not None:
            self._management_place.close()
        if self.scratch is not None:
            self.scratch.remove()

    def forget(self) -> None:
        """Close all sockets in a forked child, so that peers see an end when the parent ends a connection."""
        for sock in (*self.sockets, self._place, self.listening):
            if sock is not None:
                sock.close()
        if self._management_place is not None:
            _let_go(self._management_place)


class Life:
    """One run of a broker, from start to stop or crash; to the application it is a plugin."""

    def __init__(self, kept: Kept) -> None:
        self.started = threading.Event()
        self.ended = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._main, name=f"warren-{kept.port}", daemon=True)
        self.disk = Disk(kept.files)
        self._kept = kept
        self.token: trio.lowlevel.TrioToken
        self.application: Application
        self.management: Management
        self._nursery: trio.Nursery

    @property
    def is_serving(self) -> bool:
        """Whether it has started and not ended."""
        return self.started.is_set() and not self.ended.is_set()

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
        kept = self._kept
        data_dir = kept.data_dir
        self.token = trio.lowlevel.current_trio_token()
        with nullcontext() if data_dir is None else DataDir.open(data_dir):
            catalogue: MetadataStore = kept.catalogue
            if data_dir is not None:
                # As in `serve`: it is a third of all there is to import.
                from warren.server.catalogue.catalogue import Catalogue

                directory = data_dir / MESSAGES
                directory.mkdir(mode=0o700, exist_ok=True)
                self.disk = Disk(OsFileSystem(str(directory)))
                settings = _settings(data_dir, kept)
                catalogue = Catalogue.open(settings.catalogue_url())
            else:
                settings = _settings(Path("memory") if kept.scratch is None else kept.scratch.path, kept)
            use(_AtOnce())
            self.application = Application(
                settings,
                catalogue,
                self.disk,
                self._plugins(),
                make_authenticator=LoginsInTests,
                abandon=_nothing,
                clock=kept.clock.steady(),
            )
            try:
                await self.application.run(self._serving)
            finally:
                self.disk.cut()
                self.application.join(JOIN_S)

    def _plugins(self) -> list[Plugin]:
        if self._kept.management_port is None:
            return [self]
        # It takes as long to import as everything else together.
        from warren.mgmt_plugin.plugin import ManagementPlugin

        return [self, ManagementPlugin()]

    def prepare(self, management: Management) -> None:
        """Do nothing."""

    async def run(self, management: Management, *, task_status: trio.TaskStatus[Sequence[Listening]]) -> None:
        """Run as long as the broker does."""
        self.management = management
        async with trio.open_nursery() as self._nursery:
            task_status.started([])
            await trio.sleep_forever()

    def _serving(self) -> None:
        engine = self.management.broker
        engine.judge_publishes(self._kept.publishes.judge)
        self._furnish()
        self.management.settle()
        self.spawn(self._begin)

    async def _begin(self) -> None:
        await self.commit()
        self.listen()
        self.started.set()

    def _furnish(self) -> None:
        """Restore the vhosts, users and permissions of a start."""
        engine = self.management.broker
        for name in self._kept.vhosts:
            if name not in engine.vhosts:
                engine.administer(VhostPut(name))
        for name, password_hash in self._kept.hashes.items():
            user = UserPut(name, password_hash.text, password_hash.algorithm, ("administrator",))
            if engine.access.get(name) != user:
                engine.administer(user)
            for vhost in self._kept.vhosts:
                permission = PermissionPut(name, vhost, ".*", ".*", ".*")
                if engine.access.permissions.get((name, vhost)) != permission:
                    engine.administer(permission)

    def listen(self) -> None:
        """Accept connections. On the loop."""
        kept = self._kept
        sock = ListeningSocket((kept.host, kept.port), kept.sockets)
        sock.listen(BACKLOG)
        kept.listening = sock
        self.management.reactor.acceptor.listen(Listener(sock, None))

    def crash(self) -> None:
        """Stop all writes to the disk, and end. On the loop."""
        self.disk.cut()
        if isinstance(self._kept.files, MemoryFiles):
            self._kept.files.crash()
        self.application.abort()

    def reset(self) -> None:
        """Reset as `Broker.reset` says. On the loop."""
        engine = self.management.broker
        self.tear_all(reset=True)
        self._kept.publishes.clear()
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
        self._kept.stalled.clear()
        self._furnish()

    async def commit(self) -> None:
        """Wait until all changes of metadata are committed."""
        self.management.settle()
        await self.management.commit(self.management.broker.journal.last_ticket)

    async def advance(self, ns: int) -> None:
        """Advance as `Broker.advance` says."""
        clock = self._kept.clock
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
                    timers.on_earlier()  # the task that waits for the next one has counted on more time
                return
            clock.advance(min(left_ns, wait_ms * _NS_PER_MS))

    async def _quiet(self) -> None:
        """Wait until the engine has done everything that it can do without input, and has its reads from the disk."""
        messages = self.management.messages
        while self.management.broker.has_work() or (messages.errands and not self.disk.full):
            await trio.sleep(POLL_S / 4)

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Begin a task that ends with the broker. On the loop."""
        self._nursery.start_soon(work)

    def tear(self, peer: Peer, *, reset: bool) -> None:
        """End the socket of `peer` at once. On the loop."""
        for sock in self._kept.sockets_of(peer):
            if sock.fileno() >= 0:
                sock.tear(reset=reset)
                self.management.reactor.turn([(sock.fileno(), READABLE)])

    def tear_soon(self, peer: Peer) -> None:
        """Reset the socket of `peer` after this turn: the engine is reading from it. On the loop."""
        for sock in self._kept.sockets_of(peer):
            sock.tear(reset=True)
            self.token.run_sync_soon(self.management.reactor.turn, [(sock.fileno(), READABLE)])

    def tear_all(self, *, reset: bool) -> None:
        """End the sockets of all connections at once. On the loop."""
        torn = [sock for sock in list(self._kept.sockets) if sock.fileno() >= 0 and not sock.is_torn]
        for sock in torn:
            sock.tear(reset=reset)
        self.management.reactor.turn([(sock.fileno(), READABLE) for sock in torn])

    # --- other threads ----------------------------------------------------------------------------------------------

    def call(self, work: Callable[[], _Result]) -> _Result:
        """Call `work` on the loop, let the engine finish its turn, and return the result."""
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
        """Run `work` on the loop and return its result."""
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
        """Give the engine the current time: it learns the time at its turns, and the last may be long ago."""
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


def _settings(data_dir: Path, kept: Kept) -> Settings:
    """Return the settings of a broker under test: the defaults, but no limit that other things in the process reach."""
    port = kept.management_port
    return Settings(
        data_dir=data_dir,
        listeners={"amqp": None},
        http=None if port is None else Endpoint(kept.host, port),
        prometheus=None,
        limits=LimitSettings(accept_rate_per_s=1_000_000, memory_high_watermark=MemoryWatermark(size_bytes=NOTHING)),
        store=StoreSettings(segment_bytes=4 << 20, memory_bytes=NOTHING, disk_free_min_bytes=0, scrub_bytes_per_s=0),
    )


class _AtOnce(Threads):
    """Makes calls that block on the loop: calls in memory do not, and milliseconds of a disk do not matter here.

    Trio would keep a thread for them, for ten seconds after the last call.
    """

    async def run(self, purpose: Purpose, work: Callable[[], _Result], *, abandon: bool, party: str = "") -> _Result:
        return work()


class _Scratch:
    """A directory for the files of the management API; it is removed with the process at the latest."""

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


def _let_go(place: socket.socket) -> None:
    """Replace every socket at the port of `place` by /dev/null: for its owner it is as if it had been closed."""
    port = place.getsockname()[1]
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in map(int, os.listdir(OPEN_DESCRIPTORS)):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                sock = socket.socket(fileno=os.dup(descriptor))
                with sock:
                    if sock.family != socket.AF_UNIX and sock.getsockname()[1] == port:
                        os.dup2(nothing, descriptor, inheritable=False)
        except OSError:
            continue  # the descriptor of the listing itself, or not a socket of the internet
    os.close(nothing)
