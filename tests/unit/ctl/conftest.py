"""The fake API, and `warren ctl` run against it inside the test."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from warren.ctl.command_table import main

from .fake_api import FakeApi


class Ended(NamedTuple):
    """The output of a run."""

    exit_code: int
    out: str
    err: str


class Ctl:
    """Runs the command line; the URL of the fake API is in the environment."""

    def __init__(self, capture: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capture = capture
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, stdin: str | bytes = "") -> Ended:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        self._capture.readouterr()
        code = main(arguments)
        out, err = self._capture.readouterr()
        return Ended(int(code), out, err)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    """A fake API on a free port."""
    fake = FakeApi()
    yield fake
    fake.close()


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ignore variables and profiles of the user who runs the tests."""
    for name in os.environ:
        if name.startswith("WARREN_CTL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def ctl(
    api: FakeApi,
    clean_environment: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Ctl:
    """The command line, connected to the fake API."""
    monkeypatch.setenv("WARREN_CTL_URL", api.url)
    return Ctl(capsys, monkeypatch)
