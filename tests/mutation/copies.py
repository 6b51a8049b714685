"""Copies of the tree in which sources are changed, and pytest in one of them."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = ("warren", "tests", "pyproject.toml")
# Not from the caller's environment: the lengths of random tests, and the choice of the source to test.
LENGTHS: Final = {"BROWSE_RUNS": 8, "CLAIMS_RUNS": 5, "DEDUP_LIVES": 4, "DRAINS_RUNS": 4, "FAIRNESS_RUNS": 8}
LENGTHS_OF_MORE: Final = {"GROUP_LIVES": 3, "RULE_RUNS": 8, "SNAPSHOTS_RUNS": 4, "SUPER_STREAM_LIVES": 6}

# Importing all that there are takes longer than the tests of most mutants.
PLUGINS: Final = ("pytest_timeout", "_hypothesis_pytestplugin", "warren.testing.pytest_plugin", "mutation.plugin")
# A start, with the modules of many tests.
CPU_S: Final = 15.0
# A correct program never waits this long, not even for a timer.
IDLE_S: Final = 25.0
# An endless mutant may take all memory meanwhile.
MEMORY_BYTES: Final = 6 << 30


class Ended(NamedTuple):
    """How a run of pytest ended; `exit_code` is None when it did not by itself."""

    exit_code: int | None
    output: str


class Copy:
    """A copy of sources and tests in a directory; everything else of the tree is linked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.warren = root / "warren"
        root.mkdir()
        ignored = shutil.ignore_patterns("*.so", "__pycache__", ".hypothesis")
        for path in ROOT.iterdir():
            if path.name not in COPIED:
                if not path.name.startswith(".") or path.name == ".venv":
                    (root / path.name).symlink_to(path)
            elif path.is_dir():
                shutil.copytree(path, root / path.name, ignore=ignored, symlinks=True)
            else:
                shutil.copy(path, root)

    def compile(self) -> None:
        """Compile the sources once; changes are recognized by content, not by time."""
        command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", str(self.warren)]
        subprocess.run(command, check=True)

    def pytest(self, arguments: list[str], expected_s: float) -> Ended:
        """Run pytest with the plugin, on the copy's sources. `expected_s`: the time of the tests, without its start.

        A mutant may never end: a process that takes much more processor time is killed, and one that is idle for long.
        """
        environment = os.environ | {
            "PYTHONPATH": str(self.root),
            "PYTHONHASHSEED": "0",
            "WARREN_TEST_INTERPRETED": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self.root / "hypothesis"),
        }
        environment |= {f"WARREN_TEST_{name}": str(length) for name, length in (LENGTHS | LENGTHS_OF_MORE).items()}
        # Names of tests are from tests/ on.
        options = ["--rootdir=.", "-q", "--tb=no", "-rfE", "--no-header", "-p", "no:cacheprovider"]
        options += [option for plugin in PLUGINS for option in ("-p", plugin)]
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *arguments],
            cwd=self.root / "tests",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            cpu_s = int(CPU_S + 4 * expected_s)
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_s, cpu_s))
            resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            try:
                output = _output(process)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        killed = process.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
        return Ended(None if killed else process.returncode, output)


def _output(process: subprocess.Popen[str]) -> str:
    """Return what it prints until its end; end it when it is idle for `IDLE_S`."""
    used_s, since_s = 0.0, time.monotonic()
    while True:
        try:
            return process.communicate(timeout=1.0)[0]
        except subprocess.TimeoutExpired:
            now_s, cpu_s = time.monotonic(), _cpu_s(process.pid)
            if cpu_s > used_s + 0.2:
                used_s, since_s = cpu_s, now_s
            elif now_s - since_s > IDLE_S:
                os.killpg(process.pid, signal.SIGKILL)


def _cpu_s(pid: int) -> float:
    """Return what a process has had of the processors, and what of its children has ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
