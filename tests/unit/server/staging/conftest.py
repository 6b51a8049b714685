"""Small pieces, for tests that ask for them."""

from __future__ import annotations

import pytest

from .stage_life import small


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
