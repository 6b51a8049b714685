"""Limit how many containers Python's cyclic collector looks at in one go.

1. The per-message path makes no cycles, and the collector does not track messages. Cycles come from tracebacks and
   libraries.
2. It runs by itself whenever the number of containers has grown by `YOUNG_OBJECTS`, and looks at those. This takes a
   few milliseconds at worst: declaring 300,000 bindings does not delay others for a tenth of a second, then or later.
3. By itself it does not look again at containers that have survived two such runs.
4. It does not run while the broker starts. Restored objects stay, and looking at a million bindings again and again
   takes as long as restoring them. They are never looked at.
5. A safety net for cycles that lived long: `FullCollections` looks at all containers of after the start, when the
   broker is quiet, at the latest every `OVERDUE_S`. The time for one container is measured, and a collection that would
   take more than `PAUSE_S` is not made. Containers that take half of that are a slice: it is looked at once more and
   then frozen, so that the next ones stay within the time. Containers that would take more are frozen unseen.

The interpreter can only look at all containers that are not frozen, or at none: a cycle in an earlier slice stays until
the broker is restarted. Hence (5) covers everything in a broker of usual size (about 80,000 containers, or 10,000
queues and connections that came after the start), and what came last in a larger one.
"""

from __future__ import annotations

import gc
import time
from typing import Final

YOUNG_OBJECTS: Final = 10_000
YOUNG_ROUNDS: Final = 1  # with more, the second look takes longer, and all of them together take as long
_NEVER: Final = 1 << 30

PAUSE_S: Final = 0.02
FULL_S: Final = 600.0
OVERDUE_S: Final = 3600.0
# The broker is quiet when it uses less than this part of a processor.
QUIET: Final = 0.1
# Assumed and possible times for one container.
_COST_S: Final = 3e-7
_COST_MIN_S: Final = 5e-8
_COST_MAX_S: Final = 2e-6
# A collection of fewer says little about the time for one.
_MEASURED_FROM: Final = 10_000


class FullCollections:
    """Collections among all containers that are not frozen. It does nothing before `begin`.

    ``count`` collections took ``seconds`` of processor time and found ``found`` containers in cycles. ``frozen`` is how
    many containers are not looked at again.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.found = 0
        self.frozen = 0
        self._cost_s = _COST_S
        self._has_begun = False
        self._last_s = 0.0

    def begin(self) -> None:
        """Begin to watch: the broker has started, and what there is now is frozen."""
        self._has_begun = True
        self._last_s = time.monotonic()

    def look(self, now_s: float, *, quiet: bool) -> None:
        """Collect, if it is time and does not take long; call it about once a minute when no work is left."""
        if not self._has_begun:
            return
        containers = len(gc.get_objects())
        expected_s = containers * self._cost_s
        since_s = now_s - self._last_s
        is_slice = expected_s > PAUSE_S / 2
        if is_slice or (since_s > FULL_S and quiet) or since_s > OVERDUE_S:
            self._last_s = now_s
            if expected_s <= PAUSE_S:
                self._collect(containers)
            if is_slice:
                self.frozen += len(gc.get_objects())
                gc.freeze()

    def _collect(self, containers: int) -> None:
        begun_s = time.thread_time()
        self.found += gc.collect()
        took_s = time.thread_time() - begun_s
        self.count += 1
        self.seconds += took_s
        if containers >= _MEASURED_FROM:
            self._cost_s = min(max(took_s / containers, _COST_MIN_S), _COST_MAX_S)


# The collector is one for the whole process.
full_collections: Final = FullCollections()


def pause_collector() -> None:
    """Collect the garbage of the imports, then collect nothing until `bound_collector`."""
    gc.collect()
    gc.disable()


def bound_collector() -> None:
    """Restrict collections to new containers: existing ones are never looked at again."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, _NEVER)
    gc.enable()
    full_collections.begin()


def collect_lately(now_s: float, *, quiet: bool) -> None:
    """Collect among new containers: their cycles would stay as long as no others are made. Now and then among all.

    `now_s` is of the monotonic clock. `quiet`: the broker has little to do.
    """
    gc.collect(1)
    full_collections.look(now_s, quiet=quiet)
