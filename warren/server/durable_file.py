"""Replace small files in one step: after a crash either the old content is there or the new one, complete."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from warren.msgstore.files.syncing import sync_all


def replace_file(path: Path, content: Callable[[int], bytes]) -> None:
    """Write a file durably: file, rename, directory. `content` gets the inode of the new file.

    Raises:
        OSError: either the old content is there or the new one; it is unknown which.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        write_all(file, content(os.fstat(file).st_ino))
        sync_all(file)
    finally:
        os.close(file)
    os.rename(temporary, path)
    sync_directory(path.parent)


def remove_file(path: Path) -> None:
    """Remove a file durably, if it exists. Raises OSError."""
    path.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_all(directory)
    finally:
        os.close(directory)


def write_all(file: int, data: bytes) -> None:
    """Write all of `data`. Raises OSError."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
