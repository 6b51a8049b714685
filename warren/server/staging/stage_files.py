"""Keep staged messages in files: parts of a stage, each written once and whole, below the data directory.

    data directory
        stages/
            epoch                of the log, when the broker started last; decimal, and its CRC-32 in hexadecimal,
                                 which earlier versions did not write
            <vhost>/             the first 32 hexadecimal digits of the SHA-256 of its name, as are those of a stage
                <stage>/
                    0000000007          part 7
                    0000000007.1.new    one that is being written
            aside/
                <vhost>-<stage>-0/      a stage of a vhost that a start did not know

1. A name that is a number means that the whole part is synced, and its name too. A start removes unfinished files.
2. Names do not come from clients. A part itself says whose it is.
3. Files that are aside are never read, nor removed: damage may have taken what their stage belongs to.
4. All calls here block: make them in a thread.

    part, all integers big-endian
         0   8  magic "WARRNSTG"
         8   2  major = 1             another one is refused
        10   2  zero
        12   4  head_bytes
        16   8  content_bytes
        24   4  zero
        28   4  crc                   CRC-32 (zlib) of bytes 0..27 and the head
        32      head: JSON, `PartHead`
                content: publishes as clients encode them (``amqp.publishes``), in cells with a CRC-32 each
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from warren.msgstore.files.syncing import sync_all
from warren.server.durable_file import sync_directory, write_all

DIRECTORY: Final = "stages"
UNFINISHED: Final = ".new"  # ending of the name of an unfinished part
MAGIC: Final = b"WARRNSTG"
MAJOR: Final = 1
HEAD_BYTES_MAX: Final = 4 << 20

_FIXED: Final = struct.Struct(">8sHHIQI")
_FIXED_BYTES: Final = 32
_EPOCH: Final = "epoch"
_EPOCH_NOTE: Final = re.compile(rb"([0-9]{1,20})(?: ([0-9a-f]{8}))?\n")
_ASIDE: Final = "aside"


class DamagedPart(Exception):
    """A part differs from what was written."""


class Cell(msgspec.Struct, array_like=True, frozen=True):
    """Consecutive whole messages, as many as are published in one go."""

    size: int
    messages: int
    crc: int


class PartHead(msgspec.Struct, frozen=True):
    """The owner of a part, and its contents. `at_ms`: when it came, since the Unix epoch.

    `life`: of its vhost, of which a later vhost of the name has another one; "": an earlier version wrote it.
    """

    vhost: str
    stage: str
    part: int
    user: str
    at_ms: int
    cells: list[Cell]
    life: str = ""

    @property
    def size(self) -> int:
        """The number of bytes of its messages, encoded."""
        return sum(cell.size for cell in self.cells)

    @property
    def messages(self) -> int:
        """The number of its messages."""
        return sum(cell.messages for cell in self.cells)

    def fingerprint(self) -> int:
        """Return a CRC-32 of the cells of its content, and of how it is cut into them."""
        return zlib.crc32(msgspec.json.encode(self.cells))


class StageFiles:
    """The files below one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.root = data_dir / DIRECTORY
        self._written = 0
        self._named: set[Path] = set()  # directories whose names this process has synced
        self._damaged: dict[Path, set[str]] = {}  # by directory: files that `scan` could not use

    def write(self, head: PartHead, content: bytes) -> None:
        """Write a part, replacing one of the same number, and sync it.

        Raises:
            OSError: there is no space, or the disk fails.
        """
        directory = self._directory(head.vhost, head.stage)
        self._make_directory(directory)
        path = directory / f"{head.part:010d}"
        self._written += 1
        new = path.with_name(f"{path.name}.{self._written}{UNFINISHED}")
        encoded = msgspec.json.encode(head)
        fixed = _FIXED.pack(MAGIC, MAJOR, 0, len(encoded), len(content), 0)
        crc = zlib.crc32(encoded, zlib.crc32(fixed))
        try:
            file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                for piece in (fixed + crc.to_bytes(4, "big") + encoded, content):
                    write_all(file, piece)
                sync_all(file)
            finally:
                os.close(file)
            os.rename(new, path)
            sync_directory(directory)
            self._damaged.get(directory, set()).discard(path.name)
        except OSError:
            new.unlink(missing_ok=True)
            raise

    def head(self, vhost: str, stage: str, part: int) -> PartHead:
        """Return the head of a part.

        Raises:
            DamagedPart: it is damaged, or gone.
        """
        path = self._directory(vhost, stage) / f"{part:010d}"
        try:
            with path.open("rb") as file:
                head, _ = _read_head(file)
        except (OSError, ValueError) as error:
            raise DamagedPart(f"part {part} of stage '{stage}' cannot be read: {error}") from None
        if (head.vhost, head.stage, head.part) != (vhost, stage, part):
            raise DamagedPart(f"part {part} of stage '{stage}' belongs to another stage")
        return head

    def read(self, head: PartHead, first: int, end: int) -> list[bytes]:
        """Return the cells of a part from `first` up to `end`.

        Raises:
            DamagedPart: one of them is damaged, or gone.
        """
        path = self._directory(head.vhost, head.stage) / f"{head.part:010d}"
        found: list[bytes] = []
        try:
            with path.open("rb") as file:
                start = _FIXED_BYTES + _FIXED.unpack(file.read(_FIXED.size))[3]
                file.seek(start + sum(cell.size for cell in head.cells[:first]))
                for cell in head.cells[first:end]:
                    data = file.read(cell.size)
                    if len(data) != cell.size or zlib.crc32(data) != cell.crc:
                        raise DamagedPart(f"part {head.part} of stage '{head.stage}' is damaged")
                    found.append(data)
        except (OSError, struct.error) as error:
            raise DamagedPart(f"part {head.part} of stage '{head.stage}' cannot be read: {error}") from None
        return found

    def remove(self, vhost: str, stage: str) -> None:
        """Remove a stage, if it exists.

        Raises:
            OSError: that is not possible.
        """
        directory = self._directory(vhost, stage)
        self._named.discard(directory)
        self._damaged.pop(directory, None)
        try:
            # The first part first: a remainder must not look like a shorter stage.
            for path in sorted(directory.iterdir()):
                path.unlink(missing_ok=True)
            directory.rmdir()
        except FileNotFoundError:
            return

    def set_aside(self, vhost: str, stage: str) -> str:
        """Move the files of a stage away, see (3); return where they are.

        Raises:
            OSError: that is not possible.
        """
        directory = self._directory(vhost, stage)
        aside = self.root / _ASIDE
        name = f"{directory.parent.name}-{directory.name}"
        aside.mkdir(mode=0o700, exist_ok=True)
        sync_directory(self.root)
        place = next(path for at in count() if not (path := aside / f"{name}-{at}").exists())
        directory.rename(place)
        sync_directory(aside)
        sync_directory(directory.parent)
        self._named.discard(directory)
        self._damaged.pop(directory, None)
        return str(place)

    def is_damaged(self, vhost: str, stage: str) -> bool:
        """Tell whether `scan` found an unusable part of a stage that was not written again since."""
        return bool(self._damaged.get(self._directory(vhost, stage)))

    def maybe_epoch(self) -> int | None:
        """Return the epoch that `note_epoch` was given last; None if it never was, or without stages.

        Raises:
            DamagedPart: the note is not intact. OSError: it cannot be read.
        """
        path = self.root / _EPOCH
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        if (note := _EPOCH_NOTE.fullmatch(content)) is None:
            raise DamagedPart(f"{path} is not a number")
        noted, crc = note.groups()
        if crc is not None and int(crc, 16) != zlib.crc32(noted):
            raise DamagedPart(f"{path} does not match its checksum")
        return int(noted)

    def note_epoch(self, epoch: int) -> None:
        """Note that the stages belong to a broker whose log has this epoch.

        Raises:
            OSError: there is no space, or the disk fails.
        """
        if self.root not in self._named:
            self.root.mkdir(mode=0o700, exist_ok=True)
            sync_directory(self.root.parent)
        new = self.root / f"{_EPOCH}{UNFINISHED}"
        with new.open("wb") as file:
            noted = b"%d" % epoch
            file.write(b"%b %08x\n" % (noted, zlib.crc32(noted)))
            file.flush()
            sync_all(file.fileno())
        new.rename(self.root / _EPOCH)
        sync_directory(self.root)

    def scan(self) -> Iterator[PartHead | DamagedPart]:
        """Yield the head of every part, or why it cannot be used; remove unfinished parts."""
        for directory in sorted(self.root.glob("*/*/")):
            if directory.parent.name == _ASIDE:
                continue
            for path in sorted(directory.iterdir()):
                if path.name.endswith(UNFINISHED):
                    path.unlink(missing_ok=True)
                    continue
                try:
                    with path.open("rb") as file:
                        head, content_bytes = _read_head(file)
                        if os.fstat(file.fileno()).st_size != file.tell() + content_bytes:
                            raise ValueError("its length is wrong")
                    if directory != self._directory(head.vhost, head.stage) or path.name != f"{head.part:010d}":
                        raise ValueError("it belongs to another stage")
                except (OSError, ValueError) as error:
                    self._damaged.setdefault(directory, set()).add(path.name)
                    yield DamagedPart(f"{path}: {error}")
                else:
                    yield head
            _remove_if_empty(directory)

    def _make_directory(self, directory: Path) -> None:
        """Make a directory of a stage, and those above it."""
        for path in (directory.parent.parent, directory.parent, directory):
            if path not in self._named:
                path.mkdir(mode=0o700, exist_ok=True)
                sync_directory(path.parent)
                self._named.add(path)

    def _directory(self, vhost: str, stage: str) -> Path:
        return self.root / _digest(vhost) / _digest(stage)


def _read_head(file: BinaryIO) -> tuple[PartHead, int]:
    """Return the head of a part, and how many bytes follow it.

    Raises:
        ValueError: the head is not valid. OSError: it cannot be read.
    """
    fixed = file.read(_FIXED_BYTES)
    if len(fixed) < _FIXED_BYTES or fixed[:8] != MAGIC:
        raise ValueError("it is not a part of a stage")
    _, major, _, head_bytes, content_bytes, _ = _FIXED.unpack_from(fixed)
    if major != MAJOR:
        raise ValueError("it was written by a newer Warren")
    encoded = file.read(head_bytes) if head_bytes <= HEAD_BYTES_MAX else b""
    if zlib.crc32(encoded, zlib.crc32(fixed[: _FIXED.size])) != int.from_bytes(fixed[_FIXED.size :], "big"):
        raise ValueError("its header is damaged")
    try:
        return msgspec.json.decode(encoded, type=PartHead), content_bytes
    except msgspec.DecodeError as error:
        raise ValueError(f"its header cannot be read: {error}") from None


def _remove_if_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:
        return


def _digest(name: str) -> str:
    return sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:32]
