"""Limits of the engine that are too large to be reached here, made small: only where it runs interpreted.

The compiler writes constants into the code that uses them; there a small store does without these cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Final
from unittest import mock

from warren.msgstore.log import batch, compaction, doomed_pages, message_log, reclamation
from warren.queues import backlog, disk_reads, middle_reader

# A gap must have room for a page, as in the broker.
_LIMITS: Final[dict[ModuleType, dict[str, int]]] = {
    backlog: {
        "SHORT_HEAD_MESSAGES": 4,
        "GIVE_UP_MAX": 3,
        "LOAD_BYTES_MAX": 1000,
    },
    middle_reader: {
        "LOAD_MESSAGES_MAX": 3,
        "LOAD_BYTES_MAX": 1000,
        "SHORT_LOAD_BYTES_MAX": 300,
        "LOAD_PAGES_MAX": 1,
        "HEAD_GAP_MAX": 8,
    },
    disk_reads: {"READ_GAP_BYTES": 64, "READ_BYTES_MAX": 1000},
    batch: {"PLACES_MAX": 2, "PORTION_ROWS": 3, "FURTHER_PORTION_ROWS": 2},
    message_log: {"PAGED_BYTES_MAX": 1000, "FURTHER_ROWS": 3},
    doomed_pages: {"DOOMED_PER_JOB": 1},
    reclamation: {"AT_ONCE_STEPS": 0, "THINGS_PER_STEP": 1},
    compaction: {"PIECE_BYTES": 512},
}


@contextmanager
def small_limits() -> Iterator[None]:
    """Make queues give up and load a few messages at a time, compaction copy and purges release a little."""
    with ExitStack() as patches:
        for module, limits in _LIMITS.items():
            for name, limit in limits.items():
                patches.enter_context(mock.patch.object(module, name, limit))
        yield
