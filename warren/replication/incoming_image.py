"""An image that a follower is sent: a whole log with its checkpoint, beside the old ones until it is complete.

    log/0000000007.image    a segment of the image
    checkpoint.image        its checkpoint: all segments are here, and synced
    checkpoint.adopted      the same: the log that was here before is gone

    write the segments -> sync -> checkpoint.image        until then the log is the one that was here before
    -> remove its segments -> checkpoint.adopted          from here on `finish` leads to the new one, after every crash
    -> name the segments -> checkpoint

    a segment of the old log that the leader no longer has, and the checkpoint needs, becomes one of the image: `keep`

1. Nothing of the old log is touched before all of the image is on the disk. So both need space for a while.
2. A link that ends before leaves nothing: `finish` removes the pieces so far, and the next image begins from scratch.
3. Each step is durable before the next, and `finish` repeats those that may have been done already.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from warren.msgstore.files.file_system import FileSystem, read_exactly, write_all
from warren.msgstore.files.segment_header import SegmentHeader, parsed_header
from warren.msgstore.files.segment_names import CHECKPOINT, LOG, maybe_segment_number, segment_path
from warren.msgstore.log.records import SEGMENT_HEADER_BYTES
from warren.replication.mending import readable
from warren.replication.segment_frames import SegmentFrames

_SUFFIX: Final = ".image"
COMPLETE: Final = "checkpoint.image"
ADOPTED: Final = "checkpoint.adopted"


class IncomingImage:
    """An image whose log ends at `end_lsn`. Every method may raise OSError.

    `sync`: the store's, which may fail it.
    """

    def __init__(self, fs: FileSystem, sync: Callable[[int, str], None], end_lsn: int) -> None:
        self.on_segment: Callable[[int], None] | None = None  # is told the number of each segment that has come
        self.end_lsn = end_lsn
        self.numbers: list[int] = []  # of the segments that have come, ascending
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
            path = incoming_path(number)
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
            self._sync(self._handle, incoming_path(self._number))
            self.close()
            self.numbers.append(self._number)
            if self.on_segment is not None:
                self.on_segment(self._number)

    def header(self, number: int) -> SegmentHeader | str:
        """Return the header of a segment that has come, or what is wrong with it. StoreError: see `parsed_header`."""
        path = incoming_path(number)
        handle = self._fs.open(path, writable=False)
        try:
            size = self._fs.size(handle)
            return parsed_header(read_exactly(self._fs, handle, SEGMENT_HEADER_BYTES, 0), size, path)
        finally:
            self._fs.close(handle)

    def readable_to(self, lsn: int, crc: int) -> int:
        """Return how far the log that has come can be read, from its checkpoint at `lsn` on; see `parsed_header`.

        `crc`: of the last frame before that.
        """
        for number in self.numbers:
            header = self.header(number)
            if isinstance(header, str):
                return lsn
            if header.base_lsn + header.capacity > lsn:
                handle = self._fs.open(incoming_path(number), writable=False)
                try:
                    frames = SegmentFrames(self._fs, handle, header)
                    lsn, crc = frames.end(max(lsn, frames.first_lsn), crc)
                finally:
                    self._fs.close(handle)
        return lsn

    def keep(self, number: int) -> None:
        """Make a segment of the old log, all of which is on the disk, one of the image; by a copy without hard links.

        Before the image is complete. Can be repeated.
        """
        path = incoming_path(number)
        with suppress(FileNotFoundError):
            self._fs.unlink(path)
        try:
            self._fs.link(segment_path(number), path)
        except OSError:
            self._copy(segment_path(number), path)

    def _copy(self, path: str, new: str) -> None:
        old = self._fs.open(path, writable=False)
        try:
            content = readable(self._fs, old, 0, self._fs.size(old))
        finally:
            self._fs.close(old)
        handle = self._fs.create(new, 0)
        try:
            write_all(self._fs, handle, [content], 0)
            self._sync(handle, new)
        finally:
            self._fs.close(handle)

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


def incoming_path(number: int) -> str:
    """Return the path of a segment of an image that is not complete."""
    return segment_path(number) + _SUFFIX
