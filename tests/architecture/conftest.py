"""No collections of garbage: the tests parse the whole package, and the collector would look at each tree again."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
