"""Keep what code under test does to the environment of its process from the tests that come after it.

A command such as ``warren export`` sets variables for the libraries that it then imports. A process that ends with the
command forgets them; a process of tests would hand them to each broker that it starts later.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def kept_environment() -> Iterator[None]:
    """Restore the environment at the end, but for the variables of pytest, which changes them itself."""
    before = os.environ.copy()
    try:
        yield
    finally:
        for name in os.environ.keys() | before.keys():
            if name.startswith("PYTEST_"):
                continue
            if name not in before:
                del os.environ[name]
            elif os.environ.get(name) != before[name]:
                os.environ[name] = before[name]
