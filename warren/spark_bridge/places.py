"""Where an export puts its files and an import finds them: a directory, or a prefix of an object store.

    DIR, file:///DIR            `Directory`     files are renamed into place and synced
    s3://BUCKET/PREFIX          `ObjectPrefix`  files are made below TMPDIR and uploaded when they are complete
    gs://BUCKET/PREFIX
    abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX

1. A file with a name is complete: it was renamed, or uploaded, as a whole. When `put` and `replace` return, the file is
   durable.
2. Names are relative, with slashes. Those below `_manifest/` belong to this package. Programs that read directories of
   files ignore names that begin with an underscore, so the data files have no other files beside them.
3. An invalid URL is an error before anything is written: an unknown scheme, no bucket, a bucket that does not exist.
   The login for an object store is found as its tools find it: variables, files of profiles, the role of the machine.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from warren.spark_bridge.bridge_errors import BridgeError, UsageError

OWN: Final = "_manifest/"
TEMPORARY: Final = "_tmp"
# Schemes of pyarrow, and the name of their first part.
_SCHEMES: Final = {"s3": "bucket", "gs": "bucket", "gcs": "bucket", "abfs": "container", "abfss": "container"}
# Which store has the bucket, where it is not that of the scheme: in the query of a URL, and in the environment.
_ENDPOINT_OPTIONS: Final = ("endpoint_override", "blob_storage_authority", "dfs_storage_authority")
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "CLOUD_STORAGE_EMULATOR_ENDPOINT")
# Without an answer Google's client repeats a request for a quarter of an hour.
_GS_RETRY_S: Final = 60


class Note(NamedTuple):
    """A small file that is replaced as a whole: the progress of an export or an import."""

    place: Place
    name: str

    def __str__(self) -> str:
        return f"{self.place}/{self.name}"

    def replace(self, content: bytes) -> None:
        """Replace the content; it is durable when this returns."""
        self.place.replace(self.name, content)

    def maybe_content(self) -> bytes | None:
        """Return its content; None: it does not exist."""
        return self.place.maybe_content(self.name)

    def only_one(self, refusal: str) -> AbstractContextManager[None]:
        """Return a context that one process on this machine can be in at a time; others get `refusal`."""
        return _locked_by_name("note", (*self.place.identity, self.name), refusal)


def note_at(path: Path) -> Note:
    """Return the note that is a file on this machine."""
    return Note(Directory(path.parent), path.name)


@contextmanager
def marked(place: Place, prefix: str, owner: str, refusal: str) -> Iterator[list[str]]:
    """Mark a beginning by `owner` where other machines may begin it, too; yield the names of the package's files then.

    A store lists what was written: so of two that begin at once at least one sees the other's mark.

    Raises:
        UsageError: with `refusal`, there is a mark of another owner.
    """
    own = f"{prefix}{owner}-"
    mark = Note(place, f"{own}{secrets.token_hex(4)}")
    try:
        mark.replace(b"{}")
        names = place.own_names()
        for name in names:
            if name.startswith(prefix) and not name.startswith(own):
                raise UsageError(
                    f"{refusal}, or was killed when it began: it has left {name}. If none is running, delete that file"
                )
        yield names
    finally:
        with suppress(OSError):
            place.delete(mark.name)


class PlaceError(BridgeError, OSError):
    """An object store that cannot be reached, or refuses a request."""


class Place(Protocol):
    """Files by their names; see the header."""

    @property
    def identity(self) -> tuple[str, ...]:
        """The same for the same place, however it is written; the first element can be shown to people."""

    @property
    def is_shared(self) -> bool:
        """Whether other machines may write here, too: `only_one` does not keep them out."""

    @property
    def is_empty(self) -> bool:
        """Whether the place has nothing that somebody may want to keep."""

    def begin(self) -> None:
        """Make sure that files can be put here."""

    def only_one(self) -> Any:
        """Return a context in which no other process on this machine exports to here."""

    def scratch(self) -> Path:
        """Return a local directory, empty, in which files can be made; `end` removes it."""

    def end(self) -> None:
        """Remove temporary files."""

    def put(self, made: list[tuple[Path, str]]) -> None:
        """Give complete files of `scratch` their names."""

    def replace(self, name: str, content: bytes) -> None:
        """Replace a small file as a whole."""

    def maybe_content(self, name: str) -> bytes | None:
        """Return the content of a small file; None: there is no such file."""

    def maybe_size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None: there is no such file."""

    def names(self) -> Iterator[str]:
        """Yield the names of all files, in their order, without those that are this package's own."""

    def own_names(self) -> list[str]:
        """Return the names of the files below `OWN`, in their order."""

    def delete(self, name: str) -> None:
        """Delete a file."""

    def local(self, name: str) -> Any:
        """Return a context with a path by which a file can be read on this machine."""


def place_of(where: Path | str) -> Place:
    """Return the place that a path or URL stands for.

    Raises:
        UsageError: it is not a valid place.
    """
    text = str(where)
    scheme, mark, _ = text.partition("://")
    if isinstance(where, Path) or not mark:
        return Directory(Path(text))
    scheme = scheme.lower()
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise UsageError(f"{text}: a URL of a directory is file:///DIRECTORY")
        return Directory(Path(unquote(parts.path)))
    if scheme not in _SCHEMES:
        raise UsageError(f"{text}: must be a directory, or a URL that begins with s3://, gs://, abfss:// or file://")
    return ObjectPrefix(text)


# --- directories ------------------------------------------------------------------------------------------------------


class Directory:
    """A directory on this machine."""

    is_shared: Final = False

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def identity(self) -> tuple[str, ...]:
        return (str(self.path.resolve()),)

    @property
    def is_empty(self) -> bool:
        return not any(not path.name.startswith(("_", ".")) for path in self.path.iterdir())

    def begin(self) -> None:
        make_directory(self.path)

    @contextmanager
    def only_one(self) -> Iterator[None]:
        with _locked(self.path, _another_export(self)):
            yield

    def scratch(self) -> Path:
        self.end()
        return self.path / TEMPORARY

    def end(self) -> None:
        shutil.rmtree(self.path / TEMPORARY, ignore_errors=True)

    def put(self, made: list[tuple[Path, str]]) -> None:
        parents = {self.path}
        for path, name in made:
            final = self.path / name
            make_directory(final.parent)
            path.replace(final)
            parents.add(final.parent)
        for parent in parents:
            sync_directory(parent)

    def replace(self, name: str, content: bytes) -> None:
        replace_file(self.path / name, content)

    def maybe_content(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def maybe_size(self, name: str) -> int | None:
        try:
            return (self.path / name).stat().st_size
        except FileNotFoundError:
            return None

    def names(self) -> Iterator[str]:
        for path in sorted(self.path.rglob("*")):
            name = path.relative_to(self.path).as_posix()
            if path.is_file() and not is_hidden(name):
                yield name

    def own_names(self) -> list[str]:
        return sorted(f"{OWN}{path.name}" for path in (self.path / OWN).glob("*"))

    def delete(self, name: str) -> None:
        (self.path / name).unlink()

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        yield self.path / name


def is_hidden(name: str) -> bool:
    """Tell whether readers of directories pass over this file."""
    return any(part.startswith(("_", ".")) for part in PurePosixPath(name).parts)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file by one with `content`, at once and for good."""
    make_directory(path.parent)
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_directory(path.parent)


def make_directory(path: Path) -> None:
    """Make a directory, if it is not there, and those above it; their names are on disk then."""
    new = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in new:
        sync_directory(each.parent)


def sync_directory(path: Path) -> None:
    """Sync the names in a directory to disk."""
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(held)
    finally:
        os.close(held)


def _another_export(place: Place) -> str:
    return f"another export is writing into {place}"


@contextmanager
def _locked_by_name(kind: str, identity: Sequence[str], refusal: str) -> Iterator[None]:
    """Lock a place that is not on this machine: a directory stands for it, as long as the lock is held."""
    digest = sha256("\0".join(identity).encode()).hexdigest()[:16]
    directory = Path(tempfile.gettempdir()) / f"warren-{kind}-{os.getuid()}-{digest}"
    directory.mkdir(exist_ok=True)
    with _locked(directory, refusal):
        try:
            yield
        finally:
            with suppress(OSError):
                directory.rmdir()


@contextmanager
def _locked(directory: Path, refusal: str) -> Iterator[None]:
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_there = os.path.samestat(os.fstat(held), directory.stat())
        except (BlockingIOError, FileNotFoundError):
            is_there = False
        if not is_there:  # or the previous owner has just removed it
            raise UsageError(refusal)
        yield
    finally:
        os.close(held)


# --- object stores ----------------------------------------------------------------------------------------------------


class ObjectPrefix:
    """A prefix of an object store, by pyarrow's file system for it."""

    is_shared: Final = True

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        what = _SCHEMES[parts.scheme.lower()]
        user, at, host = parts.netloc.rpartition("@")
        name = user.partition(":")[0]
        bucket = name if what == "container" else host.partition(":")[0]
        if not bucket:
            form = "s3://BUCKET/PREFIX" if what == "bucket" else "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX"
            raise UsageError(f"{url}: names no {what}, as in {form}")
        if parts.fragment:
            raise UsageError(f"{url}: has a # in it, which must be written %23")
        # The location, without the query, which says how to get there, and without a password.
        where = f"{name}{at}{host}" if what == "container" else host
        self._shown = f"{parts.scheme.lower()}://{where}{parts.path.rstrip('/')}"
        self._what = f"{what} {bucket!r}"
        self._url = url.rstrip("/")
        self._found: tuple[Any, str] | None = None
        self._temporary: Path | None = None

    def __str__(self) -> str:
        return self._shown

    @property
    def identity(self) -> tuple[str, ...]:
        # The same bucket of another store is another place.
        query = parse_qs(urlsplit(self._url).query)
        told = [query[name][0] for name in _ENDPOINT_OPTIONS if name in query]
        return (self._shown, *told, *(os.environ[name] for name in _ENDPOINT_VARIABLES if name in os.environ))

    @property
    def _fs(self) -> Any:
        return self._opened()[0]

    def _path(self, name: str) -> str:
        return f"{self._opened()[1]}/{name}"

    def _opened(self) -> tuple[Any, str]:
        """Return the file system, and where the prefix is in it."""
        if self._found is None:
            self._found = self._open()
        return self._found

    def _open(self) -> tuple[Any, str]:
        import pyarrow as pa
        from pyarrow import fs

        url = self._url
        if url.startswith(("gs:", "gcs:")) and "retry_limit_seconds" not in url:
            url += f"{'&' if '?' in url else '?'}retry_limit_seconds={_GS_RETRY_S}"
        try:
            system, path = fs.FileSystem.from_uri(url)
            bucket = path.partition("/")[0]
            is_there = system.get_file_info(bucket).type != fs.FileType.NotFound
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(f"{self}: {first_line(error)}") from None
        except OSError as error:
            raise UsageError(f"{self}: the {self._what} cannot be used: {first_line(error)}") from None
        if not is_there:
            raise UsageError(f"{self}: the {self._what} does not exist or is not visible: create it first")
        return system, path.rstrip("/")

    @property
    def is_empty(self) -> bool:
        return not any(not name.startswith(("_", ".")) for name in self.names())

    def begin(self) -> None:
        self._opened()

    @contextmanager
    def only_one(self) -> Iterator[None]:
        with _locked_by_name("export", self.identity, _another_export(self)):
            yield

    def scratch(self) -> Path:
        self.end()
        self._temporary = Path(tempfile.mkdtemp(prefix="warren-export-"))
        return self._temporary

    def end(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def put(self, made: list[tuple[Path, str]]) -> None:
        from pyarrow import fs

        local = fs.LocalFileSystem()
        for path, name in made:
            size = path.stat().st_size
            with _errors(self, name):
                fs.copy_files(str(path), self._path(name), source_filesystem=local, destination_filesystem=self._fs)
                found = self.maybe_size(name)
            if found != size:
                raise PlaceError(f"{self}/{name} has {found} bytes, and {size} were uploaded")
            path.unlink()

    def replace(self, name: str, content: bytes) -> None:
        with _errors(self, name), self._fs.open_output_stream(self._path(name)) as stream:
            stream.write(content)

    def maybe_content(self, name: str) -> bytes | None:
        try:
            with _errors(self, name), self._fs.open_input_stream(self._path(name)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def maybe_size(self, name: str) -> int | None:
        with _errors(self, name):
            found = self._fs.get_file_info(self._path(name))
        return int(found.size) if found.is_file else None

    def names(self) -> Iterator[str]:
        return (name for name in self._below(self._opened()[1]) if not is_hidden(name))

    def own_names(self) -> list[str]:
        return self._below(self._path(OWN.rstrip("/")))

    def _below(self, directory: str) -> list[str]:
        """Return the names of the files below a directory of the file system, in their order."""
        from pyarrow import fs

        root = self._opened()[1]
        with _errors(self, ""):
            every = self._fs.get_file_info(fs.FileSelector(directory, allow_not_found=True, recursive=True))
        return sorted(each.path.removeprefix(f"{root}/") for each in every if each.is_file)

    def delete(self, name: str) -> None:
        with _errors(self, name):
            self._fs.delete_file(self._path(name))

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        from pyarrow import fs

        with tempfile.TemporaryDirectory(prefix="warren-import-") as directory:
            path = Path(directory) / PurePosixPath(name).name
            with _errors(self, name):
                fs.copy_files(
                    self._path(name),
                    str(path),
                    source_filesystem=self._fs,
                    destination_filesystem=fs.LocalFileSystem(),
                )
            yield path


@contextmanager
def _errors(place: ObjectPrefix, name: str) -> Iterator[None]:
    """Say of errors of an object store where they were met."""
    try:
        yield
    except (FileNotFoundError, BridgeError):
        raise
    except OSError as error:
        where = f"{place}/{name}" if name else str(place)
        raise PlaceError(f"{where}: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    """Return the text of an error, without a trace that its library has appended."""
    return (str(error).splitlines() or [type(error).__name__])[0]
