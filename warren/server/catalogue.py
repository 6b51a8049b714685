"""The durable metadata in SQL, from vhosts and users to queues and bindings, a row each.

    warren_schema             version
    warren_vhosts             name | description, tags, default_queue_type, protected_from_deletion
    warren_users              name | password_hash, hashing_algorithm, tags
    warren_permissions        user_name, vhost | configure, write, read
    warren_topic_permissions  user_name, vhost, exchange | write, read
    warren_vhost_limits       vhost | definition
    warren_user_limits        user_name | definition
    warren_policies           vhost, operator, name | pattern, apply_to, priority, definition
    warren_parameters         vhost, component, name | value
    warren_global_parameters  name | value
    warren_exchanges          vhost, name | type, auto_delete, internal, arguments
    warren_queues             vhost, name | auto_delete, arguments, queue_id
    warren_bindings           vhost, source, destination_type, destination, routing_key, arguments_digest
                              | arguments, ordinal
    warren_applied            store_id | changes

The tables follow the message log, where a change is durable first (`vhosts.metadata_lane`): ``warren_applied`` says,
for the log of that id, below which number all its changes are in them.

Schema versions: 1, the first; 2, queues have a `queue_id`, under which their messages are in the message store;
3, limits of vhosts and users, and policies; 4, parameters, and vhosts that are protected from deletion; 5, what is
applied.

1. When `commit` returns, all changes of the call are on disk, with the number up to which they go; when it raises or
   the process dies, none or all are.
2. Changes take effect in their order. Committing the same changes again, after an answer that got lost,
   leaves the same rows: a put is an upsert, a delete of what is missing does nothing.
3. A delete takes along what it is documented to (`warren.vhosts.metadata`). There are no foreign keys: a row
   that refers to nothing loads and is the engine's to judge.
4. Names are equal only when they are byte for byte the same UTF-8, on both databases, whatever their
   collation.
5. Arguments and routing keys are client data and stored as bytes. Names are text, so that a person can read
   the tables; PostgreSQL's text has no NUL and UTF-8 no lone surrogates, so `commit` refuses both on either
   database with ValueError, before it writes anything. Names with NUL are refused where they are declared; other
   control characters are kept.
6. A schema newer than this program is refused and left alone; an older one is migrated in one transaction, of SQLite
   after the file was copied to a name with the version (``catalogue.db.schema-4``), for whoever wants to go back.
   A migration names tables and columns itself: those described here are the newest, not the ones it meets.
7. One broker at a time: the data directory's lock guards the SQLite file, an advisory lock the PostgreSQL
   database.

Blocking, and for one thread at a time. Messages are never here.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, assert_never

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Dialect,
    Engine,
    Executable,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    Table,
    Text,
    bindparam,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    or_,
    select,
    update,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from warren.server.errors import CatalogueError as CatalogueError
from warren.server.passwords import hash_password
from warren.vhosts.metadata import (
    BindingDelete,
    BindingPut,
    ExchangeDelete,
    ExchangePut,
    GlobalParameterDelete,
    GlobalParameterPut,
    MetadataChange,
    ParameterDelete,
    ParameterPut,
    PermissionDelete,
    PermissionPut,
    PolicyDelete,
    PolicyPut,
    QueueDelete,
    QueuePut,
    TopicPermissionDelete,
    TopicPermissionPut,
    UserDelete,
    UserLimitsDelete,
    UserLimitsPut,
    UserPut,
    VhostDelete,
    VhostLimitsDelete,
    VhostLimitsPut,
    VhostPut,
)

SCHEMA_VERSION: Final = 5
# The global parameter that says which file of definitions was imported last, and, in a new store, that none was yet.
DEFINITIONS_HASH: Final = "internal_definitions_hash"
_UNFILLED: Final = '""'

LOADED_AT_ONCE: Final = 1000  # rows
_CONNECT_TIMEOUT_S: Final = 5
_LOCK_WAIT_MS: Final = 5000
_WAL_KEPT_BYTES: Final = 16 << 20
_LOCK_NOT_AVAILABLE: Final = "55P03"  # SQLSTATE
_ADVISORY_LOCK: Final = int.from_bytes(b"Warren", "big")


_metadata = MetaData()
# The C collation orders by byte and spares the tables every change of the system's locale data.
_Name = Text().with_variant(Text(collation="C"), "postgresql")


def _key(name: str, type_: Any = _Name) -> Column[Any]:
    return Column(name, type_, primary_key=True)


def _value(name: str, type_: Any = Text) -> Column[Any]:
    return Column(name, type_, nullable=False)


_schema = Table("warren_schema", _metadata, Column("version", Integer, nullable=False))
_vhosts = Table(
    "warren_vhosts",
    _metadata,
    _key("name"),
    _value("description"),
    _value("tags"),
    _value("default_queue_type"),
    _value("protected_from_deletion", Boolean),
)
_users = Table(
    "warren_users",
    _metadata,
    _key("name"),
    _value("password_hash"),
    _value("hashing_algorithm"),
    _value("tags"),
)
_permissions = Table(
    "warren_permissions",
    _metadata,
    _key("user_name"),
    _key("vhost"),
    _value("configure"),
    _value("write"),
    _value("read"),
    Index("warren_permissions_of_vhost", "vhost"),
)
_topic_permissions = Table(
    "warren_topic_permissions",
    _metadata,
    _key("user_name"),
    _key("vhost"),
    _key("exchange"),
    _value("write"),
    _value("read"),
    Index("warren_topic_permissions_of_vhost", "vhost"),
)
_vhost_limits = Table("warren_vhost_limits", _metadata, _key("vhost"), _value("definition"))
_user_limits = Table("warren_user_limits", _metadata, _key("user_name"), _value("definition"))
_policies = Table(
    "warren_policies",
    _metadata,
    _key("vhost"),
    _key("operator", Boolean),
    _key("name"),
    _value("pattern"),
    _value("apply_to"),
    _value("priority", BigInteger),
    _value("definition"),
)
_parameters = Table("warren_parameters", _metadata, _key("vhost"), _key("component"), _key("name"), _value("value"))
_global_parameters = Table("warren_global_parameters", _metadata, _key("name"), _value("value"))
_exchanges = Table(
    "warren_exchanges",
    _metadata,
    _key("vhost"),
    _key("name"),
    _value("type"),
    _value("auto_delete", Boolean),
    _value("internal", Boolean),
    _value("arguments", LargeBinary),
)
_queues = Table(
    "warren_queues",
    _metadata,
    _key("vhost"),
    _key("name"),
    _value("auto_delete", Boolean),
    _value("arguments", LargeBinary),
    _value("queue_id", BigInteger),
)
# Arguments belong to the identity of a binding but are too long for an index of PostgreSQL: their digest
# stands in.
_bindings = Table(
    "warren_bindings",
    _metadata,
    _key("vhost"),
    _key("source"),
    _key("destination_type"),
    _key("destination"),
    _key("routing_key", LargeBinary),
    _key("arguments_digest", LargeBinary),
    _value("arguments", LargeBinary),
    # Hash exchanges number their destinations in the order in which they were bound.
    _value("ordinal", BigInteger),
    Index("warren_bindings_to", "vhost", "destination_type", "destination"),
)
_applied = Table("warren_applied", _metadata, _key("store_id", LargeBinary), _value("changes", BigInteger))

_Row = dict[str, object]


class Catalogue:
    """The metadata store of one broker. Obtain with `open`. `was_empty`: loading gave it its first contents."""

    def __init__(self, engine: Engine, first_login: tuple[str, str] | None) -> None:
        self._engine = engine
        self._first_login = first_login
        self.was_empty = False
        self._puts = _put_statements(engine.dialect)
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
                _prepare_schema(connection)
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
                found = connection.execute(select(_applied.c.changes).where(_applied.c.store_id == store_id))
                return int(found.scalar() or 0)
        except SQLAlchemyError as error:
            raise CatalogueError(f"metadata store: {_one_line(error)}") from None

    def load(self) -> Iterator[MetadataChange]:
        """Yield everything stored as puts, each after what it refers to.

        Raises CatalogueError when the store cannot be read.
        """
        self._fill()
        for table, from_row in _LOADING_ORDER:
            order = [table.c.ordinal] if table is _bindings else list(table.primary_key)
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
                if self._first_login is not None and _is_unfilled(connection):
                    _put_first_contents(connection, *self._first_login)
                    self.was_empty = True
        except SQLAlchemyError as error:
            raise CatalogueError(f"metadata store: {_one_line(error)}") from None

    def commit(self, changes: Sequence[MetadataChange], store_id: bytes = b"", applied: int = 0) -> None:
        """Make `changes` durable, in their order, all or none.

        With a `store_id` they are all of that log that were not here and are below `applied`.

        Raises CatalogueError when the database does not answer or refuses: whether the changes are stored is
        then unknown, and committing them again is right (2). Raises ValueError for text no database can store
        (5).
        """
        self._carry_out(self._plan(changes), store_id, applied)

    def _carry_out(self, steps: Sequence[tuple[Executable, list[_Row]]], store_id: bytes, applied: int) -> None:
        try:
            with self._engine.begin() as connection:
                for statement, rows in steps:
                    if rows:
                        connection.execute(statement, rows)
                    else:
                        connection.execute(statement)
                if store_id:
                    connection.execute(delete(_applied))
                    connection.execute(insert(_applied).values(store_id=store_id, changes=applied))
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
        forgotten: list[tuple[Executable, list[_Row]]] = [
            (delete(table), []) for table in _metadata.sorted_tables if table not in (_schema, _applied)
        ]
        self._carry_out([*forgotten, *self._plan(changes)], store_id, applied)

    def close(self) -> None:
        """Close the connection and give the store free."""
        self._engine.dispose()

    def _plan(self, changes: Sequence[MetadataChange]) -> list[tuple[Executable, list[_Row]]]:
        """Turn changes into statements with their rows, as few as the order allows.

        Puts of different kinds touch different tables, and deletes only take away: among themselves both may
        change places. A put and a delete may not.
        """
        steps: list[tuple[Executable, list[_Row]]] = []
        gathered: dict[type, list[_Row]] = {}

        def flush() -> None:
            for kind, rows in gathered.items():
                put = self._puts.get(kind)
                for statement in (put,) if put is not None else _DELETES[kind]:
                    steps.append((statement, rows))
            gathered.clear()

        gathering_puts = True
        for change in changes:
            kind = type(change)
            is_put = kind in self._puts
            if is_put != gathering_puts:
                flush()
                gathering_puts = is_put
            row = _row(change)
            if kind is BindingPut:
                self._last_ordinal += 1
                row["ordinal"] = self._last_ordinal
            gathered.setdefault(kind, []).append(row)
        flush()
        return steps

    def _read_last_ordinal(self) -> int:
        with self._engine.begin() as connection:
            return connection.execute(select(func.max(_bindings.c.ordinal))).scalar() or 0


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
    # Parameters are password hashes and names: they stay out of error texts. One connection, and the lock (7)
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
        os.fsync(directory)
    finally:
        os.close(directory)


def _prepare_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    # In WAL mode only FULL syncs at every commit: what is committed here leaves the log.
    cursor.execute("PRAGMA synchronous = FULL")
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
        if source.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (_schema.name,)).fetchone() is None:
            return  # new
        (version,) = source.execute("SELECT max(version) FROM warren_schema").fetchone()
        if version is None or version >= SCHEMA_VERSION:
            return
        kept = Path(f"{url.database}.schema-{version}")
        unfinished = Path(f"{kept}.new")
        unfinished.unlink(missing_ok=True)
        _create_private_file(unfinished)
        _copy_sqlite(source, unfinished)
    for path, flags in ((unfinished, os.O_RDWR), (kept.parent, os.O_RDONLY | os.O_DIRECTORY)):
        fd = os.open(path, flags | os.O_CLOEXEC)
        try:
            os.fsync(fd)
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
    changes: list[MetadataChange] = [GlobalParameterDelete(DEFINITIONS_HASH)]
    for change in contents:
        changes.append(change)
        if len(changes) == LOADED_AT_ONCE:
            catalogue.commit(changes)
            changes = []
    catalogue.commit(changes, store_id, applied)


def _prepare_schema(connection: Connection) -> None:
    if not inspect(connection).has_table(_schema.name):
        _metadata.create_all(connection)
        connection.execute(insert(_schema).values(version=SCHEMA_VERSION))
        connection.execute(insert(_global_parameters).values(name=DEFINITIONS_HASH, value=_UNFILLED))
        return
    version = connection.execute(select(_schema.c.version)).scalar_one()
    if version > SCHEMA_VERSION:
        raise CatalogueError(
            f"written by a newer Warren (schema version {version}, this one knows {SCHEMA_VERSION}); "
            "start that version, or restore a backup made before the upgrade"
        )
    if version < SCHEMA_VERSION:
        for migrate in MIGRATIONS[version - 1 :]:
            migrate(connection)
        connection.execute(update(_schema).values(version=SCHEMA_VERSION))


def _number_queues(connection: Connection) -> None:
    """Lead from version 1 to 2: give the queues the ids 1, 2, 3 ... in the order of vhost and name."""
    _add_column(connection, "warren_queues", "queue_id", "BIGINT", "0")
    queues = Table("warren_queues", MetaData(), _key("vhost"), _key("name"), _value("queue_id", BigInteger))
    ordered = connection.execute(select(queues.c.vhost, queues.c.name).order_by(queues.c.vhost, queues.c.name)).all()
    numbering = (
        update(queues)
        .where(queues.c.vhost == bindparam("of_vhost"), queues.c.name == bindparam("of_name"))
        .values(queue_id=bindparam("number"))
    )
    if ordered:
        connection.execute(
            numbering,
            [{"of_vhost": row.vhost, "of_name": row.name, "number": n} for n, row in enumerate(ordered, start=1)],
        )


def _add_limits_and_policies(connection: Connection) -> None:
    """Lead from version 2 to 3: three tables more, empty."""
    name = 'TEXT COLLATE "C"' if connection.dialect.name == "postgresql" else "TEXT"
    for table, key in (("warren_vhost_limits", "vhost"), ("warren_user_limits", "user_name")):
        connection.exec_driver_sql(
            f"CREATE TABLE {table} ({key} {name} NOT NULL, definition TEXT NOT NULL, PRIMARY KEY ({key}))"
        )
    connection.exec_driver_sql(
        f"CREATE TABLE warren_policies (vhost {name} NOT NULL, operator BOOLEAN NOT NULL, name {name} NOT NULL, "
        "pattern TEXT NOT NULL, apply_to TEXT NOT NULL, priority BIGINT NOT NULL, definition TEXT NOT NULL, "
        "PRIMARY KEY (vhost, operator, name))"
    )


def _add_parameters_and_protection(connection: Connection) -> None:
    """Lead from version 3 to 4: two tables more, empty, and no vhost is protected."""
    name = 'TEXT COLLATE "C"' if connection.dialect.name == "postgresql" else "TEXT"
    _add_column(connection, "warren_vhosts", "protected_from_deletion", "BOOLEAN", "FALSE")
    connection.exec_driver_sql(
        f"CREATE TABLE warren_parameters (vhost {name} NOT NULL, component {name} NOT NULL, name {name} NOT NULL, "
        "value TEXT NOT NULL, PRIMARY KEY (vhost, component, name))"
    )
    connection.exec_driver_sql(
        f"CREATE TABLE warren_global_parameters (name {name} NOT NULL, value TEXT NOT NULL, PRIMARY KEY (name))"
    )


def _add_applied(connection: Connection) -> None:
    """Lead from version 4 to 5: a table more, empty, since no change was in a log before."""
    binary = "BYTEA" if connection.dialect.name == "postgresql" else "BLOB"
    connection.exec_driver_sql(
        f"CREATE TABLE warren_applied (store_id {binary} NOT NULL, changes BIGINT NOT NULL, PRIMARY KEY (store_id))"
    )


def _add_column(connection: Connection, table: str, column: str, type_: str, value: str) -> None:
    """Add a column that may not be null and is `value` in the rows there are."""
    connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column} {type_} NOT NULL DEFAULT {value}")
    if connection.dialect.name == "postgresql":
        # SQLite cannot take a default back; there it stays, unused, since every insert names the column.
        connection.exec_driver_sql(f"ALTER TABLE {table} ALTER COLUMN {column} DROP DEFAULT")


# Entry n leads from schema version n + 1 to n + 2. A release that changes a table appends one.
MIGRATIONS: Final[list[Callable[[Connection], None]]] = [
    _number_queues,
    _add_limits_and_policies,
    _add_parameters_and_protection,
    _add_applied,
]


def _is_unfilled(connection: Connection) -> bool:
    """Tell whether this store is new, or what was to fill it did not come; not: whether it was emptied since."""
    parameters = _global_parameters.c
    row = connection.execute(select(parameters.value).where(parameters.name == DEFINITIONS_HASH)).first()
    return row is not None and row.value == _UNFILLED


def _put_first_contents(connection: Connection, user: str, password: str) -> None:
    hashed = hash_password(password.encode())
    contents: list[MetadataChange] = [
        VhostPut("/", "Default virtual host"),
        UserPut(user, hashed.text, hashed.algorithm, ("administrator",)),
        PermissionPut(user, "/", ".*", ".*", ".*"),
    ]
    puts = _put_statements(connection.dialect)
    for change in contents:
        connection.execute(puts[type(change)], _row(change))
    connection.execute(delete(_global_parameters).where(_global_parameters.c.name == DEFINITIONS_HASH))


def _put_statements(dialect: Dialect) -> dict[type, Executable]:
    """Build the upsert of every kind in the words of `dialect`."""
    if dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as insert_for
    else:
        from sqlalchemy.dialects.postgresql import insert as insert_for  # type: ignore[assignment]

    def put(table: Table) -> Executable:
        statement = insert_for(table)
        key = list(table.primary_key)
        # A binding made again keeps its place.
        values = {
            column.name: statement.excluded[column.name]
            for column in table.c
            if not column.primary_key and column.name != "ordinal"
        }
        return statement.on_conflict_do_update(index_elements=key, set_=values)

    return {
        VhostPut: put(_vhosts),
        UserPut: put(_users),
        PermissionPut: put(_permissions),
        TopicPermissionPut: put(_topic_permissions),
        VhostLimitsPut: put(_vhost_limits),
        UserLimitsPut: put(_user_limits),
        PolicyPut: put(_policies),
        ParameterPut: put(_parameters),
        GlobalParameterPut: put(_global_parameters),
        ExchangePut: put(_exchanges),
        QueuePut: put(_queues),
        BindingPut: put(_bindings),
    }


def _delete_where(table: Table, **parameters: str) -> Executable:
    """Delete the rows of `table` whose columns (keywords) equal the fields (values) of the change."""
    statement = delete(table)
    for column, parameter in parameters.items():
        statement = statement.where(table.c[column] == bindparam(parameter, type_=table.c[column].type))
    return statement


_DELETES: Final[dict[type, tuple[Executable, ...]]] = {
    VhostDelete: (
        _delete_where(_bindings, vhost="name"),
        _delete_where(_queues, vhost="name"),
        _delete_where(_exchanges, vhost="name"),
        _delete_where(_parameters, vhost="name"),
        _delete_where(_policies, vhost="name"),
        _delete_where(_vhost_limits, vhost="name"),
        _delete_where(_topic_permissions, vhost="name"),
        _delete_where(_permissions, vhost="name"),
        _delete_where(_vhosts, name="name"),
    ),
    UserDelete: (
        _delete_where(_user_limits, user_name="name"),
        _delete_where(_topic_permissions, user_name="name"),
        _delete_where(_permissions, user_name="name"),
        _delete_where(_users, name="name"),
    ),
    PermissionDelete: (_delete_where(_permissions, user_name="user_name", vhost="vhost"),),
    TopicPermissionDelete: (
        delete(_topic_permissions).where(
            _topic_permissions.c.user_name == bindparam("user_name"),
            _topic_permissions.c.vhost == bindparam("vhost"),
            or_(_topic_permissions.c.exchange == bindparam("exchange"), bindparam("exchange") == ""),
        ),
    ),
    VhostLimitsDelete: (_delete_where(_vhost_limits, vhost="vhost"),),
    UserLimitsDelete: (_delete_where(_user_limits, user_name="user_name"),),
    PolicyDelete: (_delete_where(_policies, vhost="vhost", operator="operator", name="name"),),
    ParameterDelete: (_delete_where(_parameters, vhost="vhost", component="component", name="name"),),
    GlobalParameterDelete: (_delete_where(_global_parameters, name="name"),),
    ExchangeDelete: (
        _delete_where(_bindings, vhost="vhost", source="name"),
        _delete_where(_bindings, vhost="vhost", destination_type="as_destination", destination="name"),
        _delete_where(_exchanges, vhost="vhost", name="name"),
    ),
    QueueDelete: (
        _delete_where(_bindings, vhost="vhost", destination_type="as_destination", destination="name"),
        _delete_where(_queues, vhost="vhost", name="name"),
    ),
    BindingDelete: (_delete_where(_bindings, **{column.name: column.name for column in _bindings.primary_key}),),
}


def _row(change: MetadataChange) -> _Row:
    """Return the parameters of the statements of `change`. Raises ValueError for unstorable text (5)."""
    row: _Row
    match change:
        case VhostPut():
            row = {
                "name": change.name,
                "description": change.description,
                "tags": json.dumps(change.tags),
                "default_queue_type": change.default_queue_type,
                "protected_from_deletion": change.protected_from_deletion,
            }
        case UserPut():
            row = {
                "name": change.name,
                "password_hash": change.password_hash,
                "hashing_algorithm": change.hashing_algorithm,
                "tags": json.dumps(change.tags),
            }
        case PermissionPut():
            row = {
                "user_name": change.user,
                "vhost": change.vhost,
                "configure": change.configure,
                "write": change.write,
                "read": change.read,
            }
        case TopicPermissionPut():
            row = {
                "user_name": change.user,
                "vhost": change.vhost,
                "exchange": change.exchange,
                "write": change.write,
                "read": change.read,
            }
        case VhostLimitsPut():
            row = {"vhost": change.vhost, "definition": change.definition}
        case UserLimitsPut():
            row = {"user_name": change.user, "definition": change.definition}
        case PolicyPut():
            row = {
                "vhost": change.vhost,
                "operator": change.operator,
                "name": change.name,
                "pattern": change.pattern,
                "apply_to": change.apply_to,
                "priority": change.priority,
                "definition": change.definition,
            }
        case ParameterPut():
            row = {
                "vhost": change.vhost,
                "component": change.component,
                "name": change.name,
                "value": change.value,
            }
        case GlobalParameterPut():
            row = {"name": change.name, "value": change.value}
        case ExchangePut():
            row = {
                "vhost": change.vhost,
                "name": change.name,
                "type": change.type,
                "auto_delete": change.auto_delete,
                "internal": change.internal,
                "arguments": change.arguments,
            }
        case QueuePut():
            row = {
                "vhost": change.vhost,
                "name": change.name,
                "auto_delete": change.auto_delete,
                "arguments": change.arguments,
                "queue_id": change.queue_id,
            }
        case BindingPut():
            row = {**_binding_key(change), "arguments": change.arguments}
        case BindingDelete():
            row = _binding_key(change)
        case VhostDelete() | UserDelete() | GlobalParameterDelete():
            row = {"name": change.name}
        case PermissionDelete():
            row = {"user_name": change.user, "vhost": change.vhost}
        case TopicPermissionDelete():
            row = {"user_name": change.user, "vhost": change.vhost, "exchange": change.exchange}
        case VhostLimitsDelete():
            row = {"vhost": change.vhost}
        case UserLimitsDelete():
            row = {"user_name": change.user}
        case PolicyDelete():
            row = {"vhost": change.vhost, "operator": change.operator, "name": change.name}
        case ParameterDelete():
            row = {"vhost": change.vhost, "component": change.component, "name": change.name}
        case ExchangeDelete():
            row = {"vhost": change.vhost, "name": change.name, "as_destination": "exchange"}
        case QueueDelete():
            row = {"vhost": change.vhost, "name": change.name, "as_destination": "queue"}
        case _:
            assert_never(change)
    for column, value in row.items():
        if isinstance(value, str) and not _is_storable(value):
            raise ValueError(f"{type(change).__name__}.{column} holds a character no database stores: {value!a}")
    return row


def _binding_key(binding: BindingPut | BindingDelete) -> _Row:
    return {
        "vhost": binding.vhost,
        "source": binding.source,
        "destination_type": binding.destination_type,
        "destination": binding.destination,
        "routing_key": binding.routing_key.encode(),
        "arguments_digest": hashlib.sha256(binding.arguments).digest(),
    }


def _is_storable(text: str) -> bool:
    if text.isascii():
        return "\x00" not in text
    try:
        return b"\x00" not in text.encode()
    except UnicodeEncodeError:
        return False


def _binding_put(row: Row[Any]) -> BindingPut:
    # By position: there may be a million of them, and a look-up by name takes as long as all the rest.
    values: Any = row
    vhost, source, destination_type, destination, routing_key, _, arguments, _ = values
    return BindingPut(vhost, source, destination, destination_type, routing_key.decode(), arguments)


def _vhost_put(row: Row[Any]) -> VhostPut:
    tags = tuple(json.loads(row.tags))
    return VhostPut(row.name, row.description, tags, row.default_queue_type, row.protected_from_deletion)


def _policy_put(row: Row[Any]) -> PolicyPut:
    return PolicyPut(row.vhost, row.name, row.pattern, row.apply_to, row.priority, row.definition, row.operator)


_LOADING_ORDER: Final[tuple[tuple[Table, Callable[[Row[Any]], MetadataChange]], ...]] = (
    (_vhosts, _vhost_put),
    (_users, lambda r: UserPut(r.name, r.password_hash, r.hashing_algorithm, tuple(json.loads(r.tags)))),
    (_permissions, lambda r: PermissionPut(r.user_name, r.vhost, r.configure, r.write, r.read)),
    (_topic_permissions, lambda r: TopicPermissionPut(r.user_name, r.vhost, r.exchange, r.write, r.read)),
    (_vhost_limits, lambda r: VhostLimitsPut(r.vhost, r.definition)),
    (_user_limits, lambda r: UserLimitsPut(r.user_name, r.definition)),
    (_policies, _policy_put),
    (_global_parameters, lambda r: GlobalParameterPut(r.name, r.value)),
    (_parameters, lambda r: ParameterPut(r.vhost, r.component, r.name, r.value)),
    (_exchanges, lambda r: ExchangePut(r.vhost, r.name, r.type, r.auto_delete, r.internal, r.arguments)),
    (_queues, lambda r: QueuePut(r.vhost, r.name, r.auto_delete, r.arguments, r.queue_id)),
    (_bindings, _binding_put),
)


def _one_line(error: SQLAlchemyError | sqlite3.Error | OSError) -> str:
    """Return what the driver said, without the statement, on one line."""
    cause: BaseException = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(cause).split()) or type(cause).__name__
