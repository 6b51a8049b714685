"""Pins: the files of a running store as they are at one position of its log, kept unchanged while they are copied.

    messages/
        pins/
            replica.checkpoint                          hard links, each with the name of its holder in front
            replica.log.0000000007
            replica.streams.0000000042-00000000000000016384

1. The files of a pin are those that a start would need if the process was killed when the log ended at the position:
   the checkpoint, the segments up to there, and the sealed files of streams.
2. A pinned file keeps its content: the store replaces and removes names, and a file that is still written only grows.
   `PinnedFile.size` says how much of it belongs to the pin.
3. A pin takes only the space of files that the store has removed since. It lives as long as the process at the longest:
   a start removes the pins that a crash has left.
4. A pin that cannot be made leaves nothing, and does no harm: a file system without hard links has no pins. If a pin
   could not be removed, its holder's next one removes it, so a disk that fails once does not prevent later pins.

Call `take` only while no checkpoint is being replaced and no file removed (`Store.pin`); the other methods at any time.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from warren.msgstore.files.file_system import FileSystem, read_exactly
from warren.msgstore.files.sealed_files import STREAMS, maybe_sealed_name
from warren.msgstore.files.segment_names import CHECKPOINT, LOG, maybe_segment_number, segment_path
from warren.msgstore.log.log_position import LogPosition

PINS: Final = "pins"


class PinError(Exception):
    """The files cannot be pinned, or can no longer be read; the text says why."""


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A file of a pin: its `name` is that in the directory of the store, its first `size` bytes belong to the pin."""

    name: str
    size: int


class Pins:
    """The pins of the store in the root of `fs`. Holds no state; threads may share it."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    def clear(self) -> None:
        """Remove the pins that an earlier process has left. Raises OSError."""
        if PINS in self._fs.names("."):
            for name in self._fs.names(PINS):
                self._fs.unlink(f"{PINS}/{name}")

    def take(self, holder: str, position: LogPosition) -> list[PinnedFile]:
        """Pin the files as they are for a log that ends at `position`.

        `holder`: one of our names, without a dot, that does not hold a pin yet.

        Raises:
            PinError: that is not possible.
        """
        assert holder and "." not in holder and "/" not in holder, holder
        try:
            if PINS not in self._fs.names("."):
                self._fs.mkdir(PINS)
            for name in self._links(holder):
                self._fs.unlink(name)
            pinned: list[PinnedFile] = []
            for name in self._names(position):
                self._fs.link(name, _link_of(holder, name))
                size = self._size(_link_of(holder, name))
                if name == segment_path(position.segment):
                    size = min(size, position.lsn - position.base_lsn)
                pinned.append(PinnedFile(name, size))
        except OSError as error:
            self.release(holder)
            if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise PinError("the file system of the data directory makes no hard links") from None
            raise PinError(f"the files of the message store cannot be held: {_reason(error)}") from None
        return pinned

    def release(self, holder: str) -> None:
        """Remove the pin of `holder`, if it has one. Links that cannot be removed now stay for a while, see (4)."""
        with suppress(OSError):
            for name in self._links(holder):
                with suppress(OSError):
                    self._fs.unlink(name)

    def read(self, holder: str, file: PinnedFile, offset: int, length: int) -> bytes:
        """Return the bytes of a pinned file from `offset` on: `length`, or as many as belong to the pin.

        Raises:
            PinError: they cannot be read, or the pin is gone.
        """
        length = max(0, min(length, file.size - offset))
        try:
            handle = self._fs.open(_link_of(holder, file.name), writable=False)
            try:
                data = read_exactly(self._fs, handle, length, offset)
            finally:
                self._fs.close(handle)
        except OSError as error:
            raise PinError(f"{file.name} cannot be read: {_reason(error)}") from None
        if len(data) != length:
            raise PinError(f"{file.name} is shorter than it was")
        return data

    def _links(self, holder: str) -> list[str]:
        """Return the links of a holder. Raises OSError."""
        return [f"{PINS}/{name}" for name in self._fs.names(PINS) if name.startswith(f"{holder}.")]

    def _names(self, position: LogPosition) -> Iterator[str]:
        """Yield the files that belong to a log that ends there."""
        if CHECKPOINT in self._fs.names("."):
            yield CHECKPOINT
        for name in self._fs.names(LOG):
            number = maybe_segment_number(name)
            if number is not None and number <= position.segment:
                yield f"{LOG}/{name}"
        for name in self._fs.names(STREAMS):
            if maybe_sealed_name(name) is not None:
                yield f"{STREAMS}/{name}"

    def _size(self, path: str) -> int:
        handle = self._fs.open(path, writable=False)
        try:
            return self._fs.size(handle)
        finally:
            self._fs.close(handle)


def _link_of(holder: str, name: str) -> str:
    return f"{PINS}/{holder}.{name.replace('/', '.')}"


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
