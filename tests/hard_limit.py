"""Hooks of pytest that end a process whose test survives its own time limit, with the stacks of all its threads.

pytest-timeout raises an exception in a test that takes too long. The exception does not help where the test catches it,
or where its fixtures then wait for the same thread or process. So `GRACE_S` later the process ends. Of several
processes xdist says which test it was, and continues in a new one. With one process the rest of the pass does not run,
and `scripts/test` says which test has ended it.

With ``--dist loadfile`` xdist would run that test again, and again wait for its end. So each test leaves a mark while
it runs, and a test that finds its own mark fails at once. `scripts/test` reads the marks of tests that take long.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import os
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# For what follows the exception: a test stops its brokers, and each of them may need a minute.
GRACE_S = 180.0
# That of the process; output is captured while a test runs.
_stderr = -1
_marks: Path | None = None


def begin() -> None:
    """Have the stacks written to what stderr is now; make the place of the marks of a run by xdist."""
    global _stderr, _marks
    assert sys.__stderr__ is not None
    _stderr = os.dup(sys.__stderr__.fileno())
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is not None:
        _marks = Path(tempfile.gettempdir(), f"running-tests-{run}")
        _marks.mkdir(exist_ok=True)


def end() -> None:
    """Remove the place of the marks, unless there are some."""
    if _marks is not None:
        with contextlib.suppress(OSError):
            _marks.rmdir()


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, object, object]:
    """Begin to count when pytest-timeout does."""
    faulthandler.dump_traceback_later(settings.timeout + GRACE_S, exit=True, file=_stderr)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> Generator[None, object, object]:
    """Stop counting when pytest-timeout does."""
    faulthandler.cancel_dump_traceback_later()
    return (yield)


@pytest.fixture(autouse=True)
def mark_of_running(request: pytest.FixtureRequest) -> Generator[None]:
    """Leave the mark while a test runs.

    Raises:
        AssertionError: the test has ended a process.
    """
    if _marks is None:
        yield
        return
    mark = f"{_marks}/{hashlib.sha256(request.node.nodeid.encode()).hexdigest()}"
    leave(mark, request.node.nodeid)
    yield
    os.unlink(mark)


def leave(mark: str | Path, name: str) -> None:
    """Leave the mark of the test `name`, also where a process that ended first has removed the place of the marks.

    Raises:
        AssertionError: there is one.
    """
    while True:
        try:
            # Of every test: without a file object, which takes as long as the rest.
            file = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(file, name.encode())
            os.close(file)
            return
        except FileNotFoundError:
            Path(mark).parent.mkdir(exist_ok=True)
        except FileExistsError:
            raise AssertionError("this test has ended the process that ran it, and does not run again") from None
