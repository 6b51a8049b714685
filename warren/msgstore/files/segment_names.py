"""The names of the files of the log."""

from __future__ import annotations

from typing import Final

LOG: Final = "log"
CHECKPOINT: Final = "checkpoint"

_NAME_DIGITS: Final = 10


def segment_path(number: int) -> str:
    """Return the path of a segment."""
    return f"{LOG}/{number:0{_NAME_DIGITS}d}"


def maybe_segment_number(name: str) -> int | None:
    """Return the number in the name of a file in the log directory; None when it does not name a segment."""
    return int(name) if len(name) == _NAME_DIGITS and name.isascii() and name.isdigit() else None
