"""The disk below the data directories: what it can do at most, and what a broker has put on it.

    python -m benchmarks.disk [DIRECTORY]

1. The limit is what one thread reaches with pwrite and fdatasync of equal batches, one after the other, into
   files allocated beforehand. A batch is everything that is in flight, so this is a broker that confirms only
   what is on disk, writes nothing but bodies, and does nothing else.
2. Space allocated but never written is not data: `data_bytes` leaves it out.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FILE_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class DiskLimit:
    """What writing batches took."""

    message_bytes: int
    batch_messages: int
    batches: int
    seconds: float

    @property
    def messages_per_s(self) -> float:
        """Messages on disk per second."""
        return self.batches * self.batch_messages / self.seconds

    @property
    def bytes_per_s(self) -> float:
        """Bytes on disk per second."""
        return self.messages_per_s * self.message_bytes

    @property
    def batch_ms(self) -> float:
        """Milliseconds of one batch: write and fdatasync."""
        return self.seconds / self.batches * 1000


def measure(directory: Path, *, message_bytes: int, batch_messages: int, messages: int, most_s: float) -> DiskLimit:
    """Write as many bytes as ``messages`` have, in synced batches, for at most ``most_s`` seconds.

    Raises OSError, ENOSPC above all.
    """
    batch = os.urandom(message_bytes * batch_messages)
    per_file = max(1, _FILE_BYTES // len(batch))
    wanted = max(1, messages // batch_messages)
    batches = 0
    seconds = 0.0
    while batches < wanted and seconds < most_s:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, per_file * len(batch))
            os.fsync(file.fileno())
            begin = time.monotonic()
            for at in range(min(per_file, wanted - batches)):
                _write_all(file.fileno(), batch, at * len(batch))
                os.fdatasync(file.fileno())
                batches += 1
            seconds += time.monotonic() - begin
    return DiskLimit(message_bytes, batch_messages, batches, seconds)


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def data_bytes(directory: Path) -> int:
    """Return how many bytes of data the files below a directory hold, holes and unwritten space not counted."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder) / name
            if path.is_file() and not path.is_symlink():
                total += _data_bytes_of(path)
    return total


def _data_bytes_of(path: Path) -> int:
    total = at = 0
    with open(path, "rb", buffering=0) as file:
        while True:
            try:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # ENXIO: no data from here on
                    raise
                return total
            at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            total += at - start


def file_system(directory: Path) -> str:
    """Return the type of the file system that holds a directory."""
    path = str(directory.resolve())
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mounted, this_kind, *_ = line.split()
        inside = mounted == "/" or path == mounted or path.startswith(f"{mounted}/")
        if inside and len(mounted) >= len(best):
            best, kind = mounted, this_kind
    return kind


def main() -> None:
    """Print the limit for batches of 1 KiB messages, from one message to 2,000."""
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir())
    print(f"{directory}: {file_system(directory)}")
    for batch_messages in (1, 10, 100, 1000, 2000):
        found = measure(
            directory, message_bytes=1024, batch_messages=batch_messages, messages=batch_messages * 1000, most_s=1.0
        )
        print(
            f"{batch_messages:>6} x 1 KiB  {found.messages_per_s:>12,.0f} messages/s"
            f"  {found.bytes_per_s / 1e6:>9,.1f} MB/s  {found.batch_ms:>8.3f} ms each"
        )


if __name__ == "__main__":
    main()
