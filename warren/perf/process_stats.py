"""CPU time, memory and writing of a process and all its descendants, read from /proc.

1. CPU time is user plus system, of every thread, and of children that were waited for: nothing escapes by
   exiting.
2. Resolution is one clock tick (10 ms): use windows of seconds.
3. A process that vanishes while it is read counts as nothing and raises nothing, except the root: that is an
   error.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICK_US: Final = 1_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ProcessSample:
    """One look at a process tree."""

    cpu_us: int
    rss_bytes: int
    processes: int


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state (field 3) on; the command name may hold spaces and
    brackets.
    """
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split()


def descendants(root: int) -> list[int]:
    """Return ``root`` and the process ids of its children, their children and so on."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                parent = int(_stat_fields(int(entry.name))[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def sample(pid: int) -> ProcessSample:
    """Return CPU time and resident memory of ``pid`` and its descendants.

    Raises ProcessLookupError when ``pid`` is gone.
    """
    cpu_us = rss_bytes = processes = 0
    for member in descendants(pid):
        try:
            fields = _stat_fields(member)
        except OSError:
            if member == pid:
                raise ProcessLookupError(f"no process {pid}") from None
            continue
        cpu_us += sum(int(ticks) for ticks in fields[11:15]) * _TICK_US  # utime stime cutime cstime
        rss_bytes += int(fields[21]) * _PAGE_BYTES
        processes += 1
    return ProcessSample(cpu_us, rss_bytes, processes)


def written_bytes(pid: int) -> int:
    """Return how many bytes ``pid`` and its descendants caused to be sent to disks, pages counted whole.

    Raises PermissionError when they are another user's.
    """
    total = 0
    for member in descendants(pid):
        try:
            lines = Path(f"/proc/{member}/io").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))
    return total
