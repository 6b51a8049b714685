"""The disk of a broker under test: one in memory that forgets unsynced data, and faults for any file system.

`MemoryFiles` is a `FileSystem` of the message store, kept between the lives of a broker. `Disk` stands between one life
and its files, and can be full or cut off.

1. After `MemoryFiles.crash` a file has the bytes and the size of its last sync, a directory the names of its last
   sync: the worst outcome that a power cut may have.
2. A file takes as much memory as was written to it, not its size at creation.
3. After `Disk.cut` no write reaches the files, from any thread, and no handle stays open.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from threading import RLock
from typing import Final

from warren.msgstore.files.file_system import IOV_MAX, FileSystem, assert_relative

FREE_BYTES: Final = 1 << 40
_ROOT: Final = "."


class _File:
    """``data`` may be shorter than ``size``: the rest is zeros. ``undo`` leads back to the last sync, newest last."""

    __slots__ = ("data", "size", "undo")

    def __init__(self, size: int) -> None:
        self.data = bytearray()
        self.size = size
        self.undo: list[tuple[int, bytes, int]] = []  # the place, the bytes from there up to the end, the size

    def note(self, offset: int) -> None:
        start = min(offset, len(self.data))
        self.undo.append((start, bytes(self.data[start:]), self.size))

    def revert(self) -> None:
        while self.undo:
            start, tail, self.size = self.undo.pop()
            self.data[start:] = tail


class _Directory:
    __slots__ = ("names", "synced")

    def __init__(self) -> None:
        self.names: dict[str, _File | None] = {}  # None: a directory
        self.synced: dict[str, _File | None] = {}


class MemoryFiles:
    """A file system in memory. Threads may share it."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._directories = {_ROOT: _Directory()}
        self._open: dict[int, tuple[_File, bool]] = {}  # with whether it may be written to
        self._next_handle = 1

    def crash(self) -> None:
        """Forget unsynced data, and all handles."""
        with self._lock:
            self._open.clear()
            for directory in self._directories.values():
                for file in {*directory.names.values(), *directory.synced.values()}:
                    if file is not None:
                        file.revert()
                directory.names = dict(directory.synced)

    def create(self, path: str, size: int) -> int:
        with self._lock:
            directory, name = self._locate(path)
            if name in directory.names:
                raise _error(errno.EEXIST, path)
            file = directory.names[name] = _File(0)
            file.note(0)
            file.size = size
            return self._handle(file, writable=True)

    def open(self, path: str, *, writable: bool) -> int:
        with self._lock:
            return self._handle(self._file(path), writable=writable)

    def close(self, handle: int) -> None:
        with self._lock:
            self._opened(handle)
            del self._open[handle]

    def size(self, handle: int) -> int:
        with self._lock:
            return self._opened(handle).size

    def write(self, handle: int, chunks: Sequence[bytes | memoryview], offset: int) -> int:
        with self._lock:
            file = self._opened(handle, otherwise=errno.EBADF)
            written = b"".join(chunks[:IOV_MAX])
            if not written:
                return 0
            file.note(offset)
            if offset > len(file.data):
                file.data.extend(bytes(offset - len(file.data)))
            file.data[offset : offset + len(written)] = written
            file.size = max(file.size, len(file.data))
            return len(written)

    def read(self, handle: int, length: int, offset: int) -> bytes:
        with self._lock:
            file = self._opened(handle)
            length = max(0, min(length, file.size - offset))
            return bytes(file.data[offset : offset + length]).ljust(length, b"\x00")

    def forget_cached(self, handle: int, length: int, offset: int) -> None:
        with self._lock:
            self._opened(handle)

    def sync(self, handle: int) -> None:
        with self._lock:
            self._opened(handle).undo.clear()

    def truncate(self, handle: int, length: int) -> None:
        with self._lock:
            file = self._opened(handle, otherwise=errno.EINVAL)
            file.note(length)
            del file.data[length:]
            file.size = length

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            file = self._file(old)
            directory, name = self._locate(new)
            if directory.names.get(name, file) is None:
                raise _error(errno.EISDIR, new)
            former, old_name = self._locate(old)
            del former.names[old_name]
            directory.names[name] = file

    def link(self, path: str, new: str) -> None:
        with self._lock:
            file = self._file(path)
            directory, name = self._locate(new)
            if name in directory.names:
                raise _error(errno.EEXIST, new)
            directory.names[name] = file

    def unlink(self, path: str) -> None:
        with self._lock:
            self._file(path)
            directory, name = self._locate(path)
            del directory.names[name]

    def mkdir(self, path: str) -> None:
        with self._lock:
            directory, name = self._locate(path)
            if name in directory.names:
                raise _error(errno.EEXIST, path)
            directory.names[name] = None
            self._directories.setdefault(path, _Directory())

    def names(self, path: str) -> list[str]:
        with self._lock:
            return sorted(self._directory(path).names)

    def sync_directory(self, path: str) -> None:
        with self._lock:
            directory = self._directory(path)
            directory.synced = dict(directory.names)

    def free_bytes(self) -> int:
        return FREE_BYTES

    def _handle(self, file: _File, *, writable: bool) -> int:
        self._next_handle += 1
        self._open[self._next_handle] = (file, writable)
        return self._next_handle

    def _opened(self, handle: int, otherwise: int = 0) -> _File:
        """Return the file of a handle; `otherwise` is the error when it may not be written to, 0: it need not."""
        file, writable = self._open.get(handle, (None, False))
        if file is None:
            raise _error(errno.EBADF, str(handle))
        if otherwise and not writable:
            raise _error(otherwise, str(handle))
        return file

    def _directory(self, path: str) -> _Directory:
        directory = self._directories.get(path)
        if directory is None:
            self._file(path)
            raise _error(errno.ENOTDIR, path)
        return directory

    def _locate(self, path: str) -> tuple[_Directory, str]:
        assert_relative(path)
        parent, _, name = path.rpartition("/")
        return self._directory(parent or _ROOT), name

    def _file(self, path: str) -> _File:
        directory, name = self._locate(path)
        if name not in directory.names:
            raise _error(errno.ENOENT, path)
        file = directory.names[name]
        if file is None:
            raise _error(errno.EISDIR, path)
        return file


class Disk:
    """`files` as one life of a broker sees them. While `full`, nothing can be written."""

    def __init__(self, files: FileSystem) -> None:
        self.full = False
        self._files = files
        self._lock = RLock()
        self._handles: set[int] = set()
        self._is_cut = False

    def cut(self) -> None:
        """Stop all access to the files."""
        with self._lock:
            self._is_cut = True
            handles, self._handles = self._handles, set()
        for handle in handles:
            self._files.close(handle)

    def create(self, path: str, size: int) -> int:
        self._check(writes=True)
        return self._opened(self._files.create(path, size))

    def open(self, path: str, *, writable: bool) -> int:
        self._check()
        return self._opened(self._files.open(path, writable=writable))

    def close(self, handle: int) -> None:
        with self._lock:
            self._check()
            self._handles.discard(handle)
        self._files.close(handle)

    def size(self, handle: int) -> int:
        self._check()
        return self._files.size(handle)

    def write(self, handle: int, chunks: Sequence[bytes | memoryview], offset: int) -> int:
        self._check(writes=True)
        return self._files.write(handle, chunks, offset)

    def read(self, handle: int, length: int, offset: int) -> bytes:
        self._check()
        return self._files.read(handle, length, offset)

    def forget_cached(self, handle: int, length: int, offset: int) -> None:
        self._check()
        self._files.forget_cached(handle, length, offset)

    def sync(self, handle: int) -> None:
        self._check()
        self._files.sync(handle)

    def truncate(self, handle: int, length: int) -> None:
        self._check()
        self._files.truncate(handle, length)

    def rename(self, old: str, new: str) -> None:
        self._check()
        self._files.rename(old, new)

    def link(self, path: str, new: str) -> None:
        self._check(writes=True)
        self._files.link(path, new)

    def unlink(self, path: str) -> None:
        self._check()
        self._files.unlink(path)

    def mkdir(self, path: str) -> None:
        self._check(writes=True)
        self._files.mkdir(path)

    def names(self, path: str) -> list[str]:
        self._check()
        return self._files.names(path)

    def sync_directory(self, path: str) -> None:
        self._check()
        self._files.sync_directory(path)

    def free_bytes(self) -> int:
        self._check()
        return self._files.free_bytes()

    def _opened(self, handle: int) -> int:
        with self._lock:
            if not self._is_cut:
                self._handles.add(handle)
                return handle
        self._files.close(handle)
        raise _error(errno.EIO, "the disk is cut off")

    def _check(self, *, writes: bool = False) -> None:
        if self._is_cut:
            raise _error(errno.EIO, "the disk is cut off")
        if writes and self.full:
            raise _error(errno.ENOSPC, "the disk is full on purpose")


def _error(number: int, what: str) -> OSError:
    return OSError(number, os.strerror(number), what)
