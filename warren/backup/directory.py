"""A directory of backups of one store: its contents, and how they are written, checked and cleared.

    directory/
        warren-backups.json     its store: {"format": 1, "store_id": "..."}; locked by the process that writes
        0000000001.json         a manifest for each backup: its place in the log, its files
        files/
            <SHA-256>           the contents; backups share equal contents
            <number>.part       a file that is being written

1. A manifest is written last, when all of its files are synced and were read back. If it exists, the backup is whole.
   It names its number and its store: a manifest copied here from another directory is not valid.
2. A file has the name of its content and is never changed. So each file shows by itself whether it is damaged.
3. A content is removed only if no manifest refers to it. While one manifest cannot be read, nothing is removed: its
   contents are unknown. That manifest does not count among the backups to keep.
4. Names of files come from a list of forms; whatever a manifest says, nothing is written outside of its directory.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self

FORMAT: Final = 1
MARKER: Final = "warren-backups.json"
FILES: Final = "files"
PIECE_BYTES: Final = 1 << 20

_MANIFEST: Final = re.compile(r"[0-9]{10}\.json")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_PART: Final = ".part"
# Files that a new directory of backups may already have; the marker: an earlier attempt was interrupted.
_NOBODYS: Final = frozenset({MARKER, "lost+found"})
# Files that a data directory may have.
_NAME: Final = re.compile(
    r"catalogue\.db"
    r"|messages/(checkpoint|log/[0-9]{10}|streams/[0-9]{10}-[0-9]{20})"
    r"|stages/[0-9a-f]{32}/[0-9a-f]{32}/[0-9]{10}"
)


class BackupError(Exception):
    """A directory cannot be used, or a backup in it is damaged; the text says which file, and why."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a backup: its `name` in the data directory, its size, its mark for the broker, its content."""

    name: str
    size: int
    identity: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A backup: number, place in the log, time in ms since the Unix epoch, and files."""

    number: int
    warren: str
    store_id: str
    taken_ms: int
    lsn: int
    crc: int
    segment: int
    epoch: int
    files: tuple[StoredFile, ...]

    @property
    def size(self) -> int:
        """The size of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Cleared:
    """The backups that `BackupDirectory.clear` has removed, by number, and errors in the remaining manifests."""

    removed: list[int]
    faults: list[str]


class BackupDirectory:
    """An open directory of backups. Obtain with `reading` or `writing`."""

    def __init__(self, path: Path, lock: int, store_id: str) -> None:
        self.path = path
        self.store_id = store_id
        self._lock = lock
        self._written = 0

    @classmethod
    def reading(cls, path: Path) -> Self:
        """Open a directory to read it; nothing is removed from it meanwhile.

        Raises:
            BackupError: it is not a directory of backups, or this Warren cannot read it.
        """
        try:
            is_one = (path / MARKER).is_file()
        except OSError as error:
            raise BackupError(f"{path}: {_reason(error)}") from None
        if not is_one:
            raise BackupError(f"{path}: there are no backups here ({MARKER} is missing)")
        return cls._locked(path, os.O_RDONLY, fcntl.LOCK_SH)

    @classmethod
    def writing(cls, path: Path, store_id: str) -> Self:
        """Open a directory to write a backup of the store `store_id` into; make it if it is missing or empty.

        Raises:
            BackupError: it belongs to another store, is in use, or cannot be written.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            # List first: another process may make it a directory of backups meanwhile, and writes the marker before
            # other files.
            foreign = next((name for name in os.listdir(path) if name not in _NOBODYS), None)
            is_new = _is_unmarked(path)
            if is_new and foreign is not None:
                raise BackupError(f"{path}: it holds other files ({foreign}): name an empty directory")
            directory = cls._locked(path, os.O_RDWR, fcntl.LOCK_EX, store_id if is_new else None)
        except OSError as error:
            raise BackupError(f"{path}: {_reason(error)}") from None
        if directory.store_id != store_id:
            directory.close()
            raise BackupError(f"{path}: it has backups of another broker (store {directory.store_id}, not {store_id})")
        try:
            (path / FILES).mkdir(mode=0o700, exist_ok=True)
            for part in (path / FILES).glob(f"*{_PART}"):
                part.unlink()
        except OSError as error:
            directory.close()
            raise BackupError(f"{path}: {_reason(error)}") from None
        return directory

    @classmethod
    def _locked(cls, path: Path, flags: int, how: int, new_store_id: str | None = None) -> Self:
        """Lock the directory; `new_store_id`: the store that takes it over if it does not belong to one yet."""
        if new_store_id is not None:
            flags |= os.O_CREAT
        try:
            lock = os.open(path / MARKER, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise BackupError(f"{path / MARKER}: {_reason(error)}") from None
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
            marker = os.read(lock, PIECE_BYTES)
            if not marker and new_store_id is not None:
                # In place: a file that replaced that of another process would be locked beside it.
                marker = _encoded({"format": FORMAT, "store_id": new_store_id})
                _write_all(lock, marker)
                os.fsync(lock)
                _sync_directory(path)
            found = _decoded(marker)
            if found.get("format") != FORMAT:
                raise BackupError(f"{path}: a newer Warren has written it (format {found.get('format')})")
            return cls(path, lock, str(found["store_id"]))
        except BlockingIOError:
            os.close(lock)
            raise BackupError(f"{path}: another backup is being written into it, or one is being restored") from None
        except OSError as error:
            os.close(lock)
            raise BackupError(f"{path / MARKER}: {_reason(error)}") from None
        except (ValueError, KeyError):
            os.close(lock)
            raise BackupError(
                f'{path / MARKER}: it is damaged; write {{"format": {FORMAT}, "store_id": …}} into it, with the '
                "store_id of any manifest beside it"
            ) from None
        except BaseException:
            os.close(lock)
            raise

    def close(self) -> None:
        """Give the directory free."""
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the contents -----------------------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """Return the numbers of all backups, ascending.

        Raises:
            BackupError: the directory cannot be read.
        """
        try:
            return sorted(int(name[:10]) for name in os.listdir(self.path) if _MANIFEST.fullmatch(name))
        except OSError as error:
            raise BackupError(f"{self.path}: {_reason(error)}") from None

    def manifest(self, number: int) -> Manifest:
        """Return a manifest.

        Raises:
            BackupError: the manifest is missing, damaged, or belongs to another backup.
        """
        path = self._manifest_path(number)
        try:
            document = _decoded(path.read_bytes())
            content = document["manifest"]
            if sha256(_encoded(content)).hexdigest() != document["sha256"]:
                raise BackupError(f"{path}: the manifest is damaged: that backup is lost, remove the file")
            files = tuple(StoredFile(**file) for file in content.pop("files"))
            found = Manifest(**content, files=files)
        except FileNotFoundError:
            raise BackupError(f"{self.path}: there is no backup {number}") from None
        except OSError as error:
            raise BackupError(f"{path}: {_reason(error)}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BackupError(
                f"{path}: the manifest is damaged, or of a newer Warren; a damaged one is lost: remove the file"
            ) from None
        if (found.number, found.store_id) != (number, self.store_id):
            raise BackupError(
                f"{path}: it is the manifest of backup {found.number} of store {found.store_id}: remove the file"
            )
        for file in files:
            if not _NAME.fullmatch(file.name) or not _SHA256.fullmatch(file.sha256):
                raise BackupError(f"{path}: it names a file that no data directory has: {file.name!a}")
        return found

    def read(self, file: StoredFile) -> Iterator[bytes]:
        """Yield the content of a file piece by piece.

        Raises:
            BackupError: it is missing or damaged; at the end, when that is known.
        """
        path = self._content_path(file.sha256)
        digest = sha256()
        size = 0
        try:
            with path.open("rb") as stored:
                while piece := stored.read(PIECE_BYTES):
                    digest.update(piece)
                    size += len(piece)
                    yield piece
        except FileNotFoundError:
            raise BackupError(f"{path} is missing: it is {file.name}") from None
        except OSError as error:
            raise BackupError(f"{path} cannot be read: {_reason(error)}; it is {file.name}") from None
        if digest.hexdigest() != file.sha256 or size != file.size:
            raise BackupError(f"{path} is damaged: it is {file.name}")

    def fault(self, file: StoredFile, *, whole: bool) -> str:
        """Return the error in a file, ``""`` without one; `whole`: read all of it."""
        try:
            if whole:
                for _ in self.read(file):
                    pass
            elif not self.has(file):
                return f"{self._content_path(file.sha256)} is missing, or has another size"
        except BackupError as error:
            return str(error)
        return ""

    def has(self, file: StoredFile) -> bool:
        """Tell whether a file is there, with the right size."""
        try:
            return self._content_path(file.sha256).stat().st_size == file.size
        except OSError:
            return False

    # --- writing ----------------------------------------------------------------------------------------------------

    def put(self, name: str, size: int, identity: str, pieces: Iterable[bytes]) -> StoredFile:
        """Store a file, synced.

        Raises:
            BackupError: there is no space for it, or the disk fails. Errors of `pieces`.
        """
        self._written += 1
        part = self.path / FILES / f"{self._written}{_PART}"
        digest = sha256()
        try:
            target = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                for piece in pieces:
                    digest.update(piece)
                    _write_all(target, piece)
                os.fsync(target)
                # To be read back from the disk, not from memory.
                if hasattr(os, "posix_fadvise"):  # not on macOS
                    os.posix_fadvise(target, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(target)
            stored = StoredFile(name, size, identity, digest.hexdigest())
            part.rename(self._content_path(stored.sha256))
        except OSError as error:
            _discard(part)
            raise BackupError(f"{self.path}: {_reason(error)}; the backups that were there before are whole") from None
        except BaseException:
            _discard(part)
            raise
        return stored

    def add(self, manifest: Manifest) -> None:
        """Make a backup valid when all its files are there.

        Raises:
            BackupError: it cannot be written.
        """
        content = asdict(manifest)
        document = {"manifest": content, "sha256": sha256(_encoded(content)).hexdigest()}
        try:
            _sync_directory(self.path / FILES)
            _write(self._manifest_path(manifest.number), _encoded(document))
        except OSError as error:
            raise BackupError(f"{self.path}: {_reason(error)}; the backups that were there before are whole") from None

    def clear(self, keep: int | None) -> Cleared:
        """Remove all backups older than the newest `keep` that can be read, and contents that no backup has (3).

        Raises:
            BackupError: something cannot be removed.
        """
        found: dict[int, Manifest] = {}
        faults: dict[int, str] = {}
        for number in self.numbers():
            try:
                found[number] = self.manifest(number)
            except BackupError as error:
                faults[number] = str(error)
        oldest = 0 if keep is None else min(list(found)[-keep:], default=0)
        over = sorted(number for number in (*found, *faults) if number < oldest)
        left = [fault for number, fault in faults.items() if number not in over]
        kept = {file.sha256 for number, manifest in found.items() if number not in over for file in manifest.files}
        try:
            for number in over:
                self._manifest_path(number).unlink()
            _sync_directory(self.path)
            for name in () if left else os.listdir(self.path / FILES):
                if _SHA256.fullmatch(name) and name not in kept:
                    (self.path / FILES / name).unlink()
        except OSError as error:
            raise BackupError(f"{self.path}: {_reason(error)}") from None
        return Cleared(over, left)

    def _manifest_path(self, number: int) -> Path:
        return self.path / f"{number:010d}.json"

    def _content_path(self, digest: str) -> Path:
        return self.path / FILES / digest


def check(
    directory: BackupDirectory, files: Iterable[StoredFile], pace: Callable[[int], None] = lambda _: None
) -> None:
    """Read files and compare them with their manifest; `pace` is told how much was read.

    Raises:
        BackupError: one is missing or damaged.
    """
    for file in files:
        for piece in directory.read(file):
            pace(len(piece))


def _is_unmarked(path: Path) -> bool:
    """Tell whether the marker is missing or empty. Raises OSError."""
    try:
        return not (path / MARKER).stat().st_size
    except FileNotFoundError:
        return True


def _encoded(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _decoded(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _write(path: Path, content: bytes) -> None:
    """Write a small file durably, in one step. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    target = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _write_all(target, content)
        os.fsync(target)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    finally:
        os.close(target)
    new.rename(path)
    _sync_directory(path.parent)


def _discard(part: Path) -> None:
    """Remove an incomplete file, if possible: a disk that fails may be read-only by now. `writing` does so, too."""
    with suppress(OSError):
        part.unlink()


def _write_all(target: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
