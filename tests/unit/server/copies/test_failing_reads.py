"""Reads that fail while a backup is made: a backup is whole or absent, and the next one succeeds. images (6).

`WARREN_TEST_READ_SEEDS` is how many seeds there are (25), `WARREN_TEST_CRASH_SEED` the first one.
"""

from __future__ import annotations

import errno
import os
import random
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from zlib import crc32

import pytest
import trio

from warren.backup.directory import BackupDirectory, BackupError
from warren.ctl.backup import CRC_HEADER, Pace, _Run
from warren.ctl.client import Client, Object
from warren.ctl.exit_codes import CtlError
from warren.msgstore.files.file_system import FileSystem, OsFileSystem
from warren.msgstore.files.pins import PINS, PinnedFile, Pins
from warren.msgstore.log.log_position import LogPosition
from warren.server.catalogue.writer import CatalogueWriter
from warren.server.copies.images import DIRECTORY, Image, ImageError, Images
from warren.server.message_store import MessageStoreService
from warren.server.staging import stage_files
from warren.server.threads import Purpose

SEEDS: Final = int(os.environ.get("WARREN_TEST_READ_SEEDS", "25"))
FIRST_SEED: Final = int(os.environ.get("WARREN_TEST_CRASH_SEED", "1"))
SEGMENT_BYTES: Final = 30_000
STORE_ID: Final = bytes(range(16))
POSITION: Final = LogPosition(2 * SEGMENT_BYTES + 9000, 7, 3, 2 * SEGMENT_BYTES, 1, STORE_ID)

Fails = Callable[[str, str], bool]  # told the operation and the path


class FailingFiles:
    """The files of a store; what reads them may fail."""

    def __init__(self, root: Path) -> None:
        self._files = OsFileSystem(str(root))
        self._paths: dict[int, str] = {}
        self.fails: Fails = lambda operation, path: False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def _look(self, operation: str, path: str) -> None:
        if self.fails(operation, path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def open(self, path: str, *, writable: bool) -> int:
        self._look("open", path)
        handle = self._files.open(path, writable=writable)
        self._paths[handle] = path
        return handle

    def size(self, handle: int) -> int:
        self._look("size", self._paths[handle])
        return self._files.size(handle)

    def read(self, handle: int, length: int, offset: int) -> bytes:
        self._look("read", self._paths[handle])
        return self._files.read(handle, length, offset)

    def names(self, path: str) -> list[str]:
        self._look("names", path)
        return self._files.names(path)


class Store:
    """A data directory with files of each kind, and its images; a client asks for them as `warren ctl backup` does."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.directory = directory
        messages = directory / "messages"
        sizes = {"checkpoint": 5000, "streams/0000000009-00000000000000000000": 40_000}
        sizes |= {f"log/{number:010d}": SEGMENT_BYTES for number in (1, 2, 3)}
        for name, size in sizes.items():
            (messages / name).parent.mkdir(parents=True, exist_ok=True)
            (messages / name).write_bytes(rng.randbytes(size))
        part = directory / stage_files.DIRECTORY / ("a" * 32) / ("b" * 32) / "0000000001"
        part.parent.mkdir(parents=True)
        part.write_bytes(rng.randbytes(3000))
        self.files = FailingFiles(messages)
        self.images = Images(
            cast(MessageStoreService, self),
            cast(FileSystem, self.files),
            self,
            cast(CatalogueWriter, SimpleNamespace(healthy=True, standing_still=self._standing_still)),
            directory,
            self._in_thread,
        )
        self._image: Image | None = None

    async def _in_thread(self, purpose: Purpose, work: Callable[[], Any], *, abandon: bool = False) -> Any:
        return work()

    @asynccontextmanager
    async def _standing_still(self) -> AsyncIterator[None]:
        yield

    async def pin(self, holder: str) -> tuple[LogPosition, list[PinnedFile]]:
        return POSITION, Pins(cast(FileSystem, self.files)).take(holder, POSITION)

    def unpin(self, holder: str) -> None:
        Pins(cast(FileSystem, self.files)).release(holder)

    def copy_to(self, path: Path, store_id: bytes) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE queues (name TEXT)")
            connection.commit()

    # --- the API ----------------------------------------------------------------------------------------------------

    def post(self, *segments: str, body: object) -> SimpleNamespace:
        try:
            self._image = trio.run(self.images.take, "backup")
        except ImageError as error:
            raise CtlError(str(error)) from None
        place = {"lsn": POSITION.lsn, "crc": 7, "segment": 3, "epoch": 1, "taken_at": self._image.taken_ms}
        held = {"backup": "b", "state": "ready", "warren": "0.1.0", "store_id": STORE_ID.hex(), **place}
        return SimpleNamespace(value=held)

    def get_list(self, *segments: str) -> list[Object]:
        assert self._image is not None
        files = self._image.files.values()
        return [{"name": file.name, "bytes": file.size, "identity": file.identity} for file in files]

    def get_bytes(self, *segments: str, query: Mapping[str, str]) -> tuple[bytes, dict[str, str]]:
        assert self._image is not None
        file = self._image.files[query["name"]]
        read = partial(self.images.read, self._image, file, int(query["offset"]), int(query["length"]))
        try:
            data = trio.run(read)
        except ImageError as error:
            raise CtlError(str(error)) from None
        return data, {CRC_HEADER: f"{crc32(data):08x}"}

    def delete(self, *segments: str) -> None:
        trio.run(self.images.release, "backup")

    def back_up(self, to: Path) -> None:
        """Raises CtlError, BackupError."""
        _Run(cast(Client, self), to, Pace(0), incremental=True, tells=False).run()

    def check(self, to: Path, numbers: list[int]) -> None:
        """Make sure that these backups are there and whole, and that nothing is held."""
        with BackupDirectory.reading(to) as directory:
            assert directory.numbers() == numbers
            for number in numbers:
                found = {file.name: b"".join(directory.read(file)) for file in directory.manifest(number).files}
                catalogue = found.pop("catalogue.db")
                assert catalogue.startswith(b"SQLite format 3")
                messages = [path for path in self.directory.rglob("*") if path.is_file()]
                expected = {path.relative_to(self.directory).as_posix(): path.read_bytes() for path in messages}
                expected["messages/log/0000000003"] = expected["messages/log/0000000003"][:9000]
                assert found == expected
        assert not os.listdir(self.directory / "messages" / PINS)
        assert not (self.directory / DIRECTORY / "backup").exists()


def failing(rng: random.Random) -> Fails:
    """Fail once, for a while, or at one file for ever."""
    count, first = 0, rng.randrange(45)
    length = rng.choice([1, 1, 3, 20, 1000])
    ending = rng.choice(["", "", "log.0000000002", "streams.0000000009-00000000000000000000", "checkpoint"])

    def fails(operation: str, path: str) -> bool:
        nonlocal count
        count += 1
        return first < count <= first + length and path.endswith(ending)

    return fails


def test_a_backup_is_whole_or_there_is_none_when_reads_fail(tmp_path: Path) -> None:
    failed = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        rng = random.Random(seed)
        store = Store(tmp_path / f"store{seed}", rng)
        to = tmp_path / f"backups{seed}"
        store.back_up(to)
        numbers = [1]
        store.check(to, numbers)
        for _ in range(3):
            if rng.random() < 0.5:
                (store.directory / "messages/log/0000000002").write_bytes(rng.randbytes(SEGMENT_BYTES))
                to = to.with_name(f"{to.name}x")
                numbers = []
            store.files.fails = failing(rng)
            reason = ""
            try:
                store.back_up(to)
            except (CtlError, BackupError) as error:
                reason = str(error)
                failed += 1
            else:
                numbers.append(len(numbers) + 1)
            assert not reason or "Input/output error" in reason, f"seed {seed}"
            store.files.fails = lambda operation, path: False
            if numbers or to.exists():
                store.back_up(to)
                numbers.append(len(numbers) + 1)
                store.check(to, numbers)
    print(f"seeds {FIRST_SEED} to {FIRST_SEED + SEEDS - 1}: {failed} backups failed")
    assert failed


def test_a_directory_of_stages_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store", random.Random(1))
    scandir = os.scandir

    def failing_scandir(path: Any = ".") -> Any:
        if str(path).endswith("a" * 32):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", failing_scandir)
        with pytest.raises(CtlError, match="Permission denied"):
            store.back_up(tmp_path / "backups")
    assert not list(tmp_path.glob("backups/*.json"))
    store.back_up(tmp_path / "backups")
    store.check(tmp_path / "backups", [1])


def test_a_marker_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store", random.Random(1))
    store.back_up(tmp_path / "backups")

    def failing_read(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", failing_read)
        with pytest.raises(BackupError, match="Input/output error"):
            BackupDirectory.reading(tmp_path / "backups")
    store.check(tmp_path / "backups", [1])
