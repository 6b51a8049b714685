"""Reading the frames of a segment file one after the other, for shipping or continuing a log."""

from __future__ import annotations

from typing import Final

from warren.msgstore.files.file_system import FileSystem, read_exactly
from warren.msgstore.files.segment_header import SegmentHeader
from warren.msgstore.log.checksum import checksum_function
from warren.msgstore.log.records import FRAME_HEADER_BYTES, FRAME_MAGIC, SEGMENT_HEADER_BYTES, STORE_TAG_BYTES
from warren.msgstore.log.replay import FrameHead, maybe_frame, next_head

READ_BYTES: Final = 1 << 20


class SegmentFrames:
    """The segment with `header`, which is open as `handle`. It reads ahead: later writes may not be seen."""

    def __init__(self, fs: FileSystem, handle: int, header: SegmentHeader) -> None:
        self.header = header
        self.first_lsn = header.base_lsn + SEGMENT_HEADER_BYTES
        self._fs = fs
        self._handle = handle
        self._checksum = checksum_function(header.algorithm)
        self._tag = header.store_id[:STORE_TAG_BYTES]
        self.claimed_lsn = 0  # up to here it is committed, by the frames that `end` has followed
        self._data = b""
        self._data_at = 0  # where in the file it is from

    def maybe_frame(self, lsn: int) -> tuple[FrameHead, bytes] | None:
        """Return the frame at `lsn` and its bytes; None where no whole one is. Raises OSError."""
        head = self._bytes_at(lsn, FRAME_HEADER_BYTES)
        if len(head) < FRAME_HEADER_BYTES or head[:4] != FRAME_MAGIC:
            return None
        length = FRAME_HEADER_BYTES + int.from_bytes(head[4:8], "big")
        if lsn + length > self.header.base_lsn + self.header.capacity:
            return None
        data = self._bytes_at(lsn, length)
        found = maybe_frame(self._checksum, self._tag, data, 0, lsn)
        return None if found is None else (found, data)

    def end(self, lsn: int, crc: int) -> tuple[int, int]:
        """Follow the chain of frames from `lsn` on, `crc` being of the frame before; return its end and last crc."""
        while (found := self.maybe_frame(lsn)) is not None and found[0].previous_crc == crc:
            self.claimed_lsn = max(self.claimed_lsn, min(found[0].durable_lsn, lsn))
            lsn += found[0].end
            crc = found[0].crc
        return lsn, crc

    def claims_behind(self, lsn: int) -> bool:
        """Tell whether a whole frame after `lsn` says that the frames at `lsn` were committed. Raises OSError."""
        offset = lsn - self.header.base_lsn
        data = read_exactly(self._fs, self._handle, self._fs.size(self._handle) - offset, offset)
        at = next_head(self._tag, data, 8)
        while at >= 0:
            found = maybe_frame(self._checksum, self._tag, data, at, lsn + at)
            if found is not None and found.durable_lsn > lsn:
                return True
            at = next_head(self._tag, data, at + 8)
        return False

    def _bytes_at(self, lsn: int, length: int) -> bytes:
        start = lsn - self.header.base_lsn - self._data_at
        if start < 0 or start + length > len(self._data):
            self._data_at = lsn - self.header.base_lsn
            self._data = read_exactly(self._fs, self._handle, max(length, READ_BYTES), self._data_at)
            start = 0
        return self._data[start : start + length]
