"""Publishers and consumers that a broker may be taken away from: what they were promised, and whether it was kept.

Each queue has one publisher and one consumer, in threads of their own. Both connect again, for ever, when the broker is
gone, and declare their queue as it is. Messages are numbers: a publisher sends the next one when the last one was
confirmed, and sends one whose confirm did not come again.

1. `Load.check` wants each confirmed message to be seen at least once, and the first sight of each in the order of the
   publishes. A stream is read from its beginning, once, at the end.
2. A ledger (`Load.ledger`) says what was promised; a later process, or a test with a stored directory, begins with it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import pika
from broker_process import DEADLINE_S, wait_until
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

ARGUMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "orders": {},
    "paid": {"x-queue-type": "quorum"},
    "events": {"x-queue-type": "stream"},
}
STREAMS: Final = frozenset({"events"})
PREFETCH: Final = 50
PAUSE_S: Final = 0.02  # between two attempts to connect
PADDING: Final = b" " + b"padding " * 16
PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)
# What a client meets when its broker is gone; pika raises the second one in the middle of a handshake.
GONE: Final = (AMQPError, OSError, AssertionError, AttributeError, IndexError)


def body_of(number: int) -> bytes:
    return b"%d" % number + PADDING


def number_of(body: bytes) -> int:
    number, _, padding = body.partition(b" ")
    assert b" " + padding == PADDING
    return int(number)


class Client(threading.Thread):
    """One end of a queue, which connects to one of the ports after the other until it is told to stop."""

    def __init__(self, ports: Sequence[int], queue: str) -> None:
        super().__init__(name=f"{type(self).__name__} of {queue}", daemon=True)
        self.queue = queue
        self.connections = 0
        self.fault: BaseException | None = None
        self._ports = itertools.cycle(ports)
        self._over = threading.Event()

    def run(self) -> None:
        try:
            while not self._over.is_set():
                with suppress(*GONE):
                    self._connect()
                self._over.wait(PAUSE_S)
        except BaseException as fault:
            self.fault = fault
            raise

    def _connect(self) -> None:
        parameters = pika.ConnectionParameters("127.0.0.1", next(self._ports), blocked_connection_timeout=DEADLINE_S)
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.queue_declare(self.queue, durable=True, arguments=dict(ARGUMENTS[self.queue]))
            self.connections += 1
            self.work(connection, channel)

    def work(self, connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self._over.set()
        self.join(DEADLINE_S)
        assert not self.is_alive(), f"{self.name} does not end"


class Publisher(Client):
    """Publishes number after number. `confirmed`: all up to this one were confirmed."""

    def __init__(self, ports: Sequence[int], queue: str, confirmed: int) -> None:
        super().__init__(ports, queue)
        self.confirmed = confirmed

    def work(self, connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
        channel.confirm_delivery()
        while not self._over.is_set():
            channel.basic_publish("", self.queue, body_of(self.confirmed + 1), PERSISTENT, mandatory=True)
            self.confirmed += 1


class Consumer(Client):
    """Takes and acknowledges what comes. `seen`: the numbers in the order in which each came first."""

    def __init__(self, ports: Sequence[int], queue: str, seen: Sequence[int]) -> None:
        super().__init__(ports, queue)
        self.seen = list(seen)
        self._known = set(seen)

    def work(self, connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
        def take(_: object, method: Any, properties: object, body: bytes) -> None:
            number = number_of(body)
            if number not in self._known:
                self._known.add(number)
                self.seen.append(number)
            channel.basic_ack(method.delivery_tag)

        channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(self.queue, take)
        while not self._over.is_set():
            connection.process_data_events(PAUSE_S)


class Load:
    """A publisher for each queue, a consumer for each that is not a stream; `ports` of a broker, or of its nodes."""

    def __init__(self, ports: Sequence[int], ledger: Mapping[str, Any] | None = None) -> None:
        known = ledger or {queue: {"confirmed": 0, "seen": []} for queue in ARGUMENTS}
        self._ports = ports
        self.publishers = [Publisher(ports, queue, known[queue]["confirmed"]) for queue in ARGUMENTS]
        self.consumers = [Consumer(ports, queue, known[queue]["seen"]) for queue in ARGUMENTS if queue not in STREAMS]
        self._clients: list[Client] = [*self.publishers, *self.consumers]

    def start(self) -> None:
        for client in self._clients:
            client.start()

    def await_more(self, count: int) -> None:
        """Wait until every publisher has `count` more confirms, and every consumer has seen as many more."""
        confirmed = [each.confirmed + count for each in self.publishers]
        seen = [len(each.seen) + count for each in self.consumers]

        def has_more() -> bool:
            for client in self._clients:
                assert client.fault is None, f"{client.name}: {client.fault!r}"
            return all(
                publisher.confirmed >= wanted for publisher, wanted in zip(self.publishers, confirmed, strict=True)
            ) and all(len(consumer.seen) >= wanted for consumer, wanted in zip(self.consumers, seen, strict=True))

        wait_until(has_more, f"{count} more confirms and deliveries of each queue", 4 * DEADLINE_S)

    def end_publishers(self) -> None:
        for publisher in self.publishers:
            publisher.end()

    def end(self) -> None:
        """End all clients, whatever the broker does."""
        for client in self._clients:
            client.end()

    def ledger(self) -> dict[str, Any]:
        """Return what was promised, and what was seen of it."""
        seen = {consumer.queue: consumer.seen for consumer in self.consumers}
        return {each.queue: {"confirmed": each.confirmed, "seen": seen.get(each.queue, [])} for each in self.publishers}

    def check(self) -> int:
        """Wait until the consumers have seen everything that was confirmed; return how many messages those were."""
        self.end_publishers()
        for consumer in self.consumers:
            confirmed = next(each.confirmed for each in self.publishers if each.queue == consumer.queue)
            wanted = set(range(1, confirmed + 1))
            wait_until(
                lambda consumer=consumer, wanted=wanted: wanted <= set(consumer.seen),  # type: ignore[misc]
                f"all {confirmed} confirmed messages of {consumer.queue}",
            )
            assert consumer.seen == sorted(consumer.seen), f"{consumer.queue}: out of order"
            # One more may have been stored whose confirm was lost.
            assert set(consumer.seen) - wanted <= {confirmed + 1}, f"{consumer.queue}: never published"
        for publisher in self.publishers:
            if publisher.queue in STREAMS:
                assert_in_order(read_stream(self._ports[0], publisher.queue, publisher.confirmed), publisher.confirmed)
        return sum(each.confirmed for each in self.publishers)


def assert_in_order(numbers: Sequence[int], confirmed: int) -> None:
    """Assert that each number up to `confirmed` is there, in order; one that was sent again may be there twice."""
    assert list(numbers) == sorted(numbers), "out of order"
    assert set(range(1, confirmed + 1)) <= set(numbers) <= set(range(1, confirmed + 2))


def read_stream(port: int, stream: str, last: int) -> list[int]:
    """Return the numbers in a stream from its beginning, up to `last`."""
    numbers: list[int] = []
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)

        def take(_: object, method: Any, properties: object, body: bytes) -> None:
            numbers.append(number_of(body))
            channel.basic_ack(method.delivery_tag)

        channel.basic_consume(stream, take, arguments={"x-stream-offset": "first"})
        give_up_at = time.monotonic() + DEADLINE_S
        while last not in numbers[-1:] and time.monotonic() < give_up_at:
            connection.process_data_events(PAUSE_S)
    return numbers
