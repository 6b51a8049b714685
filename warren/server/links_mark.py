"""Mark a data directory that is not the one its links were made for: a restored backup, or a copy.

    links.held         JSON: reason, since_ms. While it is there the links of the broker are held (``held_links.py``)
    directory.place    JSON: the inode of this file itself

1. A restore writes the mark before the directory is complete. A start writes it before anything else if
   ``directory.place`` has another inode than it says: then the directory was copied file by file.
2. Inodes count only where the file system keeps them (`KEEPS_INODES`): a false alarm would stop the links of a broker
   in production. A copy of a whole file system or volume keeps the inodes, so it cannot be told from the original.
3. A directory without ``directory.place`` gets it, and is not held: an older Warren has left it. If there is no space
   for it the broker starts without it; but a copy that cannot be marked does not start.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warren.server.durable_file import remove_file, replace_file

MARK: Final = "links.held"
PLACE: Final = "directory.place"
COPIED: Final = "the data directory is a copy"
# On these a file keeps its inode across mounts and restarts. FUSE, 9p, overlays and FAT invent inodes.
KEEPS_INODES: Final = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "nfs", "nfs4", "tmpfs", "xfs", "zfs"})
MOUNTS: Final = Path("/proc/self/mounts")
_BYTES_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class HeldMark:
    """Why links are held, and since when: milliseconds since the Unix epoch."""

    reason: str
    since_ms: int

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"reason": self.reason, "since_ms": self.since_ms}


def mark_of(value: object) -> HeldMark:
    """Return the mark in a JSON value; links are held whatever that says."""
    found = value if isinstance(value, dict) else {}
    reason, since_ms = found.get("reason"), found.get("since_ms")
    return HeldMark(
        reason if isinstance(reason, str) and reason else "it is not known why",
        since_ms if isinstance(since_ms, int) else 0,
    )


def hold(directory: Path, reason: str) -> None:
    """Write the mark, durably. Raises OSError."""
    mark = HeldMark(reason, time.time_ns() // 1_000_000)
    replace_file(directory / MARK, lambda _: _encoded(mark.document()))


def maybe_mark(directory: Path) -> HeldMark | None:
    """Return the mark, even for an unreadable one."""
    try:
        return mark_of(_read(directory / MARK))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return mark_of(None)


def release(directory: Path) -> None:
    """Remove the mark, durably. Raises OSError."""
    if os.path.lexists(directory / MARK):
        remove_file(directory / MARK)


def note_place(directory: Path, file_system: str | None = None) -> bool:
    """Tell whether a directory was copied since its last start, and hold its links if so; remember its place.

    `file_system`: its type, if not the one that the system says. Raises OSError: a copy cannot be marked.
    """
    path = directory / PLACE
    was = here = None
    with suppress(FileNotFoundError, ValueError):
        found = _read(path)
        was = found.get("inode") if isinstance(found, dict) else None
        here = path.stat().st_ino
    if was is not None and was == here:
        return False
    kind = type_of_file_system(directory) if file_system is None else file_system
    is_copy = was is not None and kind in KEEPS_INODES
    if is_copy:
        hold(directory, COPIED)
    with suppress(OSError):
        replace_file(path, lambda inode: _encoded({"inode": inode}))
    return is_copy


def type_of_file_system(path: Path) -> str:
    """Return the type of the file system of a path; empty if the system does not tell it."""
    wanted = os.path.realpath(path)
    best, found = -1, ""
    try:
        mounts = MOUNTS.read_text(errors="surrogateescape")
    except OSError:
        return ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])
        is_above = place == "/" or wanted == place or wanted.startswith(f"{place}/")
        if is_above and len(place) >= best:  # of two mounts at one place the later one is visible
            best, found = len(place), fields[2]
    return found


def _read(path: Path) -> Any:
    with path.open("rb") as file:
        return json.loads(file.read(_BYTES_MAX))


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"
