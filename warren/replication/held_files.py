"""Files kept for reading later, even if their names are removed or replaced meanwhile.

The first `HANDLES_MAX` are kept open. Each of the others gets another name in the directory of the pins, which is there
until `release`, or until the next start; where the file system makes no hard links there can be no more of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from warren.msgstore.files.file_system import FileSystem
from warren.msgstore.files.pins import PINS

HANDLES_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class HeldFile:
    """One of them: its handle, or its other name."""

    handle: int
    link: str = ""


class HeldFiles:
    """The files of one reader, `holder`: one of our names, without a dot and unique."""

    def __init__(self, fs: FileSystem, holder: str, handles_max: int | None = None) -> None:
        self._fs = fs
        self._holder = holder
        self._handles_max = HANDLES_MAX if handles_max is None else handles_max
        self._files: set[HeldFile] = set()
        self._open = 0

    def hold(self, path: str) -> HeldFile:
        """Hold the file. The caller prevents its removal, and pins, meanwhile. Raises OSError."""
        if self._open < self._handles_max:
            file = HeldFile(self._fs.open(path, writable=False))
            self._open += 1
        else:
            if PINS not in self._fs.names("."):
                self._fs.mkdir(PINS)
            file = HeldFile(-1, f"{PINS}/{self._holder}.{path.replace('/', '.')}")
            self._fs.link(path, file.link)
        self._files.add(file)
        return file

    @contextmanager
    def opened(self, file: HeldFile) -> Iterator[int]:
        """Read the file by this handle. Raises OSError."""
        if not file.link:
            yield file.handle
            return
        handle = self._fs.open(file.link, writable=False)
        try:
            yield handle
        finally:
            self._fs.close(handle)

    def release(self) -> None:
        """Stop holding all of them."""
        for file in list(self._files):
            self.let_go(file)

    def let_go(self, file: HeldFile) -> None:
        """Stop holding this one."""
        self._files.remove(file)
        with suppress(OSError):
            if file.link:
                self._fs.unlink(file.link)
            else:
                self._open -= 1
                self._fs.close(file.handle)
