"""Reading from segments: by LSN, through files that stay open for the next read.

1. A read has three answers. Bytes that are there are returned, intact or not. A range that is not there, of a segment
   that is gone or after the end of a file, is short or empty. Bytes that the disk does not give now are
   StoreUnreadableError: the same read is tried again later, and nothing is concluded from it.
2. Each place that could not be read is noted, at most `_PROBLEMS_MAX` until they are taken.

Everything here belongs to the reader but for `segments`, which is replaced and never changed, and for `note`.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from warren.msgstore.files.fail_stop import OUT_OF_DESCRIPTORS, reason
from warren.msgstore.files.file_system import FileSystem, read_exactly
from warren.msgstore.files.segment_names import segment_path
from warren.msgstore.files.store_errors import StoreFullError, StoreUnreadableError

# Errors of reading that do not pass by themselves.
_LASTING: Final = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM})
_PROBLEMS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class ReadProblem:
    """A range of the log that the disk would not give."""

    segment: int
    lsn: int
    text: str


class SegmentReads:
    """Reads the segments of the store in the root of `fs`. `handles_max`: the number of files that it keeps open."""

    def __init__(self, fs: FileSystem, handles_max: int) -> None:
        self.segments: list[tuple[int, int, int]] = []  # base LSN, number, capacity; ascending
        self._fs = fs
        self._handles_max = handles_max
        self._handles: OrderedDict[int, int] = OrderedDict()  # by segment number, latest last
        self._problems: list[ReadProblem] = []

    def read(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (LSN, length). Raises StoreUnreadableError, StoreFullError."""
        # A load is hundreds of short ranges, most of them in the segment of the one before.
        data: list[bytes] = []
        base_lsn = end_lsn = number = 0
        for lsn, length in ranges:
            if not base_lsn <= lsn < end_lsn:
                segments = self.segments
                at = bisect_right(segments, lsn, key=_base_of) - 1
                base_lsn, number, capacity = segments[at] if at >= 0 else (0, 0, 0)
                end_lsn = base_lsn + capacity
                if lsn >= end_lsn:
                    self.note(ReadProblem(0, lsn, "no segment holds it"))
                    data.append(b"")
                    continue
            data.append(self._read_range(number, lsn, length, lsn - base_lsn))
        return data

    def _read_range(self, number: int, lsn: int, length: int, offset: int) -> bytes:
        try:
            handle = self.handle(number)
            data = self._fs.read(handle, length, offset)
            if len(data) < length:
                data += read_exactly(self._fs, handle, length - len(data), offset + len(data))
            return data
        except OSError as error:
            if error.errno in OUT_OF_DESCRIPTORS:
                self._give_up_handles()
                raise StoreFullError(f"open {segment_path(number)}: {reason(error)}") from None
            if error.errno == errno.ENOENT:
                self.note(ReadProblem(number, lsn, reason(error)))
                return b""
            self._give_up_handle(number)  # a network file system may give the file back under another handle
            raise unreadable(segment_path(number), error, number, lsn) from None

    def forget_cached(self, ranges: list[tuple[int, int]]) -> None:
        """Drop these ranges from the cache: the next read comes from the disk, as the cached copy may be damaged."""
        segments = self.segments
        for lsn, length in ranges:
            at = bisect_right(segments, lsn, key=_base_of) - 1
            if at < 0:
                continue
            base_lsn, number, _ = segments[at]
            with suppress(OSError):
                self._fs.forget_cached(self.handle(number), length, lsn - base_lsn)

    def has_all(self, ranges: list[tuple[int, int]]) -> bool:
        """Tell whether each of the ranges is in a segment that is known here."""
        return all(any(base <= lsn < base + size for base, _, size in self.segments) for lsn, _ in ranges)

    def handle(self, number: int) -> int:
        """Return an open file of a segment. Raises OSError."""
        handles = self._handles
        handle = handles.get(number)
        if handle is not None:
            handles.move_to_end(number)
            return handle
        if len(handles) >= self._handles_max:
            _, oldest = handles.popitem(last=False)
            self._fs.close(oldest)
        handle = self._fs.open(segment_path(number), writable=False)
        handles[number] = handle
        return handle

    def release(self, number: int) -> None:
        """Keep the file of a segment open no longer. Raises OSError."""
        handle = self._handles.pop(number, None)
        if handle is not None:
            self._fs.close(handle)

    def take_handles(self) -> list[int]:
        """Return all open files, for the end of the store: the caller closes them."""
        handles = list(self._handles.values())
        self._handles.clear()
        return handles

    def _give_up_handles(self) -> None:
        """Close files that are only kept open for the next read: others need the descriptors, and so does this read."""
        while self._handles:
            self._fs.close(self._handles.popitem()[1])

    def _give_up_handle(self, number: int) -> None:
        with suppress(OSError):
            self.release(number)

    def note(self, problem: ReadProblem) -> None:
        """Note a place that could not be read. Any thread."""
        if len(self._problems) < _PROBLEMS_MAX:
            self._problems.append(problem)

    def take_problems(self) -> list[ReadProblem]:
        """Return the places that could not be read since the last call."""
        if not self._problems:
            return []
        taken, self._problems = self._problems, []
        return taken


def unreadable(path: str, error: OSError, segment: int = 0, lsn: int = -1) -> StoreUnreadableError:
    """Return the error of a read that the disk refuses now."""
    return StoreUnreadableError(path, reason(error), segment, lsn, passes=error.errno not in _LASTING)


def _base_of(segment: tuple[int, int, int]) -> int:
    return segment[0]
