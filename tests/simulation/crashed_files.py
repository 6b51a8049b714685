"""Words for tests of file systems: what a crash leaves, and which error a call fails with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.simulated_file_system import SimulatedFileSystem

Contents = dict[str, bytes]


def fails_with(number: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError, match=rf"^\[Errno {number}\]"):
        call()


def crashed(fs: SimulatedFileSystem, limit: int = 2000, seed: int = 1) -> list[Contents]:
    return [state.contents() for state in fs.crash_states(seed, limit)]


def made(fs: SimulatedFileSystem, path: str, data: bytes, *, synced: bool = True) -> int:
    """Create a file with `data` in it."""
    handle = fs.create(path, 0)
    fs.write(handle, [data], 0)
    if synced:
        fs.sync(handle)
        fs.sync_directory(path.rpartition("/")[0] or ".")
    return handle
