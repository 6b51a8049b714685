"""A broker some of whose tasks fail: it lives, says so, and only what fails is missing."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import trio
from link_host import LOOPBACK_SETTINGS as SETTINGS

from warren.amqp import methods as m
from warren.amqp.codec import method_frame
from warren.amqp.declarations import QueueDeclaration
from warren.amqp.field_table import encode_table
from warren.amqp.methods import PROTOCOL_HEADER
from warren.amqp_client.client_errors import BrokerError
from warren.links.amqp_client import LinkConnection, connect
from warren.links.amqp_uri import BrokerUri
from warren.msgstore.files import store as store_module
from warren.server import application as application_module
from warren.server.application import Application
from warren.server.logins.passwords import hash_password
from warren.server.management import Listening, Management
from warren.server.restoring import RESTORED_AT_ONCE
from warren.server.setting_kinds import Endpoint, MemoryWatermark
from warren.server.settings import LimitSettings, Settings, StoreSettings
from warren.testing.catalogue import MemoryCatalogue
from warren.testing.disk import MemoryFiles
from warren.vhosts.metadata import MetadataChange, PermissionPut, PolicyPut, QueuePut, UserPut, VhostPut

DEADLINE_S = 60.0
SETTINGS_IN_MEMORY = Settings(
    data_dir=Path("memory"),
    listeners={"amqp": Endpoint("127.0.0.1", 0)},
    http=None,
    limits=LimitSettings(memory_high_watermark=MemoryWatermark(size_bytes=1 << 40)),
    store=StoreSettings(segment_bytes=4 << 20, memory_bytes=1 << 40, disk_free_min_bytes=0, scrub_bytes_per_s=0),
)
ERRORS = [MemoryError(), OverflowError("too large"), OSError(24, "Too many open files"), RecursionError("deep")]


class Bystander:
    """A plugin that gives the test its broker, and fails when it is told to."""

    def __init__(self) -> None:
        self.management: Management
        self.fail = trio.Event()

    def prepare(self, management: Management) -> None:
        self.management = management

    async def run(self, management: Management, *, task_status: trio.TaskStatus[Sequence[Listening]]) -> None:
        task_status.started([])
        await self.fail.wait()
        raise LookupError("a defect of a plugin")


class Place:
    """A broker in memory, with a user and a way in."""

    def __init__(self, application: Application, plugin: Bystander, nursery: trio.Nursery) -> None:
        self.application = application
        self.plugin = plugin
        self.management = plugin.management
        self.tasks = application.tasks
        self._nursery = nursery
        self.opened: list[LinkConnection] = []

    async def connect(self) -> LinkConnection:
        (place,) = [each for each in self.management.listening if each.protocol == "amqp"]
        uri = BrokerUri(False, "127.0.0.1", place.port, "/", "amqp://127.0.0.1", "user", "user")
        self.opened.append(await connect(self._nursery, uri, SETTINGS, "a client"))
        return self.opened[-1]

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await trio.sleep(0.005)

    def failures(self, name: str) -> int:
        task = self.tasks.tasks.get(name)
        return 0 if task is None else task.failures


def run(test: Callable[[Place], Awaitable[None]]) -> int:
    """Run `test` beside a broker, stop it, and return the exit code."""
    plugin = Bystander()
    application = Application(SETTINGS_IN_MEMORY, MemoryCatalogue(), MemoryFiles(), [plugin])
    codes: list[int] = []

    async def serve(served: trio.Event) -> None:
        codes.append(await application.run(served.set))

    async def main() -> None:
        served = trio.Event()
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve, served)
                await served.wait()
                hashed = hash_password(b"user")
                for change in (
                    VhostPut("/"),
                    UserPut("user", hashed.text, hashed.algorithm),
                    PermissionPut("user", "/", ".*", ".*", ".*"),
                ):
                    await plugin.management.administer(change, "user")
                async with trio.open_nursery() as clients:
                    place = Place(application, plugin, clients)
                    try:
                        await test(place)
                    finally:
                        for connection in place.opened:
                            await connection.close()
                        clients.cancel_scope.cancel()
                application.stop()

    trio.run(main)
    return codes[0]


def once(error: BaseException, real: Callable[..., Any]) -> Callable[..., Any]:
    """Raise `error` at the first call, do what is real from then on."""
    left = [error]

    def call(*args: Any, **kwargs: Any) -> Any:
        if left:
            raise left.pop()
        return real(*args, **kwargs)

    return call


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_turn_of_the_reactor_that_fails_is_followed_by_another_one(error: BaseException) -> None:
    async def test(place: Place) -> None:
        before = await (await place.connect()).open_channel()
        fault = Mock(side_effect=[error])
        with patch.object(application_module, "log", Mock(warning=fault)):
            # A turn writes its log lines at its end.
            with pytest.raises(BrokerError):
                await before.declare_queue(QueueDeclaration("amq.forbidden", durable=True))
            await place.until(lambda: fault.call_count > 0)
        channel = await (await place.connect()).open_channel()
        await channel.declare_queue(QueueDeclaration("q", durable=True))
        assert place.failures("reactor") == 1
        health = place.management.health()
        assert not health.ok and health.reason == "the reactor fails and is started again"

    assert run(test) == 0


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_login_that_fails_is_refused_and_the_next_one_is_not(error: BaseException) -> None:
    async def test(place: Place) -> None:
        authenticator = place.management.authenticator
        with patch.object(authenticator, "check", side_effect=error), pytest.raises(BrokerError, match="refused"):
            await place.connect()
        await place.connect()
        assert place.failures("login") == 1
        assert place.management.health().ok

    assert run(test) == 0


def test_logins_of_closed_connections_do_not_wait() -> None:
    """A client that hangs up at once has room for its next connection: closed ones could be any number."""

    async def test(place: Place) -> None:
        never = trio.Event()
        waiting = 0

        async def check(user: str, password: bytes, address: str) -> bool:
            nonlocal waiting
            waiting += 1
            try:
                await never.wait()
            finally:
                waiting -= 1
            return False

        (listening,) = [each for each in place.management.listening if each.protocol == "amqp"]
        with patch.object(place.management.authenticator, "check", check):
            clients: list[socket.socket] = []
            for number in range(5):
                client = socket.create_connection((listening.host, listening.port))
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                response = b"\0user\0guess %d" % number
                client.sendall(PROTOCOL_HEADER)
                client.sendall(method_frame(0, m.ConnectionStartOk({}, "PLAIN", response, "en_US")))
                clients.append(client)
            await place.until(lambda: waiting == 5)
            for client in clients:
                client.close()
            await place.until(lambda: waiting == 0)
        await place.connect()
        assert place.failures("login") == 0

    assert run(test) == 0


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_commit_that_fails_by_our_fault_is_made_again(error: BaseException) -> None:
    async def test(place: Place) -> None:
        catalogue = place.application._catalogue
        channel = await (await place.connect()).open_channel()
        with patch.object(catalogue, "commit", once(error, catalogue.commit)):
            await channel.declare_queue(QueueDeclaration("q", durable=True))
            await place.until(lambda: place.failures("catalogue writer") == 1)
        assert not place.management.health().ok
        await place.until(lambda: any(isinstance(kept, QueuePut) for kept in catalogue.load()))

    assert run(test) == 0


def test_time_that_fails_to_pass_once_passes_later() -> None:
    async def test(place: Place) -> None:
        broker = place.management.broker
        clock = place.application._clock
        with patch.object(clock, "now_ms", once(OverflowError(), clock.now_ms)):
            channel = await (await place.connect()).open_channel()
            await channel.declare_queue(QueueDeclaration("q", durable=True, arguments=encode_table({"x-expires": 1})))
            await place.until(lambda: "q" not in broker.vhosts["/"].queues)
        assert place.failures("time keeper") == 1

    assert run(test) == 0


def test_a_plugin_that_fails_is_switched_off_and_named() -> None:
    async def test(place: Place) -> None:
        place.plugin.fail.set()
        await place.until(lambda: place.failures("Bystander") == 1)
        health = place.management.health()
        assert health.ok and health.document()["degraded"] == ["Bystander"]
        await (await place.connect()).open_channel()

    assert run(test) == 0


def test_a_stop_that_fails_ends_the_process_all_the_same() -> None:
    async def test(place: Place) -> None:
        place.application._writer.drain = Mock(side_effect=OSError(24, "Too many open files"))  # type: ignore[method-assign]

    assert run(test) == 0


def test_a_wall_clock_that_is_set_expires_nothing() -> None:
    """This belongs here as well: a value from outside, here the time, must not end anything."""

    async def test(place: Place) -> None:
        broker = place.management.broker
        channel = await (await place.connect()).open_channel()
        await channel.declare_queue(
            QueueDeclaration("q", durable=True, arguments=encode_table({"x-expires": 3_600_000}))
        )
        before_ms = broker.log.now_ms
        place.application._clock._wall_ns = lambda: time.time_ns() + 7_200_000_000_000
        with patch.object(store_module, "time_ns", lambda: time.time_ns() + 7_200_000_000_000):
            # Long enough for the ticker and the time keeper to have looked at it.
            await place.until(lambda: broker.log.now_ms > before_ms + 1_100)
        assert broker.log.now_ms < before_ms + 3_600_000
        assert "q" in broker.vhosts["/"].queues

    assert run(test) == 0


def test_an_alarm_before_there_are_clients_is_logged_and_fails_nothing() -> None:
    """The watch over memory begins before a broker restores what it has."""
    application = Application(SETTINGS_IN_MEMORY, MemoryCatalogue(), MemoryFiles())
    application._broker.set_alarm("memory", True)
    application._settle()
    assert application._broker.notices == []
    application._messages.end()
    application._reactor.close()


def test_a_broker_that_is_stopped_while_it_restores_does_not_restore_the_rest() -> None:
    """That can take longer than a process that was told to stop may live."""
    loaded = 0

    class LargeCatalogue(MemoryCatalogue):
        def load(self) -> Iterator[MetadataChange]:
            nonlocal loaded
            for number in range(100 * RESTORED_AT_ONCE):
                loaded += 1
                yield VhostPut("/") if number == 0 else PolicyPut("/", str(number), "^$", "queues", 0, "{}")

    application = Application(SETTINGS_IN_MEMORY, LargeCatalogue(), MemoryFiles())
    served: list[bool] = []

    async def main() -> int:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, lambda: trio.from_thread.run_sync(application.stop))
            return await application.run(lambda: served.append(True), lambda: served.append(False))

    assert trio.run(main) == 0
    assert served == []
    assert loaded < 100 * RESTORED_AT_ONCE
