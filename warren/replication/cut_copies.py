"""Copies of frames that a follower cuts off its log, since the leader never had them: kept for a while.

    quarantine/cut-<segment>-<bytes>-<time>     the header of the segment, a hole, and the cut-off frames in their place

Nothing in them was confirmed. They are kept for publishers that miss messages which a replaced leader had received.
They may not fill a disk, however often leaders change:

1. All copies together have `KEPT_BYTES_MAX` at most, and a quarter of the free space. The oldest ones go first, and
   those older than `KEPT_S`. A copy larger than that is not kept.
2. If a copy cannot be made, for lack of space or since the log cannot be read, the node follows all the same.
3. Other files of the quarantine are copies of damaged data. Nothing here removes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from warren.msgstore.files.file_system import FileSystem, read_exactly, write_all
from warren.msgstore.files.quarantine import QUARANTINE
from warren.msgstore.files.segment_names import segment_path
from warren.msgstore.files.store import wall_time_ms
from warren.msgstore.log.records import SEGMENT_HEADER_BYTES
from warren.server.logs import get_logger

KEPT_BYTES_MAX: Final = 64 << 20
KEPT_S: Final = 7 * 24 * 3600.0
SHARE: Final = 4
USAGE_S: Final = 10.0  # how old the answer to `Quarantine.usage` may be
_PREFIX: Final = "cut-"
_TMP: Final = "cut.tmp"


log = get_logger("replication")


class _Copy(NamedTuple):
    """In the order in which copies go."""

    time_ms: int
    name: str
    size: int


class CutCopies:
    """The copies below the root directory of `fs`; `clock_ms` is the wall clock."""

    def __init__(self, fs: FileSystem, clock_ms: Callable[[], int] = wall_time_ms) -> None:
        self._fs = fs
        self._clock_ms = clock_ms

    def keep(self, number: int, start: int, end: int) -> bool:
        """Copy bytes `start` to `end` of a segment, and remove others for that; tell whether it is kept."""
        size = end - start
        try:
            if not self.make_room(size):
                log.warning("data cut off the log is not kept: it is too large", segment=number, bytes=size)
                return False
            handle = self._fs.open(segment_path(number), writable=False)
            try:
                head = read_exactly(self._fs, handle, SEGMENT_HEADER_BYTES, 0)
                content = read_exactly(self._fs, handle, size, start)
            finally:
                self._fs.close(handle)
            self._write(f"{_PREFIX}{number:010}-{size}-{self._clock_ms()}", start, head, content)
        except OSError as error:
            log.warning("data cut off the log is not kept", segment=number, bytes=size, reason=str(error))
            with suppress(OSError):
                self._drop(_TMP)
            return False
        return True

    def make_room(self, size: int) -> bool:
        """Remove copies that are too old, or too many for one of `size` bytes; tell whether that has room. OSError."""
        copies = self._copies()
        total = sum(copy.size for copy in copies)
        limit = min(KEPT_BYTES_MAX, (self._fs.free_bytes() + total) // SHARE)
        oldest_ms = self._clock_ms() - KEPT_S * 1000
        for copy in copies:
            if copy.time_ms < oldest_ms or total + size > limit:
                self._drop(copy.name)
                total -= copy.size
        return total + size <= limit

    def _copies(self) -> list[_Copy]:
        return sorted(copy for name in self._fs.names(QUARANTINE) if (copy := _maybe_copy(name)) is not None)

    def _write(self, name: str, start: int, head: bytes, content: bytes) -> None:
        self._drop(_TMP)
        handle = self._fs.create(f"{QUARANTINE}/{_TMP}", 0)
        try:
            write_all(self._fs, handle, [head], 0)
            write_all(self._fs, handle, [content], start)
            self._fs.sync(handle)
        finally:
            self._fs.close(handle)
        self._fs.rename(f"{QUARANTINE}/{_TMP}", f"{QUARANTINE}/{name}")
        self._fs.sync_directory(QUARANTINE)

    def _drop(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.unlink(f"{QUARANTINE}/{name}")


class Quarantine:
    """The cut copies in the quarantine of a node, for monitoring; `clock_s` is monotonic."""

    def __init__(self, fs: FileSystem, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._fs = fs
        self._clock_s = clock_s
        self._looked_s = float("-inf")
        self._usage = {"quarantine_files": 0, "quarantine_bytes": 0}

    def usage(self) -> dict[str, int]:
        """Return the number of copies, and their bytes without holes, as of some seconds ago."""
        now_s = self._clock_s()
        if now_s - self._looked_s >= USAGE_S:
            self._looked_s = now_s
            try:
                sizes = [self._size(name) for name in self._fs.names(QUARANTINE)]
            except OSError:
                return self._usage  # before there is a store, or while its disk does not answer
            self._usage = {"quarantine_files": len(sizes), "quarantine_bytes": sum(sizes)}
        return self._usage

    def _size(self, name: str) -> int:
        copy = _maybe_copy(name)
        if copy is not None:
            return copy.size
        try:
            handle = self._fs.open(f"{QUARANTINE}/{name}", writable=False)
        except FileNotFoundError:
            return 0
        try:
            return self._fs.size(handle)
        finally:
            self._fs.close(handle)


def _maybe_copy(name: str) -> _Copy | None:
    parts = name.removeprefix(_PREFIX).split("-")
    if not name.startswith(_PREFIX) or len(parts) != 3 or not all(part.isdecimal() for part in parts):
        return None
    return _Copy(int(parts[2]), name, int(parts[1]))
