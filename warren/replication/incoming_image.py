"""An image that a follower is sent: a whole log with its checkpoint, beside the old ones until it is complete.

    log/0000000007.image    a segment of the image
    checkpoint.image        its checkpoint: all segments are here, and synced
    checkpoint.adopted      the same: the log that was here before is gone

    write the segments -> sync -> checkpoint.image        until then the log is the one that was here before
    -> remove its segments -> checkpoint.adopted          from here on `finish` leads to the new one, after every crash
    -> name the segments -> checkpoint

1. Nothing of the old log is touched before all of the image is on the disk. So both need space for a while.
2. A link that ends before leaves nothing: `finish` removes the pieces so far, and the next image begins from scratch.
3. Each step is durable before the next, and `finish` repeats those that may have been done already.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from warren.msgstore.files.file_system import FileSystem, write_all
from warren.msgstore.files.segment_names import CHECKPOINT, LOG, maybe_segment_number, segment_path

_SUFFIX: Final = ".image"
COMPLETE: Final = "checkpoint.image"
ADOPTED: Final = "checkpoint.adopted"


class IncomingImage:
    """An image whose log ends at `end_lsn`. `sync`: the store's, which may fail it. Every method may raise OSError."""

    def __init__(self, fs: FileSystem, sync: Callable[[int, str], None], end_lsn: int) -> None:
        self.end_lsn = end_lsn
        self._fs = fs
        self._sync = sync
        self._number = 0  # of the segment that is coming
        self._handle = -1
        self._size = 0

    def write(self, number: int, position: int, data: bytes | memoryview) -> bool:
        """Write bytes of a segment; False when they do not follow those that have come. Can be repeated."""
        if position == 0 and number != self._number:
            if number < self._number:
                return False
            self.end_segment()
            path = _incoming(number)
            with suppress(FileNotFoundError):
                self._fs.unlink(path)  # of a beginning that failed
            self._handle = self._fs.create(path, 0)
            self._number, self._size = number, 0
        if number != self._number or position > self._size or self._handle < 0:
            return False
        write_all(self._fs, self._handle, [data], position)
        self._size = position + len(data)
        return True

    def end_segment(self) -> None:
        """Make the last segment durable: all of it has come."""
        if self._handle >= 0:
            self._sync(self._handle, _incoming(self._number))
            self.close()

    def close(self) -> None:
        """Give the file back."""
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            self._fs.close(handle)


def finish(fs: FileSystem, sync_directory: Callable[[str], None]) -> bool:
    """Adopt an image that is complete, and remove one that is not; tell whether there was a complete one.

    To be called when no file of the log is open. Raises OSError.
    """
    present = fs.names(".")
    if LOG not in present:
        return False
    names = fs.names(LOG)
    if COMPLETE not in present and ADOPTED not in present:
        for name in names:
            if name.endswith(_SUFFIX):
                fs.unlink(f"{LOG}/{name}")
        return False
    if ADOPTED not in present:
        for name in names:
            if maybe_segment_number(name) is not None:
                fs.unlink(f"{LOG}/{name}")
        sync_directory(LOG)
        fs.rename(COMPLETE, ADOPTED)
        sync_directory(".")
    for name in fs.names(LOG):
        number = maybe_segment_number(name.removesuffix(_SUFFIX))
        if name.endswith(_SUFFIX) and number is not None:
            fs.rename(f"{LOG}/{name}", segment_path(number))
    sync_directory(LOG)
    fs.rename(ADOPTED, CHECKPOINT)
    sync_directory(".")
    return True


def _incoming(number: int) -> str:
    return segment_path(number) + _SUFFIX
