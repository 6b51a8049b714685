"""Publishes to every source, each message once, however often the broker goes away."""

from __future__ import annotations

import logging
import threading
import time

import pika
import pika.exceptions

from .ledger import Ledger

PERSISTENT = pika.BasicProperties(delivery_mode=2)
PAUSE_S = 0.05  # readers should stay near the end of the queues
DEADLINE_S = 120.0

logging.getLogger("pika").setLevel(logging.CRITICAL)  # it would tell of every broker that is away


class Publisher(threading.Thread):
    """Works until it is told that it is enough; `ledger` has what it has done."""

    def __init__(self, port: int, ledger: Ledger, sources: tuple[str, ...]) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._ledger = ledger
        self._sources = sources
        self._enough = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        while not self._enough.is_set() and self.failure is None:
            try:
                self._publish()
            except (OSError, pika.exceptions.AMQPError):
                time.sleep(PAUSE_S)  # it is down: nobody can say when it will be back
            except BaseException as error:
                self.failure = error

    def _publish(self) -> None:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self._port))
        channel = connection.channel()
        channel.confirm_delivery()
        while not self._enough.is_set():
            for source in self._sources:
                number, body = self._ledger.next(source)
                channel.basic_publish("", source, body, PERSISTENT)
                self._ledger.confirm(source, number)
            time.sleep(PAUSE_S)
        connection.close()

    def check(self) -> None:
        """Raise what has ended it."""
        if self.failure is not None:
            raise self.failure

    def end(self) -> None:
        """Publish no more, and wait until that is so."""
        self._enough.set()
        self.join(DEADLINE_S)
        self.check()
        assert not self.is_alive(), "a message is not confirmed, and the connection is there"
