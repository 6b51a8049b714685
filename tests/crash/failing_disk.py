"""A disk whose reads a test fails: `read_shim.c`, compiled here and preloaded into the broker."""

from __future__ import annotations

import mmap
from pathlib import Path

from .held_disk import compiled_shim

LOG, STREAMS, BOTH, CATALOGUE = 1, 2, 3, 4
_WHICH, _ONE_OF, _FROM, _TO, _FAILED = range(5)
_CONTROL_BYTES = 40


class FailingDisk:
    """The controls of one broker's reads. `wrapper` is the command to run the broker under."""

    def __init__(self, directory: Path) -> None:
        shim = compiled_shim(directory, "read_shim")
        path = directory / "read-control"
        path.write_bytes(bytes(_CONTROL_BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _CONTROL_BYTES)
        self._numbers = memoryview(self._memory).cast("Q")
        self.wrapper = ["env", f"LD_PRELOAD={shim}", f"READ_SHIM_CONTROL={path}"]

    @property
    def failed(self) -> int:
        """How many reads have failed."""
        return self._numbers[_FAILED]

    def fail(self, which: int = BOTH, one_of: int = 1, first: int = 0, end: int = 0) -> None:
        """Make reads fail from now on: one in `one_of`, of those that touch the bytes from `first` up to `end`."""
        self._numbers[_ONE_OF], self._numbers[_FROM], self._numbers[_TO] = one_of, first, end
        self._numbers[_WHICH] = which

    def heal(self) -> None:
        """Make all reads succeed."""
        self._numbers[_WHICH] = 0
