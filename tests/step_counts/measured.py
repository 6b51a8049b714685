"""Runs a module that counts steps in a process of its own, and returns what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def measured(module: str) -> dict[str, Any]:
    """Return the figures of each case by its name, as `module` prints them: a line of JSON for each."""
    tests = Path(__file__).parent.parent
    path = os.pathsep.join(each for each in (str(tests), os.environ.get("PYTHONPATH", "")) if each)
    ran = subprocess.run(
        [sys.executable, "-m", module],
        cwd=tests,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        check=True,
    )
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    return {each["name"]: each["figures"] for each in found}
