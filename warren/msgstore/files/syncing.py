"""Writing the content of files to the disk, on each system.

`sync_content` makes the content of a file and its size durable, `sync_all` everything about a file or a directory. They
are the system's own calls where those do that. On macOS they do not: fsync hands the bytes to the disk, which may keep
them in its cache, and only F_FULLFSYNC makes the disk write them. A confirm means "on disk", so F_FULLFSYNC is used.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from typing import Final

_F_FULLFSYNC: Final = getattr(fcntl, "F_FULLFSYNC", None)
# A file system that has no such command, such as those of networks: fsync is the most that there is.
_NOT_THERE: Final = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL)


def full_sync(handle: int, command: int) -> None:
    """Flush everything in the disk's own cache: `command` is F_FULLFSYNC. Raises OSError."""
    try:
        fcntl.fcntl(handle, command)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        os.fsync(handle)


def content_sync(command: int | None) -> Callable[[int], None]:
    """Return `sync_content` for a system with or without F_FULLFSYNC."""
    if command is not None:
        return lambda handle: full_sync(handle, command)
    return getattr(os, "fdatasync", os.fsync)


def all_sync(command: int | None) -> Callable[[int], None]:
    """Return `sync_all` likewise."""
    return os.fsync if command is None else lambda handle: full_sync(handle, command)


sync_content: Final = content_sync(_F_FULLFSYNC)
sync_all: Final = all_sync(_F_FULLFSYNC)
