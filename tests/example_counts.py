"""How many examples hypothesis makes of a property: as many as it asks for, or a share of them.

``make test`` makes a third of them, with other ones in each run: ``WARREN_TEST_EXAMPLES_PERCENT``.
"""

from __future__ import annotations

import os
from typing import Final

_PERCENT: Final = int(os.environ.get("WARREN_TEST_EXAMPLES_PERCENT", "100"))


def examples(wanted: int) -> int:
    """Return how many of the `wanted` ones to make, at least one."""
    return max(1, wanted * _PERCENT // 100)
