"""Fixtures: a broker, and a client of it with channel 1 open.

With WARREN_TEST_ONE_CASE_IN=4 three cases in four of each test are long ones: where `make test` runs the suite once
more, on the source.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from engine_harness import Client, Harness

from .event_listener import Listener


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    share = int(os.environ.get("WARREN_TEST_ONE_CASE_IN", "1"))
    counts: Counter[str] = Counter()
    for item in items:
        test = item.nodeid.partition("[")[0]
        if item.path.parent == Path(__file__).parent and counts[test] % share:
            item.add_marker("long")
        counts[test] += 1


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
def client(harness: Harness) -> Client:
    return harness.channel()


@pytest.fixture
def listener(harness: Harness) -> Listener:
    """All events from now on."""
    return Listener(harness)


@pytest.fixture
def other(harness: Harness) -> Client:
    """A second connection."""
    return harness.channel()
