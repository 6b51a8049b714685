"""Empty dicts and lists that idle objects share, in constants `_NO_…`: whoever adds to one adds to all."""

from __future__ import annotations

import sys


def filled_empties() -> list[str]:
    """Return the names of those in the modules imported so far that are not empty."""
    return [
        f"{name}.{constant}"
        for name, module in sorted(sys.modules.items())
        if name.startswith("warren.")
        for constant, value in sorted(vars(module).items())
        if constant.startswith("_NO_") and isinstance(value, dict | list) and value
    ]
