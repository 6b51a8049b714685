"""Divide the file descriptors that this process may have between clients, HTTP and files.

The system gives the lowest number that is free. So a descriptor with the number N means that more than N are open,
whatever they are. Code that has opened one compares its number: a count, which could be wrong, is not needed.

1. Clients of AMQP and links take numbers below `clients_below`, HTTP those below `http_below`. The rest is for the
   files of the message store, for the metadata store and for everything else that the broker must open to keep running.
   A connection with a larger number is closed at once. HTTP has at most `http_max` at the same time, whatever their
   numbers, so clients of AMQP find the others.
2. `files` holds what all of those have open at the same time, including caches of the store, which shrink with it.
3. A process that could serve fewer than `CONNECTIONS_MIN` clients does not start.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from typing import Final

from warren.server.start_errors import StartError

CONNECTIONS_MIN: Final = 8
# For HTTP, if there are enough: the most that its ports together take at a time, and requests in between.
HTTP_MAX: Final = 1024
# Segments that the store keeps open, in each of its three caches.
HANDLES_MIN: Final = 4
HANDLES_MAX: Final = 64

# The directory with an entry for each descriptor that this process has open.
OPEN_DESCRIPTORS: Final = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
OPEN_MAX: Final = 10240  # of macOS

_OTHER_FILES: Final = 32  # SQLite with its journals, and files being written, looked up, listed or sent


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The limits for each use. `store_handles` is how many files each cache of the store keeps open."""

    limit: int
    http_below: int
    clients_below: int
    store_handles: int

    @property
    def http_max(self) -> int:
        """How many connections HTTP may have at the same time."""
        return self.http_below - self.clients_below

    @classmethod
    def of(cls, limit: int) -> Descriptors:
        """Divide `limit` descriptors."""
        handles = min(max(limit // 32, HANDLES_MIN), HANDLES_MAX)
        http_below = max(0, limit - 3 * handles - _OTHER_FILES)
        return cls(limit, http_below, max(0, http_below - min(limit // 8, HTTP_MAX)), handles)

    def clients_max(self) -> int:
        """Return how many clients can connect beside the descriptors that are open now.

        Raises:
            StartError: too few.
        """
        found = self.clients_below - len(os.listdir(OPEN_DESCRIPTORS))
        if found < CONNECTIONS_MIN:
            raise StartError(f"{self.limit} open files (ulimit -n) are not enough: a broker needs at least 128")
        return found


def told_open() -> int:
    """Return how many descriptors are open, if the kernel tells that directly; 0 if they would have to be listed.

    Linux tells it from 6.2 on.
    """
    return os.stat(OPEN_DESCRIPTORS).st_size if OPEN_DESCRIPTORS.startswith("/proc") else 0


UNLIMITED: Final = Descriptors(1 << 30, 1 << 30, 1 << 29, HANDLES_MAX)


def raise_limit() -> Descriptors:
    """Allow as many descriptors as the system permits; return how they are divided."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        # macOS: the hard limit is "unlimited", and yet no process gets more than this.
        hard = max(soft, OPEN_MAX)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, resource.RLIM_INFINITY))
    return Descriptors.of(hard if hard != resource.RLIM_INFINITY else UNLIMITED.limit)
