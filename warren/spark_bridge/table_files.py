"""Files of rows: Parquet, Arrow, JSON lines and CSV, written with exact knowledge of their content.

1. Every octet passes a `Sink`, which counts and sums it; `close` returns when the file is on disk.
2. Rows are gathered into groups of up to `GROUP_ROWS` or `GROUP_BYTES`: memory holds at most one group.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa

from warren.spark_bridge.bridge_errors import BridgeError, UsageError
from warren.spark_bridge.places import first_line
from warren.spark_bridge.text_rows import csv_rows, json_lines

PARQUET: Final = "parquet"
ARROW: Final = "arrow"
JSON: Final = "json"
CSV: Final = "csv"
DELTA: Final = "delta"
FORMATS: Final = (PARQUET, JSON, CSV, ARROW, DELTA)
# The possible compressions of each format; the first is the default.
COMPRESSIONS: Final = {
    PARQUET: ("zstd", "snappy", "gzip", "lz4", "none"),
    ARROW: ("zstd", "lz4", "none"),
    JSON: ("none", "gzip", "zstd"),
    CSV: ("none", "gzip", "zstd"),
    DELTA: ("zstd", "snappy", "gzip", "none"),
}
GROUP_ROWS: Final = 1 << 18
GROUP_BYTES: Final = 64 << 20
_ENDINGS: Final = {"none": "", "gzip": ".gz", "zstd": ".zst"}


class Written(NamedTuple):
    """A finished file."""

    rows: int
    bytes: int
    crc32: int


class Sink:
    """A file that is being written."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("wb")
        self.bytes = 0
        self.crc32 = 0
        self._is_dropped = False

    def write(self, data: Any) -> int:
        """Write all of `data`."""
        size: int = memoryview(data).nbytes
        if self._is_dropped:
            return size
        self.crc32 = zlib.crc32(data, self.crc32)
        self._file.write(data)
        self.bytes += size
        return size

    def flush(self) -> None:
        if not self._is_dropped:
            self._file.flush()

    def tell(self) -> int:
        return self.bytes

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    @property
    def closed(self) -> bool:
        return False

    def sync(self) -> None:
        """Sync the file to disk, and close it."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def drop(self) -> None:
        """Close the file as it is, on a full disk, too; later writes are discarded."""
        self._is_dropped = True
        with suppress(OSError):  # it would write the rest
            self._file.close()

    def close(self) -> None:
        """Do nothing: Arrow closes its target, and this must be on disk first."""


class TableFile:
    """One file of rows in the making."""

    def __init__(self, path: Path, form: str, schema: pa.Schema, compression: str) -> None:
        self.rows = 0
        self._sink = Sink(path)
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._ratio = 1.0  # bytes on disk of a byte in memory, as it was so far
        self._encoded_bytes = 0
        self._out = pa.PythonFile(self._sink, mode="w")
        self._encoder = _ENCODERS[form](self._out, schema, compression)

    @property
    def bytes(self) -> int:
        """The approximate size of the file, with the rows that still wait."""
        return self._sink.bytes + int(self._waiting_bytes * self._ratio)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        self.rows += batch.num_rows
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._encoder.write(pa.Table.from_batches(self._waiting, self._schema))
            self._encoded_bytes += self._waiting_bytes
            self._ratio = self._sink.bytes / max(1, self._encoded_bytes)
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> Written:
        """Complete the file and return when it is on disk."""
        self._flush()
        self._encoder.close()
        if not self._out.closed:
            self._out.flush()
        self._sink.sync()
        return Written(self.rows, self._sink.bytes, self._sink.crc32)

    def abandon(self) -> None:
        """Leave the file as it is; it will be deleted later."""
        self._sink.drop()
        self._encoder.close()  # or it would try when it is collected


class _Parquet:
    def __init__(self, out: Any, schema: pa.Schema, compression: str) -> None:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(out, schema, compression=compression, store_schema=True)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))

    def close(self) -> None:
        self._writer.close()


class _Arrow:
    def __init__(self, out: Any, schema: pa.Schema, compression: str) -> None:
        options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
        self._writer = pa.ipc.new_file(out, schema, options=options)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows.combine_chunks())

    def close(self) -> None:
        self._writer.close()


class _Json:
    def __init__(self, out: Any, schema: pa.Schema, compression: str) -> None:
        self._out = out if compression == "none" else pa.CompressedOutputStream(out, compression)

    def write(self, rows: pa.Table) -> None:
        for batch in rows.to_batches():
            self._out.write(json_lines(batch))

    def close(self) -> None:
        if isinstance(self._out, pa.CompressedOutputStream):
            self._out.close()


class _Csv:
    def __init__(self, out: Any, schema: pa.Schema, compression: str) -> None:
        import pyarrow.csv as csv

        self._out = out if compression == "none" else pa.CompressedOutputStream(out, compression)
        empty = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
        self._writer = csv.CSVWriter(self._out, csv_rows(empty).schema)

    def write(self, rows: pa.Table) -> None:
        for batch in rows.to_batches():
            self._writer.write_batch(csv_rows(batch))

    def close(self) -> None:
        self._writer.close()
        if isinstance(self._out, pa.CompressedOutputStream):
            self._out.close()


_ENCODERS: Final[dict[str, Any]] = {PARQUET: _Parquet, ARROW: _Arrow, JSON: _Json, CSV: _Csv}


def ending(form: str, compression: str) -> str:
    """Return how the names of files of a format end."""
    return f".{form}{_ENDINGS[compression]}" if form in (JSON, CSV) else f".{form}"


def checked_compression(form: str, compression: str | None) -> str:
    """Return the compression of files of a format.

    Raises:
        UsageError: the format is unknown, or cannot be compressed this way.
    """
    known = COMPRESSIONS.get(form)
    if known is None:
        raise UsageError(f"format {form!r}: must be one of {', '.join(FORMATS)}")
    if compression is None:
        return known[0]
    if compression not in known:
        raise UsageError(f"compression {compression!r}: for {form} it must be one of {', '.join(known)}")
    return compression


def count_rows(path: Path, form: str) -> int | None:
    """Return the number of rows that a file declares; None when one would have to read all of it."""
    if form == PARQUET:
        import pyarrow.parquet as pq

        return int(pq.read_metadata(path).num_rows)
    if form == ARROW:
        with pa.memory_map(str(path)) as held:
            reader = pa.ipc.open_file(held)
            return sum(int(reader.get_batch(number).num_rows) for number in range(reader.num_record_batches))
    return None


def crc_of(path: Path) -> int:
    """Return the CRC-32 of a file."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


@contextmanager
def delta_errors(directory: Path) -> Iterator[None]:
    """Say of errors of deltalake, which has its own for disks, which table they are about."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except DeltaError as error:
        raise BridgeError(f"{directory}: {first_line(error)}") from None
