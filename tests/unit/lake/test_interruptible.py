"""Work that Ctrl-C ends: whenever the signal comes, the work has ended when the caller is told."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from warren.lake.interruptible import interruptible


@pytest.fixture
def long_turns() -> Iterator[None]:
    """Give a new thread its turn before the one that started it continues."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(60)
    yield
    sys.setswitchinterval(interval_s)


def test_what_it_returns_and_what_it_raises_is_the_callers() -> None:
    assert interruptible(lambda: 7, lambda: None) == 7
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0, lambda: None)


@pytest.mark.usefixtures("long_turns")
def test_interrupted_while_its_thread_starts_it_has_ended_when_the_caller_is_told() -> None:
    interrupted, ended = threading.Event(), threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        interrupted.wait()
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        interruptible(work, interrupted.set)
    assert ended.is_set()


def test_interrupted_before_its_thread_runs_it_is_never_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        started.append(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt):
            interruptible(lambda: done.append("work"), lambda: done.append("interrupt"))
    started[0].run()
    assert done == []
