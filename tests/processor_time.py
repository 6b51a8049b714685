"""A plugin of pytest: the processor time of each test, with all processes that it started.

It is a property of the test in JUnit's XML, ``processor_s``, from which `scripts/test` prints the most expensive tests.
Wall-clock time depends on the load of the machine, and says nothing about a test that waits.

A test is charged with the time of the test process and all its descendants since the previous test. Brokers are
descendants too, through the fork server. The time of a shared fixture counts for the test that runs then. The time of a
process that ends without a parent waiting for it, as some of Chromium's, is lost. The sum is then too small, and for
one test it may be negative.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any, Final

import pytest

PROPERTY: Final = "processor_s"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class ProcessorTime:
    """The time taken since the last query."""

    def __init__(self) -> None:
        self._before_s = taken_s(os.getpid())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        if call.when == "teardown":
            now_s = taken_s(os.getpid())
            item.user_properties.append((PROPERTY, f"{now_s - self._before_s:.2f}"))
            self._before_s = now_s
        return (yield)


def pytest_configure(config: Any) -> None:
    """Count in the processes that run tests, where Linux reports processor time."""
    if os.path.exists("/proc/self/task") and not getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(ProcessorTime())


def taken_s(process: int) -> float:
    """Return the seconds of a processor that `process` and its descendants have taken, those that have ended too."""
    ticks = 0
    left = [b"%d" % process]
    while left:
        each = b"/proc/" + left.pop()
        try:
            ticks += sum(map(int, _read(each + b"/stat").rpartition(b")")[2].split()[11:15]))
            for thread in os.listdir(each + b"/task"):
                left += _read(each + b"/task/" + thread + b"/children").split()
        except OSError:
            continue  # it has ended
    return ticks / _TICKS_PER_S


def _read(path: bytes) -> bytes:
    """Return what is in a short file; without a file object, which costs twice as much: some ten a test are read."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 65536)
    finally:
        os.close(file)
