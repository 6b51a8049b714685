"""The check that no test has filled an empty dict or list which idle objects share."""

from __future__ import annotations

import pytest
from shared_empties import filled_empties

from warren.queues import delivery


def test_one_that_is_filled_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(delivery._NO_OVERDUE, 1, None)
    assert filled_empties() == ["warren.queues.delivery._NO_OVERDUE"]
