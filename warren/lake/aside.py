"""Messages that the table of refused messages has of a step that was not completed.

1. A step that was killed may have committed refused messages and no rows. The steps after it read these messages again,
   in another portion, by another schema or with other answers of a registry. So what is there is looked up, not
   decided again: it is neither refused once more, nor a row.
2. A message is known by its offset and its time: a stream that was created again has other times for the same offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import pyarrow as pa

from warren.lake.ranges import Range
from warren.lake.table import Table

_KEYS: Final = ("queue", "partition", "offset", "timestamp")

Key = tuple[str, int, int, int]


def keys_within(table: Table, ranges: Iterable[Range]) -> frozenset[Key]:
    """Return the keys of the rows of a table that are messages of `ranges`."""
    wanted = {(each.queue, each.partition): each for each in ranges}
    found: set[Key] = set()
    for file in table.files() if wanted else ():
        for rows in table.read(file, _KEYS):
            for key in _keys(rows):
                each = wanted.get(key[:2])
                if each is not None and each.first <= key[2] < each.end:
                    found.add(key)
    return frozenset(found)


def without(rows: pa.Table, keys: Collection[Key]) -> pa.Table:
    """Return `rows` without those of `keys`."""
    return rows.filter(pa.array([key not in keys for key in _keys(rows)], pa.bool_())) if keys else rows


def _keys(rows: pa.Table) -> Iterable[Key]:
    columns = [rows.column(name) for name in _KEYS]
    columns[-1] = columns[-1].cast(pa.int64())  # a moment may be one that Python does not know
    return zip(*(column.to_pylist() for column in columns), strict=True)
