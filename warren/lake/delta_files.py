"""Files of a Delta table that are written for a later commit: Parquet as deltalake writes it, and their descriptions.

    publish_date=2026-11-24/part-00000-UUID-c000.zstd.parquet      without the column publish_date

deltalake itself writes files only in a commit. The description of a file has its place and statistics, by which readers
leave the file out:

    numRecords
    nullCount              of columns that are neither nested nor bytes
    minValues, maxValues   of numbers, booleans, texts of at most `TEXT_MAX` characters, dates and moments

1. Statistics are right or missing: those of doubles with a NaN are left out. Moments have milliseconds; smaller parts
   are cut off, as the format says and readers know.
2. Statistics are of the first 32 columns, as with all writers in their default settings.
3. Writing and rewriting hold about `_PART_BYTES` of a file in addition to the rows to write, whatever its size.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler

from warren.lake.options import PUBLISH_DATE
from warren.lake.parquet_parts import parts_of
from warren.lake.table import Written, with_columns

TEXT_MAX: Final = 256
_STATISTICS_COLUMNS: Final = 32
_PART_ROWS: Final = 65_536
_PART_BYTES: Final = 8 << 20


class OldFile(NamedTuple):
    """A file of the table: its path below that, its bytes, its rows if that is said, and its day if there are days."""

    path: str
    size: int
    rows: int | None
    day: str | None


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
            written += self._written(day, some.schema, _cut(some), is_new=True)
        return written

    def _written(
        self, day: str | None, schema: pa.Schema, parts: Iterable[pa.Table], *, is_new: bool
    ) -> Iterator[Written]:
        """Write rows of one day, and yield the files."""
        number = 0
        file: _File | None = None
        for part in parts:
            if file is None:
                name = f"part-{number:05}-{uuid4()}-c000.zstd.parquet"
                path = name if day is None else f"{PUBLISH_DATE}={day}/{name}"
                file = _File(self._handler().open_output_stream(path), schema)
                number += 1
            file.write(with_columns(part, schema))
            if file.size() >= self._target_file_bytes:
                yield _described(path, day, *file.done(), is_new=is_new)
                file = None
        if file is not None:
            yield _described(path, day, *file.done(), is_new=is_new)

    def rewrite(
        self, files: Sequence[OldFile], schema: pa.Schema, dropped: Mapping[str, pa.Array] | None = None
    ) -> list[Written]:
        """Write the rows of `files`, all of one day, again, and return the files: one, if it is not too large.

        `dropped`: for each path the numbers of the rows that are left out, in order.

        Raises:
            FileNotFoundError: one of the files is not there. ValueError: one has other rows than its commit said.
        """
        return list(
            self._written(files[0].day, schema, _grouped(self._kept(files, dropped or {}), _PART_BYTES), is_new=False)
        )

    def _kept(self, files: Sequence[OldFile], dropped: Mapping[str, pa.Array]) -> Iterator[pa.Table]:
        """Yield the rows of files that stay, in parts."""
        for file in files:
            at = 0
            gone = dropped.get(file.path)
            for rows in self.read(file):
                yield rows if gone is None else _without(rows, at, gone)
                at += rows.num_rows
            if file.rows is not None and at != file.rows:
                raise ValueError(f"{file.path} has {at} rows, and its commit says {file.rows}")

    def read(self, file: OldFile, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of a file in parts, maybe of some columns; the day is not among them."""
        with pa.PythonFile(self._handler().open_input_file(file.path), "r") as source:
            opened = pq.ParquetFile(source)
            there = None if columns is None else [name for name in columns if name in opened.schema_arrow.names]
            for batch in parts_of(opened, there):
                yield pa.Table.from_batches([batch])

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


def days_of(rows: pa.Table) -> pa.ChunkedArray:
    """Return the day of each row, as it is in the names of partitions."""
    return pc.cast(pc.cast(rows.column("timestamp"), pa.date32(), safe=False), pa.string())


def _cut(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield `rows` in parts of about `_PART_BYTES`; nothing without rows."""
    length = max(1, min(_PART_ROWS, _PART_BYTES * rows.num_rows // max(1, rows.nbytes)))
    for at in range(0, rows.num_rows, length):
        yield rows.slice(at, length)


class Statistics:
    """The statistics of a file whose rows come in parts."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = 0
        self._fields = [
            field
            for field in list(schema)[:_STATISTICS_COLUMNS]
            if not pa.types.is_nested(field.type) and not pa.types.is_binary(field.type)
        ]
        self._nulls = {field.name: 0 for field in self._fields}
        self._bounds: dict[str, tuple[Any, Any]] = {}
        self._unbounded: set[str] = set()

    def add(self, rows: pa.Table) -> None:
        """Count `rows` in."""
        self.rows += rows.num_rows
        for field in self._fields:
            column = rows.column(field.name)
            self._nulls[field.name] += column.null_count
            if column.null_count == rows.num_rows or field.name in self._unbounded:
                continue
            bounds = _maybe_bounds(column)
            if bounds is None:
                self._unbounded.add(field.name)
                continue
            low, high = self._bounds.get(field.name, bounds)
            self._bounds[field.name] = min(low, bounds[0]), max(high, bounds[1])

    def document(self) -> dict[str, Any]:
        """Return the entry for a commit."""
        least, most = {}, {}
        for name, bounds in self._bounds.items():
            low, high = map(_said, bounds)
            if name not in self._unbounded and low is not None and high is not None:
                least[name], most[name] = low, high
        return {"numRecords": self.rows, "minValues": least, "maxValues": most, "nullCount": self._nulls}


def _maybe_bounds(column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """Return the least and the largest value; None: they are not said."""
    if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
        return None
    try:
        found = pc.min_max(column).as_py()
    except (OverflowError, ValueError):  # a moment that Python does not know
        return None
    return found["min"], found["max"]


def _described(path: str, day: str | None, size: int, statistics: dict[str, Any], *, is_new: bool) -> Written:
    """Return a file and its entry for a commit. `is_new`: its rows were in no file of the table before."""
    entry = {
        "path": path,
        "size": size,
        "partition_values": {} if day is None else {PUBLISH_DATE: day},
        "modification_time": int(time.time() * 1000),
        "data_change": is_new,
        "stats": json.dumps(statistics),
    }
    return Written(path, entry)


def _grouped(parts: Iterable[pa.Table], size_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows of `parts` in tables of about a size, as they are in memory; nothing without rows."""
    held: list[pa.Table] = []
    size = 0
    for part in parts:
        if not part.num_rows:
            continue
        if held and part.schema != held[0].schema:  # the next file has other columns
            yield pa.concat_tables(held)
            held, size = [], 0
        held.append(part)
        size += part.nbytes
        if size >= size_bytes:
            yield pa.concat_tables(held)
            held, size = [], 0
    if held:
        yield pa.concat_tables(held)


class _File:
    """A file that is being written. If it is not completed, it does not exist."""

    def __init__(self, stream: Any, schema: pa.Schema) -> None:
        self._sink = _Sink(stream)
        self._writer = pq.ParquetWriter(pa.PythonFile(self._sink, "w"), schema, compression="zstd")
        self._statistics = Statistics(schema)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)
        self._statistics.add(rows)

    def size(self) -> int:
        return self._sink.size

    def done(self) -> tuple[int, dict[str, Any]]:
        """Make the file be there; return its size, and its statistics."""
        self._writer.close()
        self._sink.end()
        return self._sink.size, self._statistics.document()


class _Sink:
    """A file that is written from its beginning to its end, for writers that ask for the position."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.size = 0

    def write(self, data: Any) -> int:
        content = bytes(data)
        self._stream.write(content)
        self.size += len(content)
        return len(content)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        """Do nothing: the file is complete when it ends."""

    def close(self) -> None:
        """Do nothing: a file that was not written whole must not be there."""

    def end(self) -> None:
        """Make the file be there."""
        self._stream.close()


def _without(rows: pa.Table, at: int, dropped: pa.Array) -> pa.Table:
    """Return `rows`, the first of which has the number `at`, without those whose numbers are `dropped`."""
    numbers = pa.array(range(at, at + rows.num_rows), pa.int64())
    return rows.filter(pc.invert(pc.is_in(numbers, dropped)))


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
