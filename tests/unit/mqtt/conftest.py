"""Fixtures of the tests of MQTT."""

from __future__ import annotations

import pytest


@pytest.fixture(params=[3, 4, 5])
def version(request: pytest.FixtureRequest) -> int:
    """The protocol level of a client."""
    found = request.param
    assert isinstance(found, int)
    return found
