"""What the catalogue needs of a database, and which one a URL names.

The two have a module each. What PostgreSQL takes, SQLAlchemy and a driver, is imported for it only: SQLAlchemy alone is
14 MB of an idle broker and half the time of its start, and SQLite needs nothing of it (``docs/decisions/0056``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol

from warren.server.catalogue.tables import Row, RowValues

NOT_INSTALLED: Final = "metadata store: {} is not installed: pip install 'warren-broker[postgresql]'"
READ_AT_ONCE: Final = 1000  # rows: of a million bindings all would take more than the bindings themselves


class DatabaseError(Exception):
    """The database does not answer, or refuses. The text is what it said, on one line, without the statement."""


class Transaction(Protocol):
    """What is carried out all or none; see `Database.transaction`."""

    kind: str  # of the database

    def execute(self, statement: str, rows: Sequence[RowValues] = ()) -> None:
        """Carry out `statement`, once for each of `rows` if there are any: its parameters, and others perhaps."""

    def rows(self, statement: str, parameters: Mapping[str, object] | None = None) -> Iterator[Row]:
        """Yield what `statement` selects, read as it is asked for."""


class Database(Protocol):
    """An open database, for one thread at a time. `kind`: ``sqlite`` or ``postgresql``; `shown`: its URL for people."""

    kind: str
    shown: str

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Begin a transaction, which is durable at the end of the block, or undone when that raises.

        Raises DatabaseError, also for what is carried out in it.
        """

    def interrupt(self) -> None:
        """Have the transaction fail that is under way in another thread, if one is; it is done or undone as a whole."""

    def close(self) -> None:
        """Close it, and give it free."""
