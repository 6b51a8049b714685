"""Export by Spark: for clusters, and for SQL over the exported messages.

    ranges, manifest and directory as of ``export``; in between a Spark job reads them with the format "warren", runs
    the query over the view ``queue`` and writes to _tmp; then the files get their names, and the manifest names them

1. One job is one commit: after a crash it is repeated from where the manifest ends, and the files it left are deleted.
   Either engine continues where the other has ended.
2. Spark counts the rows that it reads from the broker, and those that it writes. The rows of a file are counted in the
   file: a file that an executor has written to a disk of its own is missing, and the export fails.
3. Queues cannot be drained this way: that needs a streaming query.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa

from warren.spark_bridge.bridge_errors import BridgeError, DataLoss, UsageError
from warren.spark_bridge.control import BrokerClient, Description
from warren.spark_bridge.export import DATE, DRAIN, SNAPSHOT, Export, ExportOptions, Watcher
from warren.spark_bridge.export_targets import NULL_VALUE, FileTarget
from warren.spark_bridge.manifest import FileEntry, Manifest
from warren.spark_bridge.offsets import Position
from warren.spark_bridge.places import Directory, Place
from warren.spark_bridge.spark_session import session
from warren.spark_bridge.table_files import CSV, JSON, PARQUET, count_rows, crc_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VIEW: Final = "queue"
FORMATS: Final = (PARQUET, JSON, CSV)
_TIMES: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
_TEXT: Final = "CAST(body AS STRING)"
# As in `text_rows`: bodies that are not UTF-8 in a column of their own.
_TEXT_BODY: Final = f"CASE WHEN is_valid_utf8({_TEXT}) THEN {_TEXT} END AS body"
# In one line: base64 of Spark breaks them as MIME does.
_BASE64: Final = "translate(base64(body), concat(char(13), char(10)), '')"
_BASE64_BODY: Final = f"CASE WHEN NOT is_valid_utf8({_TEXT}) THEN {_BASE64} END AS body_base64"


class SparkTarget(FileTarget):
    """Files that a job has written below `staging`."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.staging = self._temporary / "spark"
        self.ranges: dict[str, tuple[int, int]] = {}
        self.read: int | None = None  # rows that the job has read, None: that says nothing of those it has written
        self.written: int | None = None  # by the job; None: no job has run

    def commit(self, after: Manifest) -> list[FileEntry]:
        """Give the files their names."""
        entries = []
        written, self.written = self.written, None
        first = {name: bounds[0] for name, bounds in self.ranges.items()}
        end = {name: bounds[1] for name, bounds in self.ranges.items()}
        for path in sorted(self.staging.rglob("part-*")):
            known = count_rows(path, self._form)
            count = _read_rows(path, self._form) if known is None else known
            if count == 0:
                continue
            below = path.parent.relative_to(self.staging)
            ending = path.name[path.name.index(f".{self._form}") :] if self._form != PARQUET else f".{PARQUET}"
            name = f"part-{self._next:05}-{self._id}{ending}"
            self._next += 1
            entries.append(
                FileEntry(
                    (below / name).as_posix(),
                    count,
                    path.stat().st_size,
                    crc_of(path),
                    _partition(below),
                    first,
                    end,
                )
            )
            with path.open("rb") as file:
                os.fsync(file.fileno())
            path.replace(self._temporary / name)
        rows = sum(entry.rows for entry in entries)
        if written is not None and rows != written:
            raise BridgeError(
                f"Spark has written {written} rows, and {rows} are below {self.staging}: all executors must see that "
                "directory"
            )
        after.rows += rows
        after.filtered += 0 if self.read is None else self.read - rows
        self._named(entries)
        self.ranges, self.read = {}, None
        return entries


def _partition(below: Path) -> dict[str, str | None]:
    """Return the values that directories such as ``day=1`` stand for."""
    found: dict[str, str | None] = {}
    for part in below.parts:
        name, _, value = part.partition("=")
        found[name] = None if value == NULL_VALUE else unquote(value)
    return found


def _read_rows(path: Path, form: str) -> int:
    """Count the rows of a file of text."""
    with pa.input_stream(str(path), compression="detect") as stream:
        if form == JSON:
            count = 0
            while block := stream.read(1 << 20):
                count += block.count(b"\n")
            return count
        import pyarrow.csv as csv

        if not stream.read(1):
            return 0
    with pa.input_stream(str(path), compression="detect") as stream:
        lines = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
        reader = csv.open_csv(stream, parse_options=lines)
        return sum(int(batch.num_rows) for batch in reader)


class SparkExport(Export):
    """One run. `connection`: options of the data source that say where the broker is."""

    def __init__(
        self,
        client: BrokerClient,
        options: ExportOptions,
        watcher: Watcher,
        *,
        connection: Mapping[str, str],
        master: str | None = None,
        sql: str | None = None,
    ) -> None:
        if options.form not in FORMATS:
            raise UsageError(f"format {options.form!r}: --engine spark writes {', '.join(FORMATS)}")
        if sql is not None and (options.columns is not None or options.where is not None):
            raise UsageError("--sql excludes --columns and --where")
        if options.form == CSV and sql is None:
            raise UsageError("format csv: with --engine spark say by --sql how columns become text")
        self._connection = dict(connection)
        self._master = master
        self._sql = sql
        super().__init__(client, options, watcher)

    def _checked_place(self) -> Place:
        place = super()._checked_place()
        if not isinstance(place, Directory):
            raise UsageError("--engine spark: --to must be a directory, which all executors see")
        return place

    def _check_partition(self, name: str) -> None:
        if self._sql is None:
            super()._check_partition(name)

    def _settings(self) -> dict[str, Any]:
        settings = super()._settings()
        return settings if self._sql is None else {**settings, "columns": None, "sql": self._sql}

    def _mode(self, found: Description) -> str:
        mode = super()._mode(found)
        if mode == DRAIN:
            raise UsageError("mode drain: use the engine arrow, or a streaming query")
        return mode

    def _kind_of_target(self) -> type[SparkTarget]:
        return SparkTarget

    def _check_counts(self, state: Manifest) -> None:
        if self._sql is None:
            super()._check_counts(state)

    def _log(self, found: Description) -> None:
        state, after = self._now()
        assert isinstance(self._target, SparkTarget)
        sources = self._streams(found, state.positions)
        self._drop_left(self._are_read_again(sources))
        count = sum(source.end - source.first for source in sources)
        self._watcher.planned(count, sum(source.bytes for source in sources))
        starts: dict[str, Any] = {}
        ends: dict[str, Any] = {}
        for source in sources:
            before = after.positions.get(source.name)
            whole = source.queue if found.partitions is not None else None
            lost = 0 if before is None else source.first - before.next
            after.lost += lost
            if before is None:
                before = Position(source.id, source.first, source.first, queue=whole, partition=source.partition)
            life = source.life_at(source.end)
            after.positions[source.name] = before._replace(next=source.end, lost=before.lost + lost, life=life)
            self._target.ranges[source.name] = (source.first, source.end)
            for places, offset in ((starts, source.first), (ends, source.end)):
                if found.partitions is None:
                    places[source.queue] = offset
                else:
                    places.setdefault(source.queue, {})[str(source.partition)] = offset
        if count:
            offsets = {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
            self._job({"mode": "log", **offsets}, count)
        self._commit()

    def _snapshot(self) -> None:
        state, after = self._now()
        name = self._options.queue
        if name in state.positions:  # one job is the whole export
            return
        self._drop_left(True)
        found = self._client.describe(name)
        self._watcher.planned(found.messages, found.bytes)
        read = self._job({"mode": SNAPSHOT}, None)
        assert isinstance(self._target, SparkTarget)
        self._target.ranges[name] = (0, read)
        after.positions[name] = Position(found.id, read, base=0)
        self._commit()

    def _job(self, options: Mapping[str, str], count: int | None) -> int:
        """Run the job over so many offsets, None: as many as there are, and return how many rows it has read."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        _, after = self._now()
        assert isinstance(self._target, SparkTarget)
        spark, is_ours = session(self._master, "warren export")
        try:
            observation, written = Observation("read"), Observation("written")
            frame = (
                spark.read.format("warren")
                .options(
                    **self._connection,
                    **options,
                    subscribe=self._options.queue,
                    headersFormat=self._options.headers_format,
                    failOnDataLoss=str(not self._options.skip_lost).lower(),
                    targetPartitionBytes=str(self._options.max_file_bytes),
                    **({} if self._sql is not None else {"columns": ",".join(self._reading.names)}),
                )
                .load()
                .observe(observation, F.count(F.lit(1)).alias("rows"))
            )
            frame.createOrReplaceTempView(VIEW)
            made = spark.sql(self._sql or self._query())
            self._write(made.observe(written, F.count(F.lit(1)).alias("rows")))
            read = int(observation.get["rows"])
            self._target.written = int(written.get["rows"])
        finally:
            if is_ours:
                spark.stop()
        covered = read if count is None else count
        if read != covered and self._sql is None and not self._options.skip_lost:
            raise DataLoss(f"{covered} offsets were to be read, and {read} rows came")
        after.covered += covered
        after.read += read
        after.missing += 0 if self._sql is not None else covered - read
        self._target.read = read if self._sql is None else None
        self._watcher.advanced(read, 0)
        return read

    def _query(self) -> str:
        """Return the query that stands for the options."""
        columns = []
        for name in self._schema.names:
            if name == "body" and self._options.form == JSON:
                columns += [_TEXT_BODY, _BASE64_BODY]
            else:
                columns.append(f"`{name}`")
        if self._options.partition_by == DATE:
            columns.append("CAST(to_date(timestamp) AS STRING) AS `date`")
        elif self._options.partition_by is not None and self._options.partition_by not in self._schema.names:
            columns.append(f"`{self._options.partition_by}`")
        where = "" if self._options.where is None else f" WHERE {self._options.where}"
        return f"SELECT {', '.join(columns)} FROM {VIEW}{where}"

    def _write(self, frame: DataFrame) -> None:
        assert isinstance(self._target, SparkTarget)
        shutil.rmtree(self._target.staging, ignore_errors=True)
        writer = frame.write.mode("append").option("compression", self._compression)
        if self._options.form != PARQUET:
            writer = writer.option("timestampFormat", _TIMES)
        if self._options.form == CSV:
            writer = writer.option("header", True).option("escape", '"')
        if self._options.partition_by is not None:
            writer = writer.partitionBy(self._options.partition_by)
        # A path alone could be one of another file system, the default of a cluster.
        writer.format(self._options.form).save(f"file://{self._target.staging.resolve()}")
