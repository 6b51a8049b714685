"""A pyarrow dataset that gets the wanted columns and rows before it reads: from DuckDB, Polars, pyarrow itself.

    dataset.scanner(columns, filter)     asked by the engine
      guarantees                         conditions that all rows of a part fulfil: a chunk, a file, a range of offsets
      may_hold(filter, guarantee)        arrow's own simplification: False leaves the part out
      Scanner.from_batches               applies the filter exactly to the rest

1. Leaving out a part is an optimization only: the filter is applied to all rows that are read.
2. A dataset can be scanned any number of times, by any thread; each scan reads again.
3. The batches of `reader` are made when they are asked for. Those of a scanner are made by a thread of Arrow's, which
   lets some forty pile up, whatever its settings.
4. `failure` is the error that ended a scan: engines turn errors of Python into texts of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

_PARQUET: Final = ds.ParquetFileFormat()
_NOWHERE: Final = fs.LocalFileSystem()


class PushdownDataset(ds.Dataset, ABC):  # type: ignore[misc]
    """The common part of datasets of streams and tables. `schema`: of all columns."""

    def __init__(self, schema: pa.Schema) -> None:  # that of pyarrow forbids to be called
        self._columns = schema
        self.failure: BaseException | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._columns

    @abstractmethod
    def batches(self, columns: pa.Schema, filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Yield rows with `columns`: all for which `filter` holds, and maybe others."""

    def scanner(self, columns: Any = None, filter: pc.Expression | None = None, **_: object) -> ds.Scanner:
        """Return a scanner. `columns`: names, or expressions by name; None: all of them. Other options are of files."""
        wanted = self._needed(columns, filter)
        return ds.Scanner.from_batches(
            self._watched(wanted, filter),
            schema=wanted,
            columns=columns,
            filter=filter,
            use_threads=False,
        )

    def reader(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None) -> pa.RecordBatchReader:
        """Return the rows for which `filter` holds, in batches that are made when they are asked for."""
        wanted = self._needed(columns, filter)
        names = self._columns.names if columns is None else list(columns)

        def rows() -> Iterator[pa.RecordBatch]:
            for batch in self._watched(wanted, filter):
                table = pa.Table.from_batches([batch])
                yield from (table if filter is None else table.filter(filter)).select(names).to_batches()

        return pa.RecordBatchReader.from_batches(pa.schema([self._columns.field(name) for name in names]), rows())

    def count_rows(self, filter: pc.Expression | None = None, **_: object) -> int:
        """Return the number of rows for which `filter` holds."""
        return sum(batch.num_rows for batch in self.scanner(self._columns.names[:1], filter).to_batches())

    def _watched(self, columns: pa.Schema, filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        try:
            yield from self.batches(columns, filter)
        except (Exception, KeyboardInterrupt) as error:
            self.failure = error
            raise

    def _needed(self, columns: Any, filter: pc.Expression | None) -> pa.Schema:
        """Return the columns that are wanted, and those that the filter may ask for: their names are in its text."""
        if columns is None:
            return self._columns
        is_names = not isinstance(columns, dict)
        texts = [] if is_names else [str(each) for each in columns.values()]
        texts += [] if filter is None else [str(filter)]
        return pa.schema(
            [
                field
                for field in self._columns
                if (is_names and field.name in columns) or any(field.name in text for text in texts)
            ]
        )


def may_hold(filter: pc.Expression | None, schema: pa.Schema, guarantee: pc.Expression) -> bool:
    """Tell whether `filter` can be true for a row of which `guarantee` is."""
    if filter is None:
        return True
    fragment = _PARQUET.make_fragment("", _NOWHERE, partition_expression=guarantee)  # no file is looked for
    one = ds.FileSystemDataset([fragment], schema, _PARQUET, _NOWHERE)
    return next(iter(one.get_fragments(filter=filter)), None) is not None


def between(field: pa.Field, low: Any, high: Any) -> pc.Expression:
    """Return the guarantee that values of `field` are from `low` to `high`, both included."""
    values = pc.field(field.name)
    return (values >= pa.scalar(low, field.type)) & (values <= pa.scalar(high, field.type))


def narrowed(
    filter: pc.Expression | None,
    schema: pa.Schema,
    column: str,
    first: int,
    end: int,
    others: Sequence[pc.Expression] = (),
) -> tuple[int, int]:
    """Return values of `column` within [first, end) outside of which `filter` holds for no row; equal ones: for none.

    `others`: further guarantees for all these rows.
    """

    def may_be_in(low: int, high: int) -> bool:
        guarantee = between(schema.field(column), low, high - 1)
        for other in others:
            guarantee = guarantee & other
        return may_hold(filter, schema, guarantee)

    if filter is None or column not in str(filter):
        others_hold = not others or may_be_in(first, end)
        return (first, end) if others_hold else (first, first)
    if first >= end or not may_be_in(first, end):
        return first, first
    low, high = first, end  # nothing is in [first, low), something may be in [first, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if may_be_in(first, middle) else (middle, high)
    begin = low
    low, high = begin, end  # something may be in [low, end), nothing in [high, end)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if may_be_in(middle, end) else (low, middle)
    # Of a filter that contradicts itself it can be found out for a few rows only.
    return (begin, high) if may_be_in(begin, high) else (first, first)
