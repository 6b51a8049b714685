"""Node and the packages that package-lock.json pins.

1. Packages are installed into the ignored .cache folder of the checkout, never beside the sources.
2. Without node and npm the tests are skipped by hand and fail under CI=true.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ..broker import DEADLINE_S, in_ci

HERE = Path(__file__).parent
FOLDER = HERE.parents[2] / ".cache" / "node"
RunNode = Callable[[list[str], Mapping[str, str]], Any]


def _require(tool: str, package: str) -> str:
    path = shutil.which(tool)
    if path is None:
        text = f"`{tool}` is not on this machine; on Debian: apt-get install {package}"
        if in_ci():
            pytest.fail(text)
        pytest.skip(text)
    return path


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """The folder the packages are installed in, by the set-up of `make test` or else here."""
    npm = _require("npm", "npm")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "installing").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not _is_installed():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / name, FOLDER / name)
            command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True)
            assert done.returncode == 0, f"npm ci failed:\n{done.stdout}{done.stderr}"
    return FOLDER / "node_modules"


def _is_installed() -> bool:
    copy = FOLDER / "package-lock.json"
    installed = (FOLDER / "node_modules" / ".package-lock.json").exists()
    return installed and copy.read_bytes() == (HERE / "package-lock.json").read_bytes()


@pytest.fixture(scope="session")
def run_node(node_modules: Path) -> RunNode:
    """Run a script of this folder, with more in its environment, and return the JSON that it printed."""
    node = _require("node", "nodejs")

    def run(arguments: list[str], environment: Mapping[str, str]) -> Any:
        command = [node, str(HERE / arguments[0]), *arguments[1:]]
        known = os.environ | {"NODE_PATH": str(node_modules)} | dict(environment)
        done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
