"""What code under test does to its process ends with its test."""

from __future__ import annotations

import os
import signal

import pytest
from kept_process import kept_process


def test_variables_that_came_changed_or_went_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANGED", "before")
    monkeypatch.setenv("GONE", "before")
    monkeypatch.delenv("NEW", raising=False)
    before = os.environ.copy()
    with kept_process():
        os.environ.update(CHANGED="after", NEW="after")
        del os.environ["GONE"]
    assert os.environ.copy() == before


def test_they_are_as_before_after_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEW", raising=False)

    def fail_with_a_variable_set() -> None:
        with kept_process():
            os.environ["NEW"] = "after"
            raise LookupError

    with pytest.raises(LookupError):
        fail_with_a_variable_set()
    assert "NEW" not in os.environ


def test_signals_are_handled_as_before() -> None:
    def handler(*_: object) -> None:
        pass

    with kept_process():
        signal.signal(signal.SIGTERM, handler)
        with kept_process():
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is handler
        # Python ignores it, and has an error raised instead.
        assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
