"""The files of a store as far as the disk gives them: for reads that an operator has given up.

1. Unreadable bytes are replaced by zeros, block by block: a record there counts as damaged, and the records around it
   do not. An unreadable chunk of a stream is None, like a damaged one.
2. Nothing is changed on the disk. A later read asks the disk for the same bytes again.
"""

from __future__ import annotations

from typing import Final

from warren.msgstore.files.store_errors import StoreUnreadableError
from warren.msgstore.log.jobs import DropJob, Files, SealedRead, SealJob

BLOCK_BYTES: Final = 4096


class ReadableFiles:
    """`Files` of ``msgstore.log.jobs`` for errands that only read, over those of a store."""

    def __init__(self, store: Files) -> None:
        self._store = store

    def read(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (LSN, length), with zeros where the disk cannot read."""
        return [self._read(lsn, length) for lsn, length in ranges]

    def _read(self, lsn: int, length: int) -> bytes:
        try:
            return self._store.read([(lsn, length)])[0]
        except StoreUnreadableError:
            if length <= BLOCK_BYTES and lsn % BLOCK_BYTES + length <= BLOCK_BYTES:
                return bytes(length)
        pieces: list[bytes] = []
        end = lsn + length
        while lsn < end:
            size = min(BLOCK_BYTES - lsn % BLOCK_BYTES, end - lsn)
            pieces.append(self._read(lsn, size))
            lsn += size
        return b"".join(pieces)

    def read_sealed(self, job: SealedRead) -> None:
        """Read a chunk of a stream; None if the disk does not give it."""
        try:
            self._store.read_sealed(job)
        except StoreUnreadableError:
            job.chunk = None

    def seal(self, job: SealJob) -> None:
        raise AssertionError("not a read")

    def drop_sealed(self, job: DropJob) -> None:
        raise AssertionError("not a read")

    def swap_sealed(self, stream_id: int, segments: list[int]) -> None:
        raise AssertionError("not a read")

    def unmake_sealed(self, stream_id: int, segment: int) -> None:
        raise AssertionError("not a read")
