"""The data directory: private to the user that runs the broker, and to one broker at a time.

1. While a `DataDir` is open no other process has one on the same directory. The locks are the kernel's (flock), on the
   directory itself and on a file in it. They end with the process, however that ends. The lock on the directory holds
   when the file is deleted or replaced; the lock on the file holds where a file system (NFS) cannot lock directories.
   The file stays; its contents (a process id) only help a person.
2. The directory has mode 0700, and the files made here 0600.
3. A directory with files of other programs is not taken over: its mode is only tightened if it is empty or was a data
   directory before.
4. A directory with an incomplete restore of a backup is refused: a broker would serve that part as if it were all.
5. A directory that was copied since its last start is marked before anything else is done with it (``links_mark.py``).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Final

from warren.server.links_mark import note_place
from warren.server.start_errors import StartError

LOCK_NAME: Final = "warren.lock"
# The directory of the message store.
MESSAGES: Final = "messages"
# Exists while a backup is being restored, and after a restore that did not finish.
UNFINISHED_RESTORE: Final = "restore.unfinished"

# Names that a file system puts into its own root.
_NOBODYS_FILES: Final = frozenset({"lost+found"})
# On NFS, flock becomes a lock of a range of bytes, which needs a writable descriptor; some file systems have no locks.
_LOCKS_NO_DIRECTORIES: Final = (errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS)


class DataDir:
    """An open, locked data directory."""

    def __init__(self, path: Path, locks: list[int]) -> None:
        self.path = path
        self._locks = locks

    @classmethod
    def open(cls, path: Path) -> DataDir:
        """Create `path` if it is missing, make it private and lock it.

        Raises StartError when it cannot be written, belongs to something else, or another broker uses it.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_private(path)
            locks = _lock(path)
        except FileExistsError:
            raise StartError(f"data directory {path}: a file of that name is in the way") from None
        except OSError as error:
            raise StartError(f"data directory {path}: {_reason(error)}") from None
        try:
            if (path / UNFINISHED_RESTORE).exists():
                raise StartError(
                    f"data directory {path}: it holds an incomplete restore of a backup: empty it, and "
                    "restore again (warren store restore)"
                )
            note_place(path)
        except OSError as error:
            _close(locks)
            raise StartError(f"data directory {path}: {_reason(error)}") from None
        except StartError:
            _close(locks)
            raise
        return cls(path, locks)

    def close(self) -> None:
        """Release the directory for another broker."""
        while self._locks:
            os.close(self._locks.pop())

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
            f"data directory {path}: it is readable by others, and has files that are not Warren's; "
            "use a separate directory, or make it private (chmod 700)"
        )
    path.chmod(0o700)


def _lock(path: Path) -> list[int]:
    """Return the descriptors that hold the locks.

    Raises:
        StartError: another broker has one of them.
    """
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    locks = [directory]
    try:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _LOCKS_NO_DIRECTORIES:
                raise
        while len(locks) == 1:
            file = os.open(LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=directory)
            locks.append(file)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_still(LOCK_NAME, file, directory):
                os.close(locks.pop())  # the file was deleted meanwhile: that lock keeps nobody out
        os.ftruncate(file, 0)
        os.pwrite(file, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        _close(locks)
        raise StartError(f"data directory {path}: another broker uses it (process {_holder(path)})") from None
    except OSError:
        _close(locks)
        raise
    return locks


def _is_still(name: str, file: int, directory: int) -> bool:
    """Tell whether a name still is that of an open file."""
    try:
        return os.path.samestat(os.stat(name, dir_fd=directory, follow_symlinks=False), os.fstat(file))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    """Return the process id in the lock file, for a person."""
    try:
        return (path / LOCK_NAME).read_bytes()[:20].decode("ascii", "replace").strip() or "?"
    except OSError:
        return "?"


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "not writable by this user"
    return os.strerror(error.errno) if error.errno else str(error)
