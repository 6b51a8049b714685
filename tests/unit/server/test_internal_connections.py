"""Connections of the broker to itself: its own user can log in over these only, others as themselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trio

from warren.amqp.declarations import QueueDeclaration
from warren.amqp_client.client_errors import BrokerError, PeerClosed
from warren.links.address_guard import AddressGuard, networks
from warren.links.amqp_client import ClientSettings, LinkConnection, connect
from warren.links.amqp_uri import BrokerUri
from warren.server.application import Application
from warren.server.logins.authenticator import Authenticator
from warren.server.logins.passwords import hash_password
from warren.server.management import Listening, Management
from warren.server.setting_kinds import Endpoint, MemoryWatermark
from warren.server.settings import LimitSettings, Settings, StoreSettings
from warren.testing.catalogue import MemoryCatalogue
from warren.testing.disk import MemoryFiles
from warren.vhosts.metadata import PermissionPut, UserPut, VhostPut
from warren.vhosts.topology_watcher import INTERNAL_USER

SETTINGS = ClientSettings(AddressGuard(networks(["127.0.0.0/8"])))
DEADLINE_S = 60.0
# More failures than one origin has, in no time.
FAILURES = 25


class _Probe:
    """A plugin that hands out the broker it runs beside."""

    management: Management

    def prepare(self, management: Management) -> None:
        self.management = management

    async def run(self, management: Management, *, task_status: trio.TaskStatus[Sequence[Listening]]) -> None:
        task_status.started([])


class Place:
    """A broker with a port, to connect to from inside and from outside."""

    def __init__(self, management: Management, nursery: trio.Nursery, stop: Callable[[], None]) -> None:
        self.management = management
        self.stop = stop
        self._nursery = nursery
        self._connections: list[LinkConnection] = []

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            await connection.close()

    async def _open_local(self) -> trio.abc.Stream:
        sock = self.management.open_local()
        sock.setblocking(False)
        return trio.SocketStream(trio.socket.from_stdlib_socket(sock))

    async def inside(self, user: str, password: str, vhost: str = "/") -> LinkConnection:
        """Connect over an adopted socket."""
        uri = BrokerUri(tls=False, host="", port=0, vhost=vhost, shown="amqp://", user=user, password=password)
        self._connections.append(await connect(self._nursery, uri, SETTINGS, "a link", self._open_local))
        return self._connections[-1]

    async def outside(self, user: str, password: str, vhost: str = "/") -> LinkConnection:
        """Connect to the port."""
        uri = BrokerUri(False, "127.0.0.1", self.port, vhost, "amqp://127.0.0.1", user, password)
        self._connections.append(await connect(self._nursery, uri, SETTINGS, "a client"))
        return self._connections[-1]

    @property
    def port(self) -> int:
        (place,) = [each for each in self.management.listening if each.protocol == "amqp"]
        return place.port

    @property
    def password(self) -> str:
        """The internal password."""
        return self.management.internal_password.decode()

    async def add_user(self, name: str, configure: str, vhost: str = "/") -> None:
        """Create a user whose password is its name, with everything in `vhost` but configuring what it may not."""
        hashed = hash_password(name.encode())
        await self.management.administer(UserPut(name, hashed.text, hashed.algorithm), "guest")
        await self.management.administer(PermissionPut(name, vhost, configure, ".*", ".*"), "guest")


def run(test: Callable[[Place], Awaitable[None]], **limits: int) -> None:
    """Run `test` beside a broker without data, and stop the broker in order."""
    settings = Settings(
        data_dir=Path("memory"),
        listeners={"amqp": Endpoint("127.0.0.1", 0)},
        http=None,
        limits=LimitSettings(memory_high_watermark=MemoryWatermark(size_bytes=1 << 40), **limits),
        store=StoreSettings(segment_bytes=4 << 20, memory_bytes=1 << 40, disk_free_min_bytes=0, scrub_bytes_per_s=0),
    )
    probe = _Probe()
    application = Application(
        settings,
        MemoryCatalogue(),
        MemoryFiles(),
        [probe],
        make_authenticator=lambda users, upgrade: Authenticator(users, upgrade, failure_delay_s=0.0, clock=lambda: 0.0),
    )

    async def main() -> None:
        served = trio.Event()
        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(application.run, served.set)
                await served.wait()
                await probe.management.administer(VhostPut("/"), "guest")
                async with trio.open_nursery() as clients:
                    place = Place(probe.management, clients, application.stop)
                    try:
                        await test(place)
                    finally:
                        await place.close()
                        clients.cancel_scope.cancel()
                if not probe.management.stopping:
                    application.stop()

    trio.run(main)


def test_the_broker_itself_may_do_everything_in_every_vhost() -> None:
    async def test(place: Place) -> None:
        await place.management.administer(VhostPut("nobody's"), "guest")
        connection = await place.inside(INTERNAL_USER, place.password, "nobody's")
        channel = await connection.open_channel()
        await channel.declare_queue(QueueDeclaration("q", durable=True))
        (served,) = place.management.broker.connections.values()
        assert served.origin.is_internal and served.login.user_name == INTERNAL_USER
        assert "q" in place.management.broker.vhosts["nobody's"].queues
        await connection.close()

    run(test)


@pytest.mark.parametrize("password", ["", "guest", "0" * 32, "\N{SNOWMAN}"])
def test_another_password_than_the_internal_one_is_refused_inside_too(password: str) -> None:
    async def test(place: Place) -> None:
        with pytest.raises(PeerClosed, match="403"):
            await place.inside(INTERNAL_USER, password)

    run(test)


def test_outside_not_even_the_internal_password_opens_the_internal_user() -> None:
    async def test(place: Place) -> None:
        with pytest.raises(PeerClosed, match="403"):
            await place.outside(INTERNAL_USER, place.password)
        # The port itself is open.
        await place.add_user("alice", ".*")
        await (await place.outside("alice", "alice")).close()

    run(test)


def test_nobody_can_be_called_like_the_broker_itself() -> None:
    async def test(place: Place) -> None:
        with pytest.raises(ValueError, match=f"'{INTERNAL_USER}' is the broker's own"):
            await place.management.administer(UserPut(INTERNAL_USER, "", "", ("administrator",)), "guest")
        assert place.management.broker.access.get(INTERNAL_USER) is None

    run(test)


def test_a_user_who_logs_in_from_inside_has_its_own_permissions() -> None:
    async def test(place: Place) -> None:
        await place.management.administer(VhostPut("other"), "guest")
        await place.add_user("alice", "^mine$")
        connection = await place.inside("alice", "alice")
        await (await connection.open_channel()).declare_queue(QueueDeclaration("mine", durable=True))
        with pytest.raises(PeerClosed, match="403 ACCESS_REFUSED - configure access to queue 'other'"):
            await (await connection.open_channel()).declare_queue(QueueDeclaration("other", durable=True))
        await connection.close()
        with pytest.raises(PeerClosed, match="530 NOT_ALLOWED - access to vhost 'other' refused for user 'alice'"):
            await place.inside("alice", "alice", "other")
        with pytest.raises(PeerClosed, match="403"):
            await place.inside("alice", place.password)

    run(test)


def test_connections_from_inside_take_no_room_from_those_that_have_not_logged_in() -> None:
    async def test(place: Place) -> None:
        await place.add_user("alice", ".*")
        silent = [place.management.open_local() for _ in range(5)]
        await (await place.outside("alice", "alice")).close()
        # And the other way round: the one place there is is taken, which does not concern the broker itself.
        waiting = await trio.open_tcp_stream("127.0.0.1", place.port)
        await waiting.send_all(b"AMQP\0\0\x09\x01")
        assert await waiting.receive_some()
        with pytest.raises(BrokerError):
            await place.outside("alice", "alice")
        await (await place.inside(INTERNAL_USER, place.password)).close()
        await waiting.aclose()
        for sock in silent:
            sock.close()

    run(test, unauthenticated_connections_max=1)


def test_wrong_passwords_from_inside_use_up_nobodys_attempts() -> None:
    async def test(place: Place) -> None:
        await place.add_user("alice", ".*")
        for _ in range(FAILURES):
            with pytest.raises(PeerClosed, match="403"):
                await place.inside("nobody", "wrong")
        await (await place.outside("alice", "alice")).close()

    run(test)


def test_a_broker_that_stops_opens_no_more_connections_to_itself() -> None:
    async def test(place: Place) -> None:
        waiting = await trio.open_tcp_stream("127.0.0.1", place.port)
        await waiting.send_all(b"AMQP\0\0\x09\x01")
        assert await waiting.receive_some()
        place.stop()
        while not place.management.stopping:
            await trio.lowlevel.checkpoint()
        # A link that is tried again every moment would otherwise keep the broker from being done.
        with pytest.raises(ConnectionRefusedError):
            place.management.open_local()
        await waiting.aclose()

    run(test)
