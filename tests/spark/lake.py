"""A streaming query from a queue into Parquet, and what one wants to know of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from broker_process import wait_until
from pyarrow import parquet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEADLINE_S = 120.0


class Lake:
    """`table` and `checkpoint` are directories; a query that is started again continues from there."""

    def __init__(self, spark: SparkSession, url: str, queue: str, directory: Path) -> None:
        self.spark = spark
        self.url = url
        self.queue = queue
        self.table = directory / "table"
        self.checkpoint = directory / "checkpoint"
        self.options: dict[str, str] = {}
        self.query: StreamingQuery | None = None

    def start(self, *, available_now: bool = False, **options: object) -> StreamingQuery:
        """Start the query; options stay for the next start."""
        self.options |= {name: str(value) for name, value in options.items()}
        given = {"managementUrl": self.url, "subscribe": self.queue, "columns": "queue,partition,offset,body"}
        frame = self.spark.readStream.format("warren").options(**given | self.options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))
        writer = writer.option("path", str(self.table))
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        self.query = writer.start()
        return self.query

    def run(self, **options: object) -> StreamingQuery:
        """Read what is there, and return the query, which has ended."""
        query = self.start(available_now=True, **options)
        self.wait(query)
        return query

    def wait(self, query: StreamingQuery) -> None:
        """Wait for the end of a query; raise what ended it."""
        assert query.awaitTermination(int(DEADLINE_S)), "the query does not end"

    def wait_for_rows(self, count: int) -> None:
        """Wait until the table has `count` rows; fail when the query fails."""

        def are_there() -> bool:
            assert self.query is not None
            failure = self.query.exception()
            if failure is not None:
                raise failure
            return len(self.rows()) >= count

        wait_until(are_there, f"{count} rows in the table", DEADLINE_S)

    def stop(self) -> None:
        if self.query is not None and self.query.isActive:
            self.query.stop()

    def rows(self) -> list[tuple[str, int, int, bytes]]:
        """Return what the table has, in the order of offsets: queue, partition, offset, body.

        Read from the files that the sink has committed, without Spark.
        """
        paths = set()
        for log in (self.table / "_spark_metadata").glob("[0-9]*"):
            paths |= {json.loads(line)["path"] for line in log.read_text().splitlines()[1:]}
        found = []
        for path in paths:
            for row in parquet.read_table(unquote(urlsplit(path).path)).to_pylist():
                found.append((row["queue"], row["partition"], row["offset"], row["body"]))
        return sorted(found)

    def numbers(self) -> list[int]:
        """Return the bodies as numbers, sorted: equal to what was published when nothing is lost or twice."""
        return sorted(int(row[3]) for row in self.rows())

    # --- the checkpoint --------------------------------------------------------------------------------------------

    def batches(self, log: str) -> list[int]:
        """Return the numbers of the batches in a log of the checkpoint: ``offsets`` or ``commits``."""
        return sorted(int(path.name) for path in (self.checkpoint / log).glob("[0-9]*"))

    def offset(self, batch: int) -> dict[str, Any]:
        """Return where a batch ends."""
        found: dict[str, Any] = json.loads((self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])
        return found

    def forget(self, log: str, batch: int) -> None:
        """Take back that a batch was written into a log, as if the driver had died before that."""
        directory = self.checkpoint / log
        (directory / str(batch)).unlink()
        (directory / f".{batch}.crc").unlink(missing_ok=True)
        # Spark may keep checksums beside it.
        for path in directory.glob(f"{batch}.*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
