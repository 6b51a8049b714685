"""How many crash states the tests of the whole store look at, and from which seed."""

from __future__ import annotations

import os
import time
from typing import Final

import pytest

STATES: Final = int(os.environ.get("WARREN_TEST_CRASH_STATES", "110000"))
SEED: Final = int(os.environ.get("WARREN_TEST_CRASH_SEED", "1" if STATES < 1_000_000 else str(int(time.time()))))
# Of these the sequences are a fixed number, and random lives the rest; those of errors and of rules come on top.
SEQUENCE_STATES: Final = 120_000 if STATES >= 1_000_000 else 40_000 if STATES >= 100_000 else 1_000
# At 500 crash states a second, interpreted on a slow host.
TIME_LIMIT: Final = pytest.mark.timeout(900 + STATES // 100)
