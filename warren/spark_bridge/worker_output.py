"""Lines that readers and writers print for the person that runs them. Imports nothing of Spark."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Write a line to standard error: the place where Spark keeps the output of its workers."""
    print(f"warren: {text}", file=sys.stderr, flush=True)
