"""A batch: streams from one offset to another, and queues as they are at one moment.

1. The range to read is resolved once for each ``load()`` and pinned: the same data frame has the same rows, however
   often it is evaluated, while producers continue. In a session with filter pushdown Spark plans again each time, in
   another process. So the pinned range is in the driver's directory of files, which is deleted when the driver ends.
2. A queue that is not a stream is read from a snapshot, which is made when the batch is planned and changes nothing in
   the queue. It is kept for snapshotTtl, at most until the broker stops. A stream needs no snapshot: its messages stay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from warren.spark_bridge.control import BrokerClient
from warren.spark_bridge.filters import Filters, maybe_condition
from warren.spark_bridge.options import FIRST, LOG, NEXT, OptionError, ReadOptions
from warren.spark_bridge.pieces import Range, client_of_task, cut, read
from warren.spark_bridge.spark_types import to_arrow
from warren.spark_bridge.topology import Missing, Part, look, offset_of


class BatchReader(DataSourceReader):
    """Reads ranges of streams and snapshots of queues. `load_id`: of the ``load()`` that it is for."""

    def __init__(self, options: ReadOptions, schema: StructType, load_id: str) -> None:
        self.options = options
        self.schema = schema
        self.load_id = load_id
        self.filters: Filters | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "options": self.options.for_tasks()}

    def partitions(self) -> list[InputPartition]:
        """Return the pieces to read, one for each task."""
        with self.options.connection.client() as client:
            ranges = _pinned(self.load_id) or _pin(self.load_id, resolve(client, self.options))
            if self.filters is not None:
                ranges = self.filters.narrowed(ranges)
            return list[InputPartition](cut(client, self.options, ranges))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one piece; without pieces Spark makes one task without a piece."""
        if partition.value is None:
            return iter(())
        piece = partition.value
        return read(client_of_task(self.options, piece), self.options, piece, to_arrow(self.schema), self.filters)


class FilteringReader(BatchReader):
    """The same with filters pushed down. Another class, as Spark refuses a reader that could and is not allowed to."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take over what can be, and yield the rest."""
        taken = []
        for each in filters:
            condition = maybe_condition(each)
            if condition is None:
                yield each
            else:
                taken.append(condition)
        self.filters = Filters(taken)


def resolve(client: BrokerClient, options: ReadOptions) -> list[Range]:
    """Return the ranges of a batch; snapshots are made here.

    Raises:
        OptionError: a queue that does not exist, or that cannot be read in this way.
    """
    parts = look(client, options)
    for part in parts:
        if isinstance(part, Missing):
            raise OptionError(f"queue {part.queue!r} cannot be read: {part.reason}")
    found = [part for part in parts if isinstance(part, Part)]
    for part in found:
        check_mode(part, options)
    return [_range(client, options, part) for part in found]


def check_mode(part: Part, options: ReadOptions) -> None:
    """Make sure that `part` can be read in the requested mode.

    Raises:
        OptionError: it cannot.
    """
    if options.mode == LOG and not part.is_stream:
        raise OptionError(f"option mode: queue {part.name!r} is {part.found.type}, and mode log is for streams")
    if not part.is_stream and options.placed() is not None:
        raise OptionError(
            f"option {options.placed()}: queue {part.name!r} is {part.found.type} and has no offsets to begin or end at"
        )


def _range(client: BrokerClient, options: ReadOptions, part: Part) -> Range:
    if not part.is_stream:
        made = client.make_snapshot(part.name, ttl_s=options.snapshot_ttl_s, unacked=options.snapshot_unacked)
        return Range(part.queue, part.partition, part.name, made.id, made.first, made.end, made.snapshot)
    start, end = options.start, options.end
    first_place = FIRST if start is None else start.of(part.queue, part.partition)
    end_place = NEXT if end is None else end.of(part.queue, part.partition)
    first = offset_of(client, part, first_place, options, "startingOffsets" if start is None else start.option)
    behind = offset_of(client, part, end_place, options, "endingOffsets" if end is None else end.option)
    return Range(part.queue, part.partition, part.name, part.found.id_at(max(first, behind)), first, max(first, behind))


# --- what is pinned ------------------------------------------------------------------------------------------------


def _maybe_path(load_id: str) -> Path | None:
    """Return where the ranges of a load are kept: among the files of the driver, if this is one of its workers."""
    from pyspark import SparkFiles

    if not getattr(SparkFiles, "_is_running_on_worker", False) or not SparkFiles._root_directory:
        return None
    return Path(SparkFiles._root_directory) / f"warren-{load_id}.json"


def _pinned(load_id: str) -> list[Range] | None:
    path = _maybe_path(load_id)
    if path is None:
        return None
    try:
        return [Range(*fields) for fields in json.loads(path.read_text())]
    except FileNotFoundError:
        return None


def _pin(load_id: str, ranges: list[Range]) -> list[Range]:
    """Keep `ranges` for the next plan, and return the kept ranges: another plan may have pinned its own meanwhile."""
    path = _maybe_path(load_id)
    if path is None:
        return ranges
    written = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        written.write_text(json.dumps(ranges))
        try:
            os.link(written, path)
        finally:
            written.unlink()
    except FileExistsError:
        return _pinned(load_id) or ranges
    return ranges
