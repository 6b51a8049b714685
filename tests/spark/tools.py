"""Tools that the Spark tests need and that may be missing: Java and PySpark."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path


def _maybe_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return shutil.which("java")


def _missing() -> str | None:
    absent = [name for name in ("pyspark", "pyarrow", "numpy") if find_spec(name) is None]
    if _maybe_java() is None:
        absent.append("Java 17")
    return f"not here: {', '.join(absent)}" if absent else None


MISSING = _missing()
# How often the driver is killed; each time costs the start of a JVM.
KILLS = int(os.environ.get("WARREN_TEST_SPARK_KILLS", "1"))
