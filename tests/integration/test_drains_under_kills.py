"""The broker is killed while a queue is published to and drained: the reader has each message once. drains (2) and (3).

The reader keeps a checkpoint as Spark does: where a batch ends is noted before it is read, a batch that is read again
replaces itself, and from time to time the reader forgets everything else. `WARREN_TEST_DRAIN_CYCLES` is how often the
broker is killed. The seed decides sizes and moments; the broker's progress by then depends on the machine.
"""

from __future__ import annotations

import http.client
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
from broker_process import WarrenProcess, wait_until
from column_rows import rows_of

from .management.client import Answer, Api, connect, q

CYCLES = int(os.environ.get("WARREN_TEST_DRAIN_CYCLES", "6"))
DEADLINE_S = 60.0
PERSISTENT = pika.BasicProperties(delivery_mode=2)
_AWAY = (OSError, http.client.HTTPException)


class Worker(threading.Thread):
    """Works until it is told that it is enough, however often the broker goes away."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.enough = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        while not self.enough.is_set() and self.failure is None:
            try:
                self.work()
            except (*_AWAY, pika.exceptions.AMQPError):
                time.sleep(0.01)  # it is down: nobody can say when it will be back
            except BaseException as error:
                self.failure = error

    def work(self) -> None:
        """Work until the broker goes away."""
        raise NotImplementedError

    def end(self) -> None:
        self.enough.set()
        self.join(DEADLINE_S)
        assert self.failure is None and not self.is_alive(), self.failure


class Publisher(Worker):
    """Publishes numbers, each once, and notes which were confirmed."""

    def __init__(self, port: int, chooser: random.Random) -> None:
        super().__init__()
        self._port = port
        self._chooser = chooser
        self.sent = 0
        self.confirmed: set[int] = set()

    def work(self) -> None:
        channel = connect(self._port, "/").channel()
        channel.confirm_delivery()
        while not self.enough.is_set():
            number = self.sent
            self.sent += 1
            body = b"%d " % number + bytes(self._chooser.choice([0, 10, 3000]))
            channel.basic_publish("", "q", body, PERSISTENT)
            self.confirmed.add(number)


class Reader(Worker):
    """Drains the queue into a table, batch by batch."""

    def __init__(self, port: int, chooser: random.Random) -> None:
        super().__init__()
        self._port = port
        self._chooser = chooser
        self._path = "/warren/drains/%2F/q/reader"
        self.planned: list[int] = []
        self.committed = 0
        self.table: dict[int, list[int]] = {}
        self.opened = 0

    def work(self) -> None:
        api = Api(self._port)
        try:
            session = _json(api.ask("POST", f"{self._path}/open", {}))
            self.opened += 1
            while not self.enough.is_set() and self._chooser.random() > 0.02:
                self._batch(api, session)
        finally:
            api.close()

    def _batch(self, api: Api, session: dict[str, Any]) -> None:
        batch = self.committed
        after = self.planned[batch - 1] if batch else 0
        if batch == len(self.planned):
            order = {"epoch": session["epoch"], "after": after, "max_rows": self._chooser.choice([1, 20, 500])}
            claimed = _json(api.ask("POST", f"{self._path}/claim", order))
            assert claimed["first"] == after
            if claimed["end"] == after:
                return
            self.planned.append(claimed["end"])
        end = self.planned[batch]
        rows: list[int] = []
        at = after
        while at < end:
            claims = f"/warren/data/%2F/{q(str(session['queue']))}/chunks?from={at}&to={end}&id={session['id']}"
            answer = api.ask("GET", claims)
            assert answer.status == 200, answer
            rows += [int(row.body.split(b" ")[0]) for row in rows_of(answer.body)]
            at = int(answer.headers["x-warren-next"])
        assert len(rows) == end - after
        self.table[batch] = rows
        self.committed += 1

    def wait_for(self, committed: int) -> None:
        """Wait until `committed` batches are committed."""
        wait_until(lambda: self.committed >= committed or self.failure is not None, "batches", DEADLINE_S)
        assert self.failure is None, self.failure

    def rows(self) -> list[int]:
        return [number for batch in sorted(self.table) for number in self.table[batch]]


def _json(answer: Answer) -> dict[str, Any]:
    if answer.status == 503:
        raise ConnectionError("the broker is starting")
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json
    return found


def test_a_reader_has_each_message_once_however_often_the_broker_is_killed(tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    chooser = random.Random(seed)
    settings = {
        "store.segment_bytes": chooser.choice([64 << 10, 4 << 20]),
        "store.checkpoint_bytes": chooser.choice([256 << 10, 16 << 20]),
        "store.memory_bytes": chooser.choice([1 << 20, 128 << 20]),
        "store.disk_free_min_bytes": 0,
    }
    with WarrenProcess(tmp_path, settings=settings) as process:
        api = Api(process.http_port)
        api.put("/queues/%2F/q", {"durable": True})
        api.close()
        publisher = Publisher(process.amqp_port, random.Random(seed + 1))
        reader = Reader(process.http_port, random.Random(seed + 2))
        publisher.start()
        reader.start()
        for _ in range(CYCLES):
            reader.wait_for(reader.committed + 3)
            time.sleep(chooser.uniform(0, 0.3))  # a random moment
            if chooser.random() < 0.15:
                process.stop()
            process.kill()
            process.start()
        publisher.end()
        queue = "/queues/%2F/q"
        api = Api(process.http_port)
        api.eventually(queue, lambda found: reader.failure or found["messages"] == 0)
        quiet = reader.committed
        api.eventually(
            "/warren/drains", lambda found: reader.failure or (found[0]["claimed"] == 0 and reader.committed >= quiet)
        )
        api.close()
        reader.end()
        rows = reader.rows()
        print(f"{len(rows)} messages in {reader.committed} batches, opened {reader.opened} times")
        assert len(rows) == len(set(rows)), "twice"
        assert publisher.confirmed <= set(rows) <= set(range(publisher.sent))
