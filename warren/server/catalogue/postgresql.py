"""Keep the catalogue in a PostgreSQL database, through SQLAlchemy and psycopg.

1. A commit is durable when it returns, whatever the database is set to.
2. One broker at a time uses the database: it holds an advisory lock as long as its connection lives.
3. A server that vanishes silently is noticed within seconds. The next transaction connects again.
4. The broker waits for a lock of another program for `_LOCK_WAIT_MS` at most. A table that is locked longer, to alter
   or to rewrite it, counts as a database that refuses. The broker says so, and can still end.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, TextClause, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from warren.server.catalogue.database import NOT_INSTALLED, READ_AT_ONCE, DatabaseError
from warren.server.catalogue.tables import Row, RowValues
from warren.server.errors import CatalogueError

_CONNECT_TIMEOUT_S: Final = 5
_LOCK_WAIT_MS: Final = 5000
_LOCK_NOT_AVAILABLE: Final = "55P03"  # SQLSTATE
_ADVISORY_LOCK: Final = int.from_bytes(b"Warren", "big")
_CONNECTION: Final = {
    "connect_timeout": _CONNECT_TIMEOUT_S,
    "client_encoding": "UTF8",
    # Not after the kernel's quarter of an hour: see (3).
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


class PostgreSQL:
    """The database that `url` names; the first transaction connects to it.

    Raises:
        CatalogueError: the URL names no database, or the driver is not installed.
    """

    kind = "postgresql"

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            raise CatalogueError("metadata store: the URL cannot be parsed") from None
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        if parsed.drivername != "postgresql+psycopg":
            raise CatalogueError(
                f"metadata store: {parsed.drivername} is not supported; use sqlite or postgresql+psycopg"
            )
        self.shown = parsed.render_as_string(hide_password=True)
        try:
            # Parameters are password hashes and names: keep them out of error texts. One connection, which holds the
            # lock (2).
            self._engine = create_engine(
                parsed, hide_parameters=True, pool_size=1, max_overflow=0, connect_args=_CONNECTION
            )
        except ImportError as error:
            raise CatalogueError(NOT_INSTALLED.format(error.name)) from None
        event.listen(self._engine, "connect", _prepare)
        self._used: Any = None  # psycopg's connection, while a transaction is under way

    @contextmanager
    def transaction(self) -> Iterator[_Transaction]:
        """See `Database.transaction`."""
        try:
            with self._engine.begin() as connection:
                self._used = connection.connection.driver_connection
                yield _Transaction(connection)
        except SQLAlchemyError as error:
            raise DatabaseError(_one_line(error)) from error
        finally:
            self._used = None

    def interrupt(self) -> None:
        """See `Database.interrupt`. The connection is lost: a server that hangs does not hear a request to cancel."""
        used = self._used
        if used is not None:
            with (
                suppress(OSError, used.OperationalError),
                socket.fromfd(used.fileno(), socket.AF_UNSPEC, socket.SOCK_STREAM) as connected,
            ):
                connected.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """See `Database.close`."""
        self._engine.dispose()


class _Transaction:
    kind = PostgreSQL.kind

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, rows: Sequence[RowValues] = ()) -> None:
        if rows:
            self._connection.execute(_clause(statement), rows)
        else:
            self._connection.execute(_clause(statement))

    def rows(self, statement: str, parameters: Mapping[str, object] | None = None) -> Iterator[Row]:
        options = {"yield_per": READ_AT_ONCE}
        return iter(self._connection.execute(_clause(statement), dict(parameters or {}), execution_options=options))


@cache
def _clause(statement: str) -> TextClause:
    return text(statement)


def _prepare(connection: Any, _record: object) -> None:
    try:
        with connection.cursor() as cursor:
            _check_and_lock(cursor)
        connection.commit()
    except BaseException:
        connection.close()
        raise


def _check_and_lock(cursor: Any) -> None:
    cursor.execute("SHOW server_encoding")
    (encoding,) = cursor.fetchone()
    if encoding != "UTF8":
        raise CatalogueError(f"the database must be encoded in UTF8, not {encoding}")
    cursor.execute("SHOW synchronous_commit")
    if cursor.fetchone() == ("off",):
        cursor.execute("SET synchronous_commit = on")
    # See (4). This covers the moment in which the server has not yet noticed that a killed broker is gone.
    cursor.execute(f"SET lock_timeout = {_LOCK_WAIT_MS}")
    try:
        cursor.execute(f"SELECT pg_advisory_lock({_ADVISORY_LOCK})")
    except Exception as error:
        if getattr(error, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
            raise CatalogueError("another broker uses this database") from None
        raise


def _one_line(error: SQLAlchemyError) -> str:
    """Return what the driver said, without the statement, on one line."""
    cause: BaseException = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return " ".join(str(cause).split()) or type(cause).__name__
