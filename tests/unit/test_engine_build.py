"""Which engine the tests run against: the compiled one where it can be built, the source when asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

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


# What lies deep is not freed at once but linked to what else is to be freed; where a link may be written differs.
FREE_MESSAGES_AT_EVERY_DEPTH = """
from warren.msgstore.log.message import Envelope, Message

for depth in range(200):
    nested = Message(Envelope("exchange", "key"), b"", 1, 0, 0, False)
    for _ in range(depth):
        nested = (nested,)
    del nested
"""


def test_a_message_is_freed_at_every_depth_without_harm() -> None:
    engine = Path(fast_path.__file__ or "").parents[2]
    debug = {**os.environ, "PYTHONMALLOC": "debug", "PYTHONPATH": str(engine)}  # an overwritten margin ends the process
    command = [sys.executable, "-P", "-c", FREE_MESSAGES_AT_EVERY_DEPTH]
    done = subprocess.run(command, env=debug, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
