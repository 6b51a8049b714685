"""Give the catalogue transactions on one connection of SQLAlchemy; each kind of database has its own module.

SQLAlchemy is a third of what a start imports (``docs/decisions/0062``). A driver is imported when a URL names its
database.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Dialect, create_engine, event
from sqlalchemy.exc import SQLAlchemyError, StatementError


class DatabaseError(Exception):
    """The database does not answer, or refuses. The text is its message, on one line, without the statement."""


class Database(ABC):
    """The database that `url` names, for one thread at a time; the first transaction connects to it.

    `shown` is its URL for people. Raises ImportError when the driver is not installed.
    """

    def __init__(self, url: URL, shown: str, connect_args: Mapping[str, object]) -> None:
        self.shown = shown
        self._used: Any = None  # the connection of the driver, while a transaction is under way
        # Parameters are password hashes and names: keep them out of error texts. One connection, which may hold a lock.
        self._engine = create_engine(
            url, hide_parameters=True, pool_size=1, max_overflow=0, connect_args=dict(connect_args)
        )
        event.listen(self._engine, "connect", self._connected)

    @property
    def dialect(self) -> Dialect:
        """The words of this kind of database."""
        return self._engine.dialect

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Begin a transaction. It is durable at the end of the block, or undone when the block raises.

        Raises DatabaseError, also for statements in it.
        """
        try:
            with self._engine.begin() as connection:
                self._used = connection.connection.driver_connection
                yield connection
        except SQLAlchemyError as error:
            cause = error.orig if isinstance(error, StatementError) and error.orig is not None else error
            raise DatabaseError(one_line(cause)) from error
        except OverflowError as error:  # a number too large for SQLite
            raise DatabaseError(str(error)) from error
        finally:
            self._used = None

    @abstractmethod
    def interrupt(self) -> None:
        """Make the transaction fail that is under way in another thread, if any; it is done or undone as a whole."""

    def close(self) -> None:
        """Close it, and release it."""
        self._engine.dispose()

    @abstractmethod
    def _prepare(self, connection: Any) -> None:
        """Prepare a new connection of the driver. Raises CatalogueError, or what the driver raises."""

    def _connected(self, connection: Any, _record: object) -> None:
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise


def one_line(error: BaseException) -> str:
    """Return the message of a driver on one line."""
    return " ".join(str(error).split()) or type(error).__name__
