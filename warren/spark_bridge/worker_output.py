"""Lines that readers and writers print for the person that runs them. Imports nothing of Spark."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(text: str) -> None:
    """Write a line to standard error: the place where Spark keeps the output of its workers. Never fails."""
    # Spark may have closed it, or its disk may be full: that must not fail the caller.
    with suppress(OSError, ValueError):
        print(f"warren: {text}", file=sys.stderr, flush=True)
