"""The pytest plugin: a broker for a whole session, empty in every test, and brokers of a test's own.

Registered as ``warren`` by the entry point ``pytest11``; ``-p no:warren`` switches it off. Loading it imports nothing
of the broker: that comes with the first fixture that is used.

    ini option        type      what
    warren_vhosts     linelist  vhosts of the session's broker, by default ``/``
    warren_users      linelist  its users as ``name:password``, by default ``guest:guest``
    warren_management bool      whether it serves the management API, by default not
    --warren-port     int       its port; 0, the default, chooses a free one
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from warren.testing.broker import Broker
    from warren.testing.process import WarrenProcess


class BrokerFactory(Protocol):
    """Starts a broker that ends with the test; has the arguments of `warren.testing.Broker`."""

    def __call__(self, **options: Any) -> Broker: ...


class ProcessFactory(Protocol):
    """Starts a broker in a process of its own that ends with the test; has the arguments of `WarrenProcess`."""

    def __call__(self, **options: Any) -> WarrenProcess: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("warren_vhosts", "vhosts of the broker of warren_broker (default: /)", type="linelist", default=[])
    parser.addini(
        "warren_users",
        "users of the broker of warren_broker, as name:password (default: guest:guest)",
        type="linelist",
        default=[],
    )
    parser.addini("warren_management", "whether the broker of warren_broker has a management API", type="bool")
    group = parser.getgroup("warren", "a broker for tests")
    group.addoption("--warren-port", type=int, default=0, help="port of the broker of warren_broker (default: any)")


@pytest.fixture(scope="session")
def warren_session_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Yield the broker of this session, as earlier tests have left it: for fixtures of a wider scope."""
    from warren.testing.broker import Broker

    config = request.config
    users: dict[str, str] = {}
    for line in config.getini("warren_users"):
        name, colon, password = line.partition(":")
        if not colon:
            raise pytest.UsageError(f"warren_users: {line!r} is not name:password")
        users[name] = password
    with Broker(
        users=users or None,
        vhosts=config.getini("warren_vhosts") or ("/",),
        port=config.getoption("--warren-port"),
        management=config.getini("warren_management"),
    ) as broker:
        yield broker


@pytest.fixture
def warren_broker(warren_session_broker: Broker) -> Iterator[Broker]:
    """Yield a running broker with nothing in it; it is reset after the test, which drops connections left open."""
    yield warren_session_broker
    warren_session_broker.reset()


@pytest.fixture
def warren_broker_factory() -> Iterator[BrokerFactory]:
    """Start brokers of the test's own, ``warren_broker_factory(data_dir=tmp_path)``; they are closed after the test."""
    from warren.testing.broker import Broker

    started: list[Broker] = []

    def start(**options: Any) -> Broker:
        broker = Broker(**options)
        started.append(broker)
        return broker.start()

    yield start
    for broker in reversed(started):
        broker.close()


@pytest.fixture
def warren_process_factory() -> Iterator[ProcessFactory]:
    """Start brokers in processes of their own; they are closed after the test, whose failure comes with their logs."""
    from warren.testing.process import WarrenProcess

    started: list[WarrenProcess] = []

    def start(**options: Any) -> WarrenProcess:
        process = WarrenProcess(**options)
        started.append(process)
        return process.start()

    yield start
    for process in reversed(started):
        print(process.told(), file=sys.stderr)
        process.close()
