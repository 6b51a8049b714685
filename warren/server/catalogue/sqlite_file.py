"""Use a SQLite file as the database of the catalogue: open it, sync it with every commit, copy it.

1. Only their owner can access the file and those that SQLite puts beside it.
2. A commit is on the disk when it returns: in WAL mode only ``synchronous = FULL`` does that.
3. A copy is one whole file. It has the contents of the file, page by page, with any damage: `check` finds that.
4. The file is locked as long as it is open (``flock``, which SQLite's own locks ignore): two brokers with one file
   would each forget what the other has applied. Other programs may read it.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from warren.msgstore.files.syncing import sync_all
from warren.server.catalogue.database import DatabaseError
from warren.server.catalogue.tables import Row, RowValues

_WAL_KEPT_BYTES: Final = 16 << 20


class SqliteFile:
    """The database in the file `path`; creates the file if it is missing. Raises DatabaseError."""

    kind = "sqlite"

    def __init__(self, path: Path, shown: str) -> None:
        self.shown = shown
        self._path = Path(os.path.realpath(path))  # a link to a missing file should also name a private file
        _create_private(self._path)
        self._locked = _locked(self._path)
        try:
            self._connection = self._connected()
        except sqlite3.Error as error:
            os.close(self._locked)
            raise DatabaseError(_one_line(error)) from None

    def _connected(self) -> sqlite3.Connection:
        # isolation_level None: the driver does not begin transactions by itself, so schema changes are transactional
        # too.
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # see (2)
            connection.execute("PRAGMA fullfsync = ON")  # of macOS: see msgstore/files/syncing.py
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        """See `Database.transaction`."""
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield SqliteTransaction(connection)
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite may have undone it already
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise DatabaseError(_one_line(error)) from error
        except OverflowError as error:  # a number too large for SQLite
            raise DatabaseError(str(error)) from error

    def copy_to(self, path: Path) -> None:
        """Write all contents into a new file. Raises DatabaseError."""
        _create_private(path)
        try:
            with closing(sqlite3.connect(path)) as copy:
                self._connection.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # see (3)
        except sqlite3.Error as error:
            raise DatabaseError(_one_line(error)) from None

    def interrupt(self) -> None:
        """See `Database.interrupt`. A call that waits for the disk continues."""
        self._connection.interrupt()

    def keep(self, ending: str) -> None:
        """Keep a copy beside it, durably, under the same name with this ending. Raises DatabaseError, OSError."""
        kept = self._path.with_name(self._path.name + ending)
        unfinished = kept.with_name(kept.name + ".new")
        unfinished.unlink(missing_ok=True)
        self.copy_to(unfinished)
        _sync(unfinished, os.O_RDWR)
        unfinished.replace(kept)
        _sync(kept.parent, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        """See `Database.close`."""
        self._connection.close()
        # After it: SQLite loses its locks of a file when any descriptor of that file is closed.
        if self._locked >= 0:
            os.close(self._locked)
            self._locked = -1


class SqliteTransaction:
    """See `database.Transaction`."""

    kind = SqliteFile.kind

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, rows: Sequence[RowValues] = ()) -> None:
        """See `Transaction.execute`."""
        if rows:
            self._connection.executemany(statement, rows)
        else:
            self._connection.execute(statement)

    def rows(self, statement: str, parameters: Mapping[str, object] | None = None) -> Iterator[Row]:
        """See `Transaction.rows`."""
        return self._connection.execute(statement, parameters or {})


def check(path: Path) -> None:
    """Check all of a copy, however long that takes: a second for about 100,000 bindings. Nothing else does (3).

    Raises:
        DatabaseError: it is damaged.
    """
    try:
        with closing(sqlite3.connect(path)) as connection:
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        raise DatabaseError(_one_line(error)) from None
    if found != "ok":
        raise DatabaseError(" ".join(str(found).split()))


def _create_private(path: Path) -> None:
    """Create the file with mode 0600 if it is missing; SQLite gives the files beside it the same mode."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        _sync(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except FileExistsError:
        return
    except OSError as error:
        raise DatabaseError(os.strerror(error.errno or 0)) from None


def _locked(path: Path) -> int:
    """Return a descriptor that locks the file, which exists and is writable, until it is closed."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise DatabaseError(os.strerror(error.errno or 0)) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise DatabaseError("another broker has it open") from None
    except OSError:
        pass  # a file system without such locks: the lock of the data directory protects the file
    return fd


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        sync_all(fd)
    finally:
        os.close(fd)


def _one_line(error: sqlite3.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__
