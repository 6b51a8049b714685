#!/usr/bin/env python3
"""Run the tests many times, every second time on a busy machine, and tell which of them failed how often.

    scripts/often.py 20                        `scripts/test` 20 times
    scripts/often.py 5 --load 10 crash -s      `scripts/test crash -s` 5 times, beside 10 busy processes in runs 2 and 4
    scripts/often.py 10 --added                what the change adds, see `changed_tests.py --added`: on the source, and
                                               each run in a process of its own, with other hashes and clocks

Every run is made, even if earlier ones failed. A failed run leaves a folder of its own below .cache/often/: its output
(run.log), and the files of `scripts/test` in .cache/tests/, the log of each pass and its results as JUnit's XML. A
green run leaves nothing. The exit code is 1 when a run failed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).resolve().parent.parent
LEFT_BY_TESTS: Final = ROOT / ".cache/tests"
KEPT: Final = ROOT / ".cache/often"
LOAD: Final = 6
NO_TESTS: Final = 5  # the exit code of pytest
# It ends with its parent, however that ends.
BUSY: Final = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
# pytest on the source, in tests/; what fails is in the same file of results as that of a pass of `scripts/test`.
ON_SOURCE: Final = [
    *("env", "-C", str(ROOT / "tests"), f"PYTHONPATH={ROOT}", "WARREN_TEST_INTERPRETED=1"),
    *(str(ROOT / ".venv/bin/python"), "-m", "pytest", "-p", "no:cacheprovider", "-q", "-m", "not long"),
    *(f"--junitxml={LEFT_BY_TESTS}/added.xml", "-o", "junit_logging=system-out"),
]
# As tests print them: `seed 7`, `WARREN_TEST_GROUP_SEED=7`.
SEED: Final = re.compile(r"\b(?:seed |WARREN_TEST_\w*SEED=)(\d+)")


@dataclass(frozen=True)
class Failure:
    """A test that failed in a run. `seed` is the last one that it printed, "" when it printed none."""

    test: str
    seed: str


@dataclass
class Run:
    """A run of the tests that ended. `failures` may be empty though it failed: pytest did not come that far."""

    number: int
    load: int
    exit_code: int
    seconds: float
    failures: list[Failure] = field(default_factory=list)

    def is_green(self) -> bool:
        return self.exit_code in (0, NO_TESTS)


def failures_in(results: Path) -> list[Failure]:
    """Return which tests failed, or could not be set up, by one file of JUnit's XML; none when it was cut off."""
    try:
        tree = ElementTree.parse(results)
    except ElementTree.ParseError:
        return []
    found = []
    for case in tree.iter("testcase"):
        faults = [part for part in case if part.tag in ("failure", "error")]
        if faults:
            printed = "\n".join(part.text or "" for part in [*faults, *case.iter("system-out")])
            seeds = SEED.findall(printed)
            name = f"{case.get('classname')}::{case.get('name')}"
            found.append(Failure(f"{results.stem}: {name}", seeds[-1] if seeds else ""))
    return found


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Have so many processes that do nothing but work."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_tests(command: Sequence[str], number: int, load: int, folder: Path) -> Run:
    """Run `command` once, beside `load` busy processes; keep in `folder` what it leaves, unless it is green."""
    shutil.rmtree(LEFT_BY_TESTS, ignore_errors=True)
    folder.mkdir(parents=True)
    began_s = time.monotonic()
    with (folder / "run.log").open("wb") as log, busy_processes(load):
        exit_code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    run = Run(number, load, exit_code, time.monotonic() - began_s)
    if run.is_green():
        shutil.rmtree(folder)
        return run
    if LEFT_BY_TESTS.is_dir():
        shutil.copytree(LEFT_BY_TESTS, folder, dirs_exist_ok=True)
    for results in sorted(folder.glob("*.xml")):
        run.failures += failures_in(results)
    return run


def tests_added(base: str) -> list[str]:
    """Return the ids of the tests that differ from the commit `base`, "" for main."""
    command = [sys.executable, str(ROOT / "scripts/changed_tests.py"), "--added", *([base] if base else [])]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()


def summary(runs: Sequence[Run]) -> str:
    """Return how many runs were green, and which tests failed how often: those first that failed most often."""
    lines = [f"{sum(run.is_green() for run in runs)} of {len(runs)} runs were green"]
    tests: dict[str, list[str]] = {}
    for run in runs:
        beside = " under load" if run.load else ""
        for failure in run.failures:
            seed = f" (seed {failure.seed})" if failure.seed else ""
            tests.setdefault(failure.test, []).append(f"{run.number}{beside}{seed}")
        if not run.is_green() and not run.failures:
            tests.setdefault(f"exit code {run.exit_code} and no test that failed", []).append(f"{run.number}{beside}")
    for test, when in sorted(tests.items(), key=lambda row: -len(row[1])):
        lines.append(f"{len(when):4} x {test}: in run {', '.join(when)}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests many times, every second time on a busy machine.")
    parser.add_argument("runs", type=int, help="how often")
    parser.add_argument("--load", type=int, default=LOAD, help=f"busy processes beside every second run ({LOAD})")
    parser.add_argument("--added", nargs="?", const="", metavar="COMMIT", help="tests that the change adds")
    chosen, arguments = parser.parse_known_args()
    command = [str(ROOT / "scripts/test"), *arguments]
    if chosen.added is not None:
        tests = tests_added(chosen.added)
        if not tests:
            print("often: the change adds no test of the suites that run in one process")
            return 0
        print(f"often: {len(tests)} tests that the change adds, {chosen.runs} times", flush=True)
        command = [*ON_SOURCE, *tests, *arguments]
    folder = KEPT / time.strftime("%Y%m%d-%H%M%S")
    runs: list[Run] = []
    try:
        for number in range(1, chosen.runs + 1):
            load = 0 if number % 2 else chosen.load
            kept = folder / f"run-{number:02}"
            run = run_tests(command, number, load, kept)
            runs.append(run)
            beside = f", beside {load} busy processes" if load else ""
            failed = f"exit code {run.exit_code}, {len(run.failures)} tests failed, see {kept.relative_to(ROOT)}"
            ended = "green" if run.is_green() else failed
            print(f"run {number} of {chosen.runs}{beside}, {run.seconds:.0f} s: {ended}", flush=True)
    except KeyboardInterrupt:
        print("interrupted")
    print(summary(runs))
    return 0 if len(runs) == chosen.runs and all(run.is_green() for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
