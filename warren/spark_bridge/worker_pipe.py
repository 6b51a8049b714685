"""A worker of Spark whose reader has gone: ``limit`` has enough rows, and its task ends in the middle.

Spark then closes its end of the pipe to the worker, whose next write fails. PySpark prints a traceback for that on the
driver's terminal, as if something were wrong. A program in a shell's pipe ends quietly instead, by SIGPIPE; so does
this, when it was PySpark that wrote. Connections of others, such as that to the broker, keep their errors.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType


def end_quietly_when_nobody_reads() -> None:
    """Have this worker end without a word when Spark wants no more rows of it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGPIPE, _end)


def _end(_: int, frame: FrameType | None) -> None:
    # The handler runs a little after the write that failed, which may be within a frozen module such as `os`.
    while frame is not None and frame.f_code.co_filename.startswith("<frozen "):
        frame = frame.f_back
    package = None if frame is None else frame.f_globals.get("__package__")
    if isinstance(package, str) and package.partition(".")[0] == "pyspark":
        os._exit(0)
