"""Iceberg tables, by pyiceberg: any catalogue that it knows.

1. Marks are a property of the summary of each snapshot that is made here, as JSON. A snapshot of another program has no
   marks: those of its nearest ancestor apply, and maintenance writes them again before that one can expire.
2. pyiceberg repeats a commit by itself, on top of whatever was committed meanwhile. Here that would put rows in twice:
   the number of tries is set to one, whatever the table says.
3. A file is deleted after the snapshots that need it are gone. Files that are not in any snapshot are deleted only if a
   writer of this program has left them (`orphans`).
4. A commit is refused when another one was made since the table was loaded, also a commit that changes no rows. So a
   process that was stopped for a while does not delete anything by an old list of files.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO, schema_to_pyarrow
from pyiceberg.table import Table as IcebergTableOfPyiceberg
from pyiceberg.table import Transaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertRefSnapshotId
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestamptzType,
)

from warren.lake import kinds
from warren.lake.compaction import chosen
from warren.lake.iceberg_files import data_files, grouped, partition_files, read_parts
from warren.lake.marks import EPOCH, Marks
from warren.lake.options import DAY, PUBLISH_DATE, TableOptions
from warren.lake.orphans import Folders, folder_of, path_of
from warren.lake.table import Change, Kept, Written, with_columns
from warren.lake.table_errors import Conflict, NotOurs

PROPERTY: Final = "warren.marks"
_TYPES: Final[dict[str, IcebergType]] = {
    kinds.BOOLEAN: BooleanType(),
    kinds.INT: IntegerType(),
    kinds.LONG: LongType(),
    kinds.FLOAT: FloatType(),
    kinds.DOUBLE: DoubleType(),
    kinds.STRING: StringType(),
    kinds.TIMESTAMP: TimestamptzType(),
    kinds.DATE: DateType(),
    kinds.BINARY: BinaryType(),
}
_RETRIES: Final = "commit.retry.num-retries"
_TARGET_BYTES: Final = "write.target-file-size-bytes"
_DATA_PATH: Final = "write.data.path"
_METADATA_PATH: Final = "write.metadata.path"
_TIDIED: Final = "warren.tidied-at"  # in seconds since the epoch: looking through all files is not for every start
# The beginnings of properties of object stores.
_STORES: Final = (
    "s3.",
    "client.",
    "aws.",
    "AWS_",
    "gcs.",
    "gs.",
    "adls.",
    "hdfs.",
    "oss.",
    "hf.",
    "buffer-size",
    "DEFAULT_",
)
_REWRITE_BYTES_MAX: Final = 256 << 20  # of files that are read and written again in one commit


def open_table(catalog: Catalog, name: str, columns: pa.Schema, options: TableOptions) -> IcebergTable:
    """Return the table `name`, made with `columns` if it is not there.

    Raises:
        NotOurs: the name is not one of a table.
    """
    if "." not in name:
        raise NotOurs(f"{name!r} is not a table name: must be NAMESPACE.TABLE")
    try:
        return IcebergTable(catalog.load_table(name), options)
    except NoSuchTableError:
        pass
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    properties = {
        _RETRIES: "0",
        _TARGET_BYTES: str(options.target_file_bytes),
        "write.parquet.compression-codec": "zstd",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "50",
        "commit.manifest-merge.enabled": "true",
        "commit.manifest.min-count-to-merge": "50",
    }
    try:
        with catalog.create_table_transaction(name, schema=columns, properties=properties) as transaction:
            if options.partition_by == DAY:
                with transaction.update_spec() as spec:
                    spec.add_field("timestamp", DayTransform(), PUBLISH_DATE)
    except TableAlreadyExistsError:
        pass  # another writer was faster
    return IcebergTable(catalog.load_table(name), options)


class IcebergTable:
    """One table."""

    can_widen = True

    def __init__(self, table: IcebergTableOfPyiceberg, options: TableOptions) -> None:
        self.name = ".".join(table.name())
        self._table = table
        self._options = options
        self._planned: tuple[str, dict[str, Any]] = ("", {})  # the files of a state, by their paths

    def load(self, keys: Sequence[str]) -> None:
        self._table.refresh()

    def marks(self) -> dict[str, int]:
        metadata = self._table.metadata
        at = self._table.current_snapshot()
        if at is None:
            return {}
        while at is not None:
            found = _maybe_marks(at)
            if found is not None:
                return found
            at = metadata.snapshot_by_id(at.parent_snapshot_id) if at.parent_snapshot_id is not None else None
        raise NotOurs(
            f"table {self.name} has snapshots, and none of them says how far it follows a queue: it was made by "
            "another program, or another program has expired what this one had written. Use another table"
        )

    def writer(self) -> IcebergWriter:
        metadata = self._table.metadata
        held = {**metadata.properties, **self._places(self.marks())}
        # Without the properties that only commits need: they may be large.
        without: dict[str, Any] = {"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}}
        small = metadata.model_copy(update={"properties": held, "current_snapshot_id": None, **without})
        return IcebergWriter(small, _without_catalog(self._table.io))

    def add(self, files: Sequence[Written], marks: Marks) -> None:
        said = {PROPERTY: _document(marks)}
        with (
            self._reading(),
            self._transaction(self._places(marks)) as transaction,
            transaction.update_snapshot(snapshot_properties=said).merge_append() as update,
        ):
            for file in files:
                update.append_data_file(file.entry)

    def columns(self) -> pa.Schema:
        found = schema_to_pyarrow(self._table.schema(), include_field_ids=False)
        return pa.schema([field.with_type(_small(field.type)) for field in found])

    def append(self, rows: pa.Table, marks: Marks, changes: Sequence[Change] = ()) -> None:
        with self._reading(), self._transaction(self._places(marks)) as transaction:
            if changes:
                with transaction.update_schema() as update:
                    for change in changes:
                        if change.is_new:
                            update.add_column(change.column, _TYPES[change.kind])
                        else:
                            update.update_column(change.column, _TYPES[change.kind])
            files = data_files(transaction.table_metadata, rows, self._table.io)
            with transaction.update_snapshot(snapshot_properties={PROPERTY: _document(marks)}).merge_append() as update:
                for file in files:
                    update.append_data_file(file)

    @contextmanager
    def _transaction(self, properties: Mapping[str, str] | None = None) -> Iterator[Transaction]:
        """Commit a transaction, once; `properties` of the table apply in it, and are not stored."""
        metadata = self._table.metadata
        held = {**metadata.properties, **(properties or {}), _RETRIES: "0"}
        self._table.metadata = metadata.model_copy(update={"properties": held})
        transaction = self._table.transaction()
        try:
            is_there = {"ref": MAIN_BRANCH, "snapshot-id": metadata.current_snapshot_id}
            transaction._stage((), (AssertRefSnapshotId.model_validate(is_there),))
            yield transaction
            transaction.commit_transaction()
        except CommitFailedException as error:
            raise Conflict(f"table {self.name}: {error}") from None
        except Exception:
            self._table.catalog.close()  # its file may be another one by now: the next question opens that
            raise
        finally:
            if self._table.metadata.properties is held:  # it did not come to a commit
                self._table.metadata = metadata

    def _bases(self) -> tuple[str, str]:
        """Return where data and metadata of the table are."""
        at = self._table.location_provider()
        return at.data_path, at.metadata_path

    def _places(self, marks: Marks) -> dict[str, str]:
        """Return the properties by which files come where those of the writer are."""
        data, metadata = self._bases()
        return {_DATA_PATH: folder_of(data, marks[EPOCH]), _METADATA_PATH: folder_of(metadata, marks[EPOCH])}

    # --- what is doubled -------------------------------------------------------------------------------------------

    def suspects(self) -> frozenset[str]:
        """Return an empty set: the catalogue refuses compactions of files that are no longer in the table."""
        return frozenset()

    def files(self, beside: Collection[str] = ()) -> list[str]:
        return list(self._tasks())

    def _tasks(self) -> dict[str, Any]:
        """Return the files of the loaded state by their paths; its manifests are read once."""
        at = self._table.metadata_location
        if self._planned[0] != at:
            self._planned = at, {task.file.file_path: task for task in self._table.scan().plan_files()}
        return self._planned[1]

    def read(self, file: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        with self._reading():
            yield from self._parts(self._tasks()[file], columns)

    def drop_rows(self, dropped: Mapping[str, Sequence[int]]) -> None:
        tasks = [task for path, task in self._tasks().items() if path in dropped]
        for task in tasks:
            if task.delete_files:
                raise NotOurs(f"table {self.name}: rows of {task.file.file_path} were deleted, and are still in it")
        if tasks:
            with self._reading():
                self._replace([[task] for task in tasks], dropped)

    def _parts(self, task: Any, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of a file in parts, maybe of some columns."""
        whole = self._table.schema()
        schema = whole if columns is None else whole.select(*columns)
        wanted = schema_to_pyarrow(schema, include_field_ids=False)
        if task.delete_files:
            from pyiceberg.expressions import AlwaysTrue

            found = ArrowScan(self._table.metadata, self._table.io, schema, AlwaysTrue()).to_table([task])
            yield with_columns(found, wanted)
            return
        for rows in read_parts(self._table.io, task.file.file_path, schema, self._table.metadata):
            yield with_columns(rows, wanted)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Make a file that is gone a `Conflict` if the table is not as it was loaded: its snapshot has expired."""
        at = self._table.metadata_location
        try:
            yield
        except FileNotFoundError as error:
            if self._table.catalog.load_table(self._table.name()).metadata_location == at:
                raise
            raise Conflict(f"table {self.name}: others have committed, and a file is gone: {error}") from None

    def _replace(self, groups: Sequence[Sequence[Any]], dropped: Mapping[str, Sequence[int]]) -> int:
        """Make one file of each group, of one partition, without the rows `dropped`; return how many were written."""
        marks = self.marks()
        written: list[Any] = []
        with self._transaction(self._places(marks)) as transaction:
            for tasks in groups:
                parts = grouped(part for task in tasks for part in self._kept(task, dropped))
                written += partition_files(transaction.table_metadata, tasks[0].file.partition, parts, self._table.io)
            with transaction.update_snapshot(snapshot_properties={PROPERTY: _document(marks)}).overwrite() as update:
                for task in (task for tasks in groups for task in tasks):
                    update.delete_data_file(task.file)
                for file in written:
                    update.append_data_file(file)
        return len(written)

    def _kept(self, task: Any, dropped: Mapping[str, Sequence[int]]) -> Iterator[pa.Table]:
        """Yield the rows of a file that stay, in parts."""
        gone = pa.array(dropped.get(task.file.file_path, ()), pa.int64())
        at = 0
        for rows in self._parts(task):
            numbers = pa.array(range(at, at + rows.num_rows), pa.int64())
            kept = rows.filter(pc.invert(pc.is_in(numbers, gone))) if len(gone) else rows
            at += rows.num_rows
            if kept.num_rows:
                yield kept
        assert at == task.file.record_count, f"{at} rows were read of a file that has {task.file.record_count}"

    # --- maintenance -----------------------------------------------------------------------------------------------

    def maintain(self, now_s: float) -> Kept:
        snapshot = self._table.current_snapshot()
        if snapshot is not None and _maybe_marks(snapshot) is None:
            self.append(self.columns().empty_table(), self.marks())
        with self._reading():
            rewritten, written = self._compact()
            expired, deleted = self._expire(now_s)
            return Kept(rewritten, written, expired, deleted, self._tidy(now_s))

    def _compact(self) -> tuple[int, int]:
        """Make large files of the small ones of each partition; return the numbers of files before and after."""
        partitions: dict[Any, list[Any]] = {}
        for task in self._table.scan().plan_files():
            if not task.delete_files and task.file.spec_id == self._table.spec().spec_id:
                partitions.setdefault(task.file.partition, []).append(task)
        groups: list[list[Any]] = []
        left = _REWRITE_BYTES_MAX
        for tasks in partitions.values():
            sizes = [task.file.file_size_in_bytes for task in tasks]
            numbers = chosen(sizes, self._options.target_file_bytes, self._options.compact_files, left)
            if numbers:
                groups.append([tasks[number] for number in numbers])
                left -= sum(sizes[number] for number in numbers)
        if not groups:
            return 0, 0
        return sum(map(len, groups)), self._replace(groups, {})

    def _expire(self, now_s: float) -> tuple[int, int]:
        """Expire old snapshots, and remove the files that only they have; return the number of each."""
        metadata = self._table.metadata
        kept_ids = {ref.snapshot_id for ref in metadata.refs.values()}
        before_ms = int((now_s - self._options.keep_s) * 1000)
        old = [
            each for each in metadata.snapshots if each.timestamp_ms < before_ms and each.snapshot_id not in kept_ids
        ]
        if not old:
            return 0, 0
        ids = {each.snapshot_id for each in old}
        parents = {each.parent_snapshot_id for each in old}
        # A file that is taken out of a table does not come back: a file that a kept snapshot shares with an old one is
        # also in the nearest kept ancestor or descendant of that.
        beside = [
            each
            for each in metadata.snapshots
            if each.snapshot_id not in ids
            and (
                each.parent_snapshot_id is None
                or each.parent_snapshot_id in ids
                or metadata.snapshot_by_id(each.parent_snapshot_id) is None
                or each.snapshot_id in parents
            )
        ]
        gone = self._files_of(old) - self._files_of(beside)
        from pyiceberg.table.update.snapshot import ExpireSnapshots

        try:
            with self._transaction() as transaction:
                ExpireSnapshots(transaction).by_ids(list(ids)).commit()
        except ValueError as error:
            raise Conflict(f"table {self.name}: another program has expired snapshots: {error}") from None
        for path in gone:
            try:
                self._table.io.delete(path)
            except FileNotFoundError:
                pass  # an earlier run was killed here
        return len(old), len(gone)

    def _tidy(self, now_s: float) -> int:
        """Remove files of writers that are not in any snapshot, once in a while; return their number."""
        metadata = self._table.metadata
        if now_s - float(metadata.properties.get(_TIDIED, "0")) < self._options.orphan_s:
            return 0
        with self._transaction() as transaction:
            transaction.set_properties({_TIDIED: str(int(now_s))})
        epoch = self.marks().get(EPOCH, 0)
        before_s = now_s - self._options.orphan_s
        folders = [Folders(self._table.io, base) for base in self._bases()]
        left = {path: folder for folder in folders for path in folder.files(epoch, before_s)}
        for named in self._files_by_snapshot(metadata.snapshots[::-1]):  # most files are in the newest
            for location in named:
                left.pop(path_of(self._table.io, location), None)
            if not left:
                break
        deleted = sum(folder.delete(path) for path, folder in left.items())
        for folder in folders:
            folder.drop_empty(epoch, before_s)
        return deleted

    def _files_of(self, snapshots: Sequence[Any]) -> set[str]:
        """Return all files of snapshots: lists, manifests and data."""
        return {location for named in self._files_by_snapshot(snapshots) for location in named}

    def _files_by_snapshot(self, snapshots: Sequence[Any]) -> Iterator[set[str]]:
        """Yield the files of each snapshot, without those that it shares with one before: manifests are read once."""
        seen: set[str] = set()
        for snapshot in snapshots:
            found: set[str] = {snapshot.manifest_list}
            for manifest in snapshot.manifests(self._table.io):
                if manifest.manifest_path in seen:
                    continue
                seen.add(manifest.manifest_path)
                found.add(manifest.manifest_path)
                for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True):
                    found.add(entry.data_file.file_path)
            yield found


class IcebergWriter:
    """Writes files with the numbers that the columns of a table have: nothing is found by names later."""

    def __init__(self, metadata: Any, io: FileIO) -> None:
        self._metadata = metadata
        self._io = io

    def write(self, rows: pa.Table) -> list[Written]:
        return [Written(file.file_path, file) for file in data_files(self._metadata, rows, self._io)]

    def delete(self, files: Sequence[Written]) -> None:
        for file in files:
            try:
                self._io.delete(file.path)
            except FileNotFoundError:
                pass


def _without_catalog(io: FileIO) -> FileIO:
    """Return the same without what the catalogue is asked with, where it is known what is needed to write."""
    if not isinstance(io, PyArrowFileIO):
        return io
    kept = {key: text for key, text in io.properties.items() if key.startswith(_STORES)}
    return PyArrowFileIO(kept)


def _maybe_marks(snapshot: Any) -> dict[str, int] | None:
    """Return the marks in the summary of a snapshot; None: it has none."""
    summary = snapshot.summary
    text = None if summary is None else summary.additional_properties.get(PROPERTY)
    if text is None:
        return None
    return {str(key): int(value) for key, value in json.loads(text).items()}


def _document(marks: Mapping[str, int]) -> str:
    assert EPOCH in marks
    return json.dumps(dict(sorted(marks.items())))


def _small(kind: pa.DataType) -> pa.DataType:
    """Return a type without the 64-bit lengths that pyiceberg prefers."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_small(kind.key_type)), kind.item_field.with_type(_small(kind.item_type))
        )
    return kind
