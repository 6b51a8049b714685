"""A broker with its API for these tests, and `warren ctl` run against it.

WARREN_TEST_API_URL names another broker with a user guest, RabbitMQ for one, in place of a Warren of our own.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from broker_process import WarrenProcess

from warren.ctl.command_table import main


class Ended(NamedTuple):
    """The output of a run."""

    exit_code: int
    out: str
    err: str


class Ctl:
    """Runs `warren ctl` in one vhost of its own."""

    def __init__(self, vhost: str) -> None:
        self.vhost = vhost

    def __call__(self, *arguments: str, stdin: str = "") -> Ended:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        before = sys.stdin, sys.stdout, sys.stderr
        sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"), out, err
        try:
            exit_code = main(arguments)
        finally:
            sys.stdin, sys.stdout, sys.stderr = before
        return Ended(exit_code, *(read_back(stream) for stream in (out, err)))

    def done(self, *arguments: str, stdin: str = "") -> str:
        """Run a command that must succeed; return what it prints."""
        ended = self(*arguments, stdin=stdin)
        assert ended.exit_code == 0, (arguments, ended)
        return ended.out

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """Run a listing that must succeed; return its rows."""
        rows: list[dict[str, Any]] = json.loads(self.done(*arguments, "--formatter", "json"))
        return rows


def read_back(stream: io.TextIOWrapper) -> str:
    """Return what was written."""
    stream.flush()
    written = stream.buffer
    assert isinstance(written, io.BytesIO)
    return written.getvalue().decode()


@pytest.fixture(scope="session")
def broker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API of a running broker."""
    given = os.environ.get("WARREN_TEST_API_URL")
    if given:
        yield given
        return
    with WarrenProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield f"http://127.0.0.1:{broker.http_port}"


_numbers = itertools.count(1)


@pytest.fixture
def ctl(broker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ctl]:
    """The command line in a fresh vhost that guest may use."""
    vhost = f"ctl/{os.getpid()}-{next(_numbers)}"
    for name in os.environ:
        if name.startswith("WARREN_CTL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("WARREN_CTL_URL", broker_url)
    monkeypatch.setenv("WARREN_CTL_VHOST", vhost)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    run = Ctl(vhost)
    run.done("add_vhost", vhost)
    run.done("set_permissions", "guest", ".*", ".*", ".*")
    yield run
    run.done("delete_vhost", vhost)
