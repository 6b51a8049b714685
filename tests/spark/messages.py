"""Queues of one test and what is put into them, by an AMQP client."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pika
from broker_process import WarrenProcess, wait_until
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from warren.spark_bridge.bridge_errors import BridgeError
from warren.spark_bridge.control import BrokerClient

DEADLINE_S = 60.0
STREAM = {"x-queue-type": "stream"}


class Publisher:
    """A channel to a broker, and the same broker as readers see it."""

    def __init__(self, process: WarrenProcess) -> None:
        self.process = process
        self._connection: pika.BlockingConnection | None = None
        self._channel: BlockingChannel | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.process.http_port}"

    @property
    def client(self) -> BrokerClient:
        return BrokerClient(self.url)

    @property
    def channel(self) -> BlockingChannel:
        if self._channel is None or not self._channel.is_open:
            address = pika.URLParameters(f"amqp://guest:guest@127.0.0.1:{self.process.amqp_port}/%2F?heartbeat=0")
            self._connection = pika.BlockingConnection(address)
            self._channel = self._connection.channel()
        return self._channel

    def close(self) -> None:
        if self._connection is not None and self._connection.is_open:
            with suppress(AMQPError):  # the broker was killed
                self._connection.close()
        self._connection = self._channel = None

    def stream(self, name: str, count: int = 0, **arguments: Any) -> str:
        """Declare a stream with `count` messages whose bodies are their offsets."""
        self.channel.queue_declare(name, durable=True, arguments=STREAM | arguments)
        self.numbers(name, range(count))
        return name

    def queue(self, name: str, count: int = 0, **arguments: Any) -> str:
        """Declare a classic queue with `count` persistent messages whose bodies are numbers."""
        self.channel.queue_declare(name, durable=True, arguments=arguments)
        self.numbers(name, range(count))
        return name

    def numbers(self, queue: str, numbers: Iterable[int]) -> None:
        """Publish numbers, and wait until they are there."""
        self.bodies(queue, (b"%d" % number for number in numbers))

    def bodies(self, queue: str, bodies: Iterable[bytes]) -> None:
        """Publish bodies, and wait until they are there."""
        properties = pika.BasicProperties(delivery_mode=2)
        for body in bodies:
            self.channel.basic_publish("", queue, body, properties)
        self.settled()

    def publish(self, queue: str, body: bytes, properties: pika.BasicProperties, exchange: str = "") -> None:
        """Publish one message, and wait until it is there."""
        self.channel.basic_publish(exchange, queue, body, properties)
        self.settled()

    def settled(self) -> None:
        """Wait until all that was published can be read: another channel's confirm comes after it was synced."""
        assert self._connection is not None
        channel = self._connection.channel()
        # The broker confirms when everything up to here is synced, of whatever channel.
        channel.confirm_delivery()
        channel.queue_declare("settled", durable=True)
        channel.basic_publish("", "settled", b"", pika.BasicProperties(delivery_mode=2))
        channel.queue_purge("settled")
        channel.close()

    def depth(self, queue: str) -> int:
        """Return how many messages are ready."""
        found = self.channel.queue_declare(queue, passive=True)
        return int(found.method.message_count)

    def wait_for_end(self, stream: str, end: int) -> None:
        """Wait until a stream ends at `end`."""
        with self.client as client:

            def is_there() -> bool:
                try:
                    return client.describe(stream).end >= end
                except BridgeError:
                    return False

            wait_until(is_there, f"{stream} to end at {end}", DEADLINE_S)
