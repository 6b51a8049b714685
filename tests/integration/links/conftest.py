"""Brokers for the session, and fresh names; a test that kills a broker starts it again."""

from __future__ import annotations

import itertools
import json
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator

import pytest

from .brokers import RabbitProcess, WarrenProcess, rabbitmq_or_skip

Names = Callable[[str], str]


def call_it(process: WarrenProcess, cluster_name: str) -> None:
    """Give a broker the name that its links go by, and that it announces to those of others."""
    request = urllib.request.Request(f"http://127.0.0.1:{process.http_port}/api/cluster-name", method="PUT")
    request.add_header("Authorization", "Basic " + b64encode(b"guest:guest").decode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, json.dumps({"name": cluster_name}).encode(), timeout=30) as answer:
        assert answer.status == 204


@pytest.fixture(scope="session")
def warren(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    """A Warren named ``here``, on the same port for the whole session."""
    with WarrenProcess(tmp_path_factory.mktemp("links-warren")) as process:
        call_it(process, "here")
        yield process


@pytest.fixture(scope="session")
def other_warren(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    """A second one, named ``there``."""
    with WarrenProcess(tmp_path_factory.mktemp("links-other-warren")) as process:
        call_it(process, "there")
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
