"""A store on a simulated disk: how small it is, how it is opened, and what its indexes say after a restart."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from simulation.paper_queues import Stored, Version, Violation
from simulation.simulated_file_system import SimulatedFileSystem
from warren.msgstore.files.recovery import Recovery, log_has, recover
from warren.msgstore.files.store import Store
from warren.msgstore.log.checksum import checksum_function, default_algorithm
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import LENGTH_SHIFT
from warren.msgstore.log.records import DROPPABLE, page_entries

STORE_ID: Final = bytes(range(16))

# LSNs by sequence number, by queue id; no queue is empty.
Places = dict[int, dict[int, int]]
# The messages and their times of each index, by its number in the log.
Numbers = dict[int, tuple[tuple[Version, int], ...]]


class Shape(NamedTuple):
    """How small the store is."""

    segment_bytes: int = 4096
    page_entries: int = 4
    checkpoint_bytes: int = 1 << 30
    memory_bytes: int = 64 << 20
    frame_bytes: int = 64 << 20


class Snapshot(NamedTuple):
    """The state that a restart may bring back: of one closed batch. `numbers`: the messages of each index in order,
    with times.

    `places`: where the log has them; None where nobody looked.
    """

    stored: Stored
    numbers: Numbers
    places: Places | None = None


class Opened(NamedTuple):
    """A store after recovery."""

    store: Store
    log: MessageLog
    found: Recovery
    sealed_problems: list[str]


class Frame(NamedTuple):
    lsn: int
    crc: int
    data: bytes


def snapshot_of(stored: Stored, places: Places | None = None) -> Snapshot:
    numbers = {key: tuple((entry.message, entry.time_ms) for entry in entries) for key, entries in stored.items()}
    return Snapshot(stored, numbers, places)


def places_of(log: MessageLog, read: Callable[[int, int], bytes]) -> Places:
    """Return what the indexes say that matters after a restart; assert that the segments count the same."""
    found: Places = {}
    references: dict[int, list[int]] = {}

    def refer(lsn: int, length: int) -> None:
        counts = references.setdefault(int(log.segments.find(lsn).number), [0, 0])
        counts[0] += 1
        counts[1] += length

    for queue_id, index in log.indexes.items():
        places: dict[int, int] = {}
        for page_number, page in enumerate(index.pages, int(index.first_page)):
            if page is None or index.transient:
                continue
            if page.lsn:
                refer(page.lsn, page.length)
            entries = page.entries if page.resident else page_entries(read(page.lsn, page.length), 0)
            for at in range(0, len(entries), 2):
                if entries[at] and not entries[at] & DROPPABLE:
                    places[page_number * int(log.page_entries) + at // 2] = entries[at]
                    refer(entries[at], entries[at + 1] >> LENGTH_SHIFT)
        if places:
            found[queue_id] = places
    for page in log.reclamation.pages():
        for at in range(0, len(page.entries), 2):
            if page.entries[at] and not page.entries[at] & DROPPABLE:
                refer(page.entries[at], page.entries[at + 1] >> LENGTH_SHIFT)
    if not log.doomed.pages:
        for segment in log.segments.segments:
            counts = [int(segment.live_refs), int(segment.live_bytes)]
            if counts != references.get(int(segment.number), [0, 0]):
                raise Violation(f"segment {segment.number} counts {counts}, not {references.get(int(segment.number))}")
    return found


def open_store(fs: SimulatedFileSystem, shape: Shape, epoch: int | None = None) -> Opened:
    """Do what a process does before it accepts anybody. `epoch`: the one that begins; None: the next one."""
    store = Store(fs, clock_ms=lambda: 0)
    store.open()
    log = MessageLog(checksum_function(default_algorithm()), shape.segment_bytes, shape.page_entries)
    log.frame_bytes = shape.frame_bytes
    log.checkpoints.every_bytes = shape.checkpoint_bytes
    log.memory_bytes = shape.memory_bytes
    found = recover(store, log, STORE_ID, epoch)
    sealed = store.scan_sealed(log.store_id, partial(log_has, log))
    log.removals.take_sealed(sealed.tables)
    # How many messages a chunk of a stream has: the tests of streams hold for any number.
    log.sealed.chunk_messages = int(os.environ.get("WARREN_TEST_SEAL_MESSAGES", log.sealed.chunk_messages))
    return Opened(store, log, found, sealed.problems)
