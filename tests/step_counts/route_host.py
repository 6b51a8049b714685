"""The management API over an engine, without a socket: the cost of each request, in steps (`step_counter`).

1. The API is the real one, from `Api.respond` on; so is the engine, which has its turns in a task of its own.
2. A stretch is what one task does between two checkpoints: nobody else is served meanwhile.
3. The clock of the scheduler goes by steps, so a request gives way at the same places in every run. Blocking calls run
   at once instead of in a thread, and are not counted: they do not stop the loop.

To be imported when the hook of `step_counter` is installed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec
import trio
import trio.testing
from engine import Client as Peer
from trio.testing import wait_all_tasks_blocked

from step_counts.meter import Meter
from step_counts.step_counter import COUNT
from warren.server import threads

SLICE_STEPS: Final = 100
GIVE_WAY_STEPS: Final = 6  # of a task that gives way once
LOOK_MESSAGES: Final = 20


async def _at_once(purpose: str, work: Callable[..., Any], *args: Any, abandon: bool = False) -> Any:
    await trio.lowlevel.checkpoint()
    mark = COUNT.eighths
    try:
        return work(*args)
    finally:
        COUNT.eighths = mark


# Tasks that are ready at the same time run in the order in which they began.
setattr(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)  # noqa: B010
trio._core._run._r.seed(0)
setattr(threads, "in_thread", _at_once)  # noqa: B010 - before it is imported by name

from warren.channels.broker import Broker  # noqa: E402
from warren.links.lake_jobs import JOBS_MAX  # noqa: E402
from warren.mgmt_plugin.api import Api  # noqa: E402
from warren.mgmt_plugin.http import scheduler  # noqa: E402
from warren.mgmt_plugin.http.server import HttpError, HttpTraffic, Request, Response  # noqa: E402
from warren.mgmt_plugin.http.static_files import StaticFiles  # noqa: E402
from warren.mgmt_plugin.metrics import prometheus  # noqa: E402
from warren.mgmt_plugin.operators import Doorkeeper  # noqa: E402
from warren.mgmt_plugin.plugin import Services, handlers_of, table_of  # noqa: E402
from warren.mgmt_plugin.resources import browsing  # noqa: E402
from warren.msgstore.log.log_position import LogPosition  # noqa: E402
from warren.server.catalogue.writer import CatalogueWriter  # noqa: E402
from warren.server.copies import snapshots  # noqa: E402
from warren.server.copies.images import Image, ImageFile, Images  # noqa: E402
from warren.server.descriptors import UNLIMITED  # noqa: E402
from warren.server.direct_clients import DirectClients  # noqa: E402
from warren.server.held_links import HeldLinks  # noqa: E402
from warren.server.histogram import Histogram  # noqa: E402
from warren.server.logins.authenticator import Authenticator  # noqa: E402
from warren.server.losses import Losses  # noqa: E402
from warren.server.management import Health, Listening, Management  # noqa: E402
from warren.server.message_store import MessageStoreService, StoreCounts  # noqa: E402
from warren.server.network.reactor import Reactor  # noqa: E402
from warren.server.replication import Replication  # noqa: E402
from warren.server.settings import Settings  # noqa: E402
from warren.server.supervision import Supervision  # noqa: E402

# 512 bytes of JSON that C looks at count as a step.
_encode, _decode = msgspec.json.encode, msgspec.json.decode


def _counted_encode(value: object) -> bytes:
    found = _encode(value)
    COUNT.eighths += len(found) >> 6
    return found


def _counted_decode(data: bytes, **options: Any) -> Any:
    COUNT.eighths += len(data) >> 6
    return _decode(data, **options)


setattr(msgspec.json, "encode", _counted_encode)  # noqa: B010
setattr(msgspec.json, "decode", _counted_decode)  # noqa: B010
setattr(scheduler, "time", SimpleNamespace(perf_counter=lambda: COUNT.eighths / 8))  # noqa: B010 - a second is a step
setattr(scheduler, "SLICE_S", SLICE_STEPS)  # noqa: B010
setattr(prometheus, "TOTALS_S", 0.0)  # noqa: B010 - every page pays for its sums, however soon it follows another
setattr(browsing, "LOOK_MESSAGES", LOOK_MESSAGES)  # noqa: B010
setattr(snapshots, "LOOK_MESSAGES", LOOK_MESSAGES)  # noqa: B010


class Engine(Meter):
    """An engine whose clients have ports of their own, as connections are found by them."""

    def connect(self) -> Peer:
        peer = super().connect()
        peer.connection.origin.peer = f"127.0.0.1:{10000 + len(self.clients)}"
        return peer


class Everybody:
    """An authenticator that lets everybody in: how long a password takes is not measured."""

    async def check(self, name: str, password: bytes, address: str) -> bool:
        return True


class FakeCluster:
    """A cluster whose nodes do what they are told: the cost of a command is the business of etcd."""

    async def transfer(self, node: str | None) -> str:
        await trio.lowlevel.checkpoint()
        return "rabbit@other"

    async def forget(self, node: str) -> None:
        await trio.lowlevel.checkpoint()

    drain = revive = forget

    def may_serve(self) -> bool:
        return True

    def readers(self) -> list[str]:
        """No follower serves chunks."""
        return []


class Stretches(trio.abc.Instrument):
    """Counts what tasks do from one checkpoint to the next."""

    def __init__(self) -> None:
        self.all: list[int] = []
        self._mark = COUNT.eighths

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._mark = COUNT.eighths

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.all.append((COUNT.eighths - self._mark) // 8)

    def whole(self) -> int:
        """Return the steps of all stretches but for those that giving way takes.

        A stretch ends in another place when one before it was a step longer, so their number is not that of the work.
        """
        return sum(self.all) - GIVE_WAY_STEPS * (len(self.all) - 1)


class FakeLinks:
    """`count` shovels, federation links and tables."""

    def __init__(self, count: int) -> None:
        runs = {"vhost": "/", "status": "running", "state": "running"}
        self._rows = [{"name": f"shovel{at}", **runs} for at in range(count)]

    def shovels(self, vhost: str | None = None) -> list[dict[str, Any]]:
        return [row for row in self._rows if vhost in (None, row["vhost"])]

    def federation_links(self, vhost: str | None = None) -> list[dict[str, Any]]:
        return self.shovels(vhost)

    def restart_shovel(self, vhost: str, name: str) -> bool:
        return True

    def restart_federation_link(self, vhost: str, link_id: str) -> bool:
        return True

    def tables(self, vhost: str | None = None) -> list[dict[str, Any]]:
        counted = dict.fromkeys(("rows", "bytes", "refused", "lost", "commits", "failures", "files_rewritten"), 1)
        others = dict.fromkeys(("waiting", "lag_s", "step_s", "committed_at"), 1)
        return [{**row, **counted, **others} for row in self.shovels(vhost)[:JOBS_MAX]]

    def restart_table(self, vhost: str, name: str) -> bool:
        return True

    def table_process(self) -> tuple[int, int]:
        return 1, 1 << 20


class FakeImages:
    """Makes images with a number of files, without bytes."""

    def __init__(self, count: int) -> None:
        files = [ImageFile(f"messages/log/{at:010d}", 10, "") for at in range(count)]
        self._image = Image("backup", LogPosition(0, 0, 0, 0, 1, bytes(16)), 0, 0, {file.name: file for file in files})

    async def take(self, holder: str) -> Image:
        return self._image

    async def read(self, image: Image, file: ImageFile, offset: int, length: int) -> bytes:
        return bytes(length)

    async def release(self, holder: str) -> None:
        await trio.lowlevel.checkpoint()


class Host:
    """A broker with its API, to be used inside of ``trio.run``, with `engine.settle` before."""

    def __init__(self, engine: Engine, links: int, nursery: trio.Nursery, directory: str) -> None:
        self.engine = engine
        engine.follows = False  # SQL has a thread for that
        broker = engine.broker
        self._woken = trio.Event()
        tasks = Supervision()
        self.messages = self._messages()
        self.management = Management(
            broker,
            Settings(data_dir=Path(directory)),
            cast(Authenticator, Everybody()),
            self.messages,
            cast(Reactor, SimpleNamespace(turn_times=Histogram(), crashes=0, connection_count=self._connection_count)),
            DirectClients(broker.open_direct, self.settle),
            self.settle,
            lambda: Health(True),
            None,
            0,
            1 << 30,
            tasks,
            UNLIMITED,
            lambda: int(broker.log.now_ms),
            cast(Images, FakeImages(links)),
            cast(CatalogueWriter, SimpleNamespace(waiting=lambda: 0, behind_s=lambda: 0.0)),
            HeldLinks(broker.parameters, None),
            replication=cast(Replication, FakeCluster()),
        )
        management = self.management
        management.listening += [Listening("amqp", "127.0.0.1", 5672), Listening("data", "127.0.0.1", 15680)]
        doorkeeper = Doorkeeper(management.view.permissions, management.authenticator, frozenset())
        self.services = Services(management, doorkeeper=doorkeeper, traffic=HttpTraffic(), links=FakeLinks(links))
        self.api = Api(table_of(handlers_of(management, self.services, nursery)), doorkeeper, management, StaticFiles())
        nursery.start_soon(self.services.stages.run)
        nursery.start_soon(self._take_turns)

    def _messages(self) -> MessageStoreService:
        service = SimpleNamespace(
            counts=StoreCounts(), upkeep=SimpleNamespace(compacted_segments=lambda: 0, moved_bytes=lambda: 0),
            trouble=lambda: "", deleted=self._deleted, damage=SimpleNamespace(segments={}),
            disk_free_bytes=1 << 40, free_bytes=1 << 40, failed_reads=lambda: 0, unread=list,
            losses=Losses(), versions=None,
        )  # fmt: skip
        return cast(MessageStoreService, service)

    def _connection_count(self) -> int:
        return len(self.broker.connections)

    @property
    def broker(self) -> Broker:
        return self.engine.broker

    async def _deleted(self) -> None:
        self.broker.log.force()
        self.settle()
        await trio.lowlevel.checkpoint()

    async def write(self) -> None:
        """Make the log write what is in the open batch."""
        self.broker.log.force()
        self.settle()
        await trio.testing.wait_all_tasks_blocked()
        assert self.broker.log.is_idle()

    def settle(self) -> None:
        """Finish a turn."""
        self.engine._turn(False)
        self._woken.set()

    async def _take_turns(self) -> None:
        journal = self.broker.journal
        while True:
            await self._woken.wait()
            while True:
                self._woken = trio.Event()
                before = journal.committed_ticket
                busy = self.engine._turn(True)
                if journal.committed_ticket != before:
                    self.management.note_commit()
                await trio.lowlevel.checkpoint()
                if not busy and not self._woken.is_set():
                    break

    async def ask(self, method: str, target: str, body: bytes, headers: dict[str, str] | None = None) -> Response:
        """Return the answer to a request of the administrator ``guest``, when all it has begun is done."""

        async def read_body(limit_bytes: int, look: Callable[[bytes], None] | None = None) -> bytes:
            for at in range(0, len(body), 4096):
                await trio.lowlevel.checkpoint()
                if look is not None:
                    look(body[at : at + 4096])
            return body

        path, _, query = target.partition("?")
        given = {"authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "host": "127.0.0.1"} | (headers or {})
        request = Request(method, path, query, given, "127.0.0.1", False, read_body)
        try:
            answer = await self.api.respond(request)
            if answer.pieces is not None:
                answer.body += await self._taken(answer.pieces)
        except HttpError as error:
            answer = Response(error.status, msgspec.json.encode([error.error, str(error.reason)]))
        self._woken.set()
        await wait_all_tasks_blocked()
        return answer

    async def _taken(self, pieces: Iterator[bytes]) -> bytes:
        """Return all of an answer that is made while it is sent, as a peer takes it that is as fast as we."""
        taken: list[bytes] = []
        for piece in pieces:
            taken.append(piece)
            await scheduler.give_way()
        return b"".join(taken)


def temporary_directory() -> tempfile.TemporaryDirectory[str]:
    """Return a new directory for what a broker writes."""
    return tempfile.TemporaryDirectory(prefix="warren-work-")
