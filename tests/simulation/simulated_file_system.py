"""A disk in memory that forgets what was not synced: the store's FileSystem, with crashes and faults.

The crash model. A file is its image on the disk plus the changes (writes, changes of size) made since its last sync,
in order; a directory is its names on the disk plus the changes (create, mkdir, rename, unlink) since its last sync.

1. `sync` puts all changes of one file on the disk, and no name; `sync_directory` all names of one directory, and no
   content. Bytes on the disk survive every crash.
2. Of the unsynced changes of a file any part may survive a crash, in any order: a write may survive as some of the
   512-byte sectors that it touches, and the new size of a file without its bytes, which are zero then.
3. Of the unsynced changes of a directory a prefix survives, whatever becomes of the files. A rename is one change.
4. When a sync fails, the unsynced changes of the file can still be read, but no later sync puts them on the disk.
5. A killed process loses nothing, and nothing becomes durable by it.

Not in the model: a crash that damages sectors at rest (see `flip_bit`, `zero_sector` and `spoil`), and stale
bytes in grown files. Directories are never renamed or removed, and a rename stays in its directory: these are refused.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from random import Random
from typing import Final

from simulation.crash_states import CrashPoint
from simulation.disk import ROOT, SECTOR_BYTES, Directory, Inode, NameChange, Names, Resize, Write, join
from warren.msgstore.files.file_system import IOV_MAX, assert_relative

_UNLIMITED_BYTES: Final = 1 << 40
_BLOCK_BYTES: Final = 4096


class Fault(Enum):
    """Possible faults of an operation."""

    EIO = "the disk reports an error; nothing has happened, except that a sync loses what it should have synced"
    ENOSPC = "no space; nothing has happened"
    SHORT_WRITE = "a write writes the first half"
    FAILED_SYNC = "a sync reports an error and loses what it should have synced"


# The operations that each fault can hit, unless it is asked for elsewhere.
_CHANGES: Final = ("create", "write", "truncate", "rename", "mkdir")
_HITS: Final[dict[Fault, tuple[str, ...]]] = {
    Fault.EIO: (*_CHANGES, "unlink", "sync", "sync_directory", "open", "read", "names"),
    Fault.ENOSPC: _CHANGES,
    Fault.SHORT_WRITE: ("write",),
    Fault.FAILED_SYNC: ("sync",),
}


class _PlannedFault:
    __slots__ = ("calls_left", "fault", "operations")

    def __init__(self, fault: Fault, operations: tuple[str, ...], calls_left: int) -> None:
        self.fault = fault
        self.operations = operations
        self.calls_left = calls_left


class _OpenFile:
    __slots__ = ("inode", "path", "writable")

    def __init__(self, inode: Inode, path: str, writable: bool) -> None:
        self.inode = inode
        self.path = path
        self.writable = writable


class SimulatedFileSystem:
    """A FileSystem in memory that can crash and fail. One thread.

    `on_operation` is called before and after every operation, with ``before write log/1``, ``after write log/1`` and
    the like; an operation that raises has an ``after`` only when it changed something. `fails_read` tells whether a
    read fails; no crash state has it. `capacity` is the size of the disk in bytes, all of it for files; None is no
    limit. `failures` lists the operations that a planned fault hit.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.on_operation: Callable[[str], None] | None = None
        self.fails_read: Callable[[str, int, int], bool] | None = None  # whether a read of path, offset, length fails
        self.failures: list[str] = []
        self._calls: dict[str, int] = {}
        self._faults: list[_PlannedFault] = []
        self._directories: dict[str, Directory] = {ROOT: Directory({})}
        self._open: dict[int, _OpenFile] = {}
        self._next_handle = 3
        self._sequence = 0

    # The operations of a file system

    def create(self, path: str, size: int) -> int:
        self._begin("create", path)
        directory, name = self._locate(path)
        if name in directory.names:
            raise _error(errno.EEXIST, path)
        if size > self.free_bytes():
            raise _error(errno.ENOSPC, path)
        inode = Inode(b"")
        directory.change(NameChange(self._tick(), None, name, inode))
        if size:
            inode.change(Resize(self._tick(), size))
        self._end("create", path)
        return self._handle(inode, path, True)

    def open(self, path: str, *, writable: bool) -> int:
        self._begin("open", path)
        inode = self._inode(path)
        self._end("open", path)
        return self._handle(inode, path, writable)

    def close(self, handle: int) -> None:
        path = self._opened(handle).path
        self._begin("close", path)
        del self._open[handle]
        self._end("close", path)

    def size(self, handle: int) -> int:
        opened = self._opened(handle)
        self._begin("size", opened.path)
        self._end("size", opened.path)
        return len(opened.inode.image())

    def write(self, handle: int, chunks: Sequence[bytes | memoryview], offset: int) -> int:
        opened = self._opened(handle)
        fault = self._begin("write", opened.path)
        if not opened.writable:
            raise _error(errno.EBADF, opened.path)
        data = b"".join(chunks[:IOV_MAX])
        if fault is Fault.SHORT_WRITE and len(data) > 1:
            data = data[: len(data) // 2]
        if data and self.capacity is not None:
            room = len(opened.inode.image()) + self.free_bytes() - offset
            if room <= 0:
                raise _error(errno.ENOSPC, opened.path)
            data = data[:room]
        self._write_bad(opened, offset, offset + len(data))
        if data:
            opened.inode.change(Write(self._tick(), offset, data))
        self._end("write", opened.path)
        return len(data)

    def read(self, handle: int, length: int, offset: int) -> bytes:
        opened = self._opened(handle)
        self._begin("read", opened.path)
        if self.fails_read is not None and self.fails_read(opened.path, offset, length):
            raise _error(errno.EIO, opened.path)
        data = bytes(opened.inode.image()[offset : offset + length])
        for start, end in opened.inode.bad:
            if start < offset + len(data) and offset < end:
                if start <= offset:
                    raise _error(errno.EIO, opened.path)
                data = data[: start - offset]
        self._end("read", opened.path)
        return data

    def forget_cached(self, handle: int, length: int, offset: int) -> None:
        self._opened(handle)

    def sync(self, handle: int) -> None:
        opened = self._opened(handle)
        try:
            self._begin("sync", opened.path)
        except OSError:
            opened.inode.lose_unsynced()
            self._end("sync", opened.path)
            raise
        opened.inode.sync()
        self._end("sync", opened.path)

    def truncate(self, handle: int, length: int) -> None:
        opened = self._opened(handle)
        self._begin("truncate", opened.path)
        if not opened.writable:
            raise _error(errno.EINVAL, opened.path)
        if length - len(opened.inode.image()) > self.free_bytes():
            raise _error(errno.ENOSPC, opened.path)
        opened.inode.change(Resize(self._tick(), length))
        self._end("truncate", opened.path)

    def rename(self, old: str, new: str) -> None:
        self._begin("rename", f"{old} {new}")
        directory, old_name = self._locate(old)
        new_directory, new_name = self._locate(new)
        assert directory is new_directory, f"{old} to {new}: not in one directory"
        inode = self._inode(old)
        if directory.names.get(new_name, inode) is None:
            raise _error(errno.EISDIR, new)
        if old_name != new_name:
            directory.change(NameChange(self._tick(), old_name, new_name, inode))
        self._end("rename", f"{old} {new}")

    def link(self, path: str, new: str) -> None:
        self._begin("link", f"{path} {new}")
        inode = self._inode(path)
        directory, name = self._locate(new)
        if name in directory.names:
            raise _error(errno.EEXIST, new)
        directory.change(NameChange(self._tick(), None, name, inode))
        self._end("link", f"{path} {new}")

    def unlink(self, path: str) -> None:
        self._begin("unlink", path)
        inode = self._inode(path)
        directory, name = self._locate(path)
        directory.change(NameChange(self._tick(), name, None, inode))
        self._end("unlink", path)

    def mkdir(self, path: str) -> None:
        self._begin("mkdir", path)
        directory, name = self._locate(path)
        if name in directory.names:
            raise _error(errno.EEXIST, path)
        directory.change(NameChange(self._tick(), None, name, None))
        self._directories[path] = Directory({})
        self._end("mkdir", path)

    def names(self, path: str) -> list[str]:
        self._begin("names", path)
        names = sorted(self._directory(path).names)
        self._end("names", path)
        return names

    def sync_directory(self, path: str) -> None:
        self._begin("sync_directory", path)
        self._directory(path).sync()
        self._end("sync_directory", path)

    def free_bytes(self) -> int:
        if self.capacity is None:
            return _UNLIMITED_BYTES
        inodes = {id(inode): inode for _, inode in self._files()}
        inodes.update((id(opened.inode), opened.inode) for opened in self._open.values())
        return max(0, self.capacity - sum(len(inode.image()) for inode in inodes.values()))

    # Faults

    def fail(self, nth_call: int, fault: Fault, operation: str | None = None) -> None:
        """Make `fault` hit one operation.

        `nth_call` counts from 1 from when this file system was made, over the calls of `operation`, by default of all
        that such a fault can hit. An `operation` that it does not usually hit is allowed: ENOSPC from a sync.
        """
        operations = _HITS[fault] if operation is None else (operation,)
        calls_left = nth_call - sum(self._calls.get(name, 0) for name in operations)
        assert calls_left > 0, f"call {nth_call} is over"
        self._faults.append(_PlannedFault(fault, operations, calls_left))

    def calls(self, fault: Fault) -> int:
        """Return how many calls so far `fault` could have hit."""
        return sum(self._calls.get(name, 0) for name in _HITS[fault])

    def flip_bit(self, path: str, offset: int, bit: int) -> None:
        """Flip a bit of a file, on the disk and for current readers. `bit` 0 is the lowest."""
        self._damage(path, offset, bytes([self._inode(path).durable[offset] ^ 1 << bit]))

    def zero_sector(self, path: str, n: int) -> None:
        """Zero the 512-byte sector `n` of a file, on the disk and for current readers."""
        start = n * SECTOR_BYTES
        self._damage(path, start, bytes(len(self._inode(path).durable[start : start + SECTOR_BYTES])))

    def spoil(self, path: str, start: int, end: int) -> None:
        """Make reads of the bytes of a file from `start` to `end` fail, until it is healed; no crash state has that.

        To write a part of a block the kernel reads it, which fails likewise. A whole one finds another place.
        """
        self._inode(path).bad.append((start, end))

    def heal(self, path: str) -> None:
        """Make all of a file readable again."""
        self._inode(path).bad.clear()

    def _write_bad(self, opened: _OpenFile, start: int, end: int) -> None:
        inode = opened.inode
        for bad in inode.bad.copy():
            first, behind = bad[0] - bad[0] % _BLOCK_BYTES, bad[1] + -bad[1] % _BLOCK_BYTES
            if start < behind and first < end:
                if first < start or end < min(behind, len(inode.image())):
                    raise _error(errno.EIO, opened.path)
                inode.bad.remove(bad)

    def _damage(self, path: str, offset: int, data: bytes) -> None:
        inode = self._inode(path)
        assert data, f"{path} is not that long on the disk"
        inode.durable = inode.durable[:offset] + data + inode.durable[offset + len(data) :]
        if inode.current is not None:
            kept = max(0, min(len(data), len(inode.current) - offset))
            inode.current[offset : offset + kept] = data[:kept]

    # Crashes

    def crash_states(self, seed: int, limit: int) -> Iterator[SimulatedFileSystem]:
        """Yield what a crash now may leave, each as a file system of its own, at most `limit` of them.

        No two are the same: same names with the same bytes count once, by however many ways they came about. First
        comes everything, then nothing of what is unsynced, then the two mixtures of content and names. When there is
        little unsynced, all that is possible follows. Otherwise, taking turns, the simple cases (each prefix of the
        unsynced changes, in all and per file and directory; each change alone missing and alone present; sizes
        without bytes; each write torn) in an order that depends on the seed, and random ones, until these bring
        nothing new any longer.

        The states have the same capacity and no handles, faults, counts or hook. They belong to the moment of the
        call: later changes of this file system do not affect them.
        """
        assert limit > 0
        states = CrashPoint(self._directories).states(Random(seed), limit)
        return map(partial(self._on_this_disk, self.capacity), states)

    @staticmethod
    def _on_this_disk(capacity: int | None, directories: dict[str, Directory]) -> SimulatedFileSystem:
        found = SimulatedFileSystem(capacity)
        found._directories = directories
        return found

    def kill9(self) -> SimulatedFileSystem:
        """Return what a new process finds when this one is killed: everything, and what is unsynced still is."""
        survivor = SimulatedFileSystem(self.capacity)
        survivor._sequence = self._sequence
        copies: dict[int, Inode] = {}

        def copied(names: Names) -> Names:
            return {name: None if inode is None else copy_of(inode) for name, inode in names.items()}

        def copy_of(inode: Inode) -> Inode:
            if id(inode) not in copies:
                copies[id(inode)] = inode.copy()
            return copies[id(inode)]

        for path, directory in self._directories.items():
            copy = survivor._directories[path] = Directory(copied(directory.durable))
            for change in directory.unsynced:
                inode = None if change.inode is None else copy_of(change.inode)
                copy.change(NameChange(change.sequence, change.old, change.new, inode))
        return survivor

    def contents(self) -> dict[str, bytes]:
        """Return the bytes of every file as they can be read now, by path."""
        return {path: bytes(inode.image()) for path, inode in self._files()}

    def open_paths(self) -> list[str]:
        """Return the paths under which the files of the open handles were opened."""
        return sorted(opened.path for opened in self._open.values())

    # Under the operations

    def _begin(self, operation: str, path: str) -> Fault | None:
        """Count a call and apply the hook and the planned faults. Return a fault that does not stop the call."""
        self._calls[operation] = self._calls.get(operation, 0) + 1
        fault = self._planned(operation) if self._faults else None
        if self.on_operation is not None:
            self.on_operation(f"before {operation} {path}")
        if fault is None:
            return None
        self.failures.append(f"{operation} {path}")
        if fault is Fault.SHORT_WRITE:
            return fault
        raise _error(errno.ENOSPC if fault is Fault.ENOSPC else errno.EIO, path)

    def _planned(self, operation: str) -> Fault | None:
        due = None
        for planned in self._faults:
            if operation in planned.operations:
                planned.calls_left -= 1
                if planned.calls_left == 0:
                    due = planned.fault
        return due

    def _end(self, operation: str, path: str) -> None:
        if self.on_operation is not None:
            self.on_operation(f"after {operation} {path}")

    def _tick(self) -> int:
        self._sequence += 1
        return self._sequence

    def _handle(self, inode: Inode, path: str, writable: bool) -> int:
        handle = self._next_handle
        self._next_handle += 1
        self._open[handle] = _OpenFile(inode, path, writable)
        return handle

    def _opened(self, handle: int) -> _OpenFile:
        try:
            return self._open[handle]
        except KeyError:
            raise _error(errno.EBADF, str(handle)) from None

    def _directory(self, path: str) -> Directory:
        directory = self._directories.get(path)
        if directory is None:
            parent, name = self._locate(path)
            raise _error(errno.ENOTDIR if name in parent.names else errno.ENOENT, path)
        return directory

    def _locate(self, path: str) -> tuple[Directory, str]:
        assert_relative(path)
        parent, _, name = path.rpartition("/")
        return self._directory(parent or ROOT), name

    def _inode(self, path: str) -> Inode:
        directory, name = self._locate(path)
        if name not in directory.names:
            raise _error(errno.ENOENT, path)
        inode = directory.names[name]
        if inode is None:
            raise _error(errno.EISDIR, path)
        return inode

    def _files(self) -> Iterator[tuple[str, Inode]]:
        for path, directory in self._directories.items():
            for name, inode in directory.names.items():
                if inode is not None:
                    yield join(path, name), inode


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
