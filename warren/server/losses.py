"""What a start has found missing or damaged: logged, and named by the API until the next start.

While there is any, `/health` has ``messages`` in ``degraded``, and ``GET /api/warren/store`` names each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Losses:
    """The losses of one start, each with ``what`` and its place."""

    def __init__(self) -> None:
        self.found: list[dict[str, object]] = []

    def tell(self, log: Any, level: str, what: str, **where: object) -> None:
        """Write a line to the logger `log`; remember it if it is an error."""
        write: Callable[..., None] = getattr(log, level)
        write(what, **where)
        if level == "error":
            self.found.append({"what": what, **where})
