"""Brokers of older sources, out of the history of the repository, interpreted by the Python of the tests."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
# "make dist makes what a release consists of": schema 4, before the metadata were in the log.
FIRST_PACKAGE: Final = "e1e83bd2f7ff89f7f4cd9067b950316a95804bb7"
# The last one whose nodes have format level 1.
LEVEL_1: Final = "2c017216^"
# The last one with schema 5.
SCHEMA_5: Final = "a466f987^"


def running(commit: str, directory: Path) -> Sequence[str]:
    """Unpack the package of a commit; return what a command is run under to use it.

    Skips the test where there is no history: in an unpacked sdist, or in a shallow clone.
    """
    archive = subprocess.run(["git", "archive", commit, "warren"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"no history here: {archive.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(directory, filter="data")
    return ["env", f"PYTHONPATH={directory}"]
