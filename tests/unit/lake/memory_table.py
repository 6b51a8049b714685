"""A table in memory, with the rules of real ones; several programs may have it open."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from warren.lake.kinds import ARROW
from warren.lake.marks import Marks
from warren.lake.table import Change, Kept, Written, changed
from warren.lake.table_errors import Conflict, NotOurs


@dataclass
class Stored:
    """The stored state of a table."""

    schema: pa.Schema
    version: int = 0
    marks: dict[str, int] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)


class MemoryTable:
    """One that was opened."""

    can_widen = True

    def __init__(self, name: str, stored: Stored) -> None:
        self.name = name
        self.stored = stored
        self._seen = Stored(stored.schema, stored.version, dict(stored.marks))

    def load(self, keys: Sequence[str]) -> None:
        stored = self.stored
        self._seen = Stored(stored.schema, stored.version, dict(stored.marks))

    def marks(self) -> dict[str, int]:
        if self.stored.rows and not self.stored.marks:
            raise NotOurs(self.name)
        return self._seen.marks

    def columns(self) -> pa.Schema:
        return self._seen.schema

    def append(self, rows: pa.Table, marks: Marks, changes: Sequence[Change] = ()) -> None:
        stored = self.stored
        if stored.version != self._seen.version:
            raise Conflict(self.name)
        stored.schema = changed(stored.schema, changes, ARROW)
        assert rows.schema.names == stored.schema.names
        stored.rows += rows.to_pylist()
        stored.marks |= marks
        stored.version += 1
        self.load(())

    def writer(self) -> MemoryWriter:
        return MemoryWriter(self.columns())

    def add(self, files: Sequence[Written], marks: Marks) -> None:
        parts = [file.entry for file in files] or [self.columns().empty_table()]
        self.append(pa.concat_tables(parts), marks)

    def maintain(self, now_s: float) -> Kept:
        return Kept()

    def suspects(self) -> frozenset[str]:
        return frozenset()

    def files(self, beside: Collection[str] = ()) -> list[str]:
        return ["memory"] if self.stored.rows else []

    def read(self, file: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        rows = pa.Table.from_pylist(self.stored.rows, self.stored.schema)
        yield rows if columns is None else rows.select(columns)

    def drop_rows(self, dropped: Mapping[str, Sequence[int]]) -> None:
        gone = set(dropped.get("memory", ()))
        self.stored.rows = [row for number, row in enumerate(self.stored.rows) if number not in gone]
        self.stored.version += 1
        self.load(())


class MemoryWriter:
    """Files are the rows themselves."""

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = columns
        self.deleted: list[Written] = []

    def write(self, rows: pa.Table) -> list[Written]:
        assert rows.schema.names == self._columns.names
        return [Written("memory", rows)] if rows.num_rows else []

    def delete(self, files: Sequence[Written]) -> None:
        self.deleted += files


class MemoryTables:
    """Two tables, opened any number of times."""

    def __init__(self) -> None:
        self.main: Stored | None = None
        self.aside: Stored | None = None

    def __call__(self, columns: pa.Schema, refused: pa.Schema | None) -> tuple[MemoryTable, MemoryTable | None]:
        self.main = self.main or Stored(columns)
        if refused is None:
            return MemoryTable("main", self.main), None
        self.aside = self.aside or Stored(refused)
        return MemoryTable("main", self.main), MemoryTable("aside", self.aside)

    def rows(self) -> list[dict[str, Any]]:
        return [] if self.main is None else self.main.rows

    def refused(self) -> list[dict[str, Any]]:
        return [] if self.aside is None else self.aside.rows
