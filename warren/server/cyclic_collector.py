"""Limit how many containers Python's cyclic collector looks at in one go.

1. The per-message path makes no cycles, and the collector does not track messages. Cycles come from tracebacks and
   libraries.
2. It runs by itself whenever the number of containers has grown by `YOUNG_OBJECTS`, and looks at those. This takes a
   few milliseconds at worst: declaring 300,000 bindings does not delay others for a tenth of a second, then or later.
3. It does not look again at containers that have survived two such runs. Most of these exist since the start.
4. It does not run while the broker starts. Restored objects stay, and looking at a million bindings again and again
   takes as long as restoring them.
"""

from __future__ import annotations

import gc
from typing import Final

YOUNG_OBJECTS: Final = 10_000
YOUNG_ROUNDS: Final = 4
_NEVER: Final = 1 << 30


def pause_collector() -> None:
    """Collect the garbage of the imports, then collect nothing until `bound_collector`."""
    gc.collect()
    gc.disable()


def bound_collector() -> None:
    """From now on collect only among new containers, never again among existing ones."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, _NEVER)
    gc.enable()


def collect_lately() -> None:
    """Collect among new containers: their cycles would stay as long as no others are made."""
    gc.collect(1)
