"""Fixtures for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest
from broker_process import WarrenProcess
from object_store import ObjectStore, object_store
from pika.adapters.blocking_connection import BlockingChannel

__all__ = ["ObjectStore", "object_store"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarrenProcess]:
    with WarrenProcess(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def channel(broker: WarrenProcess) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port))
    opened = connection.channel()
    opened.confirm_delivery()
    yield opened
    connection.close()
