"""A broker, its publishers, a `warren lake` process, and the judge of the tables.

1. A message is published once, in any case, and its body says which one it is. The test reads a stream from the broker
   by offset, so it knows exactly the rows that a table must have. For a queue it knows the confirmed and the sent
   messages.
2. `judge` finds each row that is missing, there twice, or another than its message.
"""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pika
import pika.exceptions
from broker_process import WarrenProcess, wait_until

from warren.spark_bridge.columns import Context, to_record_batches
from warren.spark_bridge.control import BrokerClient
from warren.spark_bridge.schema import arrow_schema

PERSISTENT = pika.BasicProperties(delivery_mode=2)
STREAM, SUPER_STREAM, QUEUES = "orders", "events", ("jobs", "tasks")
PARTITIONS = 3
DEADLINE_S = 120.0
PAUSE_S = 0.005  # between publishes, so that tables stay near the end of their queues

logging.getLogger("pika").setLevel(logging.CRITICAL)  # it would tell of every broker that is away


def body_of(number: int, chance: random.Random) -> bytes:
    """Return the body of message `number`; some are not what a table takes."""
    kind = chance.random()
    if kind < 0.05:
        return b"no JSON %d" % number
    document: dict[str, Any] = {"number": number, "price": chance.choice([1.5, 3, None])}
    if kind < 0.1:
        document["price"] = "free"
    elif kind < 0.15:
        document[f"field{number // 400}"] = chance.choice([True, "text", 5])
    return json.dumps(document).encode()


class Publisher(threading.Thread):
    """Publishes numbers everywhere, each once, however often the broker goes away."""

    def __init__(self, port: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._chance = random.Random(seed)
        self.enough = threading.Event()
        self.failure: BaseException | None = None
        self.sent = 0
        self.confirmed: dict[str, set[int]] = {queue: set() for queue in QUEUES}

    def run(self) -> None:
        while not self.enough.is_set() and self.failure is None:
            try:
                self._publish()
            except (OSError, pika.exceptions.AMQPError):
                time.sleep(0.02)  # it is down: nobody can say when it will be back
            except BaseException as error:
                self.failure = error

    def _publish(self) -> None:
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self._port))
        channel = connection.channel()
        channel.confirm_delivery()
        while not self.enough.is_set():
            number, self.sent = self.sent, self.sent + 1
            body = body_of(number, self._chance)
            channel.basic_publish("", STREAM, body, PERSISTENT)
            channel.basic_publish(SUPER_STREAM, f"key{number % 17}", body, PERSISTENT)
            for queue in QUEUES:
                channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
                self.confirmed[queue].add(number)
            time.sleep(PAUSE_S)
        connection.close()

    def end(self) -> None:
        self.enough.set()
        self.join(DEADLINE_S)
        assert self.failure is None and not self.is_alive(), self.failure


def declare(process: WarrenProcess) -> None:
    """Make what is followed."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", process.amqp_port))
    channel = connection.channel()
    channel.queue_declare(STREAM, durable=True, arguments={"x-queue-type": "stream"})
    channel.exchange_declare(SUPER_STREAM, "x-super-stream", durable=True, arguments={"x-super-stream": PARTITIONS})
    for queue in QUEUES:
        channel.queue_declare(queue, durable=True)
    connection.close()


class Followed(NamedTuple):
    """A table, and what it follows."""

    name: str
    form: str
    source: str


TABLES = (
    Followed("shop.orders", "iceberg", STREAM),
    Followed("orders", "delta", STREAM),
    Followed("shop.events", "iceberg", SUPER_STREAM),
    Followed("events", "delta", SUPER_STREAM),
    Followed("shop.jobs", "iceberg", "jobs"),
    Followed("tasks", "delta", "tasks"),
)


class Lake:
    """The tables of a directory, and the processes that follow."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.url = url
        self.log = directory / "lake.log"
        self.file = directory / "lake.toml"
        self.catalog = {
            "type": "sql",
            "uri": f"sqlite:///{directory}/catalog.db",
            "warehouse": f"file://{directory}/ice",
        }
        directory.mkdir(parents=True, exist_ok=True)
        self.processes: list[subprocess.Popen[bytes]] = []

    def configure(self, max_rows: int) -> None:
        """Write the file of the tables; `max_rows`: of one commit."""
        lines = [
            'interval = "50ms"',
            f"max_rows = {max_rows}",
            "compact_files = 4",
            'keep = "1s"',
        ]
        lines += ["[catalogs.main]", *(f'{key} = "{value}"' for key, value in self.catalog.items())]
        for table in TABLES:
            is_queue = table.source in QUEUES
            lines += ["[[tables]]", f'{"queue" if is_queue else "stream"} = "{table.source}"']
            lines += [f'format = "{table.form}"', f'body = "{"bytes" if is_queue else "json"}"']
            lines += (
                [f'to = "{table.name}"', 'catalog = "main"']
                if table.form == "iceberg"
                else [f'to = "{self.directory}/{table.name}"', 'partition_by = "none"']
            )
        self.file.write_text("\n".join(lines) + "\n")

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        """Start a process that follows; it may be the second one."""
        command = [sys.executable, "-P", "-m", "warren", "lake", "--file", str(self.file), "--url", self.url, *more]
        environment = {name: text for name, text in os.environ.items() if not name.startswith("WARREN_")}
        with self.log.open("ab") as log:
            started = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        self.processes.append(started)
        return started

    def kill(self) -> int:
        """Kill every process, and return the number of processes that were alive."""
        alive = [each for each in self.processes if each.poll() is None]
        for each in alive:
            each.kill()
            each.wait()
        self.processes.clear()
        return len(alive)

    def catch_up(self) -> None:
        """Run until the tables have what there is."""
        self.configure(max_rows=5000)  # else each of very many commits is a small one
        ended = self.start("--once").wait(DEADLINE_S)
        assert ended == 0, self.log.read_text()[-5000:]

    def rows(self, table: Followed, *, refused: bool = False) -> list[dict[str, Any]]:
        """Return what is in a table, read as others read it."""
        name = table.name + ("_refused" if refused else "")
        found: list[dict[str, Any]]
        if table.form == "iceberg":
            from pyiceberg.catalog import load_catalog

            found = load_catalog("main", **self.catalog).load_table(name).scan().to_arrow().to_pylist()
        else:
            from deltalake import DeltaTable

            found = DeltaTable(str(self.directory / name)).to_pyarrow_table().to_pylist()
        return found

    def commits(self) -> int:
        """Return how many commits the processes have spoken of."""
        return self.log.read_text().count(" waiting\n") if self.log.exists() else 0


def messages_of(client: BrokerClient, name: str) -> Iterator[tuple[int, int, bytes]]:
    """Yield partition, offset and body of what is in a stream."""
    whole = client.describe(name)
    for partition, part in enumerate([name] if whole.partitions is None else whole.partitions):
        found = client.describe(part)
        schema = arrow_schema(["offset", "body"])
        for chunk in client.read(part, found.first, found.end, found.id):
            for batch in to_record_batches(chunk, schema, Context(name), first=found.first, end=found.end):
                for row in batch.to_pylist():
                    yield partition, row["offset"], row["body"]


def judge(lake: Lake, client: BrokerClient, publisher: Publisher) -> dict[str, Any]:
    """Return, for each table, the numbers of lost, doubled, wrong and existing rows."""
    verdicts = {}
    for table in TABLES:
        rows = lake.rows(table)
        if table.source in QUEUES:
            numbers = Counter(int(row["body"]) for row in rows)
            lost = publisher.confirmed[table.source] - numbers.keys()
            strange = [number for number in numbers if number >= publisher.sent]
            verdicts[table.name] = _verdict(len(rows), 0, lost, numbers, strange)
            continue
        refused = lake.rows(table, refused=True)
        sent = {(partition, offset): body for partition, offset, body in messages_of(client, table.source)}
        places = Counter((row["partition"], row["offset"]) for row in [*rows, *refused])
        wrong = [row for row in rows if not _is_of(row, sent.get((row["partition"], row["offset"])))]
        wrong += [row for row in refused if row["body"] != sent.get((row["partition"], row["offset"]))]
        verdicts[table.name] = _verdict(len(rows), len(refused), sent.keys() - places.keys(), places, wrong)
    return verdicts


def _verdict(rows: int, refused: int, lost: set[Any], places: Counter[Any], wrong: Sequence[Any]) -> dict[str, Any]:
    doubled = sum(count - 1 for count in places.values())
    return {"rows": rows, "refused": refused, "lost": len(lost), "doubled": doubled, "wrong": len(wrong)}


def _is_of(row: dict[str, Any], body: bytes | None) -> bool:
    """Tell whether a row says what its message says."""
    if body is None or not body.startswith(b"{"):
        return False
    said = json.loads(body)
    names = {"number", "price", *said, *(name for name in row if name.startswith("field"))}
    return all(
        row[name] == said.get(name) and isinstance(row[name], bool) == isinstance(said.get(name), bool)
        for name in names
    )


def wait_for_commits(lake: Lake, count: int) -> None:
    """Wait until `count` commits were made, by processes that are alive."""

    def are_there() -> bool:
        assert any(each.poll() is None for each in lake.processes), lake.log.read_text()[-5000:]
        return lake.commits() >= count

    wait_until(are_there, f"{count} commits", DEADLINE_S)
