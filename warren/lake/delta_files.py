"""Files of a Delta table that are written for a commit to come: Parquet as deltalake writes it, and what a commit says.

    publish_date=2026-11-24/part-00000-UUID-c000.zstd.parquet      without the column publish_date

deltalake itself writes files only in a commit. What is said of a file beside its place are statistics, by which readers
leave it out:

    numRecords
    nullCount              of columns that are neither nested nor bytes
    minValues, maxValues   of numbers, booleans, texts of at most `TEXT_MAX` characters, dates and moments

1. Statistics are right or are not there: those of doubles that have a NaN are left out. Moments have milliseconds, the
   part below is cut off, as the format says and readers know.
2. Statistics are of the first 32 columns, as of all writers that are told nothing else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler

from warren.lake.options import PUBLISH_DATE
from warren.lake.table import Written

TEXT_MAX: Final = 256
_STATISTICS_COLUMNS: Final = 32
_WRITE_BYTES: Final = 8 << 20


class DeltaWriter:
    """Writes files of the table at `url`; `is_by_day`: whether a day is a partition."""

    def __init__(self, url: str, storage: dict[str, str], target_file_bytes: int, *, is_by_day: bool) -> None:
        self._url = url
        self._storage = storage
        self._target_file_bytes = target_file_bytes
        self._is_by_day = is_by_day

    def write(self, rows: pa.Table) -> list[Written]:
        written: list[Written] = []
        for day, some in self._by_day(rows):
            for part in _cut(some, self._target_file_bytes):
                name = f"part-{len(written):05}-{uuid4()}-c000.zstd.parquet"
                path = name if day is None else f"{PUBLISH_DATE}={day}/{name}"
                entry = {
                    "path": path,
                    "size": self._put(path, part),
                    "partition_values": {} if day is None else {PUBLISH_DATE: day},
                    "modification_time": int(time.time() * 1000),
                    "data_change": True,
                    "stats": json.dumps(statistics_of(part)),
                }
                written.append(Written(path, entry))
        return written

    def delete(self, files: Sequence[Written]) -> None:
        handler = self._handler()
        for file in files:
            try:
                handler.delete_file(file.path)
            except FileNotFoundError:
                pass

    def _handler(self) -> Any:
        return DeltaStorageHandler(self._url, self._storage or None)._handler

    def _by_day(self, rows: pa.Table) -> Iterator[tuple[str | None, pa.Table]]:
        if not self._is_by_day:
            yield None, rows
            return
        days = days_of(rows)
        for day in sorted(pc.unique(days).to_pylist()):
            yield day, rows.filter(pc.equal(days, day))

    def _put(self, path: str, rows: pa.Table) -> int:
        """Write a file, and return its size."""
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd")
        content = sink.getvalue()
        stream = self._handler().open_output_stream(path)
        for at in range(0, content.size, _WRITE_BYTES):
            stream.write(content[at : at + _WRITE_BYTES].to_pybytes())
        stream.close()
        return int(content.size)


def days_of(rows: pa.Table) -> pa.ChunkedArray:
    """Return the day of each row, as the partitions are called."""
    return pc.cast(pc.cast(rows.column("timestamp"), pa.date32(), safe=False), pa.string())


def _cut(rows: pa.Table, size_bytes: int) -> Iterator[pa.Table]:
    """Yield `rows` in parts of about a size, as they are in memory; nothing of no rows."""
    count = max(1, -(-rows.nbytes // size_bytes))
    length = max(1, -(-rows.num_rows // count))
    for at in range(0, rows.num_rows, length):
        yield rows.slice(at, length)


def statistics_of(rows: pa.Table) -> dict[str, Any]:
    """Return the statistics of a file with `rows`."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in list(rows.schema)[:_STATISTICS_COLUMNS]:
        if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
            continue
        column = rows.column(field.name)
        nulls[field.name] = column.null_count
        if column.null_count == rows.num_rows:
            continue
        if pa.types.is_floating(field.type) and pc.any(pc.is_nan(column)).as_py():
            continue
        try:
            found = pc.min_max(column).as_py()
        except (OverflowError, ValueError):  # a moment that Python does not know
            continue
        low, high = _said(found["min"]), _said(found["max"])
        if low is not None and high is not None:
            least[field.name], most[field.name] = low, high
    return {"numRecords": rows.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _said(value: Any) -> Any:
    """Return a value as JSON of statistics has it; None: it is left out."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else None
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return None
    return value
