"""Ports for listeners of tests that have to be known before anybody listens there.

1. A port is reserved for the process that asked, until that ends: by a lock on one byte of a file that all processes
   of a user share. So two tests that run beside each other never have the same one, however long it takes until
   somebody listens there, and also while nobody does: between two lives of a broker, say.
2. It is below those that the system gives to outgoing connections and to listeners that leave the choice to it.
3. Whatever can choose its port itself, and say which, does so (port 0), and needs nothing of this.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import random
import socket
import tempfile
from pathlib import Path

PORTS = range(15_000, 32_000)  # Linux gives those from 32,768 on to connections
_taken: set[int] = set()  # by this process: a lock does not keep its own holder out


@functools.cache
def _locks() -> int:
    """Return the descriptor of the file whose bytes are locked; closing it would free them all."""
    path = Path(tempfile.gettempdir()) / f"warren-test-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def free_port() -> int:
    """Return a loopback TCP port that nobody listens on and that no other test is given."""
    first = random.SystemRandom().randrange(len(PORTS))
    for port in itertools.chain(PORTS[first:], PORTS[:first]):
        if port not in _taken and _is_reserved(port) and _is_free(port):
            _taken.add(port)
            return port
    raise AssertionError("no port is left for this test")


def _is_reserved(port: int) -> bool:
    """Whether this process could lock the port."""
    try:
        fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
