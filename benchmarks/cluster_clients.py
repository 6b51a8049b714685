"""Clients of a cluster as their owners see them: how long no confirm came, and whether what was confirmed is there.

    Publisher   a thread: one persistent message at a time, each of which it publishes until it is confirmed
    Consumer    a thread: takes and acknowledges what comes
    Books       what both have seen; from several threads, and without sockets or clocks

Both connect to the next address of their list when the connection is lost, or when nothing came for `PATIENCE_S`.

1. A message is in the books as confirmed when its confirm was read. It may have been published several times.
2. A gap is the time between two confirms of one publisher, which begins with its first one.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Final

from warren.amqp import methods
from warren.amqp_client import frames
from warren.perf.client import CHANNEL, Address, BrokerError, PerfConnection

# Longer than confirms wait for a follower that is stopped; and nobody leads earlier after a leader that is.
PATIENCE_S: Final = 3.0
# In the handshake: a node that is stopped accepts connections.
_GREETED_S: Final = 1.0
_PAUSE_S: Final = 0.01
_PREFETCH: Final = 500


class Books:
    """The confirms of each publisher, and the messages that have arrived. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.reconnections = 0
        self._lock = Lock()
        self._confirmed: dict[int, int] = {}  # publisher: the number of its messages that are confirmed, in order
        self._received: dict[int, set[int]] = {}
        self._last_s: dict[int, float] = {}
        self._longest_s: dict[int, float] = {}

    def confirmed(self, publisher: int, now_s: float) -> None:
        """The next message of `publisher` is confirmed."""
        with self._lock:
            self._confirmed[publisher] = self._confirmed.get(publisher, 0) + 1
            last_s = self._last_s.get(publisher, now_s)
            self._longest_s[publisher] = max(self._longest_s.get(publisher, 0.0), now_s - last_s)
            self._last_s[publisher] = now_s

    def received(self, publisher: int, number: int) -> None:
        """A message has arrived, for the first time or again."""
        with self._lock:
            self._received.setdefault(publisher, set()).add(number)

    def reconnected(self) -> None:
        """A client has connected again."""
        with self._lock:
            self.reconnections += 1

    def counts(self) -> tuple[int, int]:
        """Return how many messages were confirmed, and how many different ones have arrived."""
        with self._lock:
            return sum(self._confirmed.values()), sum(map(len, self._received.values()))

    def missing(self) -> int:
        """Return how many were confirmed and have not arrived."""
        with self._lock:
            return sum(
                count - sum(number < count for number in self._received.get(publisher, ()))
                for publisher, count in self._confirmed.items()
            )

    def gaps_s(self, now_s: float) -> list[float]:
        """Return the longest gap of each publisher since the last `forget_gaps`, unfinished ones included."""
        with self._lock:
            return [
                max(self._longest_s.get(publisher, 0.0), now_s - last_s)
                for publisher, last_s in sorted(self._last_s.items())
            ]

    def silence_s(self, now_s: float) -> float:
        """Return for how long the publisher has waited that waits longest."""
        with self._lock:
            return max((now_s - last_s for last_s in self._last_s.values()), default=0.0)

    def forget_gaps(self) -> None:
        """Count gaps from now on. An unfinished one counts whole."""
        with self._lock:
            self._longest_s.clear()


class Client:
    """A thread that is connected to one of `addresses`, the first one at first, until it is told to end."""

    def __init__(self, name: str, addresses: Sequence[Address], books: Books) -> None:
        self.books = books
        self.is_over = Event()
        self._name = name
        self._addresses = list(addresses)
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """Be over, within `PATIENCE_S` and a connection's end."""
        self.is_over.set()
        self._thread.join()

    def _run(self) -> None:
        turn = 0
        while not self.is_over.is_set():
            if turn:
                time.sleep(_PAUSE_S)
                self.books.reconnected()
            connection: PerfConnection | None = None
            with suppress(BrokerError, OSError):  # the next one, then
                connection = PerfConnection(self._addresses[turn % len(self._addresses)], name=self._name)
                connection.sock.settimeout(_GREETED_S)
                connection.enter()
                connection.sock.settimeout(PATIENCE_S)
                self._work(connection)
            if connection is not None:
                connection.abort()
            turn += 1

    @abstractmethod
    def _work(self, connection: PerfConnection) -> None:
        """Work until it is over. Raises BrokerError when the connection is lost."""


class Publisher(Client):
    """Publishes messages ``number count`` to `queue`, with `pause_s` between a confirm and the next one."""

    def __init__(self, number: int, addresses: Sequence[Address], queue: str, books: Books, pause_s: float) -> None:
        super().__init__(f"publisher {number}", addresses, books)
        self._number = number
        self._queue = queue
        self._pause_s = pause_s
        self._count = 0

    def _work(self, connection: PerfConnection) -> None:
        connection.confirm_select()
        properties = frames.encode_properties(persistent=True)
        while not self.is_over.is_set():
            body = f"{self._number} {self._count}".encode()
            connection.send(frames.publish(CHANNEL, "", self._queue, body, frame_max_bytes=0, properties=properties))
            connection.wait_for(methods.BasicAck)
            self._count += 1
            self.books.confirmed(self._number, time.monotonic())
            time.sleep(self._pause_s)


class Consumer(Client):
    """Takes what publishers have published to `queue`."""

    def __init__(self, addresses: Sequence[Address], queue: str, books: Books) -> None:
        super().__init__("consumer", addresses, books)
        self._queue = queue

    def _work(self, connection: PerfConnection) -> None:
        connection.qos(_PREFETCH)
        connection.consume(self._queue, "consumer", no_ack=False)
        while not self.is_over.is_set():
            delivery_tag, body = connection.next_delivery()
            publisher, number = body.split()
            self.books.received(int(publisher), int(number))
            connection.send(frames.ack(CHANNEL, delivery_tag, multiple=False))


def declare(address: Address, queue: str, arguments: Mapping[str, object] | None = None) -> None:
    """Declare a durable queue. Raises BrokerError."""
    with PerfConnection.open(address) as connection:
        connection.declare_queue(queue, durable=True, arguments=arguments)
