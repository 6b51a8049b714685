"""The operations of a file system that the store needs, and the real implementation.

Owns the system calls of the message store: nothing else in this package opens, writes or renames a file. That makes
the disk replaceable: the simulation runs the store on one that crashes, tears writes, fills up and fails.

1. Paths are relative to the root that an implementation was made with, ``.`` is the root; handles are integers.
2. An operation does one thing, has happened when it returns, and has not when it raises OSError. Two exceptions:
   `write` may write less than asked; and after a failed `sync`, earlier writes are lost or not, whatever later calls
   say: the caller must stop then.
3. Only `sync` makes the content and size of a file durable, and only `sync_directory` the names in a directory. Neither
   implies the other.
4. Files can be read and written by their owner only. Making a file or a link fails if the name exists already.

Memory mapping is not used: a disk error in a mapped page is a signal that kills the process, not an exception.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from warren.msgstore.files.syncing import sync_all, sync_content

IOV_MAX: Final = os.sysconf("SC_IOV_MAX")

_CANNOT_PREALLOCATE: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class FileSystem(Protocol):
    """The operations. Each raises OSError with its errno."""

    def create(self, path: str, size: int) -> int:
        """Create a file of `size` zero bytes, which later writes need no more space for; return a writable handle.

        Raises FileExistsError for any existing name. If the disk is full, the name is removed before that is raised.
        """

    def open(self, path: str, *, writable: bool) -> int:
        """Return a handle of an existing file."""

    def close(self, handle: int) -> None:
        """Give the handle back. Makes nothing durable."""

    def size(self, handle: int) -> int:
        """Return the size of the file in bytes."""

    def write(self, handle: int, chunks: Sequence[bytes | memoryview], offset: int) -> int:
        """Write `chunks` one after the other at `offset`; return the number of written bytes, which may be smaller."""

    def read(self, handle: int, length: int, offset: int) -> bytes:
        """Return at most `length` bytes from `offset`: fewer at will, none only at the end or after it."""

    def forget_cached(self, handle: int, length: int, offset: int) -> None:
        """Drop these bytes from the cache, so that the next read comes from the disk, as far as possible. A hint."""

    def sync(self, handle: int) -> None:
        """Make the content and the size of the file durable."""

    def truncate(self, handle: int, length: int) -> None:
        """Set the size; bytes that were not there before are zero."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name in its directory, instead of the file that has it, in one step."""

    def link(self, path: str, new: str) -> None:
        """Give a file another name, which may be in another directory, besides the one that it has.

        Raises FileExistsError for any existing name.
        """

    def unlink(self, path: str) -> None:
        """Remove the name of a file. Its space is free once it has no other and no handle is open."""

    def mkdir(self, path: str) -> None:
        """Make a directory; its parent exists."""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable, as they are now."""

    def free_bytes(self) -> int:
        """Return the space that this process may still take."""


class OsFileSystem:
    """The operating system's files below the directory `root`, which exists. Holds no state; threads may share it."""

    def __init__(self, root: str) -> None:
        self._root = root

    def create(self, path: str, size: int) -> int:
        name = self._name(path)
        handle = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _preallocate(handle, size)
        except OSError:
            os.close(handle)
            os.unlink(name)
            raise
        return handle

    def open(self, path: str, *, writable: bool) -> int:
        access = os.O_RDWR if writable else os.O_RDONLY
        return os.open(self._name(path), access | os.O_CLOEXEC | os.O_NOFOLLOW)

    def close(self, handle: int) -> None:
        os.close(handle)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def write(self, handle: int, chunks: Sequence[bytes | memoryview], offset: int) -> int:
        return os.pwritev(handle, chunks if len(chunks) <= IOV_MAX else chunks[:IOV_MAX], offset)

    def read(self, handle: int, length: int, offset: int) -> bytes:
        return os.pread(handle, length, offset)

    def forget_cached(self, handle: int, length: int, offset: int) -> None:
        if hasattr(os, "posix_fadvise"):  # not on macOS
            start = offset - offset % mmap.PAGESIZE
            end = offset + length
            os.posix_fadvise(handle, start, end - start + -end % mmap.PAGESIZE, os.POSIX_FADV_DONTNEED)

    def sync(self, handle: int) -> None:
        sync_content(handle)

    def truncate(self, handle: int, length: int) -> None:
        os.ftruncate(handle, length)

    def rename(self, old: str, new: str) -> None:
        os.rename(self._name(old), self._name(new))

    def link(self, path: str, new: str) -> None:
        os.link(self._name(path), self._name(new), follow_symlinks=False)

    def unlink(self, path: str) -> None:
        os.unlink(self._name(path))

    def mkdir(self, path: str) -> None:
        os.mkdir(self._name(path), 0o700)

    def names(self, path: str) -> list[str]:
        return sorted(os.listdir(self._name(path)))

    def sync_directory(self, path: str) -> None:
        handle = os.open(self._name(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            sync_all(handle)
        finally:
            os.close(handle)

    def free_bytes(self) -> int:
        space = os.statvfs(self._root)
        return space.f_bavail * space.f_frsize

    def _name(self, path: str) -> str:
        assert_relative(path)
        return os.path.join(self._root, path)


def assert_relative(path: str) -> None:
    """Assert that `path` is below the root: paths are made of our own words and numbers, never of a client's."""
    assert path and path[0] != "/" and ".." not in path.split("/"), path


def write_all(fs: FileSystem, handle: int, chunks: Sequence[bytes | memoryview], offset: int) -> None:
    """Write all of `chunks` one after the other at `offset`, in as many calls as that takes.

    Raises OSError: as `FileSystem.write`, and EIO when a call writes nothing. Some may be written then.
    """
    # Leave out empty chunks: a call with nothing else would write nothing, which is not a failure.
    pending: Sequence[bytes | memoryview] = [chunk for chunk in chunks if chunk]
    while pending:
        written = fs.write(handle, pending, offset)
        if written <= 0:
            raise OSError(errno.EIO, "a write wrote nothing")
        offset += written
        pending = _behind(pending, written)


def _behind(chunks: Sequence[bytes | memoryview], written: int) -> Sequence[bytes | memoryview]:
    """Return the rest of `chunks` without their first `written` bytes."""
    for index, chunk in enumerate(chunks):
        if written < len(chunk):
            return [chunk[written:], *chunks[index + 1 :]]
        written -= len(chunk)
    return ()


def unlink_if_there(fs: FileSystem, path: str) -> None:
    """Remove a file; a missing one is ignored. Raises OSError."""
    with suppress(FileNotFoundError):
        fs.unlink(path)


def replace_file(fs: FileSystem, making: str, path: str, content: bytes, sync: Callable[[int, str], None]) -> None:
    """Write a file in one step: it is called `making` until `sync` has made its content durable. Raises OSError."""
    unlink_if_there(fs, making)
    handle = fs.create(making, 0)
    try:
        write_all(fs, handle, [content], 0)
        sync(handle, making)
    finally:
        fs.close(handle)
    fs.rename(making, path)


def read_file(fs: FileSystem, path: str) -> bytes:
    """Return the content of a file. Raises OSError."""
    handle = fs.open(path, writable=False)
    try:
        return read_exactly(fs, handle, fs.size(handle), 0)
    finally:
        fs.close(handle)


def read_exactly(fs: FileSystem, handle: int, length: int, offset: int) -> bytes:
    """Return the `length` bytes at `offset`, fewer only where the file ends."""
    data = fs.read(handle, length, offset)
    if len(data) == length or not data:
        return data
    pieces = [data]
    got = len(data)
    while got < length and data:
        data = fs.read(handle, length - got, offset + got)
        pieces.append(data)
        got += len(data)
    return b"".join(pieces)


def _preallocate(handle: int, size: int) -> None:
    if size == 0:
        return
    if not hasattr(os, "posix_fallocate"):  # macOS
        os.ftruncate(handle, size)
        return
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        if error.errno not in _CANNOT_PREALLOCATE:
            raise
        os.ftruncate(handle, size)
