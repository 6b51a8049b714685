"""The output of the tools: one JSON object a line, each with a ``type``.

1. A line of type ``problem`` is something that a store must not have; it makes the exit code 1. A ``note`` is worth
   knowing and nothing to worry about.
2. Numbers that count or place something are JSON integers; times are ISO 8601 in UTC, but integers where the name says
   ``_ms``, since the Unix epoch; ids and checksums are hexadecimal.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

Line = dict[str, object]

PROBLEM: Final = "problem"


class UnreadableStore(Exception):
    """The requested store does not exist, or is not readable; the text is one line."""


def problem(what: str, **where: object) -> Line:
    """Return the line for a problem, and its place."""
    return {"type": PROBLEM, "what": what, **where}


def note(what: str, **where: object) -> Line:
    """Return a line that says something worth knowing."""
    return {"type": "note", "what": what, **where}


def time_text(time_ms: int) -> str:
    """Return the time `time_ms` milliseconds after the Unix epoch; the number itself when no calendar has it."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"


def crc_text(crc: int) -> str:
    """Return a checksum as the eight digits it is usually written with."""
    return f"{crc:08x}"
