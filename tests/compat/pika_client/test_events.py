"""The event exchange: what comes and goes while a client works, as another client hears it.

1. A RabbitMQ has the exchange only with its plugin enabled; without it these tests are skipped there.
2. All clients share the broker: a listener keeps the events that carry this test's names or pids only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker
from pika.spec import Basic, BasicProperties

from ..broker import Broker
from ..conftest import Names
from .dialogue import Connect, pump

EVENTS = "amq.rabbitmq.event"
TIMES = ("timestamp_in_ms", "connected_at")

Event = tuple[str, dict[str, Any]]


class Listener:
    """Hears what this test causes."""

    def __init__(self, channel: BlockingChannel, names: Names) -> None:
        self._channel = channel
        self._queue = names.queue("events")
        self._prefix = self._queue.rpartition("-events-")[0]
        self._pids: set[str] = set()
        self.heard: list[Event] = []
        channel.queue_declare(self._queue)
        channel.queue_bind(self._queue, EVENTS, "#")
        channel.basic_consume(self._queue, self._hear, auto_ack=True)
        self.next("binding.created")

    def _hear(self, channel: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, body: bytes) -> None:
        headers: dict[str, Any] = dict(properties.headers or {})
        assert body == b""
        assert (properties.delivery_mode, properties.timestamp) == (2, headers["timestamp_in_ms"] // 1000)
        assert method.routing_key is not None
        values = [value for value in headers.values() if isinstance(value, str)]
        ours = any(self._prefix in value for value in values) or not self._pids.isdisjoint(values)
        if not ours or (self._queue in values and method.routing_key != "binding.created"):
            return
        if method.routing_key.endswith(".created") and "pid" in headers:
            self._pids.add(headers["pid"])
        self.heard.append((method.routing_key, headers))

    def next(self, key: str) -> dict[str, Any]:
        """Wait for the event `key`; return its headers but for times, and forget it and what came before."""

        def found() -> list[int]:
            return [at for at, (heard, _) in enumerate(self.heard) if heard == key]

        pump(self._channel.connection, lambda: bool(found()), f"{key} after {[key for key, _ in self.heard]}")
        at = found()[0]
        _, headers = self.heard[at]
        del self.heard[: at + 1]
        return {name: value for name, value in headers.items() if name not in TIMES}


Listen = Callable[[], Listener]


@pytest.fixture
def listen(connect: Connect, names: Names, broker: Broker) -> Listen:
    """Begin to listen."""

    def listen() -> Listener:
        channel = connect().channel()
        try:
            channel.exchange_declare(EVENTS, passive=True)
        except ChannelClosedByBroker:
            assert not broker.started_here
            pytest.skip("this broker has no event exchange")
        return Listener(channel, names)

    return listen


@pytest.fixture
def prefix(names: Names) -> str:
    """Return the beginning of every name in this test."""
    return names.unused("client")


def test_the_life_of_a_connection_is_heard(listen: Listen, connect: Connect, broker: Broker, prefix: str) -> None:
    listener = listen()
    connection = connect(client_properties={"connection_name": prefix})
    opened = listener.next("connection.created")
    assert opened["user_provided_name"] == prefix
    assert (opened["user"], opened["vhost"]) == (broker.username, broker.vhost)
    assert opened["user_who_performed_action"] == broker.username
    assert (opened["auth_mechanism"], opened["protocol"], opened["type"]) == ("PLAIN", "{0,9,1}", "network")
    assert (opened["port"], opened["ssl"]) == (broker.port, False)
    assert opened["host"] == opened["peer_host"] == "{127,0,0,1}"
    assert opened["name"] == f"127.0.0.1:{opened['peer_port']} -> 127.0.0.1:{broker.port}"
    assert f'{{<<"connection_name">>,longstr,<<"{prefix}">>}}' in opened["client_properties"]
    assert (opened["channel_max"], opened["frame_max"], opened["timeout"]) == (2047, 131072, 0)

    channel = connection.channel()
    begun = listener.next("channel.created")
    assert begun == {
        "user_who_performed_action": broker.username,
        "vhost": broker.vhost,
        "user": broker.username,
        "number": 1,
        "connection": opened["pid"],
        "name": f"{opened['name']} (1)",
        "pid": begun["pid"],
    }
    channel.close()
    ended = listener.next("channel.closed")
    assert ended == {"user_who_performed_action": broker.username, "pid": begun["pid"]}

    connection.close()
    closed = listener.next("connection.closed")
    assert closed == {
        "client_properties": opened["client_properties"],
        "node": opened["node"],
        "pid": opened["pid"],
        "name": opened["name"],
        "user_provided_name": prefix,
    }
