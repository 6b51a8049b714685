"""Define the database that the catalogue needs, and choose one by its URL.

Each database has its own module. SQLAlchemy and a driver are imported for PostgreSQL only: SQLAlchemy alone is 14 MB of
an idle broker and half the time of its start, and SQLite does not need it (``docs/decisions/0056``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from warren.server.catalogue.tables import Row, RowValues

NOT_INSTALLED: Final = "metadata store: {} is not installed: pip install 'warren-broker[postgresql]'"
READ_AT_ONCE: Final = 1000  # rows: all rows of a million bindings would take more than the bindings themselves


class DatabaseError(Exception):
    """The database does not answer, or refuses. The text is its message, on one line, without the statement."""


class Transaction(Protocol):
    """A transaction, carried out completely or not at all; see `Database.transaction`."""

    kind: str  # of the database

    def execute(self, statement: str, rows: Sequence[RowValues] = ()) -> None:
        """Carry out `statement`, once for each of `rows` if any: its parameters, and perhaps others."""

    def rows(self, statement: str, parameters: Mapping[str, object] | None = None) -> Iterator[Row]:
        """Yield the rows that `statement` selects, reading them as they are consumed."""


class Database(Protocol):
    """An open database, for one thread at a time. `kind`: ``sqlite`` or ``postgresql``; `shown`: its URL for people."""

    kind: str
    shown: str

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Begin a transaction. It is durable at the end of the block, or undone when the block raises.

        Raises DatabaseError, also for statements in it.
        """

    def interrupt(self) -> None:
        """Make the transaction fail that is under way in another thread, if any; it is done or undone as a whole."""

    def close(self) -> None:
        """Close it, and release it."""
