"""Run blocking calls in threads: each purpose has its own, so that a hanging call does not affect other purposes.

1. `LIMITS` is the number of calls that a purpose may have at a time. A waiting call does not take a thread. Parties,
   such as vhosts, take turns: one with many calls delays those of another by one each.
2. A caller waits at most `DEADLINE_S` for a call that can be abandoned, or for its thread: `Stuck`. Such a call keeps
   its thread, and counts against its purpose, until it returns. A call that only computes cannot hang.
3. A call that must not be abandoned, because it writes, is waited for whatever happens; a process that is told to stop
   ends all the same (`application`).
4. A purpose with a call that takes longer than `DEADLINE_S` is stuck; the health check shows that. Not `NAMES`: a name
   server that does not answer is not a fault of this broker, and a user may name such a host.

The limits are those of one run of trio. The message store has threads of its own (`message_store`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Literal, TypeVar, cast

import trio

from warren.server.shared_limiter import SharedLimiter

Purpose = Literal[
    "logins",
    "catalogue",
    "store",
    "definitions",
    "stages",
    "snapshots",
    "images",
    "chunks",
    "links",
    "files",
    "memory",
    "replication",
    "traces",
    "names",
]
LOGINS: Final[Purpose] = "logins"
CATALOGUE: Final[Purpose] = "catalogue"
STORE: Final[Purpose] = "store"  # waiting for its end
DEFINITIONS: Final[Purpose] = "definitions"
STAGES: Final[Purpose] = "stages"
SNAPSHOTS: Final[Purpose] = "snapshots"  # and other reads of files for readers: sealed chunks, on a follower
IMAGES: Final[Purpose] = "images"
CHUNKS: Final[Purpose] = "chunks"  # checksums of large ones
LINKS: Final[Purpose] = "links"
FILES: Final[Purpose] = "files"  # that settings name
MEMORY: Final[Purpose] = "memory"  # returning it
REPLICATION: Final[Purpose] = "replication"  # for followers that catch up, and the list of nodes in sync
TRACES: Final[Purpose] = "traces"  # spans to a collector
NAMES: Final[Purpose] = "names"  # of hosts that links connect to; users choose them
LIMITS: Final[dict[Purpose, int]] = {
    LOGINS: 2,  # a password hash takes a core for 50 ms
    CATALOGUE: 1,
    STORE: 1,
    DEFINITIONS: 2,
    STAGES: 4,
    SNAPSHOTS: 4,
    IMAGES: 2,
    CHUNKS: 2,
    LINKS: 4,
    FILES: 2,
    MEMORY: 1,
    REPLICATION: 8,
    TRACES: 1,
    NAMES: 16,
}
DEADLINE_S: Final = 30.0
# These compute, or their callers have deadlines.
_WITHOUT_DEADLINE: Final = frozenset({LOGINS, DEFINITIONS, CHUNKS, STORE, MEMORY, NAMES})

_Result = TypeVar("_Result")


class Stuck(TimeoutError):
    """A call did not return in time, or did not get a thread."""


class Threads:
    """The calls of one run of trio."""

    def __init__(self) -> None:
        self._limiters: dict[Purpose, SharedLimiter] = {}
        self._calls: dict[object, tuple[Purpose, float]] = {}  # under way: since when, by the monotonic clock

    def stuck(self) -> list[Purpose]:
        """Return the purposes with a call that takes too long."""
        since = time.monotonic() - DEADLINE_S
        late = {purpose for purpose, began_s in list(self._calls.values()) if began_s < since}
        return sorted(late - {NAMES})

    async def run(self, purpose: Purpose, work: Callable[[], _Result], *, abandon: bool, party: str = "") -> _Result:
        """Call `work`; see `in_thread`."""
        shared = self._limiters.get(purpose)
        if shared is None:
            shared = self._limiters[purpose] = SharedLimiter(LIMITS[purpose])
        limiter = cast(trio.CapacityLimiter, shared.of(party))  # what trio calls of one
        has_deadline = abandon and purpose not in _WITHOUT_DEADLINE
        with trio.move_on_after(DEADLINE_S if has_deadline else math.inf):
            return await trio.to_thread.run_sync(self._note, purpose, work, abandon_on_cancel=abandon, limiter=limiter)
        raise Stuck(f"{purpose}: a call did not return within {DEADLINE_S:g} s")

    def _note(self, purpose: Purpose, work: Callable[[], _Result]) -> _Result:
        call = object()
        self._calls[call] = (purpose, time.monotonic())
        try:
            return work()
        finally:
            del self._calls[call]


_threads: Final = trio.lowlevel.RunVar[Threads]("threads")


def threads() -> Threads:
    """Return the threads of this run."""
    try:
        return _threads.get()
    except LookupError:
        found = Threads()
        _threads.set(found)
        return found


def use(found: Threads) -> None:
    """Make `found` run the calls of this run, instead of threads. Before the first of them."""
    _threads.set(found)


async def in_thread(
    purpose: Purpose, work: Callable[..., _Result], *args: object, abandon: bool = False, party: str = ""
) -> _Result:
    """Call ``work(*args)``, which blocks, in a thread of `purpose`, when it is the turn of `party`.

    `abandon`: it may outlive its caller.

    Raises:
        Stuck: no thread was free in time, or the call has been abandoned.
    """
    return await threads().run(purpose, partial(work, *args), abandon=abandon, party=party)
