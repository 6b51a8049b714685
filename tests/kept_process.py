"""Keep what code under test does to its process from the tests that come after it: the environment, and signals.

A command such as ``warren export`` sets variables for the libraries that it then imports, and many a script has SIGPIPE
end it. A process that ends with the command forgets that. A process of tests would hand the variables to each broker
that it starts later, and would end without a word at the next write to a socket that a broker has closed.

Every test is in `kept_process`, and nearly none changes anything. So it compares the bytes of the environment, and asks
the interpreter for handlers without `signal`, which makes a member of an enumeration of each: a tenth of the cost.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

# SIGALRM belongs to the limits of tests.
_SIGNALS: Final = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM})
_handler_of: Final[Callable[[int], Any]] = sys.modules["_signal"].getsignal
_data: Final[dict[bytes, bytes]] = getattr(os.environ, "_data")  # noqa: B009 - it has no type


@contextlib.contextmanager
def kept_process() -> Iterator[None]:
    """Restore environment and signals at the end, but for the variables of pytest, which changes them itself."""
    variables = _data.copy()
    handlers = list(map(_handler_of, _SIGNALS))
    try:
        yield
    finally:
        if _data != variables:
            _restore(variables)
        if list(map(_handler_of, _SIGNALS)) != handlers:
            for number, handler in zip(_SIGNALS, handlers, strict=True):
                # None: a handler that is not Python's, which Python can neither set nor replace unnoticed.
                if handler is not None and _handler_of(number) != handler:
                    signal.signal(number, handler)


def _restore(variables: dict[bytes, bytes]) -> None:
    for name in _data.keys() | variables.keys():
        if name.startswith(b"PYTEST_"):
            continue
        if name not in variables:
            del os.environb[name]
        elif _data.get(name) != variables[name]:
            os.environb[name] = variables[name]
