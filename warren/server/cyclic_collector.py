"""The cyclic collector of Python, which looks at all containers there are: how much of them it looks at in one go.

1. There are no cycles on the per-message path, and messages are nothing to the collector. Cycles come from tracebacks
   and libraries.
2. It runs by itself whenever `YOUNG_OBJECTS` containers more have come than gone, and looks at those, some milliseconds
   at worst: whoever declares 300,000 bindings holds nobody up for a tenth of a second, now or when the broker is quiet.
3. What has lived through that twice is not looked at again: what exists when the broker has started, above all.
4. It does not run while the broker starts: whatever is restored stays, and to look at a million bindings again and
   again takes as long as to restore them.
"""

from __future__ import annotations

import gc
from typing import Final

YOUNG_OBJECTS: Final = 10_000
YOUNG_ROUNDS: Final = 4
_NEVER: Final = 1 << 30


def pause_collector() -> None:
    """Look at nothing until `bound_collector`, once what the imports left has gone."""
    gc.collect()
    gc.disable()


def bound_collector() -> None:
    """From now on look at what has come lately, and at what there is already never again."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, _NEVER)
    gc.enable()


def collect_lately() -> None:
    """Look at what has come lately, whose cycles would stay for as long as nothing else comes."""
    gc.collect(1)
