"""Tell how much memory the broker may use, and how much it uses.

1. "All of the memory" is the smallest of two limits: the memory of the machine, and what any control group above this
   process allows.
2. Freed large blocks return to the system. A password check needs 16 MiB for a moment. Without (2) the C library raises
   its own threshold after the first check, and keeps up to 16 MiB resident for each thread that ever did one.
3. All threads share one heap. By default the C library gives each thread its own, up to eight for each core. It keeps
   what was free at the end of each heap, up to `_SLACK_BYTES`: not even `malloc_trim` returns that. Threads rarely
   compete for the one heap: only the thread with the interpreter allocates, the others write, sync or compress.
4. Reading the figures takes no new descriptor: the one file that is read repeatedly stays open.
5. Systems without /proc are asked through psutil, which is installed there. The process may use the memory of the whole
   machine.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

# Above the largest outbox of a busy connection: its pages should not be faulted in again for every flush.
_LARGE_BLOCK_BYTES: Final = 8 << 20
# Setting one threshold freezes the other at 128 KiB, and every read buffer would go back to the system and be
# faulted in again.
_SLACK_BYTES: Final = 8 << 20
_M_TRIM_THRESHOLD: Final = -1  # from malloc.h of the GNU C library
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Control groups of the first version write "no limit" as a number near 2**63.
_NO_LIMIT_BYTES: Final = 1 << 60


def keep_little_free() -> bool:
    """Make the C library keep little freed memory (2, 3). Before there are threads; tells whether it can."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES) != 1:
        return False
    return bool(mallopt(_M_TRIM_THRESHOLD, _SLACK_BYTES) == 1 and mallopt(_M_ARENA_MAX, 1) == 1)


class _Statm:
    """``/proc/self/statm``, kept open. A forked process opens it again: the open file describes its parent."""

    def __init__(self) -> None:
        self._pid = 0
        self._fd = -1

    def read(self) -> bytes:
        if self._pid != os.getpid():
            self._fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
            self._pid = os.getpid()
        return os.pread(self._fd, 128, 0)


_statm: Final = _Statm()


def _resident_by_proc() -> int:
    return int(_statm.read().split()[1]) * _PAGE_BYTES


def resident_by_psutil() -> int:
    """Return the resident memory in bytes on systems without /proc."""
    import psutil  # type: ignore[import-untyped]

    return int(psutil.Process().memory_info().rss)


# Returns the resident memory of this process in bytes.
resident_bytes: Final = _resident_by_proc if os.path.exists("/proc/self/statm") else resident_by_psutil


# What the process took when it had begun, and had nothing of its users.
_at_start: list[int] = []


def note_start() -> None:
    """Remember the resident memory as that of the program. Called once, before anything is restored."""
    _at_start[:] = [resident_bytes()]


def program_bytes() -> int:
    """Return the resident memory of the program itself, 0 if `note_start` was not called."""
    return _at_start[0] if _at_start else 0


def total_memory_bytes(root: Path = Path("/")) -> int:
    """Return the most bytes that this process may use; `root` is where /proc and /sys are found."""
    limits = [_machine_bytes(root)]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            limits += _limits_along(root / "sys/fs/cgroup", path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits_along(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
    return min(limits)


def _machine_bytes(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES


def _limits_along(mount: Path, path: str, name: str) -> list[int]:
    """Read the limit of the group `path` and of every group above; in a container only the top exists."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    limits = []
    for depth in range(len(parts) + 1):
        text = _read(mount.joinpath(*parts[:depth], name)).strip()
        if text.isdigit() and int(text) < _NO_LIMIT_BYTES:
            limits.append(int(text))
    return limits


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
