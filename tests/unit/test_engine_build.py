"""Which engine the tests run against: the compiled one where it can be built, the source when asked for."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

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


@pytest.mark.skipif(not str(fast_path.__file__).endswith(".so"), reason="the engine runs interpreted")
def test_the_engine_shows_nothing_but_its_module() -> None:
    """Else each call within it goes through a table, and none is put in line."""
    (path,) = Path(fast_path.__file__ or "").parents[2].glob("warren_engine__mypyc.*.so")
    engine = ctypes.CDLL(str(path))
    assert hasattr(engine, "PyInit_warren_engine__mypyc")
    assert not hasattr(engine, "CPyList_GetItemInt64")
    assert not hasattr(engine, "CPyDef_queue___Queue___publish")


# A deeply nested object is not freed at once but linked to other objects that will be freed. The place of the link
# differs by type. Two at a time: the interpreter may keep one for the next object that is made.
FREE_AT_EVERY_DEPTH = """
from engine_harness import Harness

from warren.msgstore.log.message import Envelope, Message
from warren.queues.unacked import Delivery

harness = Harness()
harness.channel().declare("q")
queue = harness.queue("q")
kept = Message(Envelope("exchange", "key"), b"", 1, 0, 0, False)
for make in (
    lambda: Message(Envelope("exchange", "key"), b"", 1, 0, 0, False),
    lambda: Delivery(1, kept, queue, 1, None),
):
    for depth in range(200):
        nested = (make(), make())
        for _ in range(depth):
            nested = (nested,)
        del nested
"""


def test_messages_and_deliveries_are_freed_at_every_depth_without_harm() -> None:
    engine = Path(fast_path.__file__ or "").parents[2]
    path = os.pathsep.join([str(engine), str(Path(__file__).parents[1])])
    debug = {**os.environ, "PYTHONMALLOC": "debug", "PYTHONPATH": path}  # an overwritten margin ends the process
    command = [sys.executable, "-P", "-c", FREE_AT_EVERY_DEPTH]
    done = subprocess.run(command, env=debug, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
