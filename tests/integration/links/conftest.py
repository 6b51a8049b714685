"""Brokers for the session, and fresh names; a test that kills a broker starts it again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from integration.management.api import Api

from .brokers import BrokerProcess, RabbitProcess, WarrenProcess, rabbitmq_or_skip, uri

Names = Callable[[str], str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A RabbitMQ at the other end is long: to start one takes ten seconds of a processor. Others have two Warrens."""
    here = Path(__file__).parent
    for item in items:
        if item.path.parent != here:
            continue
        callspec = getattr(item, "callspec", None)
        if "rabbitmq" in [*getattr(item, "fixturenames", ()), *(callspec.params.values() if callspec else ())]:
            item.add_marker("long")


class Federation:
    """An exchange or queue of a Warren that is federated by its own plugin, from `__enter__` to `__exit__`."""

    def __init__(
        self, process: WarrenProcess, upstream: BrokerProcess, name: str, apply_to: str, **settings: object
    ) -> None:
        self._api = Api(process)
        self._name = name
        self._upstream = f"/parameters/federation-upstream/%2F/{name}"
        self._policy = f"/policies/%2F/{name}"
        value = {"uri": uri(upstream), "reconnect-delay": 0.2}
        self._value = value | {key.replace("_", "-"): setting for key, setting in settings.items()}
        definition = {"federation-upstream": name}
        self._rule = {"pattern": f"^{name}$", "apply-to": apply_to, "definition": definition}

    def __enter__(self) -> Self:
        self._api.put(self._upstream, {"value": self._value})
        self._api.put(self._policy, self._rule)
        return self

    def __exit__(self, *_: object) -> None:
        for path in (self._policy, self._upstream):
            assert self._api.ask("DELETE", path).status == 204

    def status(self) -> dict[str, Any]:
        """Return the object of the link; empty as long as it does not exist."""
        rows = self._api.get("/federation-links")
        return next((row for row in rows if row["upstream"] == self._name), {})

    def is_running(self) -> bool:
        return self.status().get("status") == "running"


@pytest.fixture(scope="session")
def warren(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    """A Warren named ``here``, on the same port for the whole session; its own links may stay on this machine."""
    settings = {"link_networks": "127.0.0.0/8"}
    with WarrenProcess(tmp_path_factory.mktemp("links-warren"), settings=settings) as process:
        Api(process).put("/cluster-name", {"name": "here"})
        yield process


@pytest.fixture(scope="session")
def other_warren(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    """A second one, named ``there``."""
    with WarrenProcess(tmp_path_factory.mktemp("links-other-warren")) as process:
        Api(process).put("/cluster-name", {"name": "there"})
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
