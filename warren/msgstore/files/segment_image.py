"""A segment file as recovery sees it: its frames, and where others might be, read a piece at a time.

1. Memory holds at most one frame, and a piece of `PIECE_BYTES`.
2. Bytes outside the frames of the chain are searched by C code: a torn or damaged place costs a few ms for each MiB
   after it, whatever publishers have written there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from warren.msgstore.log.records import FRAME_HEADER_BYTES, FRAME_MAGIC, STORE_TAG_AT, STORE_TAG_BYTES, Checksum
from warren.msgstore.log.replay import FrameHead, maybe_frame, next_head

PIECE_BYTES: Final = 1 << 20
_ALIGNMENT: Final = 8

ReadRange = Callable[[int, int, int], bytes]


class SegmentImage:
    """The file of segment `number`, of `size` bytes. `read` returns bytes of it: number, offset, length."""

    def __init__(self, read: ReadRange, number: int, size: int, base_lsn: int, checksum: Checksum, tag: bytes) -> None:
        self.size = size
        self._read = read
        self._number = number
        self._base_lsn = base_lsn
        self._checksum = checksum
        self._tag = tag
        self._piece = b""
        self._piece_at = 0

    def bytes_at(self, offset: int, length: int) -> bytes:
        """Return bytes of the file, fewer where it ends."""
        start = offset - self._piece_at
        if start < 0 or start + length > len(self._piece):
            wanted = min(max(length, PIECE_BYTES), self.size - offset)
            self._piece = self._read(self._number, offset, wanted) if wanted > 0 else b""
            self._piece_at = offset
            start = 0
        if start == 0 and length == len(self._piece):
            return self._piece
        return self._piece[start : start + length]

    def maybe_frame(self, offset: int) -> tuple[FrameHead, bytes] | None:
        """Return the whole and intact frame at `offset`, and its bytes; None without one."""
        head = self.bytes_at(offset, FRAME_HEADER_BYTES)
        if len(head) < FRAME_HEADER_BYTES or head[:4] != FRAME_MAGIC:
            return None
        # Before it is read: anybody may have written the rest.
        is_right = int.from_bytes(head[8:16], "big") == self._base_lsn + offset
        if not is_right or head[STORE_TAG_AT : STORE_TAG_AT + STORE_TAG_BYTES] != self._tag:
            return None
        length = FRAME_HEADER_BYTES + int.from_bytes(head[4:8], "big")
        if offset + length > self.size:
            return None
        data = self.bytes_at(offset, length)
        frame = maybe_frame(self._checksum, self._tag, data, 0, self._base_lsn + offset)
        return None if frame is None else (frame, data)

    def frames_from(self, offset: int) -> Iterator[tuple[FrameHead, int]]:
        """Yield each whole frame, and its offset, that begins at `offset` or later, also frames inside of others."""
        for at in self.heads(offset):
            found = self.maybe_frame(at)
            if found is not None:
                yield found[0], at

    def heads(self, offset: int) -> Iterator[int]:
        """Yield the offsets where a frame may begin, from `offset` on."""
        at = offset + -offset % _ALIGNMENT
        while at < self.size:
            # Pieces overlap by a head, so that no head is cut.
            data = self._read(self._number, at, min(PIECE_BYTES + FRAME_HEADER_BYTES, self.size - at))
            if not data:
                return
            found = next_head(self._tag, data, 0)
            while 0 <= found < PIECE_BYTES:
                yield at + found
                found = next_head(self._tag, data, found + _ALIGNMENT)
            at += PIECE_BYTES
