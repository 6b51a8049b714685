"""Hooks of pytest that end a process whose test survives its own time limit, with the stacks of all its threads.

pytest-timeout raises an exception in a test that takes too long. The exception does not help where the test catches it,
or where its fixtures then wait for the same thread or process. So `GRACE_S` later the process ends. Of several
processes xdist says which test it was, and continues in a new one. With one process the rest of the pass does not run,
and `scripts/test` says which test has ended it.

With ``--dist loadfile`` xdist would run that test again, and again wait for its end. So each process keeps a file with
the name of the test that it runs, and a process that begins later refuses the tests that such files name.
`scripts/test` reads them to name tests that take long.

Hooks, and no fixture: of nearly every test both are most of the cost.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# For what follows the exception: a test stops its brokers, and each of them may need a minute.
GRACE_S = 180.0
# That of the process; output is captured while a test runs.
_stderr = -1
_mark = -1  # the file of this process; -1: it has none
_mark_path: Path | None = None
_ended: set[str] = set()  # the tests that have ended another process of this run
_ends_s = 0.0  # when this process ends, by `time.monotonic`


def begin() -> None:
    """Write the stacks to the current stderr; open the file of this process."""
    global _stderr, _mark, _mark_path
    assert sys.__stderr__ is not None
    _stderr = os.dup(sys.__stderr__.fileno())
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is not None:
        # Others that run now are named as well: xdist gives what they run to nobody else.
        _ended.update(running(run))
        _mark_path = mark_of(run, os.getpid())
        _mark = os.open(_mark_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)


def end() -> None:
    """Remove the file of this process, and let it be as long as it likes."""
    faulthandler.cancel_dump_traceback_later()
    if _mark_path is not None:
        os.close(_mark)
        _mark_path.unlink()


def mark_of(run: str, process: int | str) -> Path:
    """Return the path of the file of a process, or its pattern for glob."""
    return Path(tempfile.gettempdir(), f"running-tests-{run}-{process}")


def running(run: str) -> list[str]:
    """Return the tests that the processes of a run have begun and not ended."""
    every = mark_of(run, "*")
    names = [path.read_text().partition("\n")[0] for path in every.parent.glob(every.name)]
    return sorted(filter(None, names))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep the name of the test in the file while it runs."""
    if _mark < 0:
        return (yield)
    os.pwrite(_mark, f"{item.nodeid}\n".encode(), 0)
    try:
        return (yield)
    finally:
        os.pwrite(_mark, b"\n", 0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a test that has ended a process.

    Raises:
        AssertionError: it has.
    """
    assert item.nodeid not in _ended, "this test has ended the process that ran it, and does not run again"


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """Begin to count when pytest-timeout does, or continue: a beginning costs a thread. Tests may have half more."""
    global _ends_s
    least_s = settings.timeout + GRACE_S
    now_s = time.monotonic()
    if not least_s <= _ends_s - now_s <= 1.5 * least_s:
        faulthandler.dump_traceback_later(1.5 * least_s, exit=True, file=_stderr)
        _ends_s = now_s + 1.5 * least_s
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> Generator[None, object, object]:
    """Stop counting in a process of xdist, which may wait for its next test."""
    global _ends_s
    if "PYTEST_XDIST_WORKER" in os.environ:
        faulthandler.cancel_dump_traceback_later()
        _ends_s = 0.0
    return (yield)
