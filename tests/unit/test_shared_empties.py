"""The check that no test has filled an empty dict or list which idle objects share."""

from __future__ import annotations

from types import ModuleType

import pytest
from shared_empties import filled_empties

from warren.mqtt import topics
from warren.queues import delivery, turns


def test_one_that_is_filled_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(delivery._NO_OVERDUE, 1, None)
    assert filled_empties() == ["warren.queues.delivery._NO_OVERDUE"]


@pytest.mark.parametrize(("module", "constant"), [(topics, "_NONE"), (turns, "_NOBODY")])
def test_one_is_found_by_the_beginning_of_its_name(module: ModuleType, constant: str) -> None:
    shared = vars(module)[constant]
    shared.append(None)
    try:
        assert filled_empties() == [f"{module.__name__}.{constant}"]
    finally:
        shared.clear()
