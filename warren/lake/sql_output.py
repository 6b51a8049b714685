"""Rows of a query as a table to look at, as CSV, as lines of JSON, or as a Parquet file.

1. Rows are written as they come. A table to look at has at most `TABLE_ROWS` of them, as the width of its columns
   depends on their values.
2. A file appears when it is complete: it is written beside its place, and renamed. If the place is not a file, such as
   /dev/stdout or a named pipe, rows are written into it, and it stays. A link stays, too: the file it leads to is
   replaced.
3. In text, bytes are UTF-8 where they can be, and else `\\x` and hexadecimal digits; lists, maps and structures are
   JSON. Parquet has all values as they are.
4. Days and moments are ISO 8601, those too that Python does not know: 57878-05-28T00:00:00.000000Z.
5. A terminal gets no control characters, since any publisher may have put them into a value or, by a PIVOT, into the
   name of a column. A table shows them escaped. CSV on a terminal does so too, except for tabs and newlines.
6. JSON is JSON: a number that is not finite is a text, "NaN" or "Infinity", and so is the key of a map.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa

from warren.spark_bridge.bridge_errors import UsageError
from warren.spark_bridge.text_rows import with_four_digits

TABLE: Final = "table"
CSV: Final = "csv"
JSON: Final = "json"
PARQUET: Final = "parquet"
FORMATS: Final = (TABLE, CSV, JSON, PARQUET)
TABLE_ROWS: Final = 1000
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NOT_IN_CSV: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_RAW_IN_JSON: Final = re.compile(r"[\x7f-\x9f]")
_NO_WIDTH: Final = 1_000_000


def form_of(form: str | None, to: Path | None) -> str:
    """Return the format that is asked for: by its name, or by the end of the name of the file.

    Raises:
        UsageError: the format is unknown, or needs a file.
    """
    if form is None and to is not None:
        form = to.suffix.lstrip(".").lower()
        if form not in FORMATS or form == TABLE:
            raise UsageError(
                f"--to {to}: --format says what it is to be, or a name that ends in .parquet, .csv or .json"
            )
    form = form or TABLE
    if form not in FORMATS:
        raise UsageError(f"--format {form}: must be one of {', '.join(FORMATS)}")
    if form == PARQUET and to is None:
        raise UsageError("--format parquet needs a file: --to FILE")
    return form


def write(rows: pa.RecordBatchReader, form: str, to: Path | None) -> int:
    """Write rows into a file, or to standard output, and return their number.

    Raises:
        UsageError: two columns have one name, and JSON would have one of them. OSError: it cannot be written.
    """
    names = rows.schema.names
    if form == JSON and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"two columns are called {twice!r}: give one of them another name, as in SELECT x AS y")
    if form == PARQUET:
        assert to is not None
        with _file(to) as opened:
            return _parquet(rows, opened)
    made = {TABLE: _table, CSV: _csv, JSON: _json}[form]
    if to is None:
        return made(rows, sys.stdout)
    with _file(to) as opened, io.TextIOWrapper(opened, "utf-8", newline="", write_through=True) as text:
        return made(rows, text)


@contextmanager
def _file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that becomes `path` when all goes well."""
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as opened:
            yield opened
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("xb") as opened:
            yield opened
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _parquet(rows: pa.RecordBatchReader, opened: IO[bytes]) -> int:
    import pyarrow.parquet as pq

    count = 0
    with pq.ParquetWriter(opened, rows.schema, compression="zstd") as writer:
        for batch in rows:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _csv(rows: pa.RecordBatchReader, text: IO[str]) -> int:
    # With the line ends of csv's default: csv quotes texts that contain them.
    writer = csv.writer(_Lines(text))
    is_looked_at = text.isatty()

    def texts(row: Iterable[Any]) -> list[str]:
        return [_NOT_IN_CSV.sub(_escaped, each) for each in _texts(row)] if is_looked_at else _texts(row)

    writer.writerow(texts(rows.schema.names))
    return _each(rows, lambda values: writer.writerows(map(texts, values)))


class _Lines:
    """Takes lines that end in CR and LF, and writes them with LF."""

    def __init__(self, text: IO[str]) -> None:
        self._text = text

    def write(self, line: str) -> int:
        """Write one line."""
        return self._text.write(line.removesuffix("\r\n") + "\n")


def _json(rows: pa.RecordBatchReader, text: IO[str]) -> int:
    names = rows.schema.names

    def some(values: Iterable[tuple[Any, ...]]) -> None:
        for row in values:
            text.write(_json_text(dict(zip(names, row, strict=True))) + "\n")

    return _each(rows, some)


def _table(rows: pa.RecordBatchReader, text: IO[str]) -> int:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    values = (row for batch in rows for row in _rows(batch))
    first = list(islice(values, TABLE_ROWS))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for field in rows.schema:
        is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        table.add_column(Text(_CONTROL.sub(_escaped, field.name)), justify="right" if is_number else "left")
    for row in first:
        table.add_row(*[Text(_CONTROL.sub(_escaped, each)) for each in _texts(row)])
    Console(file=text, width=None if text.isatty() else _NO_WIDTH).print(table)
    if next(values, None) is not None:
        print(f"only the first {TABLE_ROWS} rows are shown; --format csv has all of them", file=sys.stderr)
    return len(first)


def _each(rows: pa.RecordBatchReader, take: Callable[[Iterable[tuple[Any, ...]]], None]) -> int:
    count = 0
    for batch in rows:
        take(_rows(batch))
        count += batch.num_rows
    return count


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a batch as values of Python, maps as dictionaries."""
    columns = []
    for field, values in zip(batch.schema, batch.columns, strict=True):
        found = _values(field, values)
        columns.append([None if each is None else _map(each) for each in found] if _is_map(field.type) else found)
    if not columns:
        return iter([()] * int(batch.num_rows))
    return zip(*columns, strict=True)


def _values(field: pa.Field, values: pa.Array) -> list[Any]:
    """Return values of Python; of days and moments that it does not know their texts.

    Raises:
        UsageError: they are within other values.
    """
    try:
        return list(values.to_pylist())
    except (OverflowError, ValueError):
        kind = field.type
    if pa.types.is_timestamp(kind):
        numbers, unit, zone = values.cast(pa.int64()), kind.unit, "" if kind.tz is None else "Z"
    elif pa.types.is_date32(kind):
        numbers, unit, zone = values.cast(pa.int32()), "D", ""
    else:
        raise UsageError(f"column {field.name!r} has values that cannot be shown; --to FILE.parquet has them")
    texts = map(with_four_digits, np.datetime_as_string(numbers.fill_null(0).to_numpy().astype(f"M8[{unit}]")).tolist())
    return [text + zone if there else None for text, there in zip(texts, values.is_valid().to_pylist(), strict=True)]


def _map(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    return {_text(key): value for key, value in pairs}


def _is_map(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind))


def _texts(row: Iterable[Any]) -> list[str]:
    return ["" if value is None else _text(value) for value in row]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return "\\x" + value.hex()
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, dict | list | tuple):
        return _json_text(value)
    return str(value)


def _json_text(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_text)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=_text)
    return _RAW_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _finite(value: Any) -> Any:
    """Return `value` with texts for the numbers that JSON does not know."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _escaped(found: re.Match[str]) -> str:
    return {"\n": "\\n", "\t": "\\t"}.get(found[0], f"\\x{ord(found[0]):02x}")
