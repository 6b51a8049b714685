"""One line says so when the Spark tests cannot run here; with CI=true that is a failure."""

from __future__ import annotations

import os

import pytest

from .tools import MISSING


def test_java_and_pyspark_are_here() -> None:
    if MISSING is not None and os.environ.get("CI", "").lower() not in {"1", "true", "yes"}:
        pytest.skip(f"the Spark tests do not run: {MISSING}")
    assert MISSING is None
