"""The meaning of a disk error for a store: stop, or try again later.

    a shortage of space or descriptors     nothing is lost: StoreFullError, and the operation may be tried again
    any other error, or a failed sync      the content of the disk is unknown: StoreFailedError, from then on always

A sync that failed is not repeated: the kernel has dropped the pages that it could not write, and the next
sync would succeed without them.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Final, NoReturn

from warren.msgstore.files.file_system import FileSystem
from warren.msgstore.files.store_errors import StoreFailedError, StoreFullError

SHORTAGES: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# Of shortages a call that syncs a directory can only fail before it has synced anything: it opens the directory first.
OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


class FailStop:
    """Something on the disk `fs` that does nothing more after its first failure."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._failure = ""

    def _check(self) -> None:
        if self._failure:
            raise StoreFailedError(self._failure)

    def _raise(self, what: str, error: OSError) -> NoReturn:
        text = f"{what}: {reason(error)}"
        if error.errno in SHORTAGES:
            raise StoreFullError(text) from None
        self._failure = text
        raise StoreFailedError(text) from None

    def _sync(self, handle: int, path: str) -> None:
        """Sync a file. No shortage is forgiven here."""
        try:
            self._fs.sync(handle)
        except OSError as error:
            self._failure = f"sync {path}: {reason(error)}"
            raise StoreFailedError(self._failure) from None

    def _sync_directory(self, path: str) -> None:
        try:
            self._fs.sync_directory(path)
        except OSError as error:
            text = f"sync directory {path}: {reason(error)}"
            if error.errno in OUT_OF_DESCRIPTORS:
                raise StoreFullError(text) from None
            self._failure = text
            raise StoreFailedError(text) from None


def give_back_space(fs: FileSystem, path: str, error: OSError) -> None:
    """Remove a half-made file that did not fit. A failure of that does not matter."""
    if error.errno in SHORTAGES:
        with suppress(OSError):
            fs.unlink(path)


def reason(error: OSError) -> str:
    """Return the system's text for an error."""
    return os.strerror(error.errno) if error.errno else str(error)
