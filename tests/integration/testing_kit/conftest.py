"""A broker for each test, and clients that are closed after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from warren.testing import Broker

Open = Callable[..., BlockingChannel]


@pytest.fixture(scope="module")
def module_broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(module_broker: Broker) -> Iterator[Broker]:
    """A broker with nothing in it."""
    yield module_broker
    module_broker.reset()


@pytest.fixture
def opened(broker: Broker) -> Iterator[Open]:
    """Open channels with confirms, each on a connection of its own."""
    connections: list[pika.BlockingConnection] = []

    def open_channel(name: str = "", url: str = "", confirms: bool = True) -> BlockingChannel:
        parameters = pika.URLParameters(url or broker.url)
        if name:
            parameters.client_properties = {"connection_name": name}
        parameters.blocked_connection_timeout = 60
        connection = pika.BlockingConnection(parameters)
        connections.append(connection)
        channel = connection.channel()
        if confirms:
            channel.confirm_delivery()
        return channel

    yield open_channel
    if broker.is_up:
        broker.drop_connections()
    for connection in connections:
        close_lost(connection)


def close_lost(connection: pika.BlockingConnection) -> None:
    """Close a connection whose other end may be gone, and give its descriptors back."""
    try:
        connection.close()
    except pika.exceptions.AMQPError:
        pass
