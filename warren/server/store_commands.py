"""Provide the commands of `warren store`: they look at the message store of a stopped broker from outside.

1. A directory that a running broker uses is refused: its contents change during the reading. Reading takes a shared
   lock, so that no broker starts meanwhile. A copy of a directory, or one that cannot be written, works as well.
2. Only `repair --apply` and `restore` change anything; they hold the directory as a broker would.
3. Standard output is JSON, one object a line; standard error is for people. Exit codes: 0 all is well, 1 problems were
   found, 2 the store cannot be read or the command was used wrongly, 3 only data that a repair gave up is wrong.

The tools are imported by the commands that need them: they read with construct, and a mistyped option of `warren serve`
does not need that.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO

import typer

from warren.ctl.progress import Progress
from warren.msgstore.files.file_system import OsFileSystem
from warren.msgstore.files.store_errors import StoreError
from warren.msgstore.tools.lines import PROBLEM, Line, UnreadableStore, problem, time_text
from warren.server.data_dir import LOCK_NAME, MESSAGES, DataDir
from warren.server.start_errors import StartError
from warren.server.store_versions import explained, maybe_read

if TYPE_CHECKING:
    from warren.msgstore.tools.log_files import StoreFiles

PROBLEMS_FOUND: Final = 1
CANNOT_READ: Final = 2
GIVEN_UP_ONLY: Final = 3
PROGRESS_BYTES: Final = 16 << 20  # smaller stores are read at once, so that nothing tells of it

store_app = typer.Typer(
    name="store",
    help="Inspect, check and repair the message store of a stopped broker, and restore backups. JSON lines out; "
    "exit code 0: all is well, 1: problems were found, 2: cannot be read, 3: only known losses were found.",
    no_args_is_help=True,
)

_DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="The data directory of a stopped broker, or a copy of it"),
]
# Older scripts name the directory without an option.
_DataDirArgument = Annotated[Path | None, typer.Argument(metavar="DIR", hidden=True)]


@store_app.command("inspect")
def inspect_command(
    argument: _DataDirArgument = None,
    data_dir: _DataDirOption = None,
    segment: Annotated[int | None, typer.Option(metavar="N", help="Only this segment, with its frames")] = None,
    lsn: Annotated[
        int | None, typer.Option(metavar="LSN", help="Only the frame and record at this LSN, in full")
    ] = None,
    records: Annotated[bool, typer.Option("--records", help="One line per record")] = False,
) -> None:
    """Show segments, the checkpoint, sealed files and queues; or the frames of a segment; or one record."""
    from warren.msgstore.tools.inspection import inspect, inspect_lsn, inspect_segment

    directory = _data_dir(argument, data_dir)
    with _reading(directory) as files:
        if lsn is not None:
            if not _print(inspect_lsn(files, lsn)):
                raise UnreadableStore(f"no frame holds LSN {lsn}")
        elif segment is not None:
            _print(inspect_segment(files, segment, with_records=records))
        else:
            versions = maybe_read(directory / MESSAGES)
            known = {} if versions is None else asdict(versions)
            lines = inspect(files, with_records=records)
            _print({**line, **known} if line["type"] == "store" else line for line in lines)


@store_app.command("verify")
def verify_command(argument: _DataDirArgument = None, data_dir: _DataDirOption = None) -> None:
    """Check every checksum and that everything fits together. Exit code 3: only what a repair gave up is wrong."""
    from warren.msgstore.tools.given_up import GIVEN_UP
    from warren.msgstore.tools.verification import verify

    directory = _data_dir(argument, data_dir)
    with _reading(directory) as files:
        found = _print(verify(files))
        _exit_with(found[PROBLEM])
        if found[GIVEN_UP]:
            raise typer.Exit(GIVEN_UP_ONLY)


@store_app.command("dump-queue")
def dump_queue_command(
    argument: _DataDirArgument = None,
    data_dir: _DataDirOption = None,
    *,
    queue: Annotated[str, typer.Option(metavar="NAME", help="Name of the queue")],
    vhost: Annotated[str, typer.Option(metavar="VHOST", help="Its vhost")] = "/",
) -> None:
    """Print the live messages of one queue, in order; lane by lane when it has lanes."""
    from warren.msgstore.tools.dumping import dump, matching_queues
    from warren.msgstore.tools.sealed_streams import read_streams
    from warren.msgstore.tools.stored_state import LogReader, recovered

    directory = _data_dir(argument, data_dir)
    with _reading(directory) as files, LogReader(files) as reader:
        state = recovered(files, reader)
        queues = matching_queues(state, vhost, queue)
        sealed = read_streams(files.fs, state.log.store_id, {int(index.queue_id) for index in queues})
        _exit_with(_print(dump(state, queues, sealed))[PROBLEM])


@store_app.command("export")
def export_command(
    argument: _DataDirArgument = None,
    data_dir: _DataDirOption = None,
    *,
    output: Annotated[Path, typer.Option(metavar="FILE", help="Output file; must not exist")],
    vhost: Annotated[str | None, typer.Option(metavar="VHOST", help="Only queues of this vhost")] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Only queues of this name")] = None,
) -> None:
    """Write all live messages to a file, one JSON object a line; what is wrong and a summary are printed."""
    from warren.msgstore.tools.dumping import dump, dump_unknown, matching_queues
    from warren.msgstore.tools.sealed_streams import read_streams
    from warren.msgstore.tools.stored_state import LogReader, queue_count, recovered

    directory = _data_dir(argument, data_dir)
    with _reading(directory) as files, LogReader(files) as reader:
        state = recovered(files, reader)
        queues = matching_queues(state, vhost, queue)
        is_all = vhost is None and queue is None
        wanted = None if is_all else {int(index.queue_id) for index in queues}
        sealed = read_streams(files.fs, state.log.store_id, wanted)
        messages = problems = 0
        with _new_file(output) as file:
            lines = dump(state, queues, sealed, with_content_header=True)
            for line in chain(lines, dump_unknown(state, sealed)):
                if line["type"] == PROBLEM:
                    problems += 1
                    print(json.dumps(line))
                else:
                    messages += 1
                    file.write(json.dumps(line) + "\n")
        count = queue_count(queues) + len(sealed.keys() - state.log.indexes.keys())
        print(json.dumps({"type": "summary", "queues": count, "messages": messages, "problems": problems}))
        _exit_with(problems)


@store_app.command("repair")
def repair_command(
    argument: _DataDirArgument = None,
    data_dir: _DataDirOption = None,
    apply: Annotated[bool, typer.Option("--apply", help="Make the changes; otherwise only show them")] = False,
) -> None:
    """Make a store readable again from what is left. Nothing is deleted. Exit code 1: there is something to do."""
    from warren.msgstore.tools.repairing import ACTION, Repair

    directory = _data_dir(argument, data_dir)
    if not apply:
        with _reading(directory) as files:
            _exit_with(_print(Repair(files, None).lines())[ACTION])
        return
    from warren.msgstore.files.store import Store

    with _changing(directory) as files:
        store = Store(OsFileSystem(str(directory / MESSAGES)))
        store.open()
        _print(Repair(files, store).lines())


_BackupsArgument = Annotated[
    Path, typer.Argument(metavar="FROM", help="A directory that warren ctl backup has written")
]


@store_app.command("backups")
def backups_command(
    directory: _BackupsArgument,
    verify: Annotated[bool, typer.Option("--verify", help="Read every file and compare it with its checksum")] = False,
) -> None:
    """List the backups in a directory, and check them."""
    from warren.backup.directory import BackupDirectory, BackupError

    problems = 0
    with _explained_backup(), BackupDirectory.reading(directory) as backups, contextlib.ExitStack() as stack:
        checked: dict[str, str] = {}
        progress = stack.enter_context(Progress("compared with their checksums", wanted=verify))
        for number in backups.numbers():
            try:
                manifest = backups.manifest(number)
            except BackupError as error:
                problems += _print([problem(str(error), backup=number)])[PROBLEM]
                continue
            for file in manifest.files:
                if file.sha256 not in checked:
                    checked[file.sha256] = backups.fault(file, whole=verify)
                    progress.advance(file.size)
                if fault := checked[file.sha256]:
                    problems += _print([problem(fault, backup=number, file=file.name)])[PROBLEM]
            line: Line = {
                "type": "backup",
                "backup": number,
                "time": time_text(manifest.taken_ms),
                "warren": manifest.warren,
                "store_id": manifest.store_id,
                "lsn": manifest.lsn,
                "files": len(manifest.files),
                "bytes": manifest.size,
                "verified": verify,
            }
            _print([line])
    _exit_with(problems)


@store_app.command("restore")
def restore_command(
    directory: _BackupsArgument,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Data directory to create; must be empty or missing")
    ],
    backup: Annotated[
        int | None, typer.Option("--backup", metavar="N", help="Number of the backup; default: the newest")
    ] = None,
    until_lsn: Annotated[
        int | None,
        typer.Option("--until-lsn", metavar="LSN", help="Restore messages as of this place in the log"),
    ] = None,
    until_time: Annotated[
        str | None,
        typer.Option("--until-time", metavar="TIME", help="Or at a time: 2026-11-23T21:45:00 (UTC), or …+01:00"),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option("--database", metavar="URL", help="An empty database for the metadata, as in the settings"),
    ] = None,
    with_links: Annotated[
        bool, typer.Option("--with-links", help="Start shovels, federation and tables: the old broker is gone")
    ] = False,
) -> None:
    """Restore a backup into an empty data directory, check it, and try it out."""
    from warren.backup.directory import BackupDirectory
    from warren.server.copies.restoring import Until, choose, restore

    if until_lsn is not None and until_time is not None:
        raise typer.BadParameter("--until-lsn and --until-time exclude each other")
    until = Until(until_lsn, None if until_time is None else _time_ms(until_time))
    with _explained_backup(), BackupDirectory.reading(directory) as backups:
        manifest = choose(backups, backup, until)
        with Progress("copied", manifest.size) as progress:
            lines = restore(
                backups, manifest, data_dir, until, database, with_links=with_links, copied=progress.advance
            )
            problems = _print(lines)[PROBLEM]
        _exit_with(problems)


def _data_dir(argument: Path | None, option: Path | None) -> Path:
    """Return the directory that was named, in one of two ways."""
    found = option or argument
    if found is None or (option is not None and argument is not None):
        raise typer.BadParameter("give the data directory once, with --data-dir DIR", param_hint="--data-dir")
    return found


def _time_ms(text: str) -> int:
    """Return a time in milliseconds since the Unix epoch; a time without a zone is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"--until-time {text}: not of the form 2026-11-23T21:45:00") from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


@contextlib.contextmanager
def _explained_backup() -> Iterator[None]:
    from warren.backup.directory import BackupError
    from warren.server.copies.restoring import RestoreError

    try:
        yield
    except (BackupError, RestoreError, StartError) as error:
        _fail(str(error))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[StoreFiles]:
    """Keep brokers away while the store below `path` is read; errors are one line and exit code 2."""
    from warren.msgstore.tools.log_files import StoreFiles

    with _explained(path), contextlib.ExitStack() as stack:
        if not path.is_dir():
            raise UnreadableStore("no such directory")
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            stack.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UnreadableStore("a broker is running on it: stop it, or copy the directory") from None
        messages = path / MESSAGES
        size = _size_of(messages)
        progress = stack.enter_context(Progress("read", size, wanted=size >= PROGRESS_BYTES))
        yield StoreFiles(_CountedReads(str(messages), progress))


class _CountedReads(OsFileSystem):
    """The file system of a store, which tells how much of it was read."""

    def __init__(self, root: str, progress: Progress) -> None:
        super().__init__(root)
        self._progress = progress

    def read(self, handle: int, length: int, offset: int) -> bytes:
        found = super().read(handle, length, offset)
        self._progress.advance(len(found))
        return found


def _size_of(directory: Path) -> int:
    """Return the bytes of all files below a directory, as far as they can be seen."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


@contextlib.contextmanager
def _changing(path: Path) -> Iterator[StoreFiles]:
    """Hold the data directory `path` as a broker does."""
    from warren.msgstore.tools.log_files import StoreFiles

    with _explained(path):
        if not path.is_dir():
            raise UnreadableStore("no such directory")
        with DataDir.open(path):
            yield StoreFiles(OsFileSystem(str(path / MESSAGES)))


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except StartError as error:
        _fail(str(error))
    except (UnreadableStore, StoreError) as error:
        _fail(f"{path}: {explained(str(error), path / MESSAGES)}")
    except PermissionError as error:
        _fail(f"{error.filename or path}: not permitted to read it")


def _fail(reason: str) -> None:
    print(f"warren store: {reason}", file=sys.stderr)
    raise typer.Exit(CANNOT_READ)


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """Make a file that only its owner can read: it contains messages."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UnreadableStore(f"cannot write {path}: {os.strerror(error.errno or 0)}") from None
    with open(handle, "w", encoding="utf-8") as file:
        yield file


def _print(lines: Iterable[Line]) -> Counter[str]:
    """Print `lines`; return the number of lines of each type."""
    types: Counter[str] = Counter()
    for line in lines:
        types[str(line["type"])] += 1
        print(json.dumps(line))
    return types


def _exit_with(problems: int) -> None:
    if problems:
        raise typer.Exit(PROBLEMS_FOUND)
