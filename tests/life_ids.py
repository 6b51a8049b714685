"""Ids of lives for tests: no two are the same in one run."""

from __future__ import annotations

from itertools import count
from typing import Final

_NUMBERS: Final = count(1)


def new_life_id() -> bytes:
    """Return 16 bytes that no call before has returned."""
    return b"life" + next(_NUMBERS).to_bytes(12, "big")
