"""Which engine the tests run against: the compiled one where it can be built, the source when asked for."""

from __future__ import annotations

import os
import shutil
import sysconfig

from warren.channels import connection, fast_path
from warren.queues import queue


def test_the_suite_runs_against_the_engine_it_was_meant_for() -> None:
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    interpreted = (
        "WARREN_TEST_INTERPRETED" in os.environ
        or os.environ.get("WARREN_COMPILE") == "0"
        or shutil.which(compiler) is None
    )
    for module in (connection, fast_path, queue):
        assert module.__file__ is not None
        assert module.__file__.endswith(".py") == interpreted, module.__file__
