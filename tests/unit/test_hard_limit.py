"""A test that survives its time limit ends its process, and the others still run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hard_limit
import pytest

CONFTEST = """
import hard_limit
from hard_limit import mark_of_running, pytest_timeout_cancel_timer, pytest_timeout_set_timer

hard_limit.GRACE_S = 0.5

def pytest_configure():
    hard_limit.begin()
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


def test_a_test_that_survives_its_limit_is_named_with_its_stack_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_two.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "1", "--dist", "loadfile"]
    directory = Path(hard_limit.__file__).parent
    run = subprocess.run(
        ["env", f"PYTHONPATH={directory}", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "crashed while running 'test_two.py::test_hangs'" in run.stdout
    assert "this test has ended the process that ran it" in run.stdout
    assert "1 failed, 1 passed, 1 error" in run.stdout
    assert "in test_hangs" in run.stderr


def test_a_mark_is_left_once_also_where_the_first_process_to_end_has_removed_their_place(tmp_path: Path) -> None:
    mark = tmp_path / "gone" / "mark"
    hard_limit.leave(mark, "a test")
    assert mark.read_text() == "a test"
    with pytest.raises(AssertionError, match="has ended the process"):
        hard_limit.leave(mark, "a test")
