"""Fixtures: a broker, and a client of it with channel 1 open."""

from __future__ import annotations

import pytest
from engine_harness import Client, Harness

from .event_listener import Listener


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
