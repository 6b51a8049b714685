"""The flows of a Spark driver that is killed: source and target of each, its progress, and the rows that have arrived.

    parquet, delta       a stream into Spark's file sink, and into a Delta table by foreachBatch
    left, right          one queue that two queries empty, each into a file sink of its own
    leased               a queue whose claims go back to it when its query is away for LEASE_S: repeated messages are
                         flagged `redelivered`, and left out of the Delta table if that has it
    written              a stream into a queue, by staged writes

The driver starts them; the killer looks at their files only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from pyarrow import parquet

from .ledger import Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVENTS: Final = "events"
SHARED: Final = "shared"
LEASED: Final = "leased"
OUT: Final = "out"
LEASE_S: Final = 2

PARQUET, DELTA, BROKER = "parquet", "delta", "broker"
_LIMITS: Final = {"maxOffsetsPerTrigger": "200", "maxRecordsPerPartition": "60"}


@dataclass(frozen=True)
class Flow:
    """A query. `directory`: of all flows; `consumer`: None where it reads a stream."""

    name: str
    source: str
    sink: str
    directory: Path
    consumer: str | None = None
    lease_s: int | None = None

    @property
    def table(self) -> Path:
        return self.directory / self.name / "table"

    @property
    def checkpoint(self) -> Path:
        return self.directory / self.name / "checkpoint"

    @property
    def again(self) -> Path:
        """Where it is noted, of each batch with messages that came again: how many, and how many the table had."""
        return self.directory / self.name / "again"

    # --- how far it is ---------------------------------------------------------------------------------------------

    def last(self, log: str) -> int:
        """Return the number of the last batch in a log of the checkpoint, ``offsets`` or ``commits``; -1: none."""
        return max((int(path.name) for path in (self.checkpoint / log).glob("[0-9]*")), default=-1)

    def has(self, log: str, batch: int) -> bool:
        return (self.checkpoint / log / str(batch)).exists()

    def is_in_sink(self, batch: int) -> bool:
        """Tell whether the file sink has committed a batch."""
        return any((self.table / "_spark_metadata").glob(f"{batch}*"))

    def data_files(self) -> set[str]:
        """Return the names of all files with rows, named by a commit or not."""
        return {path.name for path in self.table.glob("*.parquet")}

    def named_lately(self) -> str:
        """Return what names files in the latest commits of the sink."""
        if self.sink == PARQUET:
            logs = sorted(
                (self.table / "_spark_metadata").glob("[0-9]*"), key=lambda path: int(path.name.split(".")[0])
            )
        else:
            logs = sorted((self.table / "_delta_log").glob("*.json"))
        return "".join(_text(path) for path in logs[-3:])

    # --- what has arrived ------------------------------------------------------------------------------------------

    def rows(self) -> Iterator[Row]:
        """Yield what the table has, read without Spark."""
        files = _committed_files(self.table) if self.sink == PARQUET else _delta_files(self.table)
        for path in files:
            found = parquet.ParquetFile(path).read(columns=["offset", "body"])
            for offset, body in zip(found["offset"].to_pylist(), found["body"].to_pylist(), strict=True):
                yield Row(body, offset)

    # --- in the driver ---------------------------------------------------------------------------------------------

    def start(self, spark: SparkSession, url: str, *, available_now: bool) -> StreamingQuery:
        """Start the query where its checkpoint says."""
        options = {"managementUrl": url, "subscribe": self.source, "startingOffsets": "earliest", **_LIMITS}
        options["columns"] = "offset,body"
        if self.consumer is not None:
            del options["startingOffsets"]
            options |= {"mode": "drain", "consumerName": self.consumer}
        if self.lease_s is not None:
            options |= {"claimTtl": f"{self.lease_s}s", "failOnDataLoss": "false"}
            options["columns"] = "offset,body,redelivered"
        if self.sink == BROKER:
            options["columns"] = "body"
        writer = spark.readStream.format("warren").options(**options).load().writeStream.queryName(self.name)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if self.sink == PARQUET:
            writer = writer.format("parquet").option("path", str(self.table))
        elif self.sink == DELTA:
            writer = writer.foreachBatch(self._append())
        else:
            writer = writer.format("warren").options(managementUrl=url, queue=OUT)
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="1 second")
        return writer.start()

    def _append(self) -> Callable[[DataFrame, int], None]:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

        table = str(self.table)

        def append(batch: DataFrame, number: int) -> None:
            found = DeltaTable(table) if DeltaTable.is_deltatable(table) else None
            done = None if found is None else found.transaction_version(self.name)
            if done is not None and number <= done:
                return
            rows: Any = batch.toArrow()
            if self.lease_s is not None:
                rows = _without_known(rows, self)
            noted = CommitProperties(app_transactions=[Transaction(self.name, number)])
            write_deltalake(table, rows, mode="append", commit_properties=noted)

        return append


def _without_known(rows: Any, flow: Flow) -> Any:
    """Leave out what came again and is in the table."""
    import pyarrow as pa

    again = rows["redelivered"].to_pylist()
    if any(again):
        there = {row.body for row in flow.rows()}
        bodies = rows["body"].to_pylist()
        is_new = [not redelivered or body not in there for redelivered, body in zip(again, bodies, strict=True)]
        rows = rows.filter(pa.array(is_new))
        with flow.again.open("a") as log:
            log.write(f"{sum(again)} {is_new.count(False)}\n")
    return rows.select(["offset", "body"])


def flows_in(directory: Path) -> dict[str, Flow]:
    """Return all flows, by name."""
    made = [
        Flow("parquet", EVENTS, PARQUET, directory),
        Flow("delta", EVENTS, DELTA, directory),
        Flow("left", SHARED, PARQUET, directory, consumer="left"),
        Flow("right", SHARED, PARQUET, directory, consumer="right"),
        Flow("leased", LEASED, DELTA, directory, consumer="leased", lease_s=LEASE_S),
        Flow("written", EVENTS, BROKER, directory),
    ]
    return {flow.name: flow for flow in made}


def _committed_files(table: Path) -> set[str]:
    logs = (table / "_spark_metadata").glob("[0-9]*")
    lines = (line for log in logs for line in log.read_text().splitlines()[1:])
    return {unquote(urlsplit(json.loads(line)["path"]).path) for line in lines}


def _delta_files(table: Path) -> list[str]:
    from deltalake import DeltaTable

    return [unquote(urlsplit(uri).path) for uri in DeltaTable(str(table)).file_uris()]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # Spark has put it into a larger one
