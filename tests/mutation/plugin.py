"""What pytest needs here: to run chosen tests of some files, and to write down which statements each has reached.

`--chosen FILE`: the tests, one a line. `--reached FILE`: for each test that has passed, a JSON object of its name, how
long it took, and the statements in hexadecimal, a bit for each; for others, that they have not passed.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chosen", type=Path)
    parser.addoption("--reached", type=Path)


def pytest_configure(config: pytest.Config) -> None:
    # The same examples for every mutant, and the first that fails is enough.
    phases = [Phase.explicit, Phase.generate]
    settings.register_profile("mutants", settings(), phases=phases, database=None, derandomize=True)
    settings.load_profile("mutants")
    if config.option.reached is not None:
        config.pluginmanager.register(Recorder(config.option.reached))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.chosen is not None:
        order = {name: place for place, name in enumerate(config.option.chosen.read_text().splitlines())}
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])


class Recorder:
    """Reads the marks that a test has left."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: bytearray = importlib.import_module("warren.seen_statements").SEEN
        self._failed: set[str] = set()
        self._lines: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        self._seen[:] = bytes(len(self._seen))
        began_s = time.perf_counter()
        result = yield
        seconds = round(time.perf_counter() - began_s, 4)
        bits = int(self._seen[::-1].translate(bytes.maketrans(b"\0\1", b"01")), 2)
        passed = item.nodeid not in self._failed
        self._lines.append(json.dumps({"test": item.nodeid, "passed": passed, "s": seconds, "bits": f"{bits:x}"}))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._path.write_text("".join(line + "\n" for line in self._lines))
