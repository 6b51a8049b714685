"""The operations of any table that follows a source.

1. `append` commits rows, new columns and marks in one step, or nothing. It succeeds only while the table is as it was
   loaded last: any commit of another writer makes it a `Conflict`. It is never repeated by itself: the caller has to
   look first at the current marks.
2. Maintenance never discards marks, and they come with the rows: a reader of the rows of a commit can read its marks.
3. An error other than `Conflict` does not say whether the commit was made.
4. Files of a `Writer` are not in any state of the table until they are added; maintenance finds and removes those that
   never are.
5. Maintenance commits like `append`: a compaction of files that another program has compacted meanwhile is a
   `Conflict`. Programs that do not check this put rows in twice; `suspects` finds such files, and `doubled` takes the
   rows out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from warren.lake.marks import Marks


class Change(NamedTuple):
    """A column that is new, or widened: its name and kind."""

    column: str
    kind: str
    is_new: bool


class Kept(NamedTuple):
    """The results of maintenance: files that became others, removed files and states, and orphans."""

    rewritten: int = 0
    written: int = 0
    expired: int = 0
    deleted: int = 0
    orphans: int = 0


class Written(NamedTuple):
    """A file that is not committed yet: its place, and its entry for a commit."""

    path: str
    entry: Any


class Writer(Protocol):
    """Writes files of a table in the state in which it was made. It can be pickled, and knows no catalogue."""

    def write(self, rows: pa.Table) -> list[Written]:
        """Write `rows`, which have the columns of the table, and return the files."""

    def delete(self, files: Sequence[Written]) -> None:
        """Delete files that will not be added; they need not exist."""


class Table(Protocol):
    """A table that was opened: it is there. Its state is that of the last `load`, or of the last commit of its own."""

    name: str
    can_widen: bool

    def load(self, keys: Sequence[str]) -> None:
        """Load the current state of the table; `keys`: of the wanted marks."""

    def marks(self) -> dict[str, int]:
        """Return the existing marks.

        Raises:
            NotOurs: the table has rows and no marks.
        """

    def columns(self) -> pa.Schema:
        """Return the columns, strings as `pa.string()`."""

    def append(self, rows: pa.Table, marks: Marks, changes: Sequence[Change] = ()) -> None:
        """Commit `rows`, with the columns after `changes`, and all `marks`.

        Raises:
            Conflict: the table is not as it was loaded.
        """

    def writer(self) -> Writer:
        """Return the writer of files for a commit by the owner of the table that its marks name."""

    def add(self, files: Sequence[Written], marks: Marks) -> None:
        """Commit files that were written, and all `marks`.

        Raises:
            Conflict: the table is not as it was loaded.
        """

    def maintain(self, now_s: float) -> Kept:
        """Make large files of small ones, and drop files and snapshots that need not be kept any longer.

        Raises:
            Conflict: the table is not as it was loaded.
        """

    def suspects(self) -> frozenset[str]:
        """Return the files in which another program may have put rows a second time since this was looked at last."""

    def files(self, beside: Collection[str] = ()) -> list[str]:
        """Return the files of the table; those at least that have an offset of one of `beside`, if any are given."""

    def read(self, file: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of a file in parts, in order, maybe of some columns.

        Raises:
            FileNotFoundError: it is not there.
        """

    def drop_rows(self, dropped: Mapping[str, Sequence[int]]) -> None:
        """Commit the files without the rows of these numbers, if there are any. Nothing is suspected then.

        Raises:
            Conflict: the table is not as it was loaded.
        """


def with_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return `rows` with the columns of `schema` in their order; those that it lacks are null."""
    arrays = []
    for field in schema:
        if field.name in rows.column_names:
            arrays.append(rows.column(field.name).cast(field.type))
        else:
            arrays.append(pa.nulls(rows.num_rows, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def changed(schema: pa.Schema, changes: Sequence[Change], types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return `schema` after `changes`; `types`: the Arrow type of each kind."""
    for change in changes:
        field = pa.field(change.column, types[change.kind])
        at = len(schema) if change.is_new else schema.get_field_index(change.column)
        schema = schema.insert(at, field) if change.is_new else schema.set(at, field)
    return schema
