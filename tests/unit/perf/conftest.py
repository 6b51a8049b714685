"""The small broker as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from warren.perf.client import Address

from .small_broker import SmallBroker


@pytest.fixture
def broker() -> Iterator[SmallBroker]:
    """A small broker on a free port."""
    small = SmallBroker()
    yield small
    small.close()


@pytest.fixture
def address(broker: SmallBroker) -> Address:
    """Where the small broker listens."""
    return Address(port=broker.port)
