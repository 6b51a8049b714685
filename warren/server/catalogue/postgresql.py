"""Keep the catalogue in a PostgreSQL database, through SQLAlchemy and psycopg.

1. A commit is durable when it returns, whatever the database is set to.
2. One broker at a time uses the database: it holds an advisory lock as long as its connection lives.
3. A server that vanishes silently is noticed within seconds. The next transaction connects again.
4. The broker waits for a lock of another program for `_LOCK_WAIT_MS` at most. A table that is locked longer, to alter
   or to rewrite it, counts as a database that refuses. The broker says so, and can still end.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any, Final

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from warren.server.catalogue.database import Database
from warren.server.start_errors import CatalogueError

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


class PostgreSQL(Database):
    """The database that `url` names.

    Raises:
        CatalogueError: the URL names no database, or the driver is not installed.
    """

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
        try:
            super().__init__(parsed, parsed.render_as_string(hide_password=True), _CONNECTION)
        except ImportError as error:
            raise CatalogueError(
                f"metadata store: {error.name} is not installed: pip install './warren[postgresql]'"
            ) from None

    def interrupt(self) -> None:
        """See `Database.interrupt`. The connection is lost: a server that hangs does not hear a request to cancel."""
        used = self._used
        if used is not None:
            with (
                suppress(OSError, used.OperationalError),
                socket.fromfd(used.fileno(), socket.AF_UNSPEC, socket.SOCK_STREAM) as connected,
            ):
                connected.shutdown(socket.SHUT_RDWR)

    def _prepare(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            _check_and_lock(cursor)
        connection.commit()


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
