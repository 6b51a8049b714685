"""Clients of the Service: publishers that have one message confirmed at a time, and a consumer that acknowledges.

1. A client connects to an address of the Service. When the connection is closed, or nothing comes for `PATIENCE_S`, it
   connects again. A message that was not confirmed is not sent again: it may be there or not.
2. Every message has its own name. Confirmed messages have to be seen, or be there in the end. Others must not be.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import pika
import pika.exceptions
from pika.adapters.utils.connection_workflow import AMQPConnectorException

PATIENCE_S: Final = 8.0
QUEUES: Final = {"orders": "classic", "payments": "quorum"}
_PAUSE_S: Final = 0.02
_AGAIN_S: Final = 0.2
SILENCE_S: Final = 10.0  # that ends a queue
_FAILURES: Final = (pika.exceptions.AMQPError, AMQPConnectorException, OSError)
_PERSISTENT: Final = pika.BasicProperties(delivery_mode=2)


class Load:
    """Clients of the addresses that `service` returns. It returns None while no pod is ready."""

    def __init__(self, service: Callable[[], str | None], user: str, password: str) -> None:
        self._service = service
        self._login = pika.PlainCredentials(user, password)
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.sent: set[str] = set()
        self.confirmed: set[str] = set()
        self.seen: set[str] = set()
        self.connections = 0
        self.refused = 0  # connections to an address of the Service that did not become one
        self._confirms_s: list[float] = []

    def connect(self) -> pika.BlockingConnection:
        """Connect to the Service. Raises one of `_FAILURES`."""
        address = self._service()
        if address is None:
            raise OSError("the Service has no address")
        parameters = pika.ConnectionParameters(
            address,
            5672,
            credentials=self._login,
            socket_timeout=PATIENCE_S,
            stack_timeout=PATIENCE_S,
            heartbeat=int(PATIENCE_S / 2),
            blocked_connection_timeout=PATIENCE_S,
        )
        try:
            connection = pika.BlockingConnection(parameters)
        except _FAILURES:
            self.refused += 1
            raise
        self.connections += 1
        return connection

    def declare(self) -> None:
        with self.connect() as connection:
            for queue, kind in QUEUES.items():
                connection.channel().queue_declare(queue, durable=True, arguments={"x-queue-type": kind})

    def start(self) -> None:
        self._is_over.clear()
        jobs = [lambda name=name: self._publish(name) for name in QUEUES]
        self._threads = [threading.Thread(target=self._again, args=(job,), daemon=True) for job in (*jobs, self._see)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def worst_gap_s(self, began_s: float) -> float:
        """Return the longest time without a confirm since then."""
        with self._lock:
            times = [began_s, *(each for each in self._confirms_s if each > began_s), time.monotonic()]
        return max(after - before for before, after in itertools.pairwise(times))

    def missing(self) -> tuple[set[str], set[str]]:
        """Take everything that is there; return what was confirmed and is gone, and what nobody has sent."""
        found: set[str] = set()
        with self.connect() as connection:
            channel = connection.channel()
            for queue in QUEUES:
                for method, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=SILENCE_S):
                    if method is None or body is None:
                        break
                    name = body.decode()
                    assert name not in found, f"{name} is there twice"
                    found.add(name)
                channel.cancel()
                left = channel.queue_declare(queue, passive=True).method.message_count
                assert left == 0, f"{left} messages of {queue} have not come"
        return self.confirmed - found - self.seen, (found | self.seen) - self.sent

    # --- the clients ------------------------------------------------------------------------------------------------

    def _again(self, work: Callable[[], None]) -> None:
        while not self._is_over.is_set():
            with suppress(*_FAILURES):
                work()
            self._is_over.wait(_AGAIN_S)

    def _publish(self, queue: str) -> None:
        with self.connect() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while not self._is_over.wait(_PAUSE_S):
                with self._lock:
                    name = f"{queue} {len(self.sent)}"
                    self.sent.add(name)
                channel.basic_publish("", queue, name.encode(), _PERSISTENT)
                with self._lock:
                    self.confirmed.add(name)
                    self._confirms_s.append(time.monotonic())

    def _see(self) -> None:
        with self.connect() as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=10)
            for method, _, body in channel.consume("payments", inactivity_timeout=0.5):
                if self._is_over.is_set():
                    return
                if method is not None and method.delivery_tag is not None and body is not None:
                    self.seen.add(body.decode())
                    channel.basic_ack(method.delivery_tag)
