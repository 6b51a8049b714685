"""`make test-often` runs the tests many times and tells what failed (`scripts/often.py`)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
JUNIT = """<testsuites><testsuite>
<testcase classname="unit.test_a" name="test_good"/>
<testcase classname="unit.test_a" name="test_bad"><failure message="1">E assert 1 == 2</failure>
<system-out>seed 1
seed 23, segment_bytes = 4</system-out></testcase>
<testcase classname="unit.test_a" name="test_without_a_seed"><error>a fixture; no seed</error></testcase>
<testcase classname="unit.test_a" name="test_named"><failure>WARREN_TEST_GROUP_SEED=7</failure></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, with what tests leave in a directory of its own."""
    spec = importlib.util.spec_from_file_location("often", ROOT / "scripts" / "often.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "often", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LEFT_BY_TESTS", tmp_path / "tests")
    return module


def test_what_failed_is_named_with_the_last_seed_that_it_printed(often: Any, tmp_path: Path) -> None:
    results = tmp_path / "compiled.xml"
    results.write_text(JUNIT)
    assert [(failure.test, failure.seed) for failure in often.failures_in(results)] == [
        ("compiled: unit.test_a::test_bad", "23"),
        ("compiled: unit.test_a::test_without_a_seed", ""),
        ("compiled: unit.test_a::test_named", "7"),
    ]
    results.write_text(JUNIT[:100])
    assert often.failures_in(results) == []


def script(often: Any, text: str) -> list[str]:
    """Return a command that stands for `scripts/test`."""
    return [sys.executable, "-c", f"import pathlib, sys\nleft = pathlib.Path({str(often.LEFT_BY_TESTS)!r})\n{text}"]


def test_of_a_run_that_failed_everything_is_kept_and_of_a_green_one_nothing(often: Any, tmp_path: Path) -> None:
    stale = often.LEFT_BY_TESTS / "stale.xml"
    stale.parent.mkdir()
    stale.write_text(JUNIT)
    failing = f"left.mkdir()\n(left / 'browser.xml').write_text({JUNIT!r})\nprint('what it said')\nsys.exit(1)"
    run = often.run_tests(script(often, failing), 2, 1, tmp_path / "run-02")
    assert (run.number, run.load, run.exit_code, len(run.failures)) == (2, 1, 1, 3)
    assert sorted(path.name for path in (tmp_path / "run-02").iterdir()) == ["browser.xml", "run.log"]
    assert (tmp_path / "run-02" / "run.log").read_text() == "what it said\n"
    run = often.run_tests(script(often, "left.mkdir()"), 3, 0, tmp_path / "run-03")
    assert run.is_green() and not run.failures and not (tmp_path / "run-03").exists()


def test_the_busy_processes_are_there_while_a_run_lasts_and_not_after_it(often: Any) -> None:
    children = Path(f"/proc/self/task/{Path('/proc/thread-self').resolve().name}/children")
    before = set(children.read_text().split())
    with often.busy_processes(3):
        assert len(set(children.read_text().split()) - before) == 3
    assert set(children.read_text().split()) <= before


def test_added_tests_run_on_the_source_in_new_processes(
    often: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = tmp_path / "ran"
    note = f"import os, sys\nopen({str(ran)!r}, 'a').write(f'{{os.getpid()}} {{sys.argv[1:]}}\\n')\nsys.exit(5)"
    monkeypatch.setattr(often, "ON_SOURCE", [sys.executable, "-c", note])
    monkeypatch.setattr(often, "ROOT", tmp_path)
    monkeypatch.setattr(often, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(often, "tests_added", lambda base: [f"unit/test_a.py::test_{base}"])
    monkeypatch.setattr(sys, "argv", ["often.py", "3", "--load", "0", "--added", "abc", "-s"])
    assert often.main() == 0
    runs = [line.split(" ", 1) for line in ran.read_text().splitlines()]
    assert len({process for process, _ in runs}) == 3
    assert {arguments for _, arguments in runs} == {"['unit/test_a.py::test_abc', '-s']"}
    assert "3 of 3 runs were green" in capsys.readouterr().out


def test_without_added_tests_nothing_runs(often: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(often, "tests_added", lambda base: [])
    monkeypatch.setattr(sys, "argv", ["often.py", "10", "--added"])
    assert often.main() == 0


def test_the_summary_begins_with_what_failed_most_often(often: Any) -> None:
    rare, frequent = often.Failure("a: rare", ""), often.Failure("a: frequent", "5")
    runs = [
        often.Run(1, 0, 0, 1.0),
        often.Run(2, 6, 1, 1.0, [rare, frequent]),
        often.Run(3, 0, 1, 1.0, [frequent]),
        often.Run(4, 6, 2, 1.0),
    ]
    assert often.summary(runs).splitlines() == [
        "1 of 4 runs were green",
        "   2 x a: frequent: in run 2 under load (seed 5), 3 (seed 5)",
        "   1 x a: rare: in run 2 under load",
        "   1 x exit code 2 and no test that failed: in run 4 under load",
    ]
