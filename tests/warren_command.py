"""Run a command of `warren` to its end, as a process: most of what that costs are the imports, which a fork has.

It is forked from a process that has imported what a broker imports (`fork_server.py`), unless that would be something
else than ``python -m warren``. WARREN_TEST_FORK=0 executes it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO

from fork_server import fork

DEADLINE_S = 120.0


def run_warren(
    *arguments: object, environment: Mapping[str, str] | None = None, deadline_s: float = DEADLINE_S
) -> subprocess.CompletedProcess[str]:
    """Run ``warren ARGUMENTS`` and return how it ended and what it printed.

    Raises:
        subprocess.TimeoutExpired: it has not ended within `deadline_s`; it is killed.
    """
    words = [str(argument) for argument in arguments]
    variables = os.environ if environment is None else environment
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as log:
        forked = fork(words, variables, out, log) if os.environ.get("WARREN_TEST_FORK") != "0" else None
        # -P: a checkout in the working directory is not what runs.
        process = forked or subprocess.Popen(
            [sys.executable, "-P", "-m", "warren", *words], stdout=out, stderr=log, env=variables
        )
        try:
            code = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(words, code, _text(out), _text(log))


def _text(printed: IO[bytes]) -> str:
    printed.seek(0)
    return printed.read().decode()
