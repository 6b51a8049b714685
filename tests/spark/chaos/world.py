"""Everything that runs while drivers are killed, and is killed itself: a broker, S3, catalogues, `warren lake`.

1. A killed process comes back with its data on disk. S3 and the REST catalogue come back as they were, because only the
   proxy in front of them dies.
2. `verdicts` is for the end, when publishing has stopped and everything is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pika
from broker_process import WarrenProcess
from integration.lake.rest_catalog import TOKEN, RestCatalog
from integration.management.client import Api
from integration.postgres import PostgresServer, running_postgres
from object_store import running_object_store
from pyiceberg.catalog.sql import SqlCatalog

from warren.spark_bridge.columns import Context, to_record_batches
from warren.spark_bridge.control import BrokerClient
from warren.spark_bridge.schema import arrow_schema

from .flows import EVENTS, LEASED, OUT, SHARED, flows_in
from .ledger import Ledger, Row, Verdict
from .lossy_proxy import LossyProxy
from .publisher import Publisher
from .tables import BUCKET, JOBS, TASKS, Lake, rows_of

SOURCES = (EVENTS, SHARED, LEASED, JOBS, TASKS)
_STREAM = {"x-queue-type": "stream"}


class World:
    """All running processes; made by `running_world`."""

    def __init__(
        self,
        directory: Path,
        ledger: Ledger,
        broker: WarrenProcess,
        postgres: PostgresServer,
        rest: LossyProxy,
        store: LossyProxy,
        lake: Lake,
        direct: dict[str, dict[str, str]],
        storage: dict[str, str],
    ) -> None:
        self.directory = directory
        self.ledger = ledger
        self.broker = broker
        self.postgres = postgres
        self.rest = rest
        self.store = store
        self.lake = lake
        self.flows = flows_in(directory / "spark")
        self.publisher = Publisher(broker.amqp_port, ledger, SOURCES)
        self._direct = direct  # catalogues without the proxies
        self._storage = storage

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.broker.http_port}"

    def ask(self, path: str) -> Any:
        """Return what the broker's API answers; None while it is away."""
        api = Api(self.broker.http_port)
        try:
            return api.get(path)
        except (OSError, AssertionError):
            return None
        finally:
            api.close()

    def restart_broker(self) -> None:
        self.broker.kill()
        self.broker.start()

    # --- the end ---------------------------------------------------------------------------------------------------

    def verdicts(self) -> dict[str, Verdict]:
        """Return what has become of each flow and table, and of the stream itself."""
        ledger = self.ledger
        stream = _stream(BrokerClient(self.url))
        left = {queue: _taken(self.broker.amqp_port, queue) for queue in (SHARED, LEASED, JOBS, TASKS, OUT)}
        flows = self.flows
        shared = [*flows["left"].rows(), *flows["right"].rows()]
        found = {
            "events (the stream itself)": ledger.judge(EVENTS, [Row(body) for body in stream.values()]),
            "stream → Parquet": ledger.judge(EVENTS, flows["parquet"].rows(), stream=stream),
            "stream → Delta, foreachBatch": ledger.judge(EVENTS, flows["delta"].rows(), stream=stream),
            "queue → Parquet, two queries": ledger.judge(SHARED, shared, left=left[SHARED]),
            "queue → Delta, leases that end": ledger.judge(LEASED, flows["leased"].rows(), left=left[LEASED]),
            "stream → queue, staged": ledger.judge(EVENTS, [Row(body) for body in left[OUT]], stream=stream),
        }
        for table in self.lake.tables.values():
            rows = rows_of(table, self._direct, self._storage)
            what = f"{'queue' if table.is_of_queue else 'stream'} → {table.name}, warren lake"
            found[what] = (
                ledger.judge(table.source, rows, left=left[table.source])
                if table.is_of_queue
                else ledger.judge(table.source, rows, stream=stream)
            )
        return found

    def batches(self) -> dict[str, int]:
        """Return how many batches each flow of Spark has committed."""
        return {name: flow.last("commits") + 1 for name, flow in self.flows.items()}


@contextmanager
def running_world(directory: Path, seed: int) -> Iterator[World]:
    """Run everything but drivers and publishers; below `directory` is what they leave."""
    with ExitStack() as running:
        lake_directory = directory / "lake"
        lake_directory.mkdir(parents=True)
        store = running.enter_context(running_object_store(directory))
        store.make_bucket(BUCKET)
        store_proxy = running.enter_context(_proxy(store.url))
        direct_store = {
            "s3.endpoint": store.url,
            "s3.access-key-id": store.environment["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": store.environment["AWS_SECRET_ACCESS_KEY"],
            "s3.region": store.environment["AWS_DEFAULT_REGION"],
        }
        behind = {"uri": f"sqlite:///{lake_directory}/rest.db", "warehouse": f"s3://{BUCKET}/rest", **direct_store}
        rest = running.enter_context(RestCatalog(SqlCatalog("behind", **behind)))
        rest_proxy = running.enter_context(_proxy(rest.url))
        postgres = running.enter_context(running_postgres())
        sql = {"type": "sql", "uri": postgres.fresh_url(), "warehouse": f"file://{lake_directory}/sql"}
        broker = WarrenProcess(directory / "broker", settings={"store.disk_free_min_bytes": 0})
        running.enter_context(broker)
        _declare(broker.amqp_port)
        lake = Lake(
            lake_directory,
            f"http://127.0.0.1:{broker.http_port}",
            {"rest": {"type": "rest", "uri": rest_proxy.url, "token": TOKEN}, "sql": sql},
            store.environment | {"AWS_ENDPOINT_URL": store_proxy.url},
        )
        running.callback(lake.kill)
        direct = {"rest": {"type": "rest", "uri": rest.url, "token": TOKEN, **direct_store}, "sql": sql}
        storage = store.environment | {"AWS_ALLOW_HTTP": "true"}
        yield World(directory, Ledger(seed), broker, postgres, rest_proxy, store_proxy, lake, direct, storage)


def _proxy(url: str) -> LossyProxy:
    place = urlsplit(url)
    assert place.hostname is not None and place.port is not None
    return LossyProxy(place.hostname, place.port)


def _declare(port: int) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        channel.queue_declare(EVENTS, durable=True, arguments=_STREAM)
        for queue in (SHARED, LEASED, JOBS, TASKS, OUT):
            channel.queue_declare(queue, durable=True)


def _stream(client: BrokerClient) -> dict[int, bytes]:
    """Return what is in the stream, by offset."""
    found = client.describe(EVENTS)
    schema = arrow_schema(["offset", "body"])
    stream: dict[int, bytes] = {}
    for chunk in client.read(EVENTS, found.first, found.end, found.id):
        for batch in to_record_batches(chunk, schema, Context(EVENTS), first=found.first, end=found.end):
            stream.update(zip(batch["offset"].to_pylist(), batch["body"].to_pylist(), strict=True))
    return stream


def _taken(port: int, queue: str) -> list[bytes]:
    """Take what is in a queue."""
    taken = []
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port)) as connection:
        channel = connection.channel()
        count = channel.queue_declare(queue, passive=True).method.message_count
        if count:
            for method, _, body in channel.consume(queue, auto_ack=False):
                taken.append(body)
                if len(taken) == count:
                    channel.basic_ack(method.delivery_tag or 0, multiple=True)
                    break
            channel.cancel()
    return taken
