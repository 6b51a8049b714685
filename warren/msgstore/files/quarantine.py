"""The quarantine: segments in which corruption was found, for later analysis.

    quarantine/0000000007-TIME     segment 7 as it was; more of one segment only if earlier versions have written it
    quarantine/copy.tmp            a copy in the making

1. A segment is kept once, however often corruption is found in it.
2. A copy has its name when it is synced. Bytes that the disk does not give are zeros in it.
3. Where the disk has hard links a segment gets a second name here: that takes no space, and a node whose disk is full
   must start, too. Else it is copied, unless too little space would be left. A file that will be changed is copied.

`keep` and `copy` belong to the housekeeper, the rest to recovery.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from warren.msgstore.files.fail_stop import SHORTAGES, give_back_space, reason
from warren.msgstore.files.file_system import FileSystem, read_exactly, replace_file
from warren.msgstore.files.segment_names import LOG, segment_path
from warren.msgstore.files.segment_reads import ReadProblem
from warren.msgstore.files.store_errors import StoreFullError

QUARANTINE: Final = "quarantine"
QUARANTINE_TMP: Final = "quarantine/copy.tmp"

_PIECE_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 4096


class Quarantine:
    """The quarantine of the store in the root of `fs`. `note` is told of each place that cannot be read.

    `free_min_bytes`: the space that a copy leaves.
    `sync` makes a file durable, `sync_directory` a directory; `fail` gives up on the disk, with what was done and the
    error. All raise StoreFailedError or StoreFullError.
    """

    def __init__(
        self,
        fs: FileSystem,
        clock_ms: Callable[[], int],
        note: Callable[[ReadProblem], None],
        free_min_bytes: int = 0,
        *,
        sync: Callable[[int, str], None],
        sync_directory: Callable[[str], None],
        fail: Callable[[str, OSError], NoReturn],
    ) -> None:
        self._fs = fs
        self._clock_ms = clock_ms
        self._note = note
        self._free_min_bytes = free_min_bytes
        self._sync = sync
        self._sync_directory = sync_directory
        self._fail = fail

    def keep(self, number: int) -> None:
        """Keep a segment as it is now, unless that was done, see (3).

        Raises:
            StoreFullError: the disk has too little space for a copy; nothing was copied.
            StoreFailedError: the disk does not allow it.
        """
        if not self.is_linked(number):
            self.copy(number)

    def copy(self, number: int) -> None:
        """Copy a segment as it is now: its file is about to be changed. Raises StoreFullError, StoreFailedError."""
        content = self._maybe_read(number)
        if content is not None:
            self.write(number, content)

    def has_copy(self, number: int) -> bool:
        """Tell whether there is a copy of a segment. Raises StoreFullError, StoreFailedError."""
        try:
            return any(name.startswith(_copies_of(number)) for name in self._fs.names(QUARANTINE))
        except OSError as error:
            self._fail(f"list {QUARANTINE}", error)

    def is_linked(self, number: int) -> bool:
        """Give the segment a name here unless there is a copy; tell whether there is one now."""
        path = segment_path(number)
        try:
            if self.has_copy(number):
                return True
            handle = self._fs.open(path, writable=True)
            try:
                self._sync(handle, path)
            finally:
                self._fs.close(handle)
            self._fs.link(path, self._name(number))
        except OSError:
            return False  # without links, or where the file cannot be opened for one, a copy can be made
        self._sync_directory(QUARANTINE)
        return True

    def write(self, number: int, content: bytes) -> None:
        """Put a copy of a segment here. Raises StoreFullError, StoreFailedError."""
        try:
            if self._fs.free_bytes() - len(content) < self._free_min_bytes:
                raise StoreFullError(f"copy {segment_path(number)} to the quarantine: too little space would be left")
            replace_file(self._fs, QUARANTINE_TMP, self._name(number), content, self._sync)
        except OSError as error:
            give_back_space(self._fs, QUARANTINE_TMP, error)
            self._fail(f"copy {segment_path(number)} to the quarantine", error)
        self._sync_directory(QUARANTINE)

    def _name(self, number: int) -> str:
        return f"{QUARANTINE}/{_copies_of(number)}{self._clock_ms()}"

    def _maybe_read(self, number: int) -> bytes | None:
        """Return a segment; blocks that cannot be read are zeros. None: it cannot be opened."""
        path = segment_path(number)
        try:
            handle = self._fs.open(path, writable=False)
        except OSError as error:
            if error.errno in SHORTAGES:
                self._fail(f"open {path}", error)
            self._note(ReadProblem(number, -1, reason(error)))
            return None
        try:
            size = self._fs.size(handle)
            pieces = [
                self._read_piece(number, handle, offset, min(_PIECE_BYTES, size - offset))
                for offset in range(0, size, _PIECE_BYTES)
            ]
        except OSError as error:
            self._fail(f"read {path}", error)
        finally:
            self._fs.close(handle)
        return b"".join(pieces)

    def _read_piece(self, number: int, handle: int, offset: int, length: int) -> bytes:
        """Read in one go, or block by block when the disk cannot give all of it."""
        try:
            return read_exactly(self._fs, handle, length, offset)
        except OSError as error:
            if length <= _BLOCK_BYTES:
                self._note(ReadProblem(number, -1, reason(error)))
                return bytes(length)
        end = offset + length
        return b"".join(
            self._read_piece(number, handle, block, min(_BLOCK_BYTES, end - block))
            for block in range(offset, end, _BLOCK_BYTES)
        )


def _copies_of(number: int) -> str:
    """Return the common beginning of the names of copies."""
    return f"{segment_path(number).removeprefix(f'{LOG}/')}-"
