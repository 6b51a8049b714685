"""A disk whose syncs a test counts, holds up and fails: `sync_shim.c`, compiled here and preloaded into the broker."""

from __future__ import annotations

import mmap
import shutil
import subprocess
from pathlib import Path

import pytest
from broker_process import wait_until
from compat.broker import DEADLINE_S, in_ci

_ASKED, _DONE, _FAILS, _HELD, _WAITS = range(5)
_CONTROL_BYTES = 40


def compiled_shim(directory: Path, name: str = "sync_shim") -> Path:
    """Compile a shim into `directory`; skip the test where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        assert not in_ci(), "there is no C compiler"
        pytest.skip("there is no C compiler (cc)")
    library = directory / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


class HeldDisk:
    """The controls of one broker's syncs of its log. `wrapper` is the command to run the broker under."""

    def __init__(self, directory: Path, shim: Path) -> None:
        path = directory / "control"
        path.write_bytes(bytes(_CONTROL_BYTES))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _CONTROL_BYTES)
        self._numbers = memoryview(self._memory).cast("Q")
        self.wrapper = ["env", f"LD_PRELOAD={shim}", f"SYNC_SHIM_CONTROL={path}"]

    @property
    def asked(self) -> int:
        """How many syncs were asked for."""
        return self._numbers[_ASKED]

    @property
    def done(self) -> int:
        """How many were done."""
        return self._numbers[_DONE]

    def hold(self) -> None:
        """Hold every sync that begins from now on."""
        self._numbers[_HELD] = 1

    def await_sync(self) -> int:
        """Wait until a sync waits; return its number."""
        wait_until(lambda: self._numbers[_WAITS] != 0, "a sync", DEADLINE_S)
        return self._numbers[_WAITS]

    def fail(self, number: int) -> None:
        """Make the sync with that number fail when it is released."""
        self._numbers[_FAILS] = number

    def release(self) -> None:
        """Release all held syncs."""
        self._numbers[_HELD] = 0
