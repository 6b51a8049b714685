"""Fixtures of the compatibility suite: the broker under test, connections, and unique names.

1. `channel` lives on one shared connection without heartbeats; tests that lose a connection use `connect`.
2. Queues and exchanges carry names from `names`, which deletes them afterwards: all clients share vhost "/".
3. An answer that never comes ends the test, not the session: every test has an alarm, and after an alarm the shared
   connection is reopened.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from . import cluster
from .broker import DEADLINE_S, URL_VARIABLE, Broker, WarrenProcess, broker_from_url
from .pika_client.dialogue import Connect, impl


def _with_server_properties(broker: Broker) -> Broker:
    connection = pika.BlockingConnection(broker.parameters())
    announced = dict(impl(connection).server_properties)
    connection.close()
    return dataclasses.replace(broker, server_properties=announced)


def _own(process: WarrenProcess) -> Broker:
    return Broker(
        host="127.0.0.1",
        port=process.amqp_port,
        username="guest",
        password="guest",
        vhost="/",
        started_here=True,
    )


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """The broker under test: WARREN_TEST_AMQP_URL if set, else a Warren of our own, or a follower of one."""
    url = os.environ.get(URL_VARIABLE)
    if url:
        yield _with_server_properties(broker_from_url(url))
        return
    if cluster.is_asked_for():
        with cluster.follower_of_cluster(tmp_path_factory.mktemp("cluster")) as follower:
            yield _with_server_properties(_own(follower))
        return
    metadata_url: str = request.getfixturevalue("metadata_url")
    process = WarrenProcess(tmp_path_factory.mktemp("warren"), {"metadata-url": metadata_url})
    process.start()
    try:
        yield _with_server_properties(_own(process))
    finally:
        if request.session.testsfailed:
            sys.stderr.write(process.log_tail())
        process.stop()


class SharedConnection:
    """One blocking connection for all tests that do not lose it; reopened after one that did."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._connection: pika.BlockingConnection | None = None

    def forget(self) -> None:
        """Open a new connection next time: this one may wait for an answer that never comes."""
        self._connection = None

    def get(self) -> pika.BlockingConnection:
        """Return the open connection."""
        if self._connection is None or not self._connection.is_open:
            self._connection = pika.BlockingConnection(self._broker.parameters())
        return self._connection

    def close(self) -> None:
        """Close it if it is open."""
        if self._connection is not None and self._connection.is_open:
            self._connection.close()


@pytest.fixture(scope="session")
def shared_connection(broker: Broker) -> Iterator[SharedConnection]:
    """The connection of `channel`."""
    connection = SharedConnection(broker)
    yield connection
    connection.close()


@pytest.fixture(autouse=True)
def _alarm(shared_connection: SharedConnection, request: pytest.FixtureRequest) -> Iterator[None]:
    seconds = 3 * DEADLINE_S

    def ring(signum: int, frame: FrameType | None) -> None:
        shared_connection.forget()
        raise AssertionError(f"{request.node.name} got no answer in {seconds:.0f} s")

    former = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, DEADLINE_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


class Names:
    """Hand out unique names and delete what they named."""

    def __init__(self, connection: SharedConnection, test: str) -> None:
        self._connection = connection
        self._prefix = re.sub(r"\W+", "-", test)[:20].strip("-") + "-" + uuid.uuid4().hex[:8]
        self._queues: list[str] = []
        self._exchanges: list[str] = []

    def queue(self, label: str = "q") -> str:
        """Return a new queue name; the queue is deleted after the test."""
        self._queues.append(f"{self._prefix}-{label}-{len(self._queues)}")
        return self._queues[-1]

    def exchange(self, label: str = "x") -> str:
        """Return a new exchange name; the exchange is deleted after the test."""
        self._exchanges.append(f"{self._prefix}-{label}-{len(self._exchanges)}")
        return self._exchanges[-1]

    def adopt(self, queue: str) -> str:
        """After the test, delete a queue that the broker has named, too."""
        self._queues.append(queue)
        return queue

    def unused(self, label: str = "nothing") -> str:
        """Return a name for something that must never exist."""
        return f"{self._prefix}-{label}"

    def delete_all(self) -> None:
        """Delete every queue and exchange handed out, whatever became of it."""
        channel = self._connection.get().channel()
        for name in self._queues:
            try:
                channel.queue_delete(name)
            except AMQPError:
                channel = self._connection.get().channel()
        for name in self._exchanges:
            try:
                channel.exchange_delete(name)
            except AMQPError:
                channel = self._connection.get().channel()
        channel.close()


@pytest.fixture
def names(shared_connection: SharedConnection, request: pytest.FixtureRequest) -> Iterator[Names]:
    """Unique names for this test's queues and exchanges."""
    handed_out = Names(shared_connection, request.node.name.removeprefix("test_"))
    yield handed_out
    handed_out.delete_all()


@pytest.fixture
def connect(broker: Broker, names: Names) -> Iterator[Connect]:
    """Open private blocking connections, closed after the test if still open."""
    opened: list[pika.BlockingConnection] = []

    def open_connection(**changes: Any) -> pika.BlockingConnection:
        connection = pika.BlockingConnection(broker.parameters(**changes))
        opened.append(connection)
        return connection

    yield open_connection
    for connection in opened:
        if connection.is_open:
            with suppress(AMQPError):
                connection.close()


@pytest.fixture
def channel(shared_connection: SharedConnection, names: Names) -> Iterator[BlockingChannel]:
    """A fresh channel on the shared connection."""
    opened = shared_connection.get().channel()
    yield opened
    if opened.is_open:
        with suppress(AMQPError):
            opened.close()
