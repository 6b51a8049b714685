"""`warren ctl backup`: everything durable of a running broker, copied into a directory where this command runs.

The data come over the management API, so it needs neither the broker's disk nor its user: it runs in another container,
on another machine, as the user that keeps the backups. The broker keeps these files meanwhile, and continues to serve.

1. A file that a backup in the directory has already, by what the broker tells it by, is not copied again.
2. Copies are read back from the disk and compared before the backup counts. Of files of earlier backups only the size
   is checked; `warren store backups --verify` reads them all.
3. The broker keeps nothing for the backup once all is copied: reading it back needs only the directory.
4. If anything fails, earlier backups stay, and the broker is told to keep nothing. If it cannot be told, it notices
   after a minute.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Final
from zlib import crc32

import typer

from warren.backup.directory import PIECE_BYTES, BackupDirectory, BackupError, Cleared, Manifest, StoredFile, check
from warren.ctl.client import Client, Object
from warren.ctl.exit_codes import CtlError, ExitCode, usage_error
from warren.ctl.progress import Progress
from warren.ctl.session import session
from warren.ctl.words import counted, size_text

CRC_HEADER: Final = "X-Warren-CRC32"
DEFAULT_RATE: Final = "50MB"
_POLL_S: Final = 0.5
# How long a piece may take at a low rate: the broker drops a backup that is silent for a minute.
_PIECE_S: Final = 10
_MAKING: Final = "making"
_READY: Final = "ready"
_UNITS: Final = {
    "": 1,
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
}


def backup(
    context: typer.Context,
    directory: Annotated[
        Path, typer.Argument(metavar="TO", help="A directory on this machine, empty or with backups of this broker")
    ],
    incremental: Annotated[
        bool, typer.Option("--incremental", help="Add to the backups that are there, without copying their files again")
    ] = False,
    rate: Annotated[
        str, typer.Option("--rate", metavar="BYTES", help="Maximum rate of copying; 0: no limit")
    ] = DEFAULT_RATE,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", min=1, help="Afterwards remove all backups except the newest N")
    ] = None,
) -> None:
    """Back up a running broker: messages, streams, metadata and users (Warren)."""
    current = session(context)
    pace = Pace(_bytes_per_s(rate))
    try:
        done = _Run(current.client, directory, pace, incremental=incremental, tells=current.out.talks).run()
        cleared = _cleared(directory, done.manifest, keep)
    except BackupError as error:
        raise CtlError(str(error)) from None
    except KeyboardInterrupt:
        raise CtlError("stopped; there is no new backup", ExitCode.INTERRUPTED) from None
    manifest = done.manifest
    # The new backup is whole whatever became of an older one: that does not make it a failure.
    for fault in cleared.faults:
        print(
            f"warren ctl: backup {manifest.number} is whole, but no old files can be removed: {fault}", file=sys.stderr
        )
    if current.out.is_json:
        current.out.document(
            {
                "backup": manifest.number,
                "lsn": manifest.lsn,
                "taken_at": manifest.taken_ms,
                "store_id": manifest.store_id,
                "files": len(manifest.files),
                "bytes": manifest.size,
                "copied_files": done.copied,
                "copied_bytes": done.copied_bytes,
                "removed": cleared.removed,
                "faults": cleared.faults,
            }
        )
        return
    current.out.say(
        f"Backup {manifest.number} in {directory}: {counted(len(manifest.files), 'file')}, {size_text(manifest.size)}, "
        f"of which {size_text(done.copied_bytes)} were copied; up to LSN {manifest.lsn}"
    )


def _cleared(path: Path, manifest: Manifest, keep: int | None) -> Cleared:
    """Remove what is too old. Raises BackupError."""
    try:
        with BackupDirectory.writing(path, manifest.store_id) as directory:
            return directory.clear(keep)
    except BackupError as error:
        raise BackupError(f"backup {manifest.number} is whole, but nothing older can be removed: {error}") from None


class Pace:
    """Keeps to a rate in bytes per second; 0: no limit."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._due_s = clock()

    def piece(self, most: int) -> int:
        """Return how many bytes to move at once: `most`, or fewer where those would take long."""
        return min(most, max(1, int(self._rate * _PIECE_S))) if self._rate else most

    def moved(self, size: int) -> None:
        """Wait as long as so many bytes may take."""
        if not self._rate:
            return
        now_s = self._clock()
        # An unused share of the rate is lost.
        self._due_s = max(self._due_s, now_s) + size / self._rate
        if self._due_s > now_s:
            self._sleep(self._due_s - now_s)


class _Run:
    """The copying of one backup."""

    def __init__(self, client: Client, path: Path, pace: Pace, *, incremental: bool, tells: bool) -> None:
        self.copied = 0
        self.copied_bytes = 0
        self.manifest: Manifest
        self._client = client
        self._path = path
        self._pace = pace
        self._incremental = incremental
        self._tells = tells

    def run(self) -> _Run:
        """Copy, check and note it. Raises BackupError, CtlError."""
        with ExitStack() as stack:
            with _held(self._client) as held:
                directory = stack.enter_context(BackupDirectory.writing(self._path, str(held["store_id"])))
                numbers = directory.numbers()
                if numbers and not self._incremental:
                    raise usage_error(f"{self._path}: there are backups in it: --incremental adds another one")
                files, new = self._copy(directory, numbers, held["backup"])
            with self._progress("compared with their checksums", new) as progress:
                check(directory, new, partial(self._moved, progress))
            self.manifest = Manifest(
                number=max(numbers, default=0) + 1,
                warren=str(held["warren"]),
                store_id=str(held["store_id"]),
                taken_ms=int(held["taken_at"]),
                lsn=int(held["lsn"]),
                crc=int(held["crc"]),
                segment=int(held["segment"]),
                epoch=int(held["epoch"]),
                files=tuple(files),
            )
            directory.add(self.manifest)
        return self

    def _copy(
        self, directory: BackupDirectory, numbers: list[int], identifier: str
    ) -> tuple[list[StoredFile], list[StoredFile]]:
        """Copy what is not there yet; return all files of the backup, and those that are new."""
        known = _known(directory, numbers)
        files: list[StoredFile] = []
        new: list[StoredFile] = []
        entries = [
            (str(entry["name"]), int(entry["bytes"]), str(entry["identity"]))
            for entry in self._client.get_list("warren", "backups", identifier, "files")
        ]
        total = sum(entry[1] for entry in entries if not entry[2] or entry not in known)
        with Progress("copied", total, wanted=self._tells) as progress:
            for entry in entries:
                name, size, identity = entry
                found = known.get(entry) if identity else None
                if found is None:
                    found = directory.put(name, size, identity, self._pieces(identifier, name, size, progress))
                    new.append(found)
                    self.copied += 1
                    self.copied_bytes += size
                files.append(found)
        return files, new

    def _progress(self, what: str, files: list[StoredFile]) -> Progress:
        return Progress(what, sum(file.size for file in files), wanted=self._tells)

    def _moved(self, progress: Progress, size: int) -> None:
        progress.advance(size)
        self._pace.moved(size)

    def _pieces(self, identifier: str, name: str, size: int, progress: Progress) -> Iterator[bytes]:
        offset = 0
        while offset < size:
            length = min(self._pace.piece(PIECE_BYTES), size - offset)
            query = {"name": name, "offset": str(offset), "length": str(length)}
            data, headers = self._client.get_bytes("warren", "backups", identifier, "data", query=query)
            if len(data) != length or headers.get(CRC_HEADER) != f"{crc32(data):08x}":
                raise CtlError(f"{name} was changed on its way from the broker")
            yield data
            offset += length
            self._moved(progress, length)


def _known(directory: BackupDirectory, numbers: list[int]) -> dict[tuple[str, int, str], StoredFile]:
    """Return the files that are there, by what the broker tells them by."""
    known: dict[tuple[str, int, str], StoredFile] = {}
    for number in numbers:
        # Files of a damaged manifest are copied again: it must not prevent a backup.
        with suppress(BackupError):
            for file in directory.manifest(number).files:
                if file.identity and directory.has(file):
                    known[file.name, file.size, file.identity] = file
    return known


@contextmanager
def _held(client: Client) -> Iterator[Object]:
    """Hold the broker's files still during the block."""
    held: Object = client.post("warren", "backups", body={}).value
    path = ("warren", "backups", str(held["backup"]))
    try:
        while held["state"] == _MAKING:
            time.sleep(_POLL_S)
            held = client.get_object(*path)
        if held["state"] != _READY:
            raise CtlError(str(held.get("reason") or "the broker cannot make a backup: see its log"))
        yield held
    finally:
        with suppress(CtlError):
            client.delete(*path)


def _bytes_per_s(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})\s*([A-Za-z]{0,3})", text.strip())
    if found is None or found[2].upper() not in _UNITS:
        raise usage_error(f"--rate {text}: not of the form 50MB")
    return int(found[1]) * _UNITS[found[2].upper()]


COMMANDS: Final[dict[str, Callable[..., None]]] = {"backup": backup}
