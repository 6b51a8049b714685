"""Store the durable metadata in SQL, from vhosts and users to queues and bindings, a row each.

The tables follow the message log, where a change is durable first (`vhosts.metadata_lane`). For the log of an id,
``warren_applied`` has the number below which the tables have all its changes, and how far it was synced then.

1. When `commit` returns, all changes of the call are on disk, with the number up to which they go. When it raises or
   the process dies, the disk has either all of the changes or none of them.
2. Changes take effect in their order. Committing the same changes again, after an answer was lost, leaves the same
   rows: a put is an upsert, and deleting a missing row does nothing.
3. A schema newer than this program is refused and left alone. An older one is migrated in one transaction. A SQLite
   file is first copied to a name with the version (``catalogue.db.schema-4``), so that the operator can go back. A
   PostgreSQL database is not copied; the log says so before the migration.
4. One broker at a time: the SQLite file is locked, wherever it is, and a PostgreSQL database by an advisory lock.
5. SQLite checks no types, and a damaged or edited file may hold anything. A value that no broker has written is an
   error with the name of its table.

The tables and their contents are in `tables`, their versions in `schema`. The calls block. Only one thread may call at
a time. Messages are never stored here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Connection, Executable, Row, Table, delete, func, insert, select

from warren.msgstore.log.epoch_table import NO_LIFE
from warren.server.catalogue import schema
from warren.server.catalogue.database import Database, DatabaseError
from warren.server.catalogue.postgresql import PostgreSQL
from warren.server.catalogue.sqlite_file import SqliteFile
from warren.server.catalogue.sqlite_url import SQLITE, path_of, sqlite_url
from warren.server.catalogue.tables import (
    APPLIED,
    BINDINGS,
    DELETES,
    LIFE,
    LSN,
    QUEUES,
    TABLES,
    RowValues,
    put_of,
    row_of,
    rows_of,
    upsert,
)
from warren.server.logins.passwords import hash_password
from warren.server.start_errors import CatalogueError as CatalogueError
from warren.vhosts.metadata import (
    BindingPut,
    GlobalParameterDelete,
    MetadataChange,
    PermissionPut,
    UserPut,
    VhostPut,
)

FILLED_AT_ONCE: Final = 1000  # changes
READ_AT_ONCE: Final = 1000  # rows: all rows of a million bindings would take more than the bindings themselves
_Step = tuple[Executable, list[RowValues]]  # a statement, carried out once for each row, or once without rows

# A broker counts on from the largest number in a column. From the largest number of SQL it could not count further.
_NUMBER_MAX: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a message log: how many changes of the metadata it has, and up to which LSN it is synced.

    `life_id`: of the life that has written the log up to that LSN, `NO_LIFE` when it is not known.
    """

    changes: int
    lsn: int
    life_id: bytes = NO_LIFE


class Catalogue:
    """The metadata store of one broker. Obtain with `open`. `was_empty`: loading gave it its first contents."""

    def __init__(self, database: Database, last_ordinal: int, first_login: tuple[str, str] | None) -> None:
        self.was_empty = False
        self._database = database
        self._first_login = first_login
        self._last_ordinal = last_ordinal  # of a binding
        self._puts = {kind: upsert(table, database.dialect) for kind, table in TABLES.items()}

    @classmethod
    def open(
        cls, url: str, *, first_contents: bool = True, first_user: str = "guest", first_password: str = "guest"
    ) -> Catalogue:
        """Connect to `url`, lock it, and create or migrate the tables.

        `url` is ``sqlite:////absolute/path`` or ``postgresql+psycopg://user:password@host/database``. When it is
        loaded, an empty store gets vhost ``/`` and the user `first_user`, administrator of it; ``guest``, whom the
        authenticator admits from this machine only, unless another is named. With `first_contents` False it stays
        empty, for a file of definitions to fill it; if none does (`DEFINITIONS_HASH` is not set), the next one that is
        loaded can.

        Raises CatalogueError when that is not possible or the schema is newer than this program.
        """
        database = _opened(url)
        try:
            _keep_older(database)
            with database.transaction() as connection:
                schema.prepare_schema(connection)
                last_ordinal = _largest(connection, BINDINGS.c.ordinal)
                _largest(connection, QUEUES.c.queue_id)
        except (DatabaseError, CatalogueError, OSError) as error:
            database.close()
            raise CatalogueError(f"metadata store {database.shown}: {error}") from None
        return cls(database, last_ordinal, (first_user, first_password) if first_contents else None)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._database.transaction() as connection:
                yield connection
        except (DatabaseError, CatalogueError) as error:
            raise CatalogueError(f"metadata store: {error}") from error

    def applied(self, store_id: bytes) -> int:
        """Return the number below which all changes of the log `store_id` are here; 0 for an unknown log.

        Raises CatalogueError when the store cannot be read.
        """
        with self._transaction() as connection:
            return _largest(connection, APPLIED.c.changes, APPLIED.c.store_id == store_id)

    def positions(self) -> dict[bytes, Position]:
        """Return the last known positions of message stores, by their ids.

        Raises CatalogueError when the store cannot be read.
        """
        numbers: dict[bytes, int] = {}
        lives: dict[bytes, bytes] = {}
        with self._transaction() as connection:
            for store_id, changes in connection.execute(select(APPLIED)):
                if not isinstance(store_id, bytes) or not isinstance(changes, int):
                    raise CatalogueError(f"{APPLIED.name} has a row that no broker has written")
                named = store_id[: -len(NO_LIFE)]
                if named.endswith(LIFE):
                    lives[named.removesuffix(LIFE)] = store_id[-len(NO_LIFE) :]
                else:
                    numbers[store_id] = changes
        return {
            store_id: Position(changes, numbers.get(store_id + LSN, 0), lives.get(store_id, NO_LIFE))
            for store_id, changes in numbers.items()
            if not store_id.endswith(LSN) or store_id.removesuffix(LSN) not in numbers
        }

    def queue_count(self) -> int:
        """Return the number of durable queues. Raises CatalogueError when the store cannot be read."""
        with self._transaction() as connection:
            return connection.scalars(select(func.count()).select_from(QUEUES)).one()

    def load(self) -> Generator[MetadataChange, None, None]:
        """Yield everything stored as puts, each after what it refers to.

        Raises CatalogueError when the store cannot be read.
        """
        with self._transaction() as connection:
            if self._first_login is not None and schema.is_unfilled(connection):
                self._carry_out(connection, self._plan(_first_contents(*self._first_login)))
                self.was_empty = True
        for kind, table in TABLES.items():
            put = put_of(kind)
            with self._transaction() as connection:
                for row in connection.execute(rows_of(kind), execution_options={"yield_per": READ_AT_ONCE}):
                    yield _change(put, row, table)

    def commit(
        self,
        changes: Sequence[MetadataChange],
        store_id: bytes = b"",
        applied: int = 0,
        lsn: int = 0,
        life_id: bytes = NO_LIFE,
    ) -> None:
        """Make either all of `changes` durable or none, in their order.

        With a `store_id` they are all of that log that were missing here and are below `applied`. `lsn`: up to where
        that log is synced; 0: unknown. `life_id`: see `Position`.

        Raises CatalogueError when the database does not answer or refuses: whether the changes are stored is
        then unknown, and committing them again is right (2). Raises ValueError for text no database can store
        (`tables` (1)).
        """
        self._commit(self._plan(changes), store_id, applied, lsn, life_id)

    def _commit(
        self, steps: Sequence[_Step], store_id: bytes, applied: int, lsn: int = 0, life_id: bytes = NO_LIFE
    ) -> None:
        with self._transaction() as connection:
            self._carry_out(connection, steps)
            if store_id:
                connection.execute(delete(APPLIED))
                known = [{"store_id": store_id, "changes": applied}]
                if lsn:
                    known.append({"store_id": store_id + LSN, "changes": lsn})
                if lsn and life_id != NO_LIFE:
                    known.append({"store_id": store_id + LIFE + life_id, "changes": lsn})
                connection.execute(insert(APPLIED), known)

    def _carry_out(self, connection: Connection, steps: Sequence[_Step]) -> None:
        for statement, rows in steps:
            connection.execute(statement, rows or None)

    def copy_to(self, path: Path, store_id: bytes) -> None:
        """Write all contents into a new SQLite file, which a broker can open; do not commit meanwhile.

        Raises CatalogueError when that is not possible.
        """
        if not isinstance(self._database, SqliteFile):
            write_copy(path, self.load(), store_id, self.applied(store_id))
            return
        try:
            self._database.copy_to(path)
        except DatabaseError as error:
            raise CatalogueError(f"the metadata store cannot be copied to {path}: {error}") from None

    def replace(self, changes: Sequence[MetadataChange], store_id: bytes, applied: int) -> None:
        """Replace all contents by those of `changes`, completely or not at all; with the number, as `commit`.

        Raises CatalogueError and ValueError as `commit` does.
        """
        forgotten: list[_Step] = [(delete(table), []) for table in TABLES.values()]
        self._commit([*forgotten, *self._plan(changes)], store_id, applied)

    def interrupt(self) -> None:
        """Make the call fail that is under way in another thread, if any."""
        self._database.interrupt()

    def close(self) -> None:
        """Close the connection and release the store."""
        self._database.close()

    def _plan(self, changes: Sequence[MetadataChange]) -> list[_Step]:
        """Turn changes into statements with their rows, as few as the order allows.

        Puts of different kinds touch different tables, and deletes only take away: among themselves both may
        change places. A put and a delete may not.
        """
        steps: list[_Step] = []
        gathered: dict[type, list[RowValues]] = {}

        def flush() -> None:
            for kind, rows in gathered.items():
                put = self._puts.get(kind)
                steps.extend((statement, rows) for statement in ((put,) if put is not None else DELETES[kind]))
            gathered.clear()

        gathering_puts = True
        for change in changes:
            kind = type(change)
            is_put = kind in TABLES
            if is_put != gathering_puts:
                flush()
                gathering_puts = is_put
            row = row_of(change)
            if kind is BindingPut:
                self._last_ordinal += 1
                row["ordinal"] = self._last_ordinal
            gathered.setdefault(kind, []).append(row)
        flush()
        return steps


def _opened(url: str) -> Database:
    """Return the database that `url` names. Raises CatalogueError."""
    if not url.startswith(SQLITE):
        return PostgreSQL(url)
    try:
        path = path_of(url)
    except ValueError as error:
        raise CatalogueError(f"metadata store: {error}") from None
    try:
        return SqliteFile(path, url)
    except DatabaseError as error:
        raise CatalogueError(f"metadata store {url}: {error}") from None


def _largest(connection: Connection, column: Column[Any], *where: ColumnElement[bool]) -> int:
    """Return the largest number in a column, 0 if the column is empty. Raises CatalogueError for any other value."""
    found = connection.scalar(select(func.max(column)).where(*where))
    if found is None:
        return 0
    if not isinstance(found, int) or not 0 <= found < _NUMBER_MAX:
        told = f"{column.table.description}: {column.name} {str(found)[:40]!r}"
        raise CatalogueError(f"{told} was not written by a broker")
    return found


def _change(put: Callable[[Sequence[Any]], MetadataChange], row: Row[Any], table: Table) -> MetadataChange:
    try:
        return put(row)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        values = [row._mapping.get(column) for column in table.primary_key]
        key = ", ".join(value[:100] for value in values if isinstance(value, str))
        raise CatalogueError(f"{table.name} ({key!r}) cannot be read: {error}") from None


def _keep_older(database: Database) -> None:
    """Copy a file of SQLite whose schema is older than this program's, durably."""
    if isinstance(database, SqliteFile):
        with database.transaction() as connection:
            version = schema.maybe_version(connection)
        if version is not None and version < schema.SCHEMA_VERSION:
            ending = f".schema-{version}"
            try:
                database.keep(ending)
            except OSError as error:
                raise CatalogueError(f"it cannot be kept as *{ending}: {os.strerror(error.errno or 0)}") from None


def write_copy(path: Path, contents: Iterator[MetadataChange], store_id: bytes, applied: int) -> None:
    """Write `contents`, as `Catalogue.load` yields them, into a new file of SQLite.

    Raises CatalogueError when that is not possible.
    """
    copy = Catalogue.open(sqlite_url(path), first_contents=False)
    try:
        fill(copy, contents, store_id, applied)
    finally:
        copy.close()


def fill(catalogue: Catalogue, contents: Iterator[MetadataChange], store_id: bytes, applied: int) -> None:
    """Bring `contents`, as `Catalogue.load` yields them, into an empty catalogue; the number comes with the last.

    Raises CatalogueError when that is not possible; a part of them is there then.
    """
    # Each store notes for itself whether it waits for its first contents. `contents` has the note of the other store.
    changes: list[MetadataChange] = [GlobalParameterDelete(schema.DEFINITIONS_HASH)]
    for change in contents:
        changes.append(change)
        if len(changes) == FILLED_AT_ONCE:
            catalogue.commit(changes)
            changes = []
    catalogue.commit(changes, store_id, applied)


def _first_contents(user: str, password: str) -> list[MetadataChange]:
    hashed = hash_password(password.encode())
    return [
        VhostPut("/", "Default virtual host"),
        UserPut(user, hashed.text, hashed.algorithm, ("administrator",)),
        PermissionPut(user, "/", ".*", ".*", ".*"),
        GlobalParameterDelete(schema.DEFINITIONS_HASH),
    ]
