"""Parquet files in parts, whatever their content.

1. A part has about `PART_BYTES`, as it is in memory. The previous row group shows how many rows that are. For the first
   one the header tells the size, which may be far too small: equal values are stored once. So it begins with few rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

PART_BYTES: Final = 4 << 20
ROWS: Final = (16, 8192)  # of a part, at least and at most
FIRST_ROWS: Final = 128


def parts_of(file: pq.ParquetFile, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, maybe of some columns."""
    rows: int | None = None
    least, most = ROWS
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        if rows is None:
            rows = min(FIRST_ROWS, max(least, PART_BYTES * group.num_rows // max(1, group.total_byte_size)))
        size = 0
        for batch in file.iter_batches(batch_size=rows, row_groups=[number], columns=columns):
            size += batch.nbytes
            yield batch
        rows = min(most, max(least, PART_BYTES * group.num_rows // max(1, size)))
