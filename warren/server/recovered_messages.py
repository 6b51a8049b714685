"""The message store of a data directory, opened and recovered: before there is an engine, and in any thread."""

from __future__ import annotations

import os
import resource
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from warren.msgstore.files.errors import StoreError, StoreUnreadableError
from warren.msgstore.files.file_system import FileSystem
from warren.msgstore.files.recovery import Recovery, log_has, recover
from warren.msgstore.files.store import Store, wall_time_ms
from warren.msgstore.files.syncing import sync_all
from warren.msgstore.log.checksum import checksum_function, default_algorithm
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.records import LIFE_ID_BYTES
from warren.server.data_dir import MESSAGES
from warren.server.errors import StartError
from warren.server.logs import get_logger
from warren.server.message_store import patiently
from warren.server.settings import Settings

log = get_logger("server")


@dataclass(frozen=True, slots=True)
class Recovered:
    """A message store that is ready to go on, how it was found, and how long that took."""

    store: Store
    log: MessageLog
    recovery: Recovery
    seconds: float


def recover_messages(
    settings: Settings, files: FileSystem, handles_max: int, epoch: int | None = None, store_id: bytes = b""
) -> Recovered:
    """Open the message store and bring its log to what is on disk. Blocks; any thread.

    `epoch`: the one that begins, if not the next one. `store_id`: of a store that does not exist yet, 16 bytes.

    What the disk does not give is read again for a while, from the beginning: recovery changes nothing before it knows.
    Then the start is refused; what cannot be read of sealed streams is passed over, and stays.

    Raises:
        StartError: it cannot be opened, and why.
    """
    start_s = time.monotonic()
    attempt = partial(_attempt, settings, files, handles_max, epoch, store_id)
    try:
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
    for text in sealed.problems:
        log.error("a sealed part of a stream cannot be used", reason=text)
    for event in recovery.events:
        write: Callable[..., None] = getattr(log, event.level)
        write(event.text, **event.fields)
    store.resume(
        int(message_log.last_crc),
        int(message_log.durable_lsn),
        int(message_log.epoch),
        message_log.store_id,
        message_log.algorithm,
    )
    message_log.begin_epoch(int(message_log.epoch), wall_time_ms(), secrets.token_bytes(LIFE_ID_BYTES))
    message_log.removals.take_sealed(sealed.tables)
    return Recovered(store, message_log, recovery, time.monotonic() - start_s)


def _attempt(
    settings: Settings, files: FileSystem, handles_max: int, epoch: int | None, store_id: bytes
) -> tuple[Store, MessageLog, Recovery]:
    """Recover once, from the beginning. Raises StoreError: StoreUnreadableError when it may succeed another time."""
    message_log = MessageLog(checksum_function(default_algorithm()), settings.store.segment_bytes)
    message_log.checkpoints.every_bytes = settings.store.checkpoint_bytes
    message_log.memory_bytes = settings.store.memory_bytes
    store = Store(files, handles_max=handles_max)
    try:
        store.open()
        recovery = recover(store, message_log, store_id or secrets.token_bytes(16), epoch)
    except StoreUnreadableError:
        store.close()
        raise
    return store, message_log, recovery


def messages_directory(data_dir: Path) -> Path:
    """Return the directory of the message store; its name is durable."""
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
    """Allow files as large as the system lets us have; a segment must be possible."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < segment_bytes:
        raise StartError(
            f"message store {directory}: files may have {hard} bytes (ulimit -f), "
            f"store.segment_bytes is {segment_bytes}"
        )
