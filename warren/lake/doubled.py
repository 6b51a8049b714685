"""Rows that a table has twice, and offsets that it lacks: finding both, and removing the doubled rows.

1. Runs of offsets are examined, one after the other as files have them, and never all rows: memory is for the runs.
2. A row is taken out if another file has one that is the same in every column. Rows that only have their offset in
   common stay: after ``skip_lost`` a stream that was created again begins at 0 again.
3. Rows are removed from suspected files first.
4. Missing offsets are those between the first and the last row of a partition that neither the table nor the table of
   refused messages has. Rows that are missing before the first one cannot be detected.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warren.lake.table import Table

KEYS: Final = ("queue", "partition", "offset")


class Part(NamedTuple):
    """A partition of the source."""

    queue: str
    number: int


class Span(NamedTuple):
    """The offsets from `first` up to, and without, `end`."""

    first: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.first


class Spans:
    """Offsets, as spans that are in order and do not touch."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[Span]:
        return map(Span, self._firsts, self._ends)

    def add(self, span: Span) -> list[Span]:
        """Add offsets, and return those that were there."""
        first, end = span
        at = bisect_left(self._ends, first)
        until = bisect_right(self._firsts, end)
        there = [
            Span(max(first, each), min(end, last))
            for each, last in zip(self._firsts[at:until], self._ends[at:until], strict=True)
            if max(first, each) < min(end, last)
        ]
        if at < until:
            first, end = min(first, self._firsts[at]), max(end, self._ends[until - 1])
        self._firsts[at:until] = [first]
        self._ends[at:until] = [end]
        return there

    def meets(self, span: Span) -> bool:
        """Tell whether one of the offsets is there."""
        at = bisect_right(self._ends, span.first)
        return at < len(self._ends) and self._firsts[at] < span.end

    def has(self, offsets: Any) -> Any:
        """Return which of `offsets`, an array of NumPy, are there."""
        at = np.searchsorted(np.array(self._ends, np.int64), offsets, side="right")
        firsts = np.array([*self._firsts, np.iinfo(np.int64).max], np.int64)
        return firsts[at] <= offsets

    def gaps(self) -> list[Span]:
        """Return the missing offsets between the first and the last one."""
        return [Span(end, first) for end, first in zip(self._ends, self._firsts[1:], strict=False)]


@dataclass
class Found:
    """The findings for a table. `doubled`: by file, which offsets of it are in others, or more than once in itself."""

    held: dict[Part, Spans] = field(default_factory=dict)
    runs: dict[str, list[tuple[Part, Span]]] = field(default_factory=dict)
    doubled: dict[str, list[tuple[Part, Span]]] = field(default_factory=dict)

    def missing(self, *others: Found) -> dict[Part, list[Span]]:
        """Return the offsets that are neither here nor in `others`."""
        found = {}
        for part, held in self.held.items():
            there = Spans()
            for span in [*held, *(span for other in others for span in other.held.get(part, ()))]:
                there.add(span)
            if gaps := there.gaps():
                found[part] = gaps
        return found

    def sharing(self, file: str) -> list[str]:
        """Return the other files that have offsets which are doubled in a file."""
        wanted = _by_part(self.doubled[file])
        return [
            other
            for other, runs in self.runs.items()
            if other != file and any(part in wanted and wanted[part].meets(span) for part, span in runs)
        ]


def _by_part(spans: Iterable[tuple[Part, Span]]) -> dict[Part, Spans]:
    found: dict[Part, Spans] = {}
    for part, span in spans:
        found.setdefault(part, Spans()).add(span)
    return found


def look(table: Table, suspects: Collection[str] = ()) -> Found:
    """Return the findings for a table. `suspects`: files that are examined last, so their rows count as doubled."""
    found = Found()
    for file in sorted(table.files(suspects), key=lambda each: each in suspects):
        runs = list(runs_of(table.read(file, KEYS)))
        found.runs[file] = runs
        for part, span in runs:
            for there in found.held.setdefault(part, Spans()).add(span):
                found.doubled.setdefault(file, []).append((part, there))
    return found


def runs_of(rows: Iterable[pa.Table]) -> Iterator[tuple[Part, Span]]:
    """Yield the offsets of rows as runs without holes; an offset that is there twice is in two runs."""
    offsets: dict[Part, list[Any]] = {}
    for each in rows:
        for named in each.group_by(["queue", "partition"]).aggregate([]).to_pylist():
            part = Part(named["queue"], named["partition"])
            offsets.setdefault(part, []).append(each.filter(_is_of(each, part)).column("offset").to_numpy())
    for part, arrays in offsets.items():
        numbers = np.sort(np.concatenate(arrays))
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        for run in np.split(numbers, breaks):
            yield part, Span(int(run[0]), int(run[-1]) + 1)


def _is_of(rows: pa.Table, part: Part) -> pa.ChunkedArray:
    return pc.and_(pc.equal(rows.column("queue"), part.queue), pc.equal(rows.column("partition"), part.number))


def take_out(table: Table, found: Found) -> int:
    """Take the doubled rows out of a table, and return their number.

    Raises:
        Conflict: the table is not as it was loaded.
    """
    dropped: dict[str, list[int]] = {}
    gone: dict[str, set[int]] = {}
    for file, spans in found.doubled.items():
        # A row that was dropped from another file no longer counts as a copy.
        numbers = _same_elsewhere(table, file, _by_part(spans), found.sharing(file), gone)
        if numbers:
            dropped[file] = numbers
            gone[file] = set(numbers)
    table.drop_rows(dropped)
    return sum(map(len, dropped.values()))


def _same_elsewhere(
    table: Table, file: str, spans: Mapping[Part, Spans], others: Sequence[str], gone: Mapping[str, set[int]]
) -> list[int]:
    """Return the numbers of the rows of a file within `spans` that other files, or the file before them, have."""
    there: set[bytes] = set()
    for other in others:
        there |= {row for number, row in _rows_within(table, other, spans) if number not in gone.get(other, ())}
    numbers = []
    for number, row in _rows_within(table, file, spans):
        if row in there:
            numbers.append(number)
        else:
            there.add(row)
    return numbers


def _rows_within(table: Table, file: str, spans: Mapping[Part, Spans]) -> Iterator[tuple[int, bytes]]:
    """Yield the rows of a file within `spans`: the number of each, and a key that no other row has."""
    at = 0
    for rows in table.read(file):
        wanted = pc.indices_nonzero(_within(rows, spans))
        names = sorted(rows.column_names)
        exact = [_exact(rows.column(name).take(wanted)).to_pylist() for name in names]
        for number, *values in zip(wanted.to_pylist(), *exact, strict=True):
            yield at + number, sha256(repr((names, values)).encode()).digest()
        at += rows.num_rows


def _within(rows: pa.Table, spans: Mapping[Part, Spans]) -> pa.ChunkedArray:
    """Return for each row whether it is within `spans`."""
    offsets = rows.column("offset").to_numpy()
    found = pa.chunked_array([pa.repeat(False, rows.num_rows)])
    for part, held in spans.items():
        found = pc.or_(found, pc.and_(_is_of(rows, part), pa.array(held.has(offsets), pa.bool_())))
    return found


def _exact(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as Python can have each value of it: moments beyond the year 9999 as numbers."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column
