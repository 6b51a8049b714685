"""Whether a disk has so little space that publishers would be blocked by it, in the way of the alarm of a broker.

It is low below the least number of free bytes, and then until there is more by `DISK_FREE_RESUME_SHARE`. While the
disk does not say how much is free, it counts as it was.
"""

from __future__ import annotations

from contextlib import suppress

from warren.msgstore.files.file_system import FileSystem
from warren.server.settings import DISK_FREE_RESUME_SHARE


class FreeSpace:
    """The space of the disk of `fs`."""

    def __init__(self, fs: FileSystem) -> None:
        self.min_bytes = 0
        self._fs = fs
        self._is_low = False

    def is_low(self) -> bool:
        """Look, and tell whether the space is low."""
        least = self.min_bytes * (DISK_FREE_RESUME_SHARE if self._is_low else 1)
        with suppress(OSError):
            self._is_low = self._fs.free_bytes() < least
        return self._is_low
