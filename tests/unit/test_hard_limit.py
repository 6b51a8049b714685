"""A test that survives its time limit ends its process, and the others still run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import hard_limit

CONFTEST = """
import hard_limit
from hard_limit import (
    pytest_runtest_protocol,
    pytest_runtest_setup,
    pytest_timeout_cancel_timer,
    pytest_timeout_set_timer,
)

hard_limit.GRACE_S = 0.5

def pytest_configure():
    hard_limit.begin()

def pytest_unconfigure():
    hard_limit.end()
"""
TESTS = """
import pytest, threading

@pytest.mark.timeout(0.5)
def test_hangs():
    while True:
        try:
            threading.Event().wait()
        except BaseException:
            pass

def test_ends():
    pass
"""


def run_two(directory: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the two tests, with no more plugins than they need: most of the time is that of their imports."""
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_two.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "pytest_timeout", *arguments]
    path = str(Path(hard_limit.__file__).parent)
    variables = os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environment
    return subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, check=False)


def test_a_test_that_survives_its_limit_is_named_with_its_stack_and_the_others_run(tmp_path: Path) -> None:
    run = run_two(tmp_path, "-p", "xdist.plugin", "-n", "1", "--dist", "loadfile")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "crashed while running 'test_two.py::test_hangs'" in run.stdout
    assert "this test has ended the process that ran it" in run.stdout
    assert "1 failed, 1 passed, 1 error" in run.stdout
    assert "in test_hangs" in run.stderr


def test_of_one_process_the_test_that_has_ended_it_is_known(tmp_path: Path) -> None:
    name = f"of-one-process-{os.getpid()}"
    run = run_two(tmp_path, PYTEST_XDIST_TESTRUNUID=name)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "in test_hangs" in run.stderr
    assert hard_limit.running(name) == ["test_two.py::test_hangs"]
    (left,) = Path(tempfile.gettempdir()).glob(f"running-tests-{name}-*")
    left.unlink()
