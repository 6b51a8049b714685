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
from contextlib import closing
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Connection, event

from warren.msgstore.files.syncing import sync_all
from warren.server.catalogue.database import Database, DatabaseError, one_line
from warren.server.start_errors import CatalogueError

_WAL_KEPT_BYTES: Final = 16 << 20


class SqliteFile(Database):
    """The database in the file `path`; creates the file if it is missing. Raises DatabaseError."""

    def __init__(self, path: Path, shown: str) -> None:
        self._path = Path(os.path.realpath(path))  # a link to a missing file should also name a private file
        # isolation_level None: the driver does not begin transactions by itself, so schema changes are transactional
        # too.
        arguments = {"isolation_level": None, "check_same_thread": False}
        super().__init__(URL.create("sqlite", database=str(self._path)), shown, arguments)
        event.listen(self._engine, "begin", _begin)
        self._connection: sqlite3.Connection | None = None
        _create_private(self._path)
        self._locked = _locked(self._path)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # see (2)
        connection.execute("PRAGMA fullfsync = ON")  # of macOS: see msgstore/files/syncing.py
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_KEPT_BYTES}")
        self._connection = connection

    def copy_to(self, path: Path) -> None:
        """Write all contents into a new file. Raises DatabaseError."""
        assert self._connection is not None, "not connected"
        _create_private(path)
        try:
            with closing(sqlite3.connect(path)) as copy:
                self._connection.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")  # see (3)
        except sqlite3.Error as error:
            raise DatabaseError(one_line(error)) from None

    def interrupt(self) -> None:
        """See `Database.interrupt`. A call that waits for the disk continues."""
        if self._connection is not None:
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
        super().close()
        if self._connection is not None:
            self._connection.close()  # a transaction that was left unfinished still has it
        # After it: SQLite loses its locks of a file when any descriptor of that file is closed.
        if self._locked >= 0:
            os.close(self._locked)
            self._locked = -1


def check(path: Path) -> None:
    """Check all of a copy, however long that takes: a second for about 100,000 bindings. Nothing else does (3).

    Raises:
        CatalogueError: it is damaged.
    """
    try:
        with closing(sqlite3.connect(path)) as connection:
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        found = one_line(error)
    if found != "ok":
        raise CatalogueError(f"the metadata store is damaged: {' '.join(str(found).split())}")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


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
