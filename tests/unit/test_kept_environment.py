"""What code under test does to the environment ends with its test."""

from __future__ import annotations

import os

import pytest
from kept_environment import kept_environment


def test_variables_that_came_changed_or_went_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANGED", "before")
    monkeypatch.setenv("GONE", "before")
    monkeypatch.delenv("NEW", raising=False)
    before = os.environ.copy()
    with kept_environment():
        os.environ.update(CHANGED="after", NEW="after")
        del os.environ["GONE"]
    assert os.environ.copy() == before


def test_they_are_as_before_after_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEW", raising=False)

    def fail_with_a_variable_set() -> None:
        with kept_environment():
            os.environ["NEW"] = "after"
            raise LookupError

    with pytest.raises(LookupError):
        fail_with_a_variable_set()
    assert "NEW" not in os.environ
