"""The durable metadata in SQL, from vhosts and users to queues and bindings, a row each.

The tables follow the message log, where a change is durable first (`vhosts.metadata_lane`): ``warren_applied`` says,
for the log of that id, below which number all its changes are in them.

1. When `commit` returns, all changes of the call are on disk, with the number up to which they go; when it raises or
   the process dies, none or all are.
2. Changes take effect in their order. Committing the same changes again, after an answer that got lost,
   leaves the same rows: a put is an upsert, a delete of what is missing does nothing.
3. A schema newer than this program is refused and left alone; an older one is migrated in one transaction, of SQLite
   after the file was copied to a name with the version (``catalogue.db.schema-4``), for whoever wants to go back. Of
   PostgreSQL there is no copy, which is said before.
4. One broker at a time: the data directory's lock guards the SQLite file, an advisory lock the PostgreSQL
   database.

The tables and what is in them are in `tables`, their versions in `schema`. Blocking, and for one
thread at a time. Messages are never here.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Engine,
    Executable,
    create_engine,
    delete,
    event,
    func,
    insert,
    select,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from warren.msgstore.files.syncing import sync_all
from warren.server.catalogue import schema
from warren.server.catalogue.tables import (
    APPLIED,
    BINDINGS,
    DELETES,
    GLOBAL_PARAMETERS,
    LOADING_ORDER,
    METADATA,
    SCHEMA,
    RowValues,
    put_statements,
    row_of,
)
from warren.server.errors import CatalogueError as CatalogueError
from warren.server.logins.passwords import hash_password
from warren.vhosts.metadata import (
    BindingPut,
    GlobalParameterDelete,
    MetadataChange,
    PermissionPut,
    UserPut,
    VhostPut,
)

LOADED_AT_ONCE: Final = 1000  # rows
_CONNECT_TIMEOUT_S: Final = 5
_LOCK_WAIT_MS: Final = 5000
_WAL_KEPT_BYTES: Final = 16 << 20
_LOCK_NOT_AVAILABLE: Final = "55P03"  # SQLSTATE
_ADVISORY_LOCK: Final = int.from_bytes(b"Warren", "big")


class Catalogue:
    """The metadata store of one broker. Obtain with `open`. `was_empty`: loading gave it its first contents."""

    def __init__(self, engine: Engine, first_login: tuple[str, str] | None) -> None:
        self._engine = engine
        self._first_login = first_login
        self.was_empty = False
        self._puts = put_statements(engine.dialect)
        self._last_ordinal = self._read_last_ordinal()

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
        parsed = _parse(url)
        shown = parsed.render_as_string(hide_password=True)
        try:
            engine = _create_engine(parsed)
        except ImportError as error:
            raise CatalogueError(f"metadata store {shown}: {error.name} is not installed") from None
        try:
            _keep_older(parsed)
            with engine.begin() as connection:
                schema.prepare_schema(connection)
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            engine.dispose()
            raise CatalogueError(f"metadata store {shown}: {_one_line(error)}") from None
        except CatalogueError as error:
            engine.dispose()
            raise CatalogueError(f"metadata store {shown}: {error}") from None
        return cls(engine, (first_user, first_password) if first_contents else None)

    def applied(self, store_id: bytes) -> int:
        """Return the number below which all changes of the log `store_id` are here; 0: it is another one's.

        Raises CatalogueError when the store cannot be read.
        """
        try:
            with self._engine.begin() as connection:
                found = connection.execute(select(APPLIED.c.changes).where(APPLIED.c.store_id == store_id))
                return int(found.scalar() or 0)
        except SQLAlchemyError as error:
            raise CatalogueError(f"metadata store: {_one_line(error)}") from None

    def load(self) -> Iterator[MetadataChange]:
        """Yield everything stored as puts, each after what it refers to.

        Raises CatalogueError when the store cannot be read.
        """
        self._fill()
        for table, from_row in LOADING_ORDER:
            order = [table.c.ordinal] if table is BINDINGS else list(table.primary_key)
            try:
                with self._engine.begin() as connection:
                    # Of a million bindings some at a time: all their rows would take more than the bindings themselves.
                    some_at_a_time = connection.execution_options(yield_per=LOADED_AT_ONCE)
                    for row in some_at_a_time.execute(select(table).order_by(*order)):
                        yield from_row(row)
            except SQLAlchemyError as error:
                raise CatalogueError(f"metadata store: {_one_line(error)}") from None

    def _fill(self) -> None:
        try:
            with self._engine.begin() as connection:
                if self._first_login is not None and schema.is_unfilled(connection):
                    _put_first_contents(connection, *self._first_login)
                    self.was_empty = True
        except SQLAlchemyError as error:
            raise CatalogueError(f"metadata store: {_one_line(error)}") from None

    def commit(self, changes: Sequence[MetadataChange], store_id: bytes = b"", applied: int = 0) -> None:
        """Make `changes` durable, in their order, all or none.

        With a `store_id` they are all of that log that were not here and are below `applied`.

        Raises CatalogueError when the database does not answer or refuses: whether the changes are stored is
        then unknown, and committing them again is right (2). Raises ValueError for text no database can store
        (`tables` (1)).
        """
        self._carry_out(self._plan(changes), store_id, applied)

    def _carry_out(self, steps: Sequence[tuple[Executable, list[RowValues]]], store_id: bytes, applied: int) -> None:
        try:
            with self._engine.begin() as connection:
                for statement, rows in steps:
                    if rows:
                        connection.execute(statement, rows)
                    else:
                        connection.execute(statement)
                if store_id:
                    connection.execute(delete(APPLIED))
                    connection.execute(insert(APPLIED).values(store_id=store_id, changes=applied))
        except SQLAlchemyError as error:
            raise CatalogueError(f"metadata store: {_one_line(error)}") from error

    def copy_to(self, path: Path, store_id: bytes) -> None:
        """Write all that is here into a new file of SQLite, which a broker can open; nobody may commit meanwhile.

        Raises CatalogueError when that is not possible.
        """
        try:
            if self._engine.dialect.name != "sqlite":
                write_copy(path, self.load(), store_id, self.applied(store_id))
                return
            _create_private_file(path)
            source = self._engine.raw_connection()
            try:
                assert source.driver_connection is not None
                _copy_sqlite(source.driver_connection, path)
            finally:
                source.close()
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise CatalogueError(f"the metadata store cannot be copied: {_one_line(error)}") from None

    def replace(self, changes: Sequence[MetadataChange], store_id: bytes, applied: int) -> None:
        """Have what `changes` make take the place of all there is, all or none; with the number, as `commit`.

        Raises CatalogueError and ValueError as `commit` does.
        """
        forgotten: list[tuple[Executable, list[RowValues]]] = [
            (delete(table), []) for table in METADATA.sorted_tables if table not in (SCHEMA, APPLIED)
        ]
        self._carry_out([*forgotten, *self._plan(changes)], store_id, applied)

    def close(self) -> None:
        """Close the connection and give the store free."""
        self._engine.dispose()

    def _plan(self, changes: Sequence[MetadataChange]) -> list[tuple[Executable, list[RowValues]]]:
        """Turn changes into statements with their rows, as few as the order allows.

        Puts of different kinds touch different tables, and deletes only take away: among themselves both may
        change places. A put and a delete may not.
        """
        steps: list[tuple[Executable, list[RowValues]]] = []
        gathered: dict[type, list[RowValues]] = {}

        def flush() -> None:
            for kind, rows in gathered.items():
                put = self._puts.get(kind)
                for statement in (put,) if put is not None else DELETES[kind]:
                    steps.append((statement, rows))
            gathered.clear()

        gathering_puts = True
        for change in changes:
            kind = type(change)
            is_put = kind in self._puts
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

    def _read_last_ordinal(self) -> int:
        with self._engine.begin() as connection:
            return connection.execute(select(func.max(BINDINGS.c.ordinal))).scalar() or 0


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise CatalogueError("metadata store: the URL cannot be parsed") from None
    if parsed.drivername == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername == "sqlite" and not parsed.database:
        raise CatalogueError("metadata store: an SQLite URL needs a file (sqlite:////path/to/file)")
    if parsed.drivername not in ("sqlite", "postgresql+psycopg"):
        raise CatalogueError(f"metadata store: {parsed.drivername} is not supported; use sqlite or postgresql+psycopg")
    return parsed


def _create_engine(url: URL) -> Engine:
    # Parameters are password hashes and names: they stay out of error texts. One connection, and the lock (4)
    # is its.
    options: dict[str, Any] = {"hide_parameters": True, "pool_size": 1, "max_overflow": 0}
    if url.get_backend_name() == "sqlite":
        assert url.database is not None
        _create_private_file(Path(url.database))
        # isolation_level None: the driver begins nothing by itself, so schema changes are transactional too.
        options["connect_args"] = {"check_same_thread": False, "isolation_level": None}
        engine = create_engine(url, **options)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    # A server that vanished without a word is noticed within seconds, not after the kernel's quarter of an
    # hour.
    keepalive = {
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
    }
    parameters = {"connect_timeout": _CONNECT_TIMEOUT_S, "client_encoding": "UTF8"}
    options["connect_args"] = {**parameters, **keepalive}
    engine = create_engine(url, **options)
    event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _create_private_file(path: Path) -> None:
    """Create the database file with mode 0600; SQLite gives the files beside it the same mode."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        raise CatalogueError(f"metadata store {path}: {os.strerror(error.errno or 0)}") from None
    os.close(fd)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_all(directory)
    finally:
        os.close(directory)


def _prepare_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    # In WAL mode only FULL syncs at every commit: what is committed here leaves the log.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA fullfsync = ON")  # of macOS: see msgstore/files/syncing.py
    cursor.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _prepare_postgresql(connection: Any, _record: object) -> None:
    try:
        with connection.cursor() as cursor:
            _check_and_lock_postgresql(cursor)
        connection.commit()
    except BaseException:
        connection.close()
        raise


def _check_and_lock_postgresql(cursor: Any) -> None:
    cursor.execute("SHOW server_encoding")
    (encoding,) = cursor.fetchone()
    if encoding != "UTF8":
        raise CatalogueError(f"the database must be encoded in UTF8, not {encoding}")
    cursor.execute("SHOW synchronous_commit")
    if cursor.fetchone() == ("off",):
        cursor.execute("SET synchronous_commit = on")
    # Waiting covers the moment in which the server has not yet noticed that a killed broker is gone.
    cursor.execute(f"SET lock_timeout = {_LOCK_WAIT_MS}")
    try:
        cursor.execute(f"SELECT pg_advisory_lock({_ADVISORY_LOCK})")
    except Exception as error:
        if getattr(error, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
            raise CatalogueError("another broker uses this database") from None
        raise
    cursor.execute("SET lock_timeout = 0")


def _keep_older(url: URL) -> None:
    """Copy a file of SQLite whose schema is older than this program's, durably."""
    if url.get_backend_name() != "sqlite":
        return
    assert url.database is not None
    with closing(sqlite3.connect(url.database)) as source:
        if source.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (SCHEMA.name,)).fetchone() is None:
            return  # new
        (version,) = source.execute("SELECT max(version) FROM warren_schema").fetchone()
        if version is None or version >= schema.SCHEMA_VERSION:
            return
        kept = Path(f"{url.database}.schema-{version}")
        unfinished = Path(f"{kept}.new")
        unfinished.unlink(missing_ok=True)
        _create_private_file(unfinished)
        _copy_sqlite(source, unfinished)
    for path, flags in ((unfinished, os.O_RDWR), (kept.parent, os.O_RDONLY | os.O_DIRECTORY)):
        fd = os.open(path, flags | os.O_CLOEXEC)
        try:
            sync_all(fd)
            if path is unfinished:
                unfinished.replace(kept)
        finally:
            os.close(fd)


def _copy_sqlite(source: sqlite3.Connection, path: Path) -> None:
    with closing(sqlite3.connect(path)) as copy:
        source.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # all of it is in one file


def write_copy(path: Path, contents: Iterator[MetadataChange], store_id: bytes, applied: int) -> None:
    """Write `contents`, as `Catalogue.load` yields them, into a new file of SQLite.

    Raises CatalogueError when that is not possible.
    """
    copy = Catalogue.open(f"sqlite:///{path.absolute()}", first_contents=False)
    try:
        fill(copy, contents, store_id, applied)
    finally:
        copy.close()


def fill(catalogue: Catalogue, contents: Iterator[MetadataChange], store_id: bytes, applied: int) -> None:
    """Bring `contents`, as `Catalogue.load` yields them, into an empty catalogue; the number comes with the last.

    Raises CatalogueError when that is not possible; a part of them is there then.
    """
    # What a new store has of its own: whether it still waits for its first contents comes from the other one.
    changes: list[MetadataChange] = [GlobalParameterDelete(schema.DEFINITIONS_HASH)]
    for change in contents:
        changes.append(change)
        if len(changes) == LOADED_AT_ONCE:
            catalogue.commit(changes)
            changes = []
    catalogue.commit(changes, store_id, applied)


def _put_first_contents(connection: Connection, user: str, password: str) -> None:
    hashed = hash_password(password.encode())
    contents: list[MetadataChange] = [
        VhostPut("/", "Default virtual host"),
        UserPut(user, hashed.text, hashed.algorithm, ("administrator",)),
        PermissionPut(user, "/", ".*", ".*", ".*"),
    ]
    puts = put_statements(connection.dialect)
    for change in contents:
        connection.execute(puts[type(change)], row_of(change))
    connection.execute(delete(GLOBAL_PARAMETERS).where(GLOBAL_PARAMETERS.c.name == schema.DEFINITIONS_HASH))


def _one_line(error: SQLAlchemyError | sqlite3.Error | OSError) -> str:
    """Return what the driver said, without the statement, on one line."""
    cause: BaseException = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(cause).split()) or type(cause).__name__
