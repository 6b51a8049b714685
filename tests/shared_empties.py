"""Empty dicts and lists that idle objects share, in constants `_NO…`: a test that adds to one adds to all."""

from __future__ import annotations

import sys

# Of the modules that have been looked through: constants do not come later.
_empties: dict[str, dict[object, object] | list[object]] = {}
_modules: set[str] = set()


def filled_empties() -> list[str]:
    """Return the names of those in the modules imported so far that are not empty."""
    for module in sys.modules.keys() - _modules:
        _modules.add(module)
        if module.startswith("warren."):
            for constant, value in vars(sys.modules[module]).items():
                if constant.startswith("_NO") and isinstance(value, dict | list):
                    _empties[f"{module}.{constant}"] = value
    return sorted(name for name, value in _empties.items() if value)
