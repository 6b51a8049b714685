"""Delta tables, by deltalake (delta-rs).

1. Each mark is the version of a transaction of its own, ``warren/KEY``: they are in the log and in checkpoints as long
   as the table is, and other writers leave them alone.
2. A commit is tried once, on the version that was loaded: deltalake would else put it behind any commit that it does
   not conflict with.
3. Columns are never widened: the format has no way that all its readers know.
4. What a writer leaves that is killed before its commit is removed after a week, the least that the format asks of a
   VACUUM, since nothing tells whose it is; and only if it is called as deltalake calls its files.
5. Delta has no transforms: a table by days has a column ``publish_date``, a text such as 2026-11-24.
6. Files that are written for a commit to come (`delta_files`) are called and described as those of deltalake.
7. A VACUUM deletes everything again that the log still calls taken out. So the log forgets that an hour after a VACUUM
   could delete it: what one costs does not grow with the age of the table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, Transaction, WriterProperties, write_deltalake
from deltalake import DeltaTable as DeltaTableOfDeltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction
from pyarrow import fs

from warren.lake.delta_files import DeltaWriter, days_of
from warren.lake.errors import Conflict, NotOurs
from warren.lake.marks import Marks
from warren.lake.object_stores import with_environment
from warren.lake.options import DAY, PUBLISH_DATE, TableOptions
from warren.lake.table import Change, Kept, Written

PREFIX: Final = "warren/"
_LOG_KEPT: Final = "interval 30 days"
_TAKEN_OUT: Final = "delta.deletedFileRetentionDuration"
_ORPHAN_HOURS: Final = 7 * 24
_DATA_FILE: Final = re.compile(r"part-\d{5}-[0-9a-f-]{36}-c\d{3}\.(?:\w+\.)?parquet")


def open_table(url: str, storage: dict[str, str], columns: pa.Schema, options: TableOptions) -> DeltaTable:
    """Return the table at `url`, made with `columns` if it is not there."""
    if not DeltaTableOfDeltalake.is_deltatable(url, storage or None):
        fields = list(columns)
        if options.partition_by == DAY:
            fields.append(pa.field(PUBLISH_DATE, pa.string()))
        try:
            DeltaTableOfDeltalake.create(
                url,
                pa.schema(fields),
                mode="error",
                partition_by=[PUBLISH_DATE] if options.partition_by == DAY else None,
                configuration={
                    "delta.checkpointInterval": "50",
                    "delta.logRetentionDuration": _LOG_KEPT,
                    "delta.targetFileSize": str(options.target_file_bytes),
                },
                storage_options=storage or None,
            )
        except DeltaError:
            if not DeltaTableOfDeltalake.is_deltatable(url, storage or None):
                raise
            # Somebody else was faster.
    return DeltaTable(url, storage, options)


class DeltaTable:
    """One table."""

    can_widen = False

    def __init__(self, url: str, storage: dict[str, str], options: TableOptions) -> None:
        self.name = url
        self._storage = storage
        self._options = options
        self._keys: tuple[str, ...] = ()
        self._tidied_at_s = 0.0
        self._table = DeltaTableOfDeltalake(url, storage_options=storage or None)

    def load(self, keys: Sequence[str]) -> None:
        self._keys = tuple(keys)
        self._table = DeltaTableOfDeltalake(self.name, storage_options=self._storage or None)

    def marks(self) -> dict[str, int]:
        found = {}
        for key in self._keys:
            version = self._table.transaction_version(PREFIX + key)
            if version is not None:
                found[key] = int(version)
        if not found and self._table.file_uris():
            raise NotOurs(
                f"table {self.name} has rows, and does not say how far it follows a queue: it was made by another "
                "program. Use another table"
            )
        return found

    def columns(self) -> pa.Schema:
        found = pa.schema(self._table.schema().to_arrow())
        fields = [field.remove_metadata().with_type(_plain(field.type)) for field in found]
        return pa.schema([field for field in fields if not self._is_partition(field.name)])

    def _is_partition(self, name: str) -> bool:
        return name == PUBLISH_DATE and PUBLISH_DATE in self._table.metadata().partition_columns

    def append(self, rows: pa.Table, marks: Marks, changes: Sequence[Change] = ()) -> None:
        assert all(change.is_new for change in changes)
        if self._is_partition(PUBLISH_DATE):
            rows = rows.append_column(pa.field(PUBLISH_DATE, pa.string()), days_of(rows))
        try:
            write_deltalake(
                self._table,
                rows,
                mode="append",
                schema_mode="merge" if changes else None,
                target_file_size=self._options.target_file_bytes,
                commit_properties=_properties(marks),
                writer_properties=WriterProperties(compression="ZSTD"),
            )
        except CommitFailedError as error:
            raise Conflict(f"table {self.name}: {error}") from None
        self._keys = tuple(dict.fromkeys([*self._keys, *marks]))

    def writer(self) -> DeltaWriter:
        url = self._table.table_uri
        storage = with_environment(url, self._storage)
        return DeltaWriter(url, storage, self._options.target_file_bytes, is_by_day=self._is_partition(PUBLISH_DATE))

    def add(self, files: Sequence[Written], marks: Marks) -> None:
        try:
            self._table.create_write_transaction(
                [AddAction(**file.entry) for file in files],
                "append",
                self._table.schema(),
                self._table.metadata().partition_columns,
                commit_properties=_properties(marks),
            )
        except CommitFailedError as error:
            raise Conflict(f"table {self.name}: {error}") from None
        self._table.update_incremental()
        self._keys = tuple(dict.fromkeys([*self._keys, *marks]))

    def maintain(self, now_s: float) -> Kept:
        """`now_s` is not asked for: deltalake looks at its own clock."""
        sizes = pa.table(self._table.get_add_actions(flatten=True)).column("size_bytes").to_pylist()
        small = [size for size in sizes if size < self._options.target_file_bytes * 3 // 4]
        rewritten = written = 0
        try:
            if len(small) >= self._options.compact_files:
                done: dict[str, Any] = self._table.optimize.compact(
                    target_size=self._options.target_file_bytes,
                    max_concurrent_tasks=1,
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
                rewritten, written = int(done["numFilesRemoved"]), int(done["numFilesAdded"])
            if self._table.metadata().configuration.get(_TAKEN_OUT) != self._taken_out:
                self._table.alter.set_table_properties(
                    {_TAKEN_OUT: self._taken_out}, commit_properties=CommitProperties(max_commit_retries=0)
                )
            deleted = self._table.vacuum(
                retention_hours=self._kept_hours,
                dry_run=False,
                enforce_retention_duration=False,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError as error:
            raise Conflict(f"table {self.name}: {error}") from None
        self._table.update_incremental()
        return Kept(rewritten, written, 0, len(deleted), self._tidy(now_s))

    @property
    def _kept_hours(self) -> int:
        """How long what is no longer in the table stays: a VACUUM knows whole hours, and must not be early."""
        return math.ceil(self._options.keep_s / 3600)

    @property
    def _taken_out(self) -> str:
        """How long the log knows what is no longer in the table, as properties of tables say it."""
        return f"interval {self._kept_hours + 1} hours"

    def _tidy(self, now_s: float) -> int:
        """Remove what no version has that can be read, once in a while; return how many files."""
        if now_s - self._tidied_at_s < self._options.orphan_s:
            return 0
        self._tidied_at_s = now_s
        found = self._table.vacuum(
            retention_hours=max(_ORPHAN_HOURS, self._kept_hours + 1),
            dry_run=True,
            enforce_retention_duration=False,
            full=True,
        )
        left = [path for path in found if _DATA_FILE.fullmatch(path.rpartition("/")[2])]
        if left:
            from deltalake.fs import DeltaStorageHandler

            files = fs.PyFileSystem(DeltaStorageHandler.from_table(self._table._table))
            for path in left:
                files.delete_file(path)
        return len(left)


def _properties(marks: Marks) -> CommitProperties:
    """Return what makes a commit one with `marks`, which is tried once."""
    return CommitProperties(
        app_transactions=[Transaction(PREFIX + key, number) for key, number in sorted(marks.items())],
        max_commit_retries=0,
    )


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type as pyarrow writes it: deltalake may answer with views and 64-bit lengths."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_map(kind):
        return pa.map_(
            pa.field("key", _plain(kind.key_type), nullable=False), pa.field("value", _plain(kind.item_type))
        )
    return kind
