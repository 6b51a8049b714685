"""A worker of Spark whose reader has gone: ``limit`` has enough rows, and its task ends in the middle.

Spark then closes its end of the pipe to the worker, whose next write fails. PySpark prints a traceback for that on the
driver's terminal, as if something were wrong. A program in a shell's pipe ends quietly instead, by SIGPIPE; so does
this worker when the failed write was PySpark's. Other connections, such as that to the broker, keep their errors.

A connection that is reset brings no signal: the write fails, once, in PySpark's last flush, and its daemon reports it
with `traceback.print_exc` before it ends the process. That report is left out.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any


def end_quietly_when_nobody_reads() -> None:
    """End this worker silently when Spark wants no more of its rows."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGPIPE, _end)
    if not isinstance(traceback.print_exc, partial):
        traceback.print_exc = partial(_print_exc, traceback.print_exc)


def _end(_: int, frame: FrameType | None) -> None:
    # The handler runs a little after the write that failed, which may be within a frozen module such as `os`.
    while frame is not None and frame.f_code.co_filename.startswith("<frozen "):
        frame = frame.f_back
    if frame is not None and _is_pyspark(frame):
        os._exit(0)


def _print_exc(told: Callable[..., None], *arguments: Any, **more: Any) -> None:
    """Do what `traceback.print_exc` does, but for a reset of the connection to PySpark's reader."""
    error = sys.exc_info()[1]
    at = None if error is None else error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if isinstance(error, ConnectionResetError) and at is not None and _is_pyspark(at.tb_frame):
        return
    told(*arguments, **more)


def _is_pyspark(frame: FrameType) -> bool:
    package = frame.f_globals.get("__package__") or frame.f_globals.get("__name__")
    return isinstance(package, str) and package.partition(".")[0] == "pyspark"
