"""`make bench-spark`: a stream read into Spark, beside Spark's own reader of the same rows in Parquet; and an export.

Messages of 100 B in one stream, half of the columns or all of them, into Spark's sink that keeps nothing, in one
session on this machine. CPU is that of the JVM and of its Python workers; the broker's is shown separately. Every round
runs each case once; figures are medians over the rounds, the first of which warms up and does not count. What an export
costs the broker is ``exports``.

A source in Python that has its rows in memory already is the most that Spark can take from any such source.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, only its own folder is on the path

from benchmarks import exports, results
from benchmarks.brokers import WarrenBroker, started
from benchmarks.load_tool import ROOT, ToolError, say, stop_when_told
from warren.perf.client import BrokerError
from warren.perf.process_stats import sample

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 5_000_000
EXPORTED_ROWS: Final = 10_000_000
STREAM: Final = "bench"
BODY_BYTES: Final = 100
STAGED_ROWS: Final = 50_000
FEW: Final = ("body", "offset", "timestamp", "routing_key")
BATCH_ROWS: Final = 16_384  # of a full chunk
PIECES: Final = 10_000
TRIGGERS: Final = 30
TRIGGER_ROWS: Final = 10


class Case(NamedTuple):
    """Something that Spark reads, the rate that it has to reach, and the most CPU that a row may cost."""

    name: str
    title: str
    least_per_s: float | None = None
    most_ns: float | None = None

    def is_ours(self) -> bool:
        """Tell whether the broker has anything to do with it."""
        return "-" not in self.name


CASES: Final = (
    Case("few", "stream: body, offset, timestamp, routing_key", 3_000_000, 600),
    Case("few-batch", "a source that yields one batch again and again: the same columns"),
    Case("few-parquet", "Parquet: the same columns"),
    Case("all", "stream: all columns, 5 properties and 3 headers each", 400_000),
    Case("all-parquet", "Parquet: all columns"),
)
PLANNING_LIMIT_MS: Final = 20.0
TRIGGER_LIMIT_MS: Final = 250.0
# Chunks that are being read, and what the allocator keeps of them.
EXPORT_MEMORY_LIMIT_MB: Final = 50.0
PUBLISH_LIMIT: Final = 0.8


class Run(NamedTuple):
    """One case in one round."""

    seconds: float
    spark_us: int  # CPU
    broker_us: int


def fill(url: str, rows: int) -> None:
    """Publish `rows` messages into a new stream, staged: some thousand at a time."""
    import numpy as np
    import pyarrow as pa

    from warren.spark_bridge.control import BrokerClient
    from warren.spark_bridge.frames import encode_publishes
    from warren.spark_bridge.properties import encode_properties
    from warren.spark_bridge.schema import arrow_type

    with BrokerClient(url) as client:
        generator = np.random.default_rng(1)
        written = 0
        while written < rows:
            count = min(STAGED_ROWS, rows - written)
            offsets = np.arange(0, (count + 1) * BODY_BYTES, BODY_BYTES, dtype=np.int32)
            data = generator.bytes(count * BODY_BYTES)
            bodies = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
            numbers = range(written, written + count)
            columns = {
                "content_type": pa.repeat("application/json", count),
                "delivery_mode": pa.repeat(pa.scalar(2, pa.int16()), count),
                "message_id": pa.array([f"message-{number}" for number in numbers]),
                "type": pa.repeat("order.created", count),
                "app_id": pa.repeat("shop", count),
                "headers": pa.array(
                    [
                        [("tenant", f"t{number % 100}"), ("trace", f"{number:016x}"), ("attempt", "1")]
                        for number in numbers
                    ],
                    arrow_type("headers"),
                ),
            }
            frames = encode_publishes("", STREAM, encode_properties(columns, count), bodies)
            stage = f"fill-{written}"
            client.put_stage(stage, 0, b"".join(frames.to_pylist()))
            client.commit_stages("fill", written // STAGED_ROWS, [stage])
            written += count


def declare(broker: WarrenBroker) -> None:
    """Declare the stream over HTTP."""
    import json
    import urllib.request

    body = json.dumps({"durable": True, "arguments": {"x-queue-type": "stream"}}).encode()
    request = urllib.request.Request(f"{broker.url}/api/queues/%2F/{STREAM}", body, method="PUT")
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request).close()


def session(directory: Path) -> SparkSession:
    """Start Spark on two cores."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",  # a query that is stopped in the middle of a batch is an error to it
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.local.dir": str(directory),
        "spark.sql.parquet.compression.codec": "uncompressed",
    }
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def register_one_batch(spark: SparkSession, rows: int) -> None:
    """Make a source `one-batch` known, of `rows` rows with the columns `FEW`, out of memory."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(part) for part in range(2)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            import pyarrow as pa

            count = BATCH_ROWS
            ends = pa.array(range(0, (count + 1) * BODY_BYTES, BODY_BYTES), pa.int32()).buffers()[1]
            bodies = pa.Array.from_buffers(
                pa.binary(), count, [None, ends, pa.py_buffer(os.urandom(count * BODY_BYTES))]
            )
            times = pa.array(range(count), pa.timestamp("us", tz="UTC"))
            keys = pa.repeat(STREAM, count)
            batch = pa.RecordBatch.from_arrays([bodies, pa.array(range(count), pa.int64()), times, keys], names=FEW)
            for at in range(0, rows // 2, count):
                yield batch.slice(0, min(count, rows // 2 - at))

    class OneBatch(DataSource):
        @classmethod
        def name(cls) -> str:
            return "one-batch"

        def schema(self) -> str:
            return "body BINARY, offset BIGINT, timestamp TIMESTAMP, routing_key STRING"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(OneBatch)


def measured(broker: WarrenBroker, work: Callable[[], object]) -> Run:
    """Do `work`, and return what it took."""
    spark_before, broker_before = sample(os.getpid()).cpu_us, sample(broker.pid).cpu_us
    begin = time.monotonic()
    work()
    seconds = time.monotonic() - begin
    broker_us = sample(broker.pid).cpu_us - broker_before
    # The broker is a child of this process, as the JVM is.
    return Run(seconds, sample(os.getpid()).cpu_us - spark_before - broker_us, broker_us)


def read_cases(
    spark: SparkSession, broker: WarrenBroker, directory: Path, rows: int, rounds: int
) -> dict[str, list[Run]]:
    """Run all cases and return what they took, the warming round left out."""
    table = str(directory / "table")

    def stream(columns: tuple[str, ...]) -> DataFrame:
        reader = spark.read.format("warren").option("managementUrl", broker.url).option("subscribe", STREAM)
        return (reader.option("columns", ",".join(columns)) if columns else reader).load()

    register_one_batch(spark, rows)
    stream(()).write.parquet(table)
    frames: dict[str, Callable[[], DataFrame]] = {
        "few": lambda: stream(FEW),
        "few-batch": lambda: spark.read.format("one-batch").load(),
        "few-parquet": lambda: spark.read.parquet(table).select(*FEW),
        "all": lambda: stream(()),
        "all-parquet": lambda: spark.read.parquet(table),
    }
    found: dict[str, list[Run]] = {}
    for turn in range(rounds + 1):
        for case in CASES:
            frame = frames[case.name]()
            run = measured(broker, lambda frame=frame: frame.write.format("noop").mode("overwrite").save())  # type: ignore[misc]
            if turn:
                found.setdefault(case.name, []).append(run)
            say(f"round {turn or 'warming'}  {case.name:12} {rows / run.seconds:>12,.0f} rows/s")
    return found


def planning_ms(broker: WarrenBroker, rows: int) -> float:
    """Return how long it takes to plan a batch of many pieces, the broker's part with it; the best of several."""
    from warren.spark_bridge.batch import BatchReader
    from warren.spark_bridge.options import read_options
    from warren.spark_bridge.schema import spark_schema

    given = {"managementUrl": broker.url, "subscribe": STREAM, "maxRecordsPerPartition": str(max(1, rows // PIECES))}
    reader = BatchReader(read_options(given, streaming=False), spark_schema(), "bench")
    taken = []
    for _ in range(10):
        begin = time.perf_counter()
        count = len(reader.partitions())
        taken.append(1000 * (time.perf_counter() - begin))
        assert count >= PIECES
    return min(taken)


def trigger_ms(spark: SparkSession, broker: WarrenBroker, directory: Path) -> float:
    """Return how long a batch of a few rows takes in a streaming query, in the median."""
    options = {
        "managementUrl": broker.url,
        "subscribe": STREAM,
        "columns": ",".join(FEW),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(TRIGGER_ROWS),
    }
    frame = spark.readStream.format("warren").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.start()
    while len(query.recentProgress) < TRIGGERS + 5 and query.isActive:
        time.sleep(0.1)
    query.stop()
    batches = [one for one in query.recentProgress if one["numInputRows"] == TRIGGER_ROWS]
    return results.median([float(one["durationMs"]["triggerExecution"]) for one in batches[-TRIGGERS:]])


def markdown(
    found: dict[str, list[Run]],
    plan_ms: float,
    floor_ms: float,
    exported: exports.Exported,
    machine: results.Machine,
    product: str,
    *,
    rows: int,
    rounds: int,
) -> str:
    """Return the text of SPARK.md."""
    page = results.Page()
    table = []
    for case in CASES:
        runs = found[case.name]
        rate = results.median([rows / run.seconds for run in runs])
        cpu_ns = results.median([1000 * run.spark_us / rows for run in runs])
        broker_ns = results.median([1000 * run.broker_us / rows for run in runs])
        targets, verdicts = [], []
        if case.least_per_s is not None:
            targets.append(f"at least {case.least_per_s:,.0f} rows/s")
            verdicts.append(page.verdict(reached=rate >= case.least_per_s))
        if case.most_ns is not None:
            targets.append(f"at most {case.most_ns:,.0f} ns")
            verdicts.append(page.verdict(reached=cpu_ns <= case.most_ns))
        cells = [case.title, f"{rate:,.0f}", f"{cpu_ns:,.0f}", "; ".join(targets), "; ".join(verdicts)]
        table.append([*cells, f"{broker_ns:,.0f}" if case.is_ours() else ""])
    page.table(["", "rows/s", "Spark's CPU, ns per row", "target", "", "broker's CPU, ns per row"], table)
    page.table(
        ["", "ms", "target", ""],
        [
            [
                f"planning a batch of {PIECES:,} pieces",
                f"{plan_ms:.1f}",
                f"at most {PLANNING_LIMIT_MS:g}",
                page.verdict(reached=plan_ms <= PLANNING_LIMIT_MS),
            ],
            [
                f"a streaming batch of {TRIGGER_ROWS} rows, median",
                f"{floor_ms:.0f}",
                f"at most {TRIGGER_LIMIT_MS:g}",
                page.verdict(reached=floor_ms <= TRIGGER_LIMIT_MS),
            ],
        ],
    )
    ratios = []
    for name, other, title in (
        ("few", "few-batch", "the rate of the source out of memory"),
        ("few", "few-parquet", "Parquet's rate with four columns"),
        ("all", "all-parquet", "Parquet's rate with all columns"),
    ):
        pairs = zip(found[name], found[other], strict=True)
        ratio = results.median([theirs.seconds / ours.seconds for ours, theirs in pairs])
        ratios.append(f"{ratio:.2f} of {title}")
    page.text(f"The stream reaches {', '.join(ratios)}.")
    memory_mb = exported.memory_bytes / 1e6
    share = exported.publish_beside_per_s / exported.publish_alone_per_s
    page.text(f"## An export of {exported.rows:,} messages to Parquet, all columns, `warren export`")
    page.table(
        ["", "", "target", ""],
        [
            ["rows/s", f"{exported.rows_per_s:,.0f}", "", ""],
            ["broker's CPU, ns per row", f"{exported.broker_ns:,.0f}", "", ""],
            [
                "broker's memory above what it was before, at most seen, MB",
                f"{memory_mb:.1f}",
                f"at most {EXPORT_MEMORY_LIMIT_MB:g}",
                page.verdict(reached=memory_mb <= EXPORT_MEMORY_LIMIT_MB),
            ],
            [
                f"a publisher to a durable queue beside it, to {exported.publish_alone_per_s:,.0f}/s without",
                f"{share:.2f}",
                f"at least {PUBLISH_LIMIT:g}",
                page.verdict(reached=share >= PUBLISH_LIMIT),
            ],
        ],
    )
    top = [
        "# Spark",
        "Written by `make bench-spark`; do not edit.",
        f"**{sum(page.verdicts)} of {len(page.verdicts)} targets met.**",
        f"- Machine: {machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB; {machine.system}; "
        f"load before the start {machine.load:.2f}.\n"
        f"- {product} at {results.revision()}, Python {machine.python}; "
        f"PySpark {_version('pyspark')}, local[2], PyArrow {_version('pyarrow')}.\n"
        f"- {rows:,} messages of {BODY_BYTES} B in one stream; {rounds} rounds, figures are medians over them. Spark's "
        "CPU is that of the JVM and its Python workers.\n"
        "- Parquet is what Spark wrote of the same rows, uncompressed, read from the page cache.",
    ]
    return "\n\n".join([*top, *page.parts]) + "\n"


def _version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


def spark(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count")] = 5,
    rows: Annotated[int, typer.Option(min=PIECES, help="Messages in the stream")] = ROWS,
    exported_rows: Annotated[int, typer.Option(min=PIECES, help="Messages that are exported")] = EXPORTED_ROWS,
    directory: Annotated[
        Path | None, typer.Option(help="Where broker and tables are kept meanwhile; default: the temporary directory")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Where to write; default benchmarks/SPARK.md, with other options nowhere"),
    ] = None,
) -> None:
    """Measure how a stream is read into Spark."""
    machine = results.Machine.look()
    if machine.load > 0.5:
        say(f"the machine is not quiet (load {machine.load:.1f}): the figures will be worse than they are")
    with tempfile.TemporaryDirectory(prefix="warren-spark-", dir=directory) as below:
        broker = WarrenBroker(results.WARREN, Path(below) / "warren", ROOT, core=None)
        try:
            with started(broker):
                declare(broker)
                say(f"publishing {rows:,} messages")
                fill(broker.url, rows)
                session_of = session(Path(below))
                found = read_cases(session_of, broker, Path(below), rows, rounds)
                floor_ms = trigger_ms(session_of, broker, Path(below))
                session_of.stop()
                plan_ms = planning_ms(broker, rows)
                exported = exports.measure(broker, broker.url, Path(below), exported_rows)
        except (BrokerError, ToolError, RuntimeError) as error:
            say(f"ended: {error}")
            raise typer.Exit(1) from None
    text = markdown(found, plan_ms, floor_ms, exported, machine, broker.product, rows=rows, rounds=rounds)
    if output is not None:
        output.write_text(text)
        say(f"written to {output.name}")
    elif (rounds, rows, exported_rows) == (5, ROWS, EXPORTED_ROWS):
        results.write_page(ROOT / "benchmarks", results.SPARK, text)
        say(f"written to {results.SPARK} and {results.RESULTS}")
    else:
        print(text)


if __name__ == "__main__":
    stop_when_told()
    typer.run(spark)
