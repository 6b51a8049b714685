"""Deduplication as pika's users have it: queues, exchanges and producers, confirms, kill -9. Warren only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, NackError

from ..broker import URL_VARIABLE, Broker, WarrenProcess, wait_until
from ..conftest import Names
from .dialogue import drain

DEDUP = {"x-message-deduplication": True}
KEY = "x-deduplication-header"


@pytest.fixture(autouse=True)
def _warren_only(broker: Broker) -> None:
    if not broker.is_warren:
        pytest.skip("RabbitMQ has this in a plugin, and not durable")


@pytest.fixture
def confirming(channel: BlockingChannel) -> BlockingChannel:
    """The channel with confirms: a publish returns once it is acked."""
    channel.confirm_delivery()
    return channel


def keyed(key: str | int) -> BasicProperties:
    """Return the properties of a persistent message with this key."""
    return BasicProperties(headers={KEY: key}, delivery_mode=2)


def numbered(producer: str, sequence: int) -> BasicProperties:
    return BasicProperties(headers={"x-producer": producer, "x-seq": sequence}, delivery_mode=2)


def declare(channel: BlockingChannel, queue: str, **arguments: object) -> None:
    more = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
    channel.queue_declare(queue, durable=True, arguments=DEDUP | more)


def test_a_queue_takes_each_key_once(confirming: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    declare(confirming, queue)
    keys: list[str | int] = ["a", "b", "a", 7, 7, "é", "a"]
    for number, key in enumerate(keys):
        confirming.basic_publish("", queue, b"%d" % number, keyed(key), mandatory=True)
    assert drain(confirming, queue) == [b"0", b"1", b"3", b"5"]


def test_what_was_nacked_is_taken_when_it_comes_again(confirming: BlockingChannel, names: Names) -> None:
    queue = names.queue()
    declare(confirming, queue, max_length=1, overflow="reject-publish")
    confirming.basic_publish("", queue, b"1", keyed("a"))
    with pytest.raises(NackError):
        confirming.basic_publish("", queue, b"2", keyed("b"))
    assert drain(confirming, queue) == [b"1"]
    confirming.basic_publish("", queue, b"3", keyed("b"))
    confirming.basic_publish("", queue, b"4", keyed("b"))
    assert drain(confirming, queue) == [b"3"]


# --- kill -9 ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def process(broker: Broker, tmp_path: Path) -> Iterator[WarrenProcess]:
    """A broker that a test may kill."""
    if not broker.started_here:
        pytest.skip(f"{URL_VARIABLE} names a broker that is not ours to kill")
    with WarrenProcess(tmp_path, {"http": "off"}, {"store.segment_bytes": 1 << 20}) as started:
        yield started


def opened(process: WarrenProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.amqp_port, heartbeat=0))


class Publisher(threading.Thread):
    """Publishes numbers with a key, or as a producer, until the broker is gone. `confirmed`: which of them were."""

    def __init__(self, process: WarrenProcess, exchange: str, first: int, *, as_producer: bool) -> None:
        super().__init__()
        self.confirmed: list[int] = []
        self._process = process
        self._exchange = exchange
        self._next = first
        self._as_producer = as_producer
        self.start()

    def properties(self, number: int) -> BasicProperties:
        return numbered("p", number) if self._as_producer else keyed(f"key {number}")

    def run(self) -> None:
        try:
            channel = opened(self._process).channel()
            channel.confirm_delivery()
            while True:
                channel.basic_publish(self._exchange, "q", b"%d" % self._next, self.properties(self._next))
                self.confirmed.append(self._next)
                self._next += 1
        except (AMQPError, OSError):
            pass


def numbers(process: WarrenProcess) -> list[int]:
    connection = opened(process)
    found = [int(body) for body in drain(connection.channel(), "q")]
    connection.close()
    return found


@pytest.mark.long
@pytest.mark.parametrize("exchange", ["", "e"])
@pytest.mark.parametrize("as_producer", [False, True])
def test_what_was_confirmed_is_known_after_kill_9_and_the_rest_comes_once(
    process: WarrenProcess, exchange: str, as_producer: bool
) -> None:
    """The publisher does not know what became of the last one; it sends everything again, and each is there once."""
    connection = opened(process)
    channel = connection.channel()
    arguments: dict[str, Any] = DEDUP | {"x-cache-size": 100_000}
    channel.queue_declare("q", durable=True, arguments=None if exchange else arguments)
    channel.exchange_declare("e", durable=True, arguments=arguments if exchange else None)
    channel.queue_bind("q", "e", "q")
    taken: list[int] = []
    confirmed: list[int] = []
    for life in range(4):
        publisher = Publisher(process, exchange, len(confirmed), as_producer=as_producer)
        enough = 20 + 7 * life
        wait_until(lambda p=publisher, n=enough: len(p.confirmed) >= n, "enough confirms")  # type: ignore[misc]
        process.kill()
        publisher.join()
        confirmed += publisher.confirmed
        process.start()
        if life % 2:
            taken += numbers(process)  # a key outlives its message, in the next life too
        connection = opened(process)
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(len(confirmed) + 1):
            channel.basic_publish(exchange, "q", b"%d" % number, publisher.properties(number))
        confirmed.append(len(confirmed))
        connection.close()
    taken += numbers(process)
    assert confirmed == list(range(len(confirmed)))
    assert sorted(taken) == confirmed, "each once"
