"""The files of streams in a follower's directory, as its leader is told of them: the leader ships what differs.

1. The files are read before each link, and after each cut of the log: torn ends are cut off then.
2. A read that fails before a link is tried again with the next one. A file that the disk has not given `SCANS_MAX`
   times in a row is set aside, and the leader ships it again.
"""

from __future__ import annotations

import zlib
from typing import Final

from warren.msgstore.files.fail_stop import reason
from warren.msgstore.files.file_system import FileSystem, read_exactly
from warren.msgstore.files.sealed_files import STREAMS, sealed_path
from warren.msgstore.files.store import Store
from warren.msgstore.files.store_errors import StoreUnreadableError
from warren.msgstore.log.columns import CHUNK_HEAD_BYTES, maybe_head
from warren.msgstore.log.records import SEGMENT_HEADER_BYTES
from warren.replication.entries import SealedFile

SCANS_MAX: Final = 8


class SealedInventory:
    """The files in the root directory of `fs`."""

    def __init__(self, fs: FileSystem) -> None:
        self.files: list[SealedFile] = []
        self._fs = fs
        self._unread_scans = 0  # in a row

    def read(self, store: Store, store_id: bytes) -> None:
        """Cut torn ends off the files of `store`, and read what each of them is.

        Raises:
            StoreUnreadableError: the disk does not give some of it now.
        """
        tolerates = self._unread_scans >= SCANS_MAX
        try:
            scan = store.scan_sealed(store_id, lambda _stream_id, _offset: True, tolerates=tolerates)
        except StoreUnreadableError:
            self._unread_scans += 1
            raise
        self._unread_scans = 0
        try:
            self.files = [
                self._identity(stream_id, int(segment.first))
                for stream_id, table in scan.tables.items()
                for segment in table.segments
            ]
        except OSError as error:
            raise StoreUnreadableError(STREAMS, reason(error)) from None

    def _identity(self, stream_id: int, segment: int) -> SealedFile:
        handle = self._fs.open(sealed_path(stream_id, segment), writable=False)
        try:
            return sealed_file(self._fs, handle, stream_id, segment, self._fs.size(handle))
        finally:
            self._fs.close(handle)


def sealed_file(fs: FileSystem, handle: int, stream_id: int, segment: int, file_bytes: int) -> SealedFile:
    """Return the identity of the first `file_bytes` of a file of a stream: the heads of all chunks in it."""
    crc = 0
    at = SEGMENT_HEADER_BYTES
    while at + CHUNK_HEAD_BYTES <= file_bytes:
        data = read_exactly(fs, handle, CHUNK_HEAD_BYTES, at)
        # Without the crc at its end: the crc of bytes followed by their own crc is always the same.
        crc = zlib.crc32(data[:-4], crc)
        head = maybe_head(data)
        if head is None:
            break  # damaged, or padding
        at += int(head.chunk_bytes)
    return SealedFile(stream_id, segment, file_bytes, crc)
