"""Tell how the engine of this installation was built."""

from __future__ import annotations

from importlib.util import find_spec


def engine_is_compiled() -> bool:
    """Tell whether the engine is compiled, without loading it."""
    spec = find_spec("warren.channels.fast_path")
    return spec is not None and spec.origin is not None and spec.origin.endswith(".so")
