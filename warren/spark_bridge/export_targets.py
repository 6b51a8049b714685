"""The target for the rows of an export: a directory of files, or a Delta table.

1. Rows are not visible before `commit`. Files are complete and on disk before they get their names, and contain the id
   of their export: so files that the manifest does not name can be recognized.
2. A Delta table takes all rows of a commit in one transaction, numbered within this export. The manifest records the
   commit before it is made, and the table shows afterwards whether it was made. So it is committed once.
3. On request rows are put into directories ``column=value``; the files in them do not have that column. Directories and
   Delta tables cannot hold an empty text there: it becomes null, and only the manifest tells the two apart.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any, Final, Protocol
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warren.spark_bridge.bridge_errors import BridgeError, UsageError
from warren.spark_bridge.manifest import FileEntry, Manifest
from warren.spark_bridge.places import Directory, Note, Place
from warren.spark_bridge.table_files import TableFile, count_rows, crc_of, delta_errors, ending

DATE: Final = "date"
NULL_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
OPEN_FILES_MAX: Final = 200
_FULL_FACTOR: Final = 8  # of files that are divided by a column: all together so many times the size of one


class Target(Protocol):
    """Takes rows, and makes them safe all at once. `left`: the files that `clean` has found."""

    left: list[str]

    def clean(self, state: Manifest) -> None:
        """Find what a killed run has left; `state` may learn that it was committed after all."""

    def drop_left(self) -> None:
        """Delete what `clean` has found: its rows are read again."""

    def write(self, batch: pa.RecordBatch, name: str, first: int, end: int) -> None:
        """Add rows of the offsets [first, end) of `name`."""

    def is_full(self, most_bytes: int) -> bool:
        """Tell whether it is time to commit."""

    def commit(self, after: Manifest) -> list[FileEntry]:
        """Make the written rows safe and visible, and return their files; `after`: the state after that."""

    def abandon(self) -> None:
        """Discard uncommitted rows."""

    def verify(self, state: Manifest) -> None:
        """Make sure that the target is in the state `state`."""


def divided(batch: pa.RecordBatch, partition_by: str | None) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    """Yield the rows of a batch by the value that they are divided by, each value once; all rows at once without."""
    if batch.num_rows == 0:
        return
    if partition_by is None:
        yield None, batch
        return
    if partition_by == DATE:
        values = pc.cast(pc.cast(batch.column("timestamp"), pa.date32(), safe=False), pa.string())
    else:
        values = pc.cast(batch.column(partition_by), pa.string())
    coded = values.dictionary_encode(null_encoding="encode")
    codes = coded.indices.to_numpy()
    names = coded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], batch
        return
    order = np.argsort(codes, kind="stable")
    ordered = batch.take(pa.array(order))
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    for number, name in enumerate(names):
        first, end = int(bounds[number]), int(bounds[number + 1])
        yield name, ordered.slice(first, end - first)


def directory_of(value: str | None) -> str:
    """Return a value as the names of directories have it, for all readers of them.

    This is as in Spark, which does not read empty values, and takes each escape for a character where others take it
    for an octet: characters outside ASCII are there as they are.
    """
    if not value:
        return NULL_VALUE
    return "".join(quote(each, safe=" ") if each.isascii() else each for each in value)


class _Open:
    """A file in the making, and its content."""

    def __init__(self, file: TableFile, path: str, partition: dict[str, str | None]) -> None:
        self.file = file
        self.path = path
        self.partition = partition
        self.first: dict[str, int] = {}
        self.end: dict[str, int] = {}


class FileTarget:
    """Files in a directory."""

    def __init__(
        self,
        *,
        place: Place,
        form: str,
        compression: str,
        schema: pa.Schema,
        partition_by: str | None,
        state: Manifest,
        note: Note,
    ) -> None:
        self._place = place
        self._form = form
        self._compression = compression
        self._partition_by = partition_by
        names = [name for name in schema.names if name != partition_by]
        self._schema = pa.schema([schema.field(name) for name in names])
        if not names:
            raise UsageError("columns: at least one besides the partitioning column is needed")
        self._id = state.id
        # Runs on other machines, which may have been overtaken, do not write files of the same names.
        self._run = f"{secrets.token_hex(4)}-" if place.is_shared else ""
        self._open: dict[str | None, _Open] = {}
        self._made: list[FileEntry] = []  # complete, and not committed
        self._next = len(state.files)
        self._temporary = place.scratch()
        self._verified: set[str] = {entry.path for entry in state.files}  # by the run that wrote them
        self.left: list[str] = []

    def clean(self, state: Manifest) -> None:
        """Find the files that the manifest does not know."""
        known = {entry.path for entry in state.files}
        ours = f"part-*-{self._id}.*"
        self.left = [
            name for name in self._place.names() if fnmatch(name.rpartition("/")[2], ours) and name not in known
        ]

    def drop_left(self) -> None:
        for name in self.left:
            self._place.delete(name)
        self.left = []

    def write(self, batch: pa.RecordBatch, name: str, first: int, end: int) -> None:
        """Add rows of the offsets [first, end) of `name`."""
        for value, rows in divided(batch, self._partition_by):
            held = self._open.get(value)
            if held is None:
                if len(self._open) >= OPEN_FILES_MAX:  # one piece may have any number of values
                    self._complete()
                held = self._open[value] = self._begun(value)
            held.file.write(rows.select(self._schema.names))
            held.first.setdefault(name, first)
            held.end[name] = end

    def _begun(self, value: str | None) -> _Open:
        name = f"part-{self._next:05}-{self._run}{self._id}{ending(self._form, self._compression)}"
        self._next += 1
        partition: dict[str, str | None] = {}
        path = name
        if self._partition_by is not None:
            partition[self._partition_by] = value
            path = f"{self._partition_by}={directory_of(value)}/{name}"
        file = TableFile(self._temporary / name, self._form, self._schema, self._compression)
        return _Open(file, path, partition)

    def is_full(self, most_bytes: int) -> bool:
        """Tell whether a file is large enough, or all together are too much."""
        sizes = [held.file.bytes for held in self._open.values()]
        return bool(sizes) and (
            max(sizes) >= most_bytes
            or sum(sizes) >= _FULL_FACTOR * most_bytes
            or len(sizes) + len(self._made) >= OPEN_FILES_MAX
        )

    def _complete(self) -> None:
        """Complete the files that are open."""
        for held in self._open.values():
            made = held.file.close()
            self._made.append(
                FileEntry(held.path, made.rows, made.bytes, made.crc32, held.partition, held.first, held.end)
            )
        self._open.clear()

    def commit(self, after: Manifest) -> list[FileEntry]:
        """Complete the files and give them their names."""
        self._complete()
        entries, self._made = self._made, []
        self._named(entries)
        return entries

    def _named(self, entries: list[FileEntry]) -> None:
        """Give complete files their names, for good."""
        self._place.put([(self._temporary / entry.path.rpartition("/")[2], entry.path) for entry in entries])

    def abandon(self) -> None:
        """Delete the files that are not complete."""
        try:
            for held in self._open.values():
                held.file.abandon()
        finally:
            self._open.clear()
            self._place.end()

    def verify(self, state: Manifest) -> None:
        """Compare the files with the manifest: how many rows this run's say they have, and how large all are."""
        self._place.end()
        if sum(entry.rows for entry in state.files) != state.rows:
            raise BridgeError("the files of the manifest do not have as many rows as it says")
        for entry in state.files:
            where = f"{self._place}/{entry.path}"
            size = self._place.maybe_size(entry.path)
            if size is None:
                raise BridgeError(f"{where} no longer exists")
            if size != entry.bytes:
                raise BridgeError(f"{where} has {size} bytes instead of {entry.bytes}")
            if entry.path in self._verified:
                continue
            with self._place.local(entry.path) as path:
                rows = count_rows(path, self._form)
                if rows is None and crc_of(path) != entry.crc32:
                    raise BridgeError(f"{where} has changed since it was written")
            if rows is not None and rows != entry.rows:
                raise BridgeError(f"{where} has {rows} rows instead of {entry.rows}")


class DeltaTarget:
    """A Delta table, written by the package deltalake."""

    def __init__(
        self,
        *,
        place: Place,
        form: str,
        compression: str,
        schema: pa.Schema,
        partition_by: str | None,
        state: Manifest,
        note: Note,
    ) -> None:
        assert isinstance(place, Directory)
        try:
            import deltalake
        except ImportError:
            raise UsageError("format delta needs the package deltalake: pip install deltalake") from None
        self._delta: Any = deltalake
        self._directory = place.path
        self._compression = compression
        self._partition_by = partition_by
        names = [*schema.names, *([DATE] if partition_by == DATE else [])]
        fields = [schema.field(name) if name != DATE else pa.field(DATE, pa.string()) for name in names]
        self._schema = pa.schema([each.with_nullable(each.nullable or each.name == partition_by) for each in fields])
        self._state = state
        self._note = note
        self.left: list[str] = []
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._rows = 0

    def _maybe_table(self) -> Any:
        """Return the table; None: it does not exist yet."""
        with delta_errors(self._directory):
            if not self._delta.DeltaTable.is_deltatable(str(self._directory)):
                return None
            return self._delta.DeltaTable(str(self._directory))

    def clean(self, state: Manifest) -> None:
        """Find out whether the pending commit was made."""
        if state.pending is None:
            return
        table = self._maybe_table()
        done = None if table is None else table.transaction_version(self._app_id)
        if done == state.pending["commits"]:
            state.adopt_pending()
        state.pending = None
        state.save(self._note)

    def drop_left(self) -> None:
        """Do nothing: a transaction leaves nothing that can be seen."""

    @property
    def _app_id(self) -> str:
        return f"warren-export-{self._state.id}"

    def write(self, batch: pa.RecordBatch, name: str, first: int, end: int) -> None:
        """Add rows."""
        if batch.num_rows == 0:
            return
        if self._partition_by == DATE:
            dates = pc.cast(pc.cast(batch.column("timestamp"), pa.date32(), safe=False), pa.string())
            batch = batch.append_column(pa.field(DATE, pa.string()), dates)
        columns = [self._as_kept(name, batch.column(name)) for name in self._schema.names]
        self._waiting.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._bytes += batch.nbytes
        self._rows += batch.num_rows

    def _as_kept(self, name: str, values: pa.Array) -> pa.Array:
        """Return values as the table keeps them: see (3)."""
        if name != self._partition_by or not pa.types.is_string(values.type):
            return values
        return pc.if_else(pc.equal(values, ""), pa.scalar(None, pa.string()), values)

    def is_full(self, most_bytes: int) -> bool:
        """Tell whether enough rows are in memory."""
        return self._bytes >= most_bytes

    def commit(self, after: Manifest) -> list[FileEntry]:
        """Append all rows in one transaction."""
        if not self._waiting:
            return []
        before = self._state
        before.prepare(after)
        before.save(self._note)
        delta = self._delta
        properties = delta.CommitProperties(app_transactions=[delta.Transaction(self._app_id, after.commits)])
        writer = delta.WriterProperties(
            compression={"none": "UNCOMPRESSED"}.get(self._compression, self._compression.upper())
        )
        with delta_errors(self._directory):
            delta.write_deltalake(
                str(self._directory),
                pa.Table.from_batches(self._waiting, self._schema),
                mode="append",
                partition_by=None if self._partition_by is None else [self._partition_by],
                commit_properties=properties,
                writer_properties=writer,
            )
        table = self._maybe_table()
        written = table.history(1)[0].get("operationMetrics", {}).get("num_added_rows", self._rows)
        if int(written) != self._rows:
            raise BridgeError(f"the table says that {written} rows were added, and {self._rows} were written")
        self._waiting, self._bytes, self._rows = [], 0, 0
        return []

    def abandon(self) -> None:
        """Discard uncommitted rows."""
        self._waiting.clear()

    def verify(self, state: Manifest) -> None:
        """Make sure that the table knows the last commit of this export."""
        table = self._maybe_table()
        if state.rows and (table is None or table.transaction_version(self._app_id) is None):
            raise BridgeError(f"{self._directory} does not have what was written")
