"""Rows out of files, as they can be published again: written by `warren export`, or by other programs.

1. Files are always read in the same order and in the same pieces: a reader that continues at a row sees the pieces that
   it would have seen.
2. Columns that do not belong to a message are ignored, and so are the columns that a reader adds to a message. Each
   other column has the type that the schema gives it; headers may have any of their formats.
3. A number is not accepted as a time: its unit is unknown.
4. A row that cannot be understood is an error that names file and row.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from warren.spark_bridge.bridge_errors import BridgeError, UsageError
from warren.spark_bridge.schema import MAP, PROPERTY_COLUMNS, TIMESTAMP_TYPE, TYPED, arrow_type
from warren.spark_bridge.table_files import ARROW, CSV, DELTA, JSON, PARQUET, delta_errors
from warren.spark_bridge.text_rows import BODY_BASE64

PIECE_BYTES: Final = 8 << 20
PIECE_ROWS: Final = 16384
BATCH_ROWS: Final = 128  # to take of a row group at a time
READ_BYTES: Final = 1 << 20
MESSAGE_COLUMNS: Final = ("exchange", "routing_key", "body", *PROPERTY_COLUMNS)
_ENDINGS: Final = {
    ".parquet": PARQUET,
    ".arrow": ARROW,
    ".feather": ARROW,
    ".json": JSON,
    ".jsonl": JSON,
    ".ndjson": JSON,
    ".csv": CSV,
}
_NEVER_NULL: Final = ("exchange", "routing_key")
_STRADDLES: Final = "straddl"
_BLOCK_BYTES_MAX: Final = (1 << 31) - 1
_COMPRESSED: Final = (".gz", ".zst")
_TIME: Final = re.compile(r"(-?\d{4,})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?Z?")
_NO_UNIT: Final = "a number does not say its unit: give times as timestamps, or as texts such as 2026-11-22T08:00:00Z"
_DAYS_TO_1970: Final = 719_468


class DamagedFile(BridgeError):
    """A file with missing or invalid content."""


class SourceFile(NamedTuple):
    """A file of rows. `partition`: columns that are not in it, with the value that all of its rows have.

    `headers`: the format that they were written in; None when it is unknown.
    """

    path: Path
    form: str
    partition: Mapping[str, str | None] = {}
    headers: str | None = None


def form_of(path: Path) -> str | None:
    """Return the format that the name of a file stands for, None for an unknown format."""
    name = path.name.lower()
    for ending in _COMPRESSED:
        name = name.removesuffix(ending)
    return _ENDINGS.get(Path(name).suffix)


def read_pieces(source: SourceFile, wanted: frozenset[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in pieces of about `PIECE_BYTES`, with those of the columns `wanted` that it has.

    Raises:
        DamagedFile: it cannot be read.
    """
    read = {PARQUET: _parquet, ARROW: _arrow, JSON: _json_lines, CSV: _csv}[source.form]
    at = 0
    try:
        for batch in read(source.path, wanted):
            made = _as_messages(batch, source, wanted, at)
            at += batch.num_rows
            yield made
    except FileNotFoundError:
        raise
    # A name that two columns have is a KeyError of Arrow.
    except (OSError, pa.ArrowException, UnicodeError, RecursionError, KeyError) as error:
        raise DamagedFile(f"{source.path}, behind row {at}: {error}") from None


def delta_pieces(directory: Path, version: int | None, wanted: frozenset[str]) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Return the version of a Delta table, the latest one for None, and its rows in pieces."""
    try:
        import deltalake
    except ImportError:
        raise UsageError(f"format {DELTA} needs the package deltalake: pip install deltalake") from None
    from pyarrow.dataset import ParquetFragmentScanOptions

    # Arrow would read ahead a whole row group.
    options = ParquetFragmentScanOptions(use_buffered_stream=True, buffer_size=READ_BYTES, pre_buffer=False)
    with delta_errors(directory):
        table = deltalake.DeltaTable(str(directory), version=version)
        dataset = table.to_pyarrow_dataset()

    def pieces() -> Iterator[pa.RecordBatch]:
        names = [name for name in dataset.schema.names if name in wanted]
        source = SourceFile(directory, DELTA)
        for fragment in sorted(dataset.get_fragments(), key=lambda found: str(found.path)):
            try:
                batches = fragment.to_batches(
                    schema=dataset.schema,
                    columns=names,
                    batch_size=min(BATCH_ROWS, PIECE_ROWS),
                    batch_readahead=1,
                    fragment_scan_options=options,
                    use_threads=False,
                )
                for piece in _joined(batches):
                    yield _as_messages(piece, source, wanted, 0)
            except pa.ArrowException as error:
                raise DamagedFile(f"{directory}/{fragment.path}: {error}") from None

    return int(table.version()), pieces()


def _parquet(path: Path, wanted: frozenset[str]) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    # Arrow would read ahead a whole row group.
    with pq.ParquetFile(path, buffer_size=READ_BYTES, pre_buffer=False) as file:
        names = [name for name in file.schema_arrow.names if name in wanted]
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            # That size may be far too small, as equal values are stored once.
            rows = group.num_rows * PIECE_BYTES // max(1, group.total_byte_size)
            rows = max(1, min(rows, BATCH_ROWS, PIECE_ROWS))
            yield from _joined(file.iter_batches(batch_size=rows, row_groups=[number], columns=names))


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield small batches together, up to what a piece may have."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if held and (rows + batch.num_rows > PIECE_ROWS or size + batch.nbytes > PIECE_BYTES):
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if held:
        yield pa.concat_batches(held)


def _arrow(path: Path, wanted: frozenset[str]) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as held:
        file = pa.ipc.open_file(held)
        names = [name for name in file.schema.names if name in wanted]
        for number in range(file.num_record_batches):
            batch = file.get_batch(number).select(names)
            batch.validate(full=True)  # it is the file as it lies there, and others would read beyond it
            rows = max(1, min(PIECE_ROWS, batch.num_rows * PIECE_BYTES // max(1, batch.nbytes)))
            for first in range(0, batch.num_rows, rows):
                yield batch.slice(first, rows)


def _csv(path: Path, wanted: frozenset[str]) -> Iterator[pa.RecordBatch]:
    done = 0
    block_bytes = PIECE_BYTES
    while True:
        at = 0
        try:
            for batch in _csv_blocks(path, block_bytes):
                at += batch.num_rows
                if at > done:
                    left = batch.slice(max(0, batch.num_rows - (at - done)))
                    names = [name for name in left.schema.names if name in wanted or name == BODY_BASE64]
                    done = at
                    yield left.select(names)
            return
        except pa.ArrowInvalid as error:
            # A row that is larger than a block: the same again with larger ones, from where this one ended.
            if _STRADDLES not in str(error) or block_bytes >= _BLOCK_BYTES_MAX:
                raise
            block_bytes = min(2 * block_bytes, _BLOCK_BYTES_MAX)


def _csv_blocks(path: Path, block_bytes: int) -> Iterator[pa.RecordBatch]:
    import pyarrow.csv as csv

    with pa.input_stream(str(path), compression="detect") as stream:
        if not stream.read(1):
            return  # not even a line of names
    with pa.input_stream(str(path), compression="detect") as stream:
        yield from csv.open_csv(
            stream,
            read_options=csv.ReadOptions(block_size=block_bytes),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                # Everything as text; only a missing value is null.
                column_types=dict.fromkeys([*MESSAGE_COLUMNS, BODY_BASE64], pa.string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
            ),
        )


def _json_lines(path: Path, wanted: frozenset[str]) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    size = 0
    with pa.input_stream(str(path), compression="detect") as stream:
        for number, line in enumerate(_lines(stream)):
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("no JSON object")
            except (ValueError, RecursionError) as error:
                raise DamagedFile(f"{path}, row {number}: {error}") from None
            rows.append(row)
            size += len(line)
            if size >= PIECE_BYTES or len(rows) >= PIECE_ROWS:
                yield _rows_as_columns(rows, wanted)
                rows, size = [], 0
    if rows:
        yield _rows_as_columns(rows, wanted)


def _lines(stream: Any) -> Iterator[bytes]:
    """Yield lines that are not empty."""
    rest = b""
    while block := stream.read(1 << 20):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
    if rest.strip():
        yield rest


def _rows_as_columns(rows: list[dict[str, Any]], wanted: frozenset[str]) -> pa.RecordBatch:
    """Return rows of JSON as columns of texts; a value that is not a text becomes its JSON."""
    columns: dict[str, pa.Array] = {}
    for name in (*MESSAGE_COLUMNS, BODY_BASE64):
        if name not in wanted and name != BODY_BASE64:
            continue
        values = [row.get(name) for row in rows]
        if all(value is None for value in values):
            if any(name in row for row in rows):
                columns[name] = pa.nulls(len(rows), pa.string())
            continue
        texts = [
            value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for value in values
        ]
        columns[name] = pa.array(texts, pa.string())
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    return pa.RecordBatch.from_pydict(columns)


# --- types -------------------------------------------------------------------------------------------------------


def _as_messages(batch: pa.RecordBatch, source: SourceFile, wanted: frozenset[str], at: int) -> pa.RecordBatch:
    """Return a batch with the columns of a message, each of the type that it should have."""
    columns: dict[str, pa.Array] = {}
    for name in MESSAGE_COLUMNS:
        if name not in wanted:
            continue
        try:
            if name == "body":
                found = _body(batch)
                if found is not None and source.form == CSV:
                    found = found.fill_null(b"")  # other programs' CSV has the same for empty and for missing
            elif name in batch.schema.names:
                found = _column(name, batch.column(name), source.headers)
            elif name in source.partition:
                value = pa.scalar(source.partition[name], pa.string())
                found = _column(name, pa.repeat(value, batch.num_rows), source.headers)
            else:
                continue
            if found is not None and name in _NEVER_NULL and (source.form == DELTA or name in source.partition):
                found = found.fill_null("")  # directories of Spark and Delta have the same for empty and for null
        except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
            raise DamagedFile(f"{source.path}, behind row {at}: column {name}: {error}") from None
        if found is not None:
            columns[name] = found
    if "body" not in columns:
        raise UsageError(f"{source.path} has no column body")
    return pa.RecordBatch.from_pydict(columns)


def _body(batch: pa.RecordBatch) -> pa.Array | None:
    names = batch.schema.names
    if "body" not in names and BODY_BASE64 not in names:
        return None
    whole = batch.column("body").cast(pa.binary()) if "body" in names else pa.nulls(batch.num_rows, pa.binary())
    if BODY_BASE64 in names:
        encoded = batch.column(BODY_BASE64).to_pylist()
        if any(value is not None for value in encoded):
            bodies = [
                # Spark breaks lines as MIME does.
                body if other is None else base64.b64decode(other.replace("\r\n", ""), validate=True)
                for body, other in zip(whole.to_pylist(), encoded, strict=True)
            ]
            whole = pa.array(bodies, pa.binary())
    return whole


def _column(name: str, values: pa.Array, headers_format: str | None) -> pa.Array:
    if name == "headers":
        return _headers(values, headers_format)
    wanted = arrow_type(name)
    if values.type == wanted:
        return values
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if wanted == TIMESTAMP_TYPE and (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        if values.null_count < len(values):
            raise ValueError(f"{_NO_UNIT}, not {values.type}")
        return pa.nulls(len(values), TIMESTAMP_TYPE)
    if wanted == TIMESTAMP_TYPE and pa.types.is_string(values.type):
        return _times(values)
    if wanted == TIMESTAMP_TYPE and pa.types.is_timestamp(values.type) and values.type.tz is None:
        return values.cast(pa.timestamp("us")).view(TIMESTAMP_TYPE)
    return values.cast(wanted)


def _times(texts: pa.Array) -> pa.Array:
    try:
        return texts.cast(TIMESTAMP_TYPE)
    except pa.ArrowInvalid:
        micros = [None if text is None else micros_of(text) for text in texts.to_pylist()]
        return pa.array(micros, pa.int64()).view(TIMESTAMP_TYPE)


def micros_of(text: str) -> int:
    """Return the microseconds since 1970 of a time in ISO 8601, of any year; UTC unless it names a zone.

    Raises:
        ValueError: the text is not such a time.
    """
    found = _TIME.fullmatch(text)
    if text.lstrip("-").isdigit():  # Python takes some for dates
        raise ValueError(f"{text!r}: {_NO_UNIT}")
    if found is None:
        time = datetime.fromisoformat(text)
        offset = time.utcoffset() or timedelta(0)
        return (time.replace(tzinfo=None) - offset - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    year, month, day, hour, minute, second = (int(found[number]) for number in range(1, 7))
    if not (1 <= month <= 12 and 1 <= day <= 31):
        raise ValueError(f"{text!r} is not a time")
    # Days of a calendar whose years begin in March, so that the leap day is the last of them.
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - _DAYS_TO_1970
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second
    micros = seconds * 1_000_000 + int((found[7] or "").ljust(6, "0"))
    if not -(1 << 63) <= micros < 1 << 63:
        raise ValueError(f"{text!r} is beyond the years -290308 to 294246")
    return micros


def _headers(values: pa.Array, headers_format: str | None) -> pa.Array:
    """Return headers that can be encoded; JSON headers may be the text of a typed column."""
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if headers_format not in (TYPED, None):
            return values.cast(pa.string())
        tables = [None if text is None else _object(text) for text in values.to_pylist()]
        if all(table is None or _is_typed(table) for table in tables):
            rows = [
                None if table is None else [(key, _typed(value)) for key, value in table.items()] for table in tables
            ]
            return pa.array(rows, arrow_type("headers", TYPED))
        return values.cast(pa.string())
    if not pa.types.is_map(kind):
        raise ValueError(f"headers cannot be {kind}")
    wanted = arrow_type("headers", TYPED if pa.types.is_struct(kind.item_type) else MAP)
    return values if kind == wanted else values.cast(wanted)


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"headers are no JSON object: {text[:80]}")
    return found


def _is_typed(table: Mapping[str, Any]) -> bool:
    """Tell whether all values are as the format `typed` has them."""
    fields = {"t", "s", "i", "d", "b", "json"}
    return all(
        isinstance(value, dict) and isinstance(value.get("t"), str) and len(value["t"]) == 1 and fields >= set(value)
        for value in table.values()
    )


def _typed(value: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(value)
    if fields.get("b") is not None:
        fields["b"] = base64.b64decode(fields["b"], validate=True)
    if fields.get("d") is not None:
        fields["d"] = float(fields["d"])
    return fields
