"""A broker per module, its API, a vhost per test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from broker_process import WarrenProcess

from .client import Api, Place, connect

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    with WarrenProcess(tmp_path_factory.mktemp("broker")) as process:
        yield process


@pytest.fixture(scope="module")
def api(broker: WarrenProcess) -> Iterator[Api]:
    """The API as guest, an administrator, sees it."""
    guest = Api(broker.http_port)
    yield guest
    guest.close()


@pytest.fixture
def place(api: Api) -> Iterator[Place]:
    """A vhost that guest may use."""
    vhost = f"v/{next(_numbers)}"
    here = Place(api, vhost)
    api.put(f"/vhosts/{here.v}")
    yield here
    api.delete(f"/vhosts/{here.v}")


Connect = Callable[..., pika.BlockingConnection]


@pytest.fixture
def amqp(broker: WarrenProcess, place: Place) -> Iterator[Connect]:
    """Open pika connections into the vhost; they are closed in the end."""
    opened: list[pika.BlockingConnection] = []

    def open_one(user: str = "guest", password: str = "guest", **more: Any) -> pika.BlockingConnection:
        opened.append(connect(broker.amqp_port, more.pop("vhost", place.vhost), user, password, **more))
        return opened[-1]

    yield open_one
    for connection in opened:
        if connection.is_open:
            connection.close()
