"""The file by which a follower's directory says that confirmed messages may be missing: ``catching-up``.

    magic "WARRNCUP", lsn u64, crc u32 (CRC-32 of the bytes before): 20 bytes, big-endian

1. It says so from that LSN on. A later LSN never replaces an earlier one, until the file is removed.
2. It is durable when `put` returns, and durably gone when `remove` does.
3. A damaged one is an error: the directory is not known to have everything, nor from where on it may lack something.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from struct import Struct
from typing import Final

from warren.msgstore.files.file_system import FileSystem, read_exactly, unlink_if_there, write_all
from warren.msgstore.files.recovery import ADVICE
from warren.msgstore.files.store import CATCHING_UP, CATCHING_UP_TMP
from warren.msgstore.files.store_errors import StoreError

_MAGIC: Final = b"WARRNCUP"
_MARKER: Final = Struct(">8sQI")


class CatchingUpMarker:
    """The marker in the root directory of `fs`; `sync` and `sync_directory` are the store's, which may fail it.

    Every method may raise OSError.
    """

    def __init__(self, fs: FileSystem, sync: Callable[[int, str], None], sync_directory: Callable[[str], None]) -> None:
        self.lsn: int | None = None  # from where on messages may be missing; None: there is no such file
        self._fs = fs
        self._sync = sync
        self._sync_directory = sync_directory

    def read(self) -> None:
        """Read the file. When that fails the marker is what it was.

        Raises:
            StoreError: it is damaged.
        """
        if CATCHING_UP not in self._fs.names("."):
            self.lsn = None
            return
        handle = self._fs.open(CATCHING_UP, writable=False)
        try:
            data = read_exactly(self._fs, handle, _MARKER.size, 0)
        finally:
            self._fs.close(handle)
        if len(data) < _MARKER.size or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "big"):
            raise StoreError(f"{CATCHING_UP} is damaged; {ADVICE}")
        self.lsn = int.from_bytes(data[8:16], "big")

    def put(self, lsn: int) -> None:
        """Note durably that everything from `lsn` on must be caught up with, unless that is noted already."""
        if self.lsn is not None and self.lsn <= lsn:
            return
        data = _MAGIC + lsn.to_bytes(8, "big")
        unlink_if_there(self._fs, CATCHING_UP_TMP)
        handle = self._fs.create(CATCHING_UP_TMP, 0)
        try:
            write_all(self._fs, handle, [data + zlib.crc32(data).to_bytes(4, "big")], 0)
            self._sync(handle, CATCHING_UP_TMP)
        finally:
            self._fs.close(handle)
        self._fs.rename(CATCHING_UP_TMP, CATCHING_UP)
        self._sync_directory(".")
        self.lsn = lsn

    def remove(self) -> None:
        """Note durably that nothing is missing."""
        if self.lsn is not None:
            unlink_if_there(self._fs, CATCHING_UP)
            self._sync_directory(".")
            self.lsn = None

    def is_above(self, lsn: int) -> bool:
        """Tell whether the log is known to be complete at `lsn`."""
        return self.lsn is None or lsn < self.lsn
