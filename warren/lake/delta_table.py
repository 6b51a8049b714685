"""Delta tables, by deltalake (delta-rs).

1. Each mark is the version of a transaction of its own, ``warren/KEY``: they are in the log and in checkpoints as long
   as the table exists, and other writers do not change them.
2. A commit is tried once, on the version that was loaded: deltalake would otherwise put it after any commit without a
   conflict. ``optimize`` of deltalake does so whatever its settings, and finds no conflict when its input was compacted
   meanwhile: those rows are in the table twice then. Hence compactions are made here, with the marks, as commits that
   take files out and put others in.
3. Columns are never widened: the format has no way that all its readers know.
4. Files of a writer that was killed before its commit are removed after a week, the least that the format asks of a
   VACUUM, since their owner is unknown. Only files with names as deltalake writes them are removed.
5. Delta has no transforms: a table by days has a column ``publish_date``, a text such as 2026-11-24.
6. Files that are written for a later commit (`delta_files`) have names and descriptions like those of deltalake.
7. A compaction is between two changes of the table's properties, which change nothing: ``optimize`` of another program
   that began before them fails. One that comes in between has put rows in twice (`delta_log`). Each load searches for
   that from the version in the mark ``checked`` on, and suspected files are repaired before any other commit.
8. A VACUUM deletes again everything that the log still lists as taken out. So the log forgets such a file one hour
   after a VACUUM could delete it. The cost of a VACUUM does not grow with the age of the table.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, Schema, Transaction
from deltalake import DeltaTable as DeltaTableOfDeltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from warren.lake.compaction import chosen
from warren.lake.delta_files import DeltaWriter, OldFile
from warren.lake.delta_log import commits_between, suspects
from warren.lake.kinds import ARROW
from warren.lake.marks import Marks
from warren.lake.object_stores import with_environment
from warren.lake.options import DAY, PUBLISH_DATE, TableOptions
from warren.lake.table import Change, Kept, Written, with_columns
from warren.lake.table_errors import Conflict, NotOurs
from warren.spark_bridge.bridge_errors import BridgeError

PREFIX: Final = "warren/"
_LOG_KEPT: Final = "interval 30 days"
_TAKEN_OUT: Final = "delta.deletedFileRetentionDuration"
_ORPHAN_HOURS: Final = 7 * 24
_DATA_FILE: Final = re.compile(r"part-\d{5}-[0-9a-f-]{36}-c\d{3}\.(?:\w+\.)?parquet")
_CHECKED: Final = PREFIX + "checked"
_REWRITE_BYTES_MAX: Final = 256 << 20
# Other paths are written in the log in another form than given: a commit would not take such a file out.
_PLAIN_PATH: Final = re.compile(r"[\w./=-]+", re.ASCII)
# Features of tables whose files are rewritten here: with others a file has more than its rows.
_REWRITABLE: Final = frozenset({"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "timestampNtz"})
_LEGACY_WRITER_MAX: Final = 4


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
        self._suspects: frozenset[str] = frozenset()
        self._checked = -1  # the last version up to which the log was looked at
        self._table = self._opened()

    def _opened(self, version: int | None = None) -> DeltaTableOfDeltalake:
        return DeltaTableOfDeltalake(self.name, version=version, storage_options=self._storage or None)

    def load(self, keys: Sequence[str]) -> None:
        self._keys = tuple(keys)
        self._table = self._opened()
        self._check()

    def _check(self) -> None:
        """Look whether others have put rows in twice since this was looked at last."""
        version = self._table.version()
        said = self._table.transaction_version(_CHECKED)
        since = max(self._checked, -1 if said is None else int(said))
        if since < 0 or since > version:  # a new table, or one that was created again
            since = version
        if since < version:
            try:
                commits = list(commits_between(self._files(), since, version))
                self._suspects = suspects(commits, lambda: _paths(self._opened(since)))
            except (FileNotFoundError, DeltaError):
                self._suspects = frozenset(_paths(self._table))  # the log does not go back that far
        if not self._suspects:
            self._checked = version

    def suspects(self) -> frozenset[str]:
        return self._suspects

    def marks(self) -> dict[str, int]:
        found = self._said()
        if not found and self._table.file_uris():
            raise NotOurs(
                f"table {self.name} has rows, and does not say how far it follows a queue: it was made by another "
                "program. Use another table"
            )
        return found

    def _said(self) -> dict[str, int]:
        """Return the wanted marks that the table has."""
        found = {key: self._table.transaction_version(PREFIX + key) for key in self._keys}
        return {key: int(number) for key, number in found.items() if number is not None}

    def columns(self) -> pa.Schema:
        found = pa.schema(self._table.schema().to_arrow())
        fields = [field.remove_metadata().with_type(_plain(field.type)) for field in found]
        return pa.schema([field for field in fields if not self._is_partition(field.name)])

    def _is_partition(self, name: str) -> bool:
        return name == PUBLISH_DATE and PUBLISH_DATE in self._table.metadata().partition_columns

    def append(self, rows: pa.Table, marks: Marks, changes: Sequence[Change] = ()) -> None:
        assert all(change.is_new for change in changes)
        files = self.writer().write(rows)
        if changes:
            self._add_columns(changes)
        self.add(files, marks)

    def _add_columns(self, changes: Sequence[Change]) -> None:
        """Commit new columns, which have no values yet: rows with values follow at once."""
        fields = Schema.from_arrow(pa.schema([pa.field(each.column, ARROW[each.kind]) for each in changes])).fields
        at = self._table.version()
        try:
            self._table.alter.add_columns(fields, commit_properties=self._properties(self._said()))
        except CommitFailedError as error:
            raise Conflict(f"table {self.name}: {error}") from None
        if self._table.version() != at + 1:
            raise Conflict(f"table {self.name}: others have committed")
        self._committed({})

    def writer(self) -> DeltaWriter:
        url = self._table.table_uri
        storage = with_environment(url, self._storage)
        return DeltaWriter(url, storage, self._options.target_file_bytes, is_by_day=self._is_partition(PUBLISH_DATE))

    def add(self, files: Sequence[Written], marks: Marks) -> None:
        self._commit([AddAction(**file.entry) for file in files], marks)
        self._committed(marks)

    def _commit(self, actions: Sequence[AddAction | RemoveAction], marks: Marks) -> None:
        """Take files out, and put files in, if the table is as it was loaded."""
        try:
            self._table.create_write_transaction(
                list(actions),
                "append",
                self._table.schema(),
                self._table.metadata().partition_columns,
                commit_properties=self._properties(marks),
            )
        except CommitFailedError as error:
            raise Conflict(f"table {self.name}: {error}") from None
        self._table.update_incremental()

    def _committed(self, marks: Marks) -> None:
        """Note the commit that was made on the loaded version: no other one was in between."""
        self._keys = tuple(dict.fromkeys([*self._keys, *marks]))
        if self._checked >= 0 and not self._suspects:
            self._checked += 1
            self._check()

    def _properties(self, marks: Marks) -> CommitProperties:
        """Return the properties of a commit with `marks`, which is tried once."""
        said = [Transaction(PREFIX + key, number) for key, number in sorted(marks.items())]
        if self._checked >= 0:
            said.append(Transaction(_CHECKED, self._checked))
        return CommitProperties(app_transactions=said, max_commit_retries=0)

    # --- maintenance -----------------------------------------------------------------------------------------------

    def maintain(self, now_s: float) -> Kept:
        """Ignore `now_s`: deltalake uses its own clock."""
        rewritten, written = self._compact()
        if self._table.metadata().configuration.get(_TAKEN_OUT) != self._taken_out:
            self._fence()
        self._stay()
        deleted = self._table.vacuum(
            retention_hours=self._kept_hours,
            dry_run=False,
            enforce_retention_duration=False,
        )
        self._table.update_incremental()
        self._check()
        return Kept(rewritten, written, 0, len(deleted), self._tidy(now_s))

    def _stay(self) -> None:
        """Make sure that the table is as it was loaded: the findings are about all of its files.

        Raises:
            Conflict: it is not.
        """
        if self._table._table.get_latest_version() != self._table.version():
            raise Conflict(f"table {self.name}: others have committed")

    def _compact(self) -> tuple[int, int]:
        """Make large files of the small ones of each day; return how many were read and written."""
        days: dict[str | None, list[OldFile]] = {}
        for file in self._old_files() if self._is_rewritable() else ():
            if file.rows is not None and _PLAIN_PATH.fullmatch(file.path):
                days.setdefault(file.day, []).append(file)
        left = _REWRITE_BYTES_MAX
        groups: list[list[OldFile]] = []
        for files in days.values():
            sizes = [file.size for file in files]
            numbers = chosen(sizes, self._options.target_file_bytes, self._options.compact_files, left)
            if numbers:
                groups.append([files[number] for number in numbers])
                left -= sum(sizes[number] for number in numbers)
        if not groups:
            return 0, 0
        return self._rewrite(groups, {})

    def _rewrite(self, groups: Sequence[Sequence[OldFile]], dropped: Mapping[str, pa.Array]) -> tuple[int, int]:
        """Make one file of each group, without the rows `dropped`; return how many were read and written."""
        writer, columns = self.writer(), self.columns()
        try:
            made = [file for files in groups for file in writer.rewrite(files, columns, dropped)]
        except FileNotFoundError:
            self._stay()  # a VACUUM has deleted files that are no longer in the table
            raise
        taken = [file for files in groups for file in files]
        now_ms = int(time.time() * 1000)
        at = self._table.version()
        self._fence()
        if self._table.version() != at + 1:
            raise Conflict(f"table {self.name}: others have committed")
        self._commit(
            [
                *(
                    RemoveAction(
                        file.path, False, now_ms, file.size, {} if file.day is None else {PUBLISH_DATE: file.day}
                    )
                    for file in taken
                ),
                *(AddAction(**file.entry) for file in made),
            ],
            self._said(),
        )
        left = {file.path for file in taken} & set(_paths(self._table))
        if left:
            raise BridgeError(f"table {self.name}: {min(left)} is still in the table after its rows were written again")
        self._suspects, self._checked = frozenset(), at + 2
        self._fence()
        self._check()
        return len(taken), len(made)

    def _fence(self) -> None:
        """Commit a change of properties: a commit of deltalake that began before it then fails.

        Raises:
            Conflict: the table is not as it was loaded.
        """
        try:
            self._table.alter.set_table_properties(
                {_TAKEN_OUT: self._taken_out}, commit_properties=self._properties(self._said())
            )
        except CommitFailedError as error:
            raise Conflict(f"table {self.name}: {error}") from None

    def _is_rewritable(self) -> bool:
        """Tell whether the files of the table are nothing but their rows."""
        protocol = self._table.protocol()
        if protocol.min_reader_version > 1 or protocol.min_writer_version > _LEGACY_WRITER_MAX:
            named = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
            return bool(named) and named <= _REWRITABLE
        return True

    def _old_files(self) -> list[OldFile]:
        said = pa.table(self._table.get_add_actions(flatten=True))
        names = ["path", "size_bytes", "num_records"]
        day = f"partition.{PUBLISH_DATE}"
        days = said.column(day).to_pylist() if day in said.column_names else [None] * said.num_rows
        return [
            OldFile(path, size, count, None if each is None else str(each))
            for path, size, count, each in zip(*(said.column(name).to_pylist() for name in names), days, strict=True)
        ]

    # --- what is doubled -------------------------------------------------------------------------------------------

    def files(self, beside: Collection[str] = ()) -> list[str]:
        said = pa.table(self._table.get_add_actions(flatten=True))
        paths = [str(path) for path in said.column("path").to_pylist()]
        if not beside or not {"min.offset", "max.offset"} <= set(said.column_names):
            return paths
        lows, highs = said.column("min.offset").to_pylist(), said.column("max.offset").to_pylist()
        given = [at for at, path in enumerate(paths) if path in beside]
        if any(lows[at] is None or highs[at] is None for at in given):
            return paths
        low, high = min((lows[at] for at in given), default=0), max((highs[at] for at in given), default=-1)
        return [
            path
            for path, first, last in zip(paths, lows, highs, strict=True)
            if first is None or last is None or (first <= high and last >= low)
        ]

    def read(self, file: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        if not self._is_rewritable():
            raise NotOurs(f"table {self.name} has features of Delta with which its files cannot be read one by one")
        schema = self.columns()
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        for rows in self.writer().read(OldFile(file, 0, None, None), wanted.names):
            yield with_columns(rows, wanted)

    def drop_rows(self, dropped: Mapping[str, Sequence[int]]) -> None:
        if not dropped:
            self._suspects, self._checked = frozenset(), self._table.version()
            return
        files = [file for file in self._old_files() if file.path in dropped]
        for file in files:
            if not _PLAIN_PATH.fullmatch(file.path):
                raise NotOurs(f"table {self.name}: {file.path!r} is not a name of a file that can be written again")
        self._rewrite([[file] for file in files], {path: pa.array(rows, pa.int64()) for path, rows in dropped.items()})

    def _files(self) -> Any:
        return DeltaStorageHandler.from_table(self._table._table)

    @property
    def _kept_hours(self) -> int:
        """How long files that are no longer in the table stay: a VACUUM knows whole hours, and must not be early."""
        return math.ceil(self._options.keep_s / 3600)

    @property
    def _taken_out(self) -> str:
        """How long the log knows files that are no longer in the table, in the form of table properties."""
        return f"interval {self._kept_hours + 1} hours"

    def _tidy(self, now_s: float) -> int:
        """Remove files that are not in any readable version, once in a while; return their number."""
        if now_s - self._tidied_at_s < self._options.orphan_s:
            return 0
        self._tidied_at_s = now_s
        found = self._table.vacuum(
            retention_hours=max(_ORPHAN_HOURS, self._kept_hours + 1),
            dry_run=True,
            enforce_retention_duration=False,
            full=True,
        )
        self._stay()  # a file that is not in the table is not one that is in it by now
        left = [path for path in found if _DATA_FILE.fullmatch(path.rpartition("/")[2])]
        if left:
            files = fs.PyFileSystem(self._files())
            for path in left:
                files.delete_file(path)
        return len(left)


def _paths(table: DeltaTableOfDeltalake) -> list[str]:
    """Return the files of a version, as the log names them."""
    return [str(path) for path in pa.table(table.get_add_actions()).column("path").to_pylist()]


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
