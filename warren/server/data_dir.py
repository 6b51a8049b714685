"""The data directory: private to the user that runs the broker, and to one broker at a time.

1. While a `DataDir` is open no other process has one on the same directory: the lock is the kernel's (flock)
   and ends with the process, however that ends. The lock file stays; its contents (a process id) only help a
   person.
2. The directory has mode 0700 and the files made here 0600.
3. A directory that holds other people's files is not taken over: its mode is only tightened when it is empty
   or was a data directory before.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Final

from warren.server.errors import StartError

LOCK_NAME: Final = "warren.lock"

# What a file system puts into its own root.
_NOBODYS_FILES: Final = frozenset({"lost+found"})


class DataDir:
    """An open, locked data directory."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    @classmethod
    def open(cls, path: Path) -> DataDir:
        """Create `path` if it is missing, make it private and lock it.

        Raises StartError when it cannot be written, belongs to something else, or another broker uses it.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_private(path)
            return cls(path, _lock(path))
        except FileExistsError:
            raise StartError(f"data directory {path}: a file of that name is in the way") from None
        except OSError as error:
            raise StartError(f"data directory {path}: {_reason(error)}") from None

    def close(self) -> None:
        """Give the directory free for another broker."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> DataDir:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _make_private(path: Path) -> None:
    if stat.S_IMODE(path.stat().st_mode) & 0o077 == 0:
        return
    names = set(os.listdir(path)) - _NOBODYS_FILES
    if names and LOCK_NAME not in names:
        raise StartError(
            f"data directory {path}: others can read it and it holds files that are not Warren's; "
            "name a directory of its own, or make it private (chmod 700)"
        )
    path.chmod(0o700)


def _lock(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock_fd = os.open(path / LOCK_NAME, flags, 0o600)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock_fd, 0)
        os.pwrite(lock_fd, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        holder = os.pread(lock_fd, 20, 0).decode("ascii", "replace").strip()
        os.close(lock_fd)
        raise StartError(f"data directory {path}: another broker uses it (process {holder or '?'})") from None
    except OSError:
        os.close(lock_fd)
        raise
    return lock_fd


def _reason(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "not writable by this user"
    return os.strerror(error.errno) if error.errno else str(error)
