"""The command `warren lake`: one table by its options, or several by a file, each in a thread of its own.

1. SIGTERM and Ctrl-C end it after the commit that is under way, with exit code 0: the same command continues there.
2. If a table ends with an error, the others continue. When the last one has ended, the command ends with the exit code
   of the first that failed.
3. The libraries of a format are imported when a table has it.
"""

from __future__ import annotations

import copy
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from warren.spark_bridge import commands as bridge
from warren.spark_bridge.commands import Connect, ExitCode, Json

if TYPE_CHECKING:
    import pyarrow as pa

    from warren.lake.decoder import Decoder
    from warren.lake.follower import Follower
    from warren.lake.job import Job
    from warren.lake.metrics import Meters
    from warren.lake.source import Source
    from warren.lake.spark_engine import Cluster
    from warren.lake.table import Table
    from warren.spark_bridge.control import BrokerClient

INSTALL: Final = "pip install './warren[lake]'"
ARROW: Final = "arrow"
SPARK: Final = "spark"
ENGINES: Final = (ARROW, SPARK)
EXAMPLES: Final = (
    "warren lake --stream weather --to ./lake/raw.weather",
    "warren lake --stream events --format delta --to s3://bucket/events --body json --schema events.json",
    "warren lake --file tables.toml --metrics 127.0.0.1:9108",
    "warren lake check ./lake/raw.weather",
)
CHECK_EXAMPLES: Final = (
    "warren lake check ./lake/raw.weather",
    "warren lake check s3://bucket/events --format delta --repair",
)


def main(arguments: Sequence[str], connect: Connect) -> int:
    """Run the command and return its exit code."""
    if arguments[:1] == ["check"]:
        from warren.lake.check_command import check

        return bridge.main("lake check", arguments[1:], connect, check, INSTALL, "interrupted", CHECK_EXAMPLES)
    return bridge.main("lake", arguments, connect, lake, INSTALL, examples=EXAMPLES)


@bridge.asks_broker
def lake(
    stream: Annotated[str | None, typer.Option(metavar="NAME", help="A stream or super stream to follow")] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="A queue to drain: its messages are removed")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="TABLE", help="NAMESPACE.TABLE of a catalog, DIR/NAMESPACE.TABLE, or a URL")
    ] = None,
    form: Annotated[str | None, typer.Option("--format", metavar="FORMAT", help="iceberg (default) or delta")] = None,
    catalog: Annotated[
        str | None, typer.Option(metavar="URL|NAME", help="Of Iceberg: sqlite://…, https://…, or a name")
    ] = None,
    warehouse: Annotated[str | None, typer.Option(metavar="URL", help="Where a catalog puts its tables")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="KEY=VALUE", help="Of the catalog, or of Delta's storage")
    ] = None,
    body: Annotated[
        str | None, typer.Option(metavar="FORM", help="bytes (default), or columns of json, avro, protobuf")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of the bodies: JSON Schema, Avro, set of descriptors")
    ] = None,
    message: Annotated[str | None, typer.Option(metavar="NAME", help="Protobuf message of the bodies")] = None,
    registry: Annotated[
        str | None,
        typer.Option(metavar="URL", envvar="WARREN_SCHEMA_REGISTRY", help="Of the schemas that bodies name"),
    ] = None,
    subject: Annotated[str | None, typer.Option(metavar="NAME", help="In the registry, instead of --schema")] = None,
    columns: Annotated[str | None, typer.Option(metavar="NAME,...", help="Of the messages; default: all")] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="POSITION", help="Start of a new table: first, next, offset, age, time"),
    ] = None,
    partition_by: Annotated[
        str | None, typer.Option(metavar="day|none", help="Partitioning by publish time; default: day")
    ] = None,
    interval: Annotated[str | None, typer.Option(metavar="DURATION", help="Time between commits; default: 60s")] = None,
    max_rows: Annotated[
        int | None, typer.Option(metavar="COUNT", help="Maximum rows per commit; default: 500000")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Maximum size per commit; default: 128MiB")
    ] = None,
    target_file_size: Annotated[str | None, typer.Option(metavar="SIZE", help="Default: 128MiB")] = None,
    compact_files: Annotated[
        int | None, typer.Option(metavar="COUNT", help="Number of small files to merge; default: 16")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Age at which snapshots expire; default: 1d")
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the progress in the broker; for a drain, the session"),
    ] = None,
    skip_lost: Annotated[bool, typer.Option("--skip-lost", help="Continue although messages are missing")] = False,
    file: Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help="Several tables, in TOML")] = None,
    engine: Annotated[
        str, typer.Option(metavar="NAME", help="arrow: this process makes the rows; spark: its executors")
    ] = ARROW,
    master: Annotated[str | None, typer.Option(metavar="URL", help="Of Spark; default: local[*]")] = None,
    once: Annotated[bool, typer.Option("--once", help="Process the current messages, and end")] = False,
    metrics: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address for Prometheus")] = None,
    as_json: Json = False,
) -> int:
    """Copy streams and queues to Iceberg and Delta tables: each message becomes one row, whatever is killed.

    `warren lake check TABLE` finds messages that a table has twice, or lacks.
    """
    from warren.lake import job as jobs
    from warren.spark_bridge.bridge_errors import UsageError

    given: dict[str, Any] = {
        "stream": stream,
        "queue": queue,
        "to": to,
        "format": form,
        "body": body,
        "schema": None if schema is None else str(schema),
        "message": message,
        "registry": registry if body in jobs.TYPED else None,
        "subject": subject,
        "columns": None if columns is None else [name.strip() for name in columns.split(",")],
        "start": start,
        "partition_by": partition_by,
        "interval": interval,
        "max_rows": max_rows,
        "max_bytes": max_bytes,
        "target_file_size": target_file_size,
        "compact_files": compact_files,
        "keep": keep,
        "consumer": consumer,
    }
    given = {key: value for key, value in given.items() if value is not None}
    if skip_lost:
        given["skip_lost"] = True
    if file is not None:
        if given or catalog or properties or warehouse:
            raise UsageError("with --file other options cannot describe tables")
        wanted = jobs.jobs_of(file)
    else:
        catalogs = place_of(given, form, catalog, warehouse, properties or [])
        wanted = [jobs.job_of(given, catalogs, Path())]
    _check_engine(engine, master, wanted)
    with bridge.client_of() as client:
        fleet = _Fleet(client, wanted, as_json=as_json)
        if engine == ARROW:
            return fleet.run(once=once, metrics=metrics)
        with _cluster(master) as cluster:
            return fleet.run(once=once, metrics=metrics, cluster=cluster)


def _check_engine(engine: str, master: str | None, wanted: Sequence[Job]) -> None:
    """Make sure that the tables can be followed by an engine.

    Raises:
        UsageError: they cannot.
    """
    from warren.spark_bridge.bridge_errors import UsageError

    if engine not in ENGINES:
        raise UsageError(f"engine {engine!r}: must be one of {', '.join(ENGINES)}")
    if engine == ARROW and master is not None:
        raise UsageError("--master is for --engine spark")
    for job in wanted:
        if engine == SPARK and job.stream is None:
            raise UsageError(
                f"{job.to}: a queue is drained by one process, whose claims are in one place: --engine spark is for "
                "streams and super streams. Without it queues have a command of their own"
            )


@contextmanager
def _cluster(master: str | None) -> Iterator[Cluster]:
    """Begin a Spark application, and end it.

    Raises:
        UsageError: PySpark is not installed. BridgeError: Spark cannot be started.
    """
    from warren.spark_bridge.bridge_errors import UsageError

    try:
        import pyspark  # noqa: F401
    except ModuleNotFoundError:
        raise UsageError("pyspark is not installed: pip install './warren[lake,spark]'") from None
    from warren.lake.spark_cluster import SparkCluster

    interrupted = signal.getsignal(signal.SIGINT)
    cluster = SparkCluster.started(master)
    signal.signal(signal.SIGINT, interrupted)  # Spark would cancel the job, and with it the commit that is under way
    try:
        yield cluster
    finally:
        cluster.stop()


def place_of(
    given: dict[str, Any], form: str | None, catalog: str | None, warehouse: str | None, properties: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Add the options for the place of a table to its words, and return the catalogues that they name.

    Raises:
        UsageError: they do not go together.
    """
    from warren.lake import job as jobs
    from warren.spark_bridge.bridge_errors import UsageError

    more = pairs(properties)
    if form == jobs.DELTA:
        given["storage"] = more
        if catalog or warehouse:
            raise UsageError("--catalog and --warehouse are for iceberg")
    elif catalog is not None:
        given["catalog"] = "given"
        return {"given": jobs.catalog_of(catalog, warehouse, more)}
    elif warehouse or more:
        raise UsageError("--warehouse and --property are for a --catalog")
    return {}


def pairs(texts: Sequence[str]) -> dict[str, str]:
    """Return the properties in ``--property KEY=VALUE``.

    Raises:
        UsageError: one of them is not of this form.
    """
    from warren.spark_bridge.bridge_errors import UsageError

    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--property {text}: must be KEY=VALUE")
        found[key] = value
    return found


class _Fleet:
    """All tables of one command."""

    def __init__(self, client: BrokerClient, wanted: Sequence[Job], *, as_json: bool) -> None:
        from warren.lake.metrics import Meters

        self._client = client
        self._wanted = wanted
        self._as_json = as_json
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._lock = threading.Lock()
        self.meters: Meters = Meters()

    def run(self, *, once: bool, metrics: str | None, cluster: Cluster | None = None) -> int:
        """Run all followers; return the exit code. `cluster`: makes the rows, None: this process does.

        Raises:
            BridgeError, OSError: that by which the first one ended that ended badly.
        """
        from warren.lake.metrics import Meter, serve
        from warren.lake.runner import Runner

        runners = []
        for job in self._wanted:
            meter = Meter(job.to, job.source)
            self.meters.all.append(meter)
            make = partial(follower_of, job, copy.copy(self._client), cluster)
            runners.append(Runner(job, make, meter, self._stop, self._say))
            runners[-1].prepare()
        server = None if metrics is None else serve(self.meters, *_address(metrics))
        threads = [
            threading.Thread(target=self._follow, args=(runner, once), name="warren-lake", daemon=True)
            for runner in runners
        ]
        try:
            for thread in threads:
                thread.start()
            _wait_for(threads)
        except KeyboardInterrupt:
            self._stop.set()
            _wait_for(threads)
        finally:
            if server is not None:
                server.shutdown()
                server.server_close()
        if self._failure is not None:
            raise self._failure
        return ExitCode.OK

    def _follow(self, runner: Any, once: bool) -> None:
        from warren.spark_bridge.bridge_errors import BridgeError

        try:
            runner.run(once=once)
        except BaseException as found:  # a panic in a library in Rust is not an Exception
            error = found if isinstance(found, Exception) else BridgeError(f"{type(found).__name__}: {found}")
            with self._lock:
                if self._failure is None:
                    self._failure = error
                    return
            self._say(f"ended: {error}")

    def _say(self, text: str) -> None:
        with self._lock:
            if self._as_json:
                print(json.dumps({"time": round(time.time(), 3), "message": text}), flush=True)
            else:
                print(text, file=sys.stderr, flush=True)


def _wait_for(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)  # without a time Ctrl-C would wait as well


def _address(text: str) -> tuple[str, int]:
    from warren.spark_bridge.bridge_errors import UsageError

    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--metrics {text}: must be HOST:PORT")
    return host.strip("[]"), int(port)


def follower_of(job: Job, client: BrokerClient, cluster: Cluster | None = None) -> Follower:
    """Return the followers for `job`. `cluster`: makes the rows, None: this process does.

    Raises:
        UsageError: the schema, or the columns, do not fit.
    """
    from warren.lake.follower import Follower

    decoder = _decoder(job)
    engine = None
    if cluster is not None:
        from warren.lake.spark_engine import SparkEngine

        engine = SparkEngine(client, cluster, decoder, job.limits, skip_lost=job.skip_lost)
    identity = job.identity(client.vhost)
    return Follower(_source(job, client), decoder, opener_of(job), identity, limits=job.limits, engine=engine)


def _source(job: Job, client: BrokerClient) -> Source:
    from hashlib import sha256

    from warren.lake.source import DrainSource, StreamSource

    if job.stream is not None:
        return StreamSource(client, job.stream, start=job.start, group=job.consumer, skip_lost=job.skip_lost)
    text = f"{job.identity(client.vhost)}\0{job.format}\0{job.to}\0{sorted(job.catalog.items())}"
    session = job.consumer or f"lake-{sha256(text.encode()).hexdigest()[:12]}"
    return DrainSource(client, job.source, session, f"warren lake to {job.to}", skip_lost=job.skip_lost)


def _decoder(job: Job) -> Decoder:
    from warren.lake import job as jobs
    from warren.lake.body_schema import read_schema
    from warren.lake.decoder import FieldDecoder, MessageDecoder

    if job.body == jobs.BYTES:
        return MessageDecoder(job.columns)
    if job.body == jobs.JSON:
        return FieldDecoder(job.columns, None if job.schema is None else read_schema(job.schema))
    from warren.lake.typed_fields import fields_of
    from warren.spark_bridge.typed_bodies import BodyFormat, avro_format, protobuf_format

    form: BodyFormat
    if job.body == jobs.AVRO:
        form = avro_format(job.schema, registry=job.registry, subject=job.subject)
    else:
        descriptors = Path(job.schema) if job.schema is not None else None
        form = protobuf_format(job.message, descriptors, registry=job.registry, subject=job.subject)
    schema, parse = fields_of(form)
    return FieldDecoder(job.columns, schema, parse=parse)


# One after the other: a catalogue in SQL makes its own tables when it is opened for the first time.
_opening = threading.Lock()


def opener_of(job: Job) -> Callable[[pa.Schema, pa.Schema | None], tuple[Table, Table | None]]:
    """Return the function that opens the tables of `job`, and makes them if necessary."""
    from warren.lake import job as jobs
    from warren.lake.object_stores import delta_storage

    def open_iceberg(columns: pa.Schema, refused: pa.Schema | None) -> tuple[Table, Table | None]:
        from warren.lake.catalogs import open_catalog
        from warren.lake.iceberg_table import open_table

        place = job.catalog.get("warehouse", "")
        if place.startswith("file://"):
            Path(place.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
        with _opening:
            catalog = open_catalog(job.catalog)
            table = open_table(catalog, job.to, columns, job.table)
            return table, None if refused is None else open_table(catalog, job.refused, refused, job.table)

    def open_delta(columns: pa.Schema, refused: pa.Schema | None) -> tuple[Table, Table | None]:
        from warren.lake.delta_table import open_table

        storage = delta_storage(job.to, job.storage)
        table = open_table(job.to, storage, columns, job.table)
        return table, None if refused is None else open_table(job.refused, storage, refused, job.table)

    return open_delta if job.format == jobs.DELTA else open_iceberg
