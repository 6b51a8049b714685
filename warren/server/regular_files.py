"""Read files that parameters and settings name: only regular ones, up to a size, and without blocking.

A name may lead to a device that never ends, a pipe without a writer, or a file as large as a disk. The type of the file
is checked before it is opened, since opening a device may already do something, and again afterwards.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

CREDENTIAL_BYTES_MAX: Final = 4 << 20  # a certificate, a key, or the authorities of a whole system


def read_regular(path: str | os.PathLike[str], limit_bytes: int = CREDENTIAL_BYTES_MAX) -> bytes:
    """Return the contents of a regular file.

    Raises:
        OSError: it cannot be read, is not a regular file, or has more than `limit_bytes`.
    """
    _check(os.stat(path), limit_bytes)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with open(descriptor, "rb") as file:
        _check(os.fstat(descriptor), limit_bytes)
        data = file.read(limit_bytes + 1)
    if data is None:
        raise OSError(errno.EINVAL, "not a regular file")
    if len(data) > limit_bytes:
        raise OSError(errno.EFBIG, f"larger than {limit_bytes} bytes")
    return data


@contextmanager
def copied(data: bytes) -> Iterator[str]:
    """Yield the path of a file with `data`, for a library that only reads files; in memory where the system can."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile() as file:  # for its owner only
            file.write(data)
            file.flush()
            yield file.name
        return
    descriptor = os.memfd_create("warren", os.MFD_CLOEXEC)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        yield f"/proc/self/fd/{descriptor}"


def _check(found: os.stat_result, limit_bytes: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if found.st_size > limit_bytes:
        raise OSError(errno.EFBIG, f"larger than {limit_bytes} bytes")
