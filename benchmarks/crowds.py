"""What there can be very much of: how it is made, and what is asked about it while it is there.

1. A crowd is made over AMQP, or over the management API where AMQP has no method for it. What it holds in this process
   (connections) lives until `Crowd.leave`.
2. A change is one more of the kind, made and taken away again, one request at a time.
3. Connections have heartbeats of 30 s, which a thread sends: half of what they cost idle is the broker's own.
"""

from __future__ import annotations

import base64
import json
import resource
import threading
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final, Protocol

from benchmarks.brokers import Broker, WarrenBroker
from warren.amqp import methods
from warren.amqp.codec import method_frame
from warren.amqp.field_table import EMPTY_TABLE
from warren.amqp_client import frames
from warren.amqp_client.channel import consume_method
from warren.perf.client import CHANNEL, Address, PerfConnection, open_many

# The queues that bindings lead to, and that consumers share.
HUBS: Final = 1000
CONSUMERS_EACH: Final = 5
# An exchange may have 500,000 bindings, and a queue as many.
EXCHANGES: Final = 10
HEARTBEAT_S: Final = 30
BEATS: Final = 200  # portions in which heartbeats are sent
# Where they come from. With 18,000 from one address it takes twice as long to connect once more: the system looks for a
# port that is free.
SOURCES: Final = tuple(f"127.0.0.{number}" for number in range(2, 12))
# Descriptors that the broker, or this process, needs for anything else.
_OTHER_FILES: Final = 2000
_LOOK_S: Final = 0.1
_HTTP_S: Final = 120.0
_STREAM: Final = {"x-queue-type": "stream"}


class Crowd(ABC):
    """Many of one kind in a broker. `page` is where the management API lists them."""

    title: str
    sizes: tuple[int, ...]
    rabbit_sizes: tuple[int, ...] = ()
    page: str
    most_bytes_each: float | None = None
    most_idle_percent: float = 0.5
    idle_size: int | None = None  # for which size that is the target; None: the largest
    stays: bool = True  # over a restart

    @abstractmethod
    def make(self, broker: Broker, size: int) -> None:
        """Make so many of them. Raises BrokerError, OSError."""

    @abstractmethod
    def change(self, connection: PerfConnection, number: int) -> None:
        """Make one more, and take it away. Raises BrokerError."""

    def leave(self) -> None:
        """Let go of what this process holds."""
        return


class Queues(Crowd):
    """Durable queues without messages."""

    title = "durable queues"
    sizes = (1_000, 10_000, 100_000)
    rabbit_sizes = (1_000, 10_000)
    page = "/api/queues"
    most_bytes_each = 2000.0

    def make(self, broker: Broker, size: int) -> None:
        with PerfConnection.open(broker.address) as connection:
            _declare(connection, "crowd", size)

    def change(self, connection: PerfConnection, number: int) -> None:
        connection.declare_queue(f"one more {number}", durable=True)
        connection.delete_queue(f"one more {number}")


class Bindings(Crowd):
    """Bindings with keys of their own from ten durable topic exchanges to a thousand durable queues."""

    title = "bindings of ten topic exchanges"
    sizes = (10_000, 100_000, 1_000_000)
    rabbit_sizes = (10_000, 100_000)
    page = "/api/bindings/%2F"
    most_bytes_each = 500.0

    def make(self, broker: Broker, size: int) -> None:
        with PerfConnection.open(broker.address) as connection:
            _declare(connection, "hub", HUBS)
            for exchange in range(EXCHANGES):
                connection.declare_exchange(f"crowd-{exchange}", "topic", durable=True)
                for start in range(exchange, size, 10_000 * EXCHANGES):
                    numbers = range(start, min(size, start + 10_000 * EXCHANGES), EXCHANGES)
                    connection.bind(f"crowd-{exchange}", [(f"hub-{n % HUBS}", f"site.{n}.*", {}) for n in numbers])

    def change(self, connection: PerfConnection, number: int) -> None:
        key = f"one.more.{number}"
        connection.bind("crowd-0", [("hub-0", key, {})])
        connection.call(methods.QueueUnbind(0, "hub-0", "crowd-0", key, EMPTY_TABLE), methods.QueueUnbindOk)


class Listening(Protocol):
    """A broker of which only the address matters."""

    @property
    def address(self) -> Address: ...


class Connections(Crowd):
    """Connections with a channel, heartbeats, and five consumers each of a thousand queues."""

    title = "connections with five consumers each"
    sizes = (1_000, 10_000, 20_000)
    rabbit_sizes = (1_000, 10_000)
    page = "/api/connections"
    most_idle_percent = 3.0
    idle_size = 10_000
    stays = False

    def __init__(self) -> None:
        self._opened: list[PerfConnection] = []
        self._done = threading.Event()
        self._beats: threading.Thread | None = None

    def make(self, broker: Listening, size: int) -> None:
        with PerfConnection.open(broker.address) as connection:
            _declare(connection, "hub", HUBS)
        self._done.clear()
        self._opened = open_many(broker.address, size, heartbeat_s=HEARTBEAT_S, sources=SOURCES)
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()
        for start in range(0, size, 500):
            some = self._opened[start : start + 500]
            for at, connection in enumerate(some, start):
                hubs = ((at * CONSUMERS_EACH + n) % HUBS for n in range(CONSUMERS_EACH))
                connection.send(b"".join(_consume(f"hub-{hub}", str(n)) for n, hub in enumerate(hubs)))
            for connection in some:
                for _ in range(CONSUMERS_EACH):
                    connection.wait_for(methods.BasicConsumeOk)

    def change(self, connection: PerfConnection, number: int) -> None:
        PerfConnection.open(connection.address).close()

    def leave(self) -> None:
        self._done.set()
        if self._beats is not None:
            self._beats.join()
            self._beats = None
        for connection in self._opened:
            connection.abort()
        self._opened = []

    def _beat(self) -> None:
        """Send heartbeats, of all in turn: clients do not all beat at the same moment."""
        portion = len(self._opened) // BEATS + 1
        while True:
            for start in range(0, len(self._opened), portion):
                if self._done.wait(HEARTBEAT_S / 2 / BEATS):
                    return
                for connection in self._opened[start : start + portion]:
                    connection.send(methods.HEARTBEAT_FRAME)


class Streams(Crowd):
    """Streams with a message each."""

    title = "streams with a message each"
    sizes = (100, 1_000, 10_000)
    page = "/api/queues"

    def make(self, broker: Broker, size: int) -> None:
        with PerfConnection.open(broker.address) as connection:
            for start in range(0, size, 1000):
                names = [f"stream-{n}" for n in range(start, min(size, start + 1000))]
                connection.declare_queues(names, durable=True, arguments=_STREAM)
            for n in range(size):
                connection.send(frames.publish(CHANNEL, "", f"stream-{n}", b"a stream", frame_max_bytes=0))
            connection.declare_queue("barrier", durable=True)

    def change(self, connection: PerfConnection, number: int) -> None:
        name = f"one more {number}"
        connection.declare_queue(name, durable=True, arguments=_STREAM)
        connection.delete_queue(name)


class Vhosts(Crowd):
    """Vhosts in which guest has all permissions."""

    title = "vhosts"
    sizes = (10, 100, 1_000)
    page = "/api/vhosts"

    def __init__(self) -> None:
        self._broker: WarrenBroker | None = None

    def make(self, broker: Broker, size: int) -> None:
        assert isinstance(broker, WarrenBroker)
        self._broker = broker
        vhosts = [{"name": f"vhost-{n}"} for n in range(size)]
        granted = [
            {"user": "guest", "vhost": each["name"], "configure": ".*", "write": ".*", "read": ".*"} for each in vhosts
        ]
        ask(broker, "POST", "/api/definitions", {"vhosts": vhosts, "permissions": granted})

    def change(self, connection: PerfConnection, number: int) -> None:
        assert self._broker is not None
        ask(self._broker, "PUT", f"/api/vhosts/one-more-{number}", {})
        ask(self._broker, "DELETE", f"/api/vhosts/one-more-{number}")


CROWDS: Final[dict[str, type[Crowd]]] = {
    "queues": Queues,
    "bindings": Bindings,
    "connections": Connections,
    "streams": Streams,
    "vhosts": Vhosts,
}


def connections_that_fit(wanted: int) -> int:
    """Return how many connections a process may have here, up to `wanted`, by its limit of descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard - _OTHER_FILES)


def ask(broker: WarrenBroker, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
    """Return what the management API answers to guest. Raises OSError, for a refusal too."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(broker.url + path, data=data, method=method)
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request, timeout=_HTTP_S) as answer:
        found: bytes = answer.read()
    return found


def wait_until_applied(broker: WarrenBroker) -> None:
    """Wait until the tables of the metadata have what is in the log."""
    while b"\nwarren_metadata_waiting_changes 0\n" not in ask(broker, "GET", "/metrics"):
        time.sleep(_LOOK_S)


def waits_of_pages(broker: WarrenBroker, path: str, times: int) -> Iterator[float]:
    """Yield how long each of so many requests for the first page of a list took, in seconds."""
    for _ in range(times):
        begin = time.monotonic()
        ask(broker, "GET", f"{path}?page=1&page_size=100")
        yield time.monotonic() - begin


def _declare(connection: PerfConnection, prefix: str, count: int) -> None:
    connection.declare_queues((f"{prefix}-{n}" for n in range(count)), durable=True)


def _consume(queue: str, tag: str) -> bytes:
    return method_frame(CHANNEL, consume_method(queue, tag, no_ack=True))
