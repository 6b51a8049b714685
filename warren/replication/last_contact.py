"""When a standby was last in sync with its leader, across restarts: the file ``last-contact.json``.

    time_ms                      of the wall clock here, ms since the Unix epoch
    leader                       its name
    committed_lsn, synced_lsn    how far the leader had committed, and this node had synced

1. It is written now and then, durably. Its content may be older than the truth, and is never newer.
2. An unreadable file says nothing: it is then unknown when this node was in sync.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from warren.server.durable_file import remove_file, replace_file

NAME: Final = "last-contact.json"
_BYTES_MAX: Final = 1 << 16
_NUMBER_MAX: Final = 1 << 62
_TIME_MS_MAX: Final = 1 << 47  # in the year 6429


@dataclass(frozen=True, slots=True)
class Contact:
    """A moment at which this node was in sync. See the header."""

    time_ms: int
    leader: str
    committed_lsn: int
    synced_lsn: int

    def time_text(self) -> str:
        """Return when it was, in UTC."""
        return datetime.fromtimestamp(self.time_ms / 1000, UTC).isoformat(timespec="milliseconds")


def maybe_read(directory: Path) -> Contact | None:
    """Return the last contact that a data directory remembers."""
    try:
        with (directory / NAME).open("rb") as file:
            found = json.loads(file.read(_BYTES_MAX))
        numbers = [found[name] for name in ("time_ms", "committed_lsn", "synced_lsn")]
        if not isinstance(found["leader"], str) or any(
            type(number) is not int or not 0 <= number < _NUMBER_MAX for number in numbers
        ):
            return None
        if numbers[0] >= _TIME_MS_MAX:
            return None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return Contact(numbers[0], found["leader"], numbers[1], numbers[2])


def write(directory: Path, contact: Contact) -> None:
    """Remember a contact, durably. Raises OSError."""
    content = json.dumps(asdict(contact)).encode() + b"\n"
    replace_file(directory / NAME, lambda _: content)


def forget(directory: Path) -> None:
    """Remember nothing: this node leads from now on. Raises OSError."""
    remove_file(directory / NAME)
