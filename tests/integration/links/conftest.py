"""Brokers for the session, and fresh names; a test that kills a broker starts it again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from .brokers import RabbitProcess, WarrenProcess, rabbitmq_or_skip

Names = Callable[[str], str]


@pytest.fixture(scope="session")
def warren(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    """A Warren, on the same port for the whole session."""
    with WarrenProcess(tmp_path_factory.mktemp("links-warren")) as process:
        yield process


@pytest.fixture(scope="session")
def other_warren(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    """A second one."""
    with WarrenProcess(tmp_path_factory.mktemp("links-other-warren")) as process:
        yield process


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitProcess]:
    """A RabbitMQ of our own."""
    rabbitmq_or_skip()
    process = RabbitProcess(tmp_path_factory.mktemp("links-rabbitmq") / "node")
    try:
        process.start()
        yield process
    finally:
        process.end()


_numbers = itertools.count(1)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Names:
    """Return names that only this test uses."""
    number = next(_numbers)
    return lambda label: f"{label}-{number}"
