"""Keep what code under test does to its process from the tests that come after it: the environment, and signals.

A command such as ``warren export`` sets variables for the libraries that it then imports, and many a script has SIGPIPE
end it. A process that ends with the command forgets that. A process of tests would hand the variables to each broker
that it starts later, and would end without a word at the next write to a socket that a broker has closed.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

# SIGALRM belongs to the limits of tests.
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM})


@contextlib.contextmanager
def kept_process() -> Iterator[None]:
    """Restore environment and signals at the end, but for the variables of pytest, which changes them itself."""
    variables = os.environ.copy()
    handlers = [(number, signal.getsignal(number)) for number in _SIGNALS]
    try:
        yield
    finally:
        for name in os.environ.keys() | variables.keys():
            if name.startswith("PYTEST_"):
                continue
            if name not in variables:
                del os.environ[name]
            elif os.environ.get(name) != variables[name]:
                os.environ[name] = variables[name]
        for number, handler in handlers:
            # None: a handler that is not Python's, which Python can neither set nor replace unnoticed.
            if handler is not None and signal.getsignal(number) != handler:
                signal.signal(number, handler)
