"""Restore a backup: copy its files into an empty data directory, check them meanwhile, then try them out.

    empty -> marked as unfinished -> files, each compared with its checksum -> cut (`until`) -> metadata elsewhere
          -> the log is recovered and the metadata are read as a start would do it -> links are held
          -> the mark is removed

1. A broker does not start on a marked directory (``data_dir.UNFINISHED_RESTORE``): half a restore never serves.
2. An error names the file that it is about. The directory stays marked; the operator has to empty it.
3. With `until` the messages are those of an earlier place of the log. The metadata are not older than that, and at most
   as new as the backup. Queues declared since may exist, empty, and queues deleted since may be missing.
4. Shovels, federation links and tables of the directory do not run until an operator releases them (``links_mark.py``):
   the broker that the backup is from may still run, and they belong to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from warren.backup.directory import BackupDirectory, BackupError, Manifest, StoredFile
from warren.msgstore.files.file_system import OsFileSystem
from warren.msgstore.files.syncing import sync_all
from warren.msgstore.tools.lines import Line, UnreadableStore, problem, time_text
from warren.queues.lanes import METADATA
from warren.server import store_versions
from warren.server.data_dir import MESSAGES, UNFINISHED_RESTORE, DataDir
from warren.server.durable_file import sync_directory
from warren.server.links_mark import hold
from warren.server.start_errors import CatalogueError

if TYPE_CHECKING:
    from warren.server.catalogue.catalogue import Catalogue

CATALOGUE_FILE: Final = "catalogue.db"
_NOBODYS: Final = frozenset({"lost+found"})


class RestoreError(Exception):
    """A backup is not restored; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Until:
    """An earlier place: the log below `lsn`, or the frames up to `time_ms`."""

    lsn: int | None = None
    time_ms: int | None = None


def choose(directory: BackupDirectory, number: int | None, until: Until) -> Manifest:
    """Return the backup with a number; without a number the newest one, or the first one made after `until`.

    With `until`, a backup with a damaged manifest is skipped: a later one has the same log, or that is found out.

    Raises:
        BackupError: there is no such backup, or its manifest is damaged.
    """
    numbers = directory.numbers()
    if not numbers:
        raise BackupError(f"{directory.path}: there is no whole backup in it")
    if number is not None:
        return directory.manifest(number)
    if until == Until():
        return directory.manifest(numbers[-1])
    for each in numbers:
        try:
            manifest = directory.manifest(each)
        except BackupError:
            if each == numbers[-1]:
                raise
            continue
        if until.lsn is not None and manifest.lsn >= until.lsn:
            return manifest
        if until.time_ms is not None and manifest.taken_ms >= until.time_ms:
            return manifest
    return manifest


def restore(
    directory: BackupDirectory,
    manifest: Manifest,
    data_dir: Path,
    until: Until,
    database: str | None,
    *,
    with_links: bool = False,
    copied: Callable[[int], None] = lambda _: None,
) -> Iterator[Line]:
    """Restore a backup into `data_dir`, which is empty or missing; yield notes, problems and a summary.

    `database`: the URL of an empty database for the metadata, instead of the directory. `with_links`: links run from
    the first start on. `copied` is told how many bytes were.

    Raises:
        BackupError: the backup is damaged. RestoreError, StartError: it cannot be restored here.
    """
    _require_empty(data_dir)
    mark = data_dir / UNFINISHED_RESTORE
    with ExitStack() as stack:
        # First of all, before hours of copying: refuse an unusable database, while nothing has to be removed.
        target = None if database is None else stack.enter_context(_empty_database(database))
        stack.enter_context(DataDir.open(data_dir))
        try:
            mark.touch(mode=0o600)
            sync_directory(data_dir)
            for file in manifest.files:
                _copy(directory, file, data_dir, copied)
            for made in sorted({parent for file in manifest.files for parent in _parents(file)}):
                sync_directory(data_dir / made)
            summary, changes = yield from _checked(data_dir, manifest, until)
            _restore_metadata(data_dir / CATALOGUE_FILE, target, manifest, changes)
            store_versions.note(data_dir / MESSAGES, is_new=False, version=manifest.warren)
            if not with_links:
                hold(data_dir, f"restored from backup {manifest.number} of {time_text(manifest.taken_ms)}")
            mark.unlink()
            sync_directory(data_dir)
            yield {**summary, "links": "run" if with_links else "held"}
        except OSError as error:
            raise RestoreError(f"{data_dir}: {os.strerror(error.errno or 0)}; empty it, and restore again") from None
        except BackupError as error:
            raise BackupError(f"{error}; nothing is restored: try another backup, into an empty directory") from None


def _require_empty(data_dir: Path) -> None:
    try:
        names = set(os.listdir(data_dir)) - _NOBODYS
    except FileNotFoundError:
        return
    except OSError as error:
        raise RestoreError(f"{data_dir}: {os.strerror(error.errno or 0)}") from None
    if UNFINISHED_RESTORE in names:
        raise RestoreError(f"{data_dir}: an earlier restore was not finished: remove what is in it, and restore again")
    if names:
        raise RestoreError(f"{data_dir}: not empty ({min(names)}): restore into an empty directory")


def _copy(directory: BackupDirectory, file: StoredFile, data_dir: Path, copied: Callable[[int], None]) -> None:
    path = data_dir / file.name
    for parent in reversed(path.relative_to(data_dir).parents):
        (data_dir / parent).mkdir(mode=0o700, exist_ok=True)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        for piece in directory.read(file):
            left = memoryview(piece)
            while left:
                left = left[os.write(target, left) :]
            copied(len(piece))
        sync_all(target)
    finally:
        os.close(target)


def _parents(file: StoredFile) -> Iterator[Path]:
    return iter(Path(file.name).parents)


def _checked(data_dir: Path, manifest: Manifest, until: Until) -> Generator[Line, None, tuple[Line, int]]:
    """Cut the log with `until`, then recover it as a start would; yield the problems found.

    Return a summary, and how many changes of the metadata the log has.

    Raises:
        RestoreError: a broker would not start with it.
    """
    from warren.msgstore.tools.cutting import CutError, cut_log, cut_streams
    from warren.msgstore.tools.log_files import StoreFiles
    from warren.msgstore.tools.stored_state import LogReader, queue_count, recovered

    fs = OsFileSystem(str(data_dir / MESSAGES))
    for name in ("streams", "quarantine"):
        (data_dir / MESSAGES / name).mkdir(mode=0o700, exist_ok=True)
    end_lsn, time_ms = manifest.lsn, manifest.taken_ms
    try:
        if until != Until():
            cut = cut_log(fs, _belongs(until))
            end_lsn, time_ms = cut.lsn, cut.time_ms
            yield from cut_streams(fs)
        files = StoreFiles(fs)
        with LogReader(files) as reader:
            state = recovered(files, reader)
    except CutError as error:
        raise RestoreError(f"{error}; empty {data_dir} before another restore") from None
    except UnreadableStore as error:
        raise RestoreError(f"a broker would not start with this backup: {error}") from None
    recovery = state.recovery
    assert recovery is not None
    for event in recovery.events:
        if event.level == "error":
            yield problem(event.text, **event.fields)
    if until == Until() and not recovery.damaged and int(state.log.last_crc) != manifest.crc:
        yield problem("the log does not end where the backup was made", lsn=manifest.lsn)
    summary: Line = {
        "type": "summary",
        "backup": manifest.number,
        "store_id": manifest.store_id,
        "lsn": end_lsn,
        "time": time_text(time_ms) if time_ms else None,
        "files": len(manifest.files),
        "bytes": manifest.size,
        "queues": queue_count(state.queues()),
    }
    numbers = [int(index.next_number) for index in state.queues() if index.lane == METADATA]
    return summary, max(numbers, default=0)


def _belongs(until: Until) -> Callable[[Any], bool]:
    if until.lsn is not None:
        lsn = until.lsn
        return lambda frame: bool(frame.end_lsn <= lsn)
    time_ms = until.time_ms
    assert time_ms is not None
    return lambda frame: bool(frame.time_ms <= time_ms)


@contextmanager
def _empty_database(url: str) -> Iterator[Catalogue]:
    """Hold the database for the metadata.

    Raises:
        RestoreError: it is not empty. CatalogueError: it cannot be used.
    """
    from warren.server.catalogue.catalogue import Catalogue
    from warren.server.catalogue.schema import DEFINITIONS_HASH
    from warren.vhosts.metadata import GlobalParameterPut

    with closing(Catalogue.open(url, first_contents=False)) as database:
        for change in database.load():
            if not (isinstance(change, GlobalParameterPut) and change.name == DEFINITIONS_HASH):
                raise RestoreError("the database is not empty: restore into a new one")
        yield database


def _restore_metadata(copy: Path, database: Catalogue | None, manifest: Manifest, changes: int) -> None:
    """Read the metadata as a start would; with a `database` move them there, out of the directory.

    `changes`: their number in the log. The metadata may have more, of a log that was cut: the next one continues there.

    Raises:
        RestoreError: a broker would not start with them. CatalogueError: the database cannot be written.
    """
    from warren.server.catalogue.catalogue import Catalogue, fill
    from warren.server.catalogue.sqlite_url import sqlite_url

    store_id = bytes.fromhex(manifest.store_id)
    with ExitStack() as stack:
        try:
            source = stack.enter_context(closing(Catalogue.open(sqlite_url(copy), first_contents=False)))
            applied = min(source.applied(store_id), changes)
            for _ in source.load():
                pass
            source.commit([], store_id, applied)
        except CatalogueError as error:
            raise RestoreError(f"a broker would not start with this backup: {error}") from None
        if database is not None:
            fill(database, source.load(), store_id, applied)
    if database is not None:
        for path in copy.parent.glob(f"{copy.name}*"):
            path.unlink()
