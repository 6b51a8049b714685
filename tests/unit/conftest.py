"""Fixtures of the unit tests of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from engine_harness import Harness


@pytest.fixture
def harness() -> Harness:
    """The engine without sockets and disks."""
    from engine_harness import Harness  # other unit tests need no engine

    return Harness()
