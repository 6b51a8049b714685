"""Open and recover the message store of a data directory: before the engine exists, and in any thread."""

from __future__ import annotations

import os
import resource
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from warren.msgstore.files.file_system import FileSystem
from warren.msgstore.files.recovery import ADVICE, Recovery, log_has, recover
from warren.msgstore.files.segment_names import CHECKPOINT, LOG
from warren.msgstore.files.store import Store, wall_time_ms
from warren.msgstore.files.store_errors import StoreError, StoreUnreadableError
from warren.msgstore.files.syncing import sync_all
from warren.msgstore.log.checksum import checksum_function, default_algorithm
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex
from warren.msgstore.log.records import LIFE_ID_BYTES
from warren.msgstore.log.sealed_table import SealedTable
from warren.server.data_dir import MESSAGES
from warren.server.logs import get_logger
from warren.server.losses import Losses
from warren.server.message_store import patiently
from warren.server.settings import Settings
from warren.server.start_errors import StartError

log = get_logger("server")


@dataclass(frozen=True, slots=True)
class Recovered:
    """A message store that is ready to continue, how it was found, and how long that took.

    `losses`: the missing or damaged parts of it.
    """

    store: Store
    log: MessageLog
    recovery: Recovery
    seconds: float
    losses: Losses = field(default_factory=Losses)


def recover_messages(
    settings: Settings, files: FileSystem, handles_max: int, epoch: int | None = None, store_id: bytes = b""
) -> Recovered:
    """Open the message store and bring its log to the state on disk. Blocks; any thread.

    `epoch`: the epoch that begins, if not the next one. `store_id`: 16 bytes, for a store that does not exist yet.

    Failed reads are repeated for a while, from the beginning: recovery does not change anything before it has read all.
    After that the start is refused. Unreadable data of sealed streams is skipped, and stays. A damaged log is read once
    more, past the cache of the system, before it counts as damaged.

    Raises:
        StartError: it cannot be opened, for the reason said.
    """
    start_s = time.monotonic()
    attempt = partial(_attempt, settings, files, handles_max, epoch, store_id)
    try:
        try:
            store, message_log, recovery = patiently(attempt)
            is_damaged = recovery.damaged
            if is_damaged:
                store.close()
        except StoreError:
            is_damaged = True
        if is_damaged:
            _forget_cached(files)
            store, message_log, recovery = patiently(attempt)
        scan = partial(store.scan_sealed, message_log.store_id, partial(log_has, message_log))
        try:
            sealed = patiently(partial(scan, tolerates=False))
        except StartError:
            sealed = scan(tolerates=True)
    except StoreError as error:
        raise StartError(f"message store {settings.data_dir / MESSAGES}: {error}") from None
    for problem in store.take_read_problems():
        log.error("the message log cannot be read", segment=problem.segment, lsn=problem.lsn, reason=problem.text)
    losses = Losses()
    for text in sealed.problems:
        losses.tell(log, "error", "a sealed part of a stream cannot be used", reason=text)
    for event in recovery.events:
        losses.tell(log, event.level, event.text, **event.fields)
    for stream_id, first, end in gaps_of(message_log, sealed.tables):
        index = message_log.indexes[stream_id]
        where = {"vhost": index.vhost, "stream": index.name, "first_offset": first, "messages": end - first}
        where["advice"] = ADVICE
        losses.tell(log, "error", "messages of a stream are missing: neither sealed nor in the log", **where)
    store.resume(
        int(message_log.last_crc),
        int(message_log.durable_lsn),
        int(message_log.epoch),
        message_log.store_id,
        message_log.algorithm,
    )
    message_log.begin_epoch(int(message_log.epoch), wall_time_ms(), secrets.token_bytes(LIFE_ID_BYTES))
    message_log.removals.take_sealed(sealed.tables)
    return Recovered(store, message_log, recovery, time.monotonic() - start_s, losses)


def _forget_cached(files: FileSystem) -> None:
    """Make the next read of the log and its checkpoint come from the disk itself."""
    with suppress(OSError):
        for path in [CHECKPOINT, *(f"{LOG}/{name}" for name in files.names(LOG))]:
            with suppress(OSError):
                handle = files.open(path, writable=False)
                try:
                    files.forget_cached(handle, files.size(handle), 0)
                finally:
                    files.close(handle)


def _attempt(
    settings: Settings, files: FileSystem, handles_max: int, epoch: int | None, store_id: bytes
) -> tuple[Store, MessageLog, Recovery]:
    """Recover once, from the beginning. Raises StoreError; StoreUnreadableError if another attempt may succeed."""
    message_log = MessageLog(checksum_function(default_algorithm()), settings.store.segment_bytes)
    message_log.checkpoints.every_bytes = settings.store.checkpoint_bytes
    message_log.memory_bytes = settings.store.memory_bytes
    store = Store(files, handles_max=handles_max, free_min_bytes=settings.store.disk_free_min_bytes)
    try:
        store.open()
        recovery = recover(store, message_log, store_id or secrets.token_bytes(16), epoch)
    except StoreUnreadableError:
        store.close()
        raise
    return store, message_log, recovery


def gaps_of(message_log: MessageLog, tables: Mapping[int, SealedTable]) -> Iterator[tuple[int, int, int]]:
    """Yield (stream id, first offset, offset after the last) of ranges that are neither sealed nor in the log.

    Offsets that a queue counts as damaged were reported before. Retention has removed those before the oldest one.
    """
    for stream_id, table in tables.items():
        index = message_log.indexes.get(stream_id)
        if index is None or not table.segments:
            continue
        expected = int(table.first())
        gaps: list[tuple[int, int]] = []
        for segment in table.segments:
            for chunk in segment.chunks:
                if chunk.first > expected:
                    gaps.append((expected, int(chunk.first)))
                expected = int(chunk.end)
        first = _first_from(index, expected)
        if first > expected:
            gaps.append((expected, first))
        if sum(end - first for first, end in gaps) > index.damaged_count:
            yield from ((stream_id, first, end) for first, end in gaps)


def _first_from(index: QueueIndex, offset: int) -> int:
    """Return the first offset from `offset` on that the log has, otherwise the next to come."""
    size = int(index.page_entries)
    for at, page in enumerate(index.pages):
        number = int(index.first_page) + at
        if page is None or (number + 1) * size <= offset:
            continue
        if not page.resident:
            return max(offset, (number + 1) * size - int(page.live))  # entries start at the beginning of a page
        for each in range(max(offset, number * size), (number + 1) * size):
            if index.lsn_of(each):
                return each
    return max(offset, int(index.next_number))


def messages_directory(data_dir: Path) -> Path:
    """Return the directory of the message store, after making its name durable."""
    path = data_dir / MESSAGES
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        parent = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_all(parent)
        finally:
            os.close(parent)
    except OSError as error:
        raise StartError(f"message store {path}: {os.strerror(error.errno or 0)}") from None
    return path


def check_file_size_limit(directory: Path, segment_bytes: int) -> None:
    """Allow files as large as the system permits; refuse a limit below the size of a segment."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < segment_bytes:
        raise StartError(
            f"message store {directory}: the file size limit (ulimit -f) is {hard} bytes, "
            f"store.segment_bytes is {segment_bytes}"
        )
