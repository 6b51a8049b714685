"""Warnings that may be due again and again: the same one is logged again only after a while."""

from __future__ import annotations

import time
from typing import Final

from warren.server.logs import get_logger

REPEAT_S: Final = 60.0
KEPT_MAX: Final = 1000  # different ones

log = get_logger("replication")


class RareWarnings:
    """The warnings of one place."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}  # when each was logged last

    def say(self, event: str, **fields: str) -> None:
        """Log a warning, unless it was logged lately with the same fields."""
        now_s = time.monotonic()
        key = f"{event} {fields}"
        if now_s - self._said.get(key, -REPEAT_S) >= REPEAT_S:
            if len(self._said) > KEPT_MAX:
                self._said.clear()
            self._said[key] = now_s
            log.warning(event, **fields)
