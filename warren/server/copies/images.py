"""Make images: the durable state of a running broker at one position of its log, held still while it is copied.

    stages linked -> changes of the metadata stop -> position -> files pinned -> metadata copied -> changes resume
                     on their way to SQL                                              -> copy checked -> stages linked

    data directory
        images/<holder>/
            catalogue.db            the metadata: a copy
            stages/...              hard links
        messages/pins/<holder>...   hard links (``msgstore.files.pins``)

1. An image is what a process killed at this position would have left. A start on a copy of it serves everything that
   was answered before the image was requested, and nothing that came later.
2. Publishers, consumers and declarations continue. Only SQL stands still while it is copied. So the metadata are not
   older than what the log has forgotten of them, and contain nothing that the log does not have yet.
3. The image has each stage that existed before, or came until the position. An extra stage is harmless, as after a
   crash. A stage that was stored, published and removed while the image was being made may be missing. A part that was
   written again meanwhile is the later one: a batch that has begun by then needs that.
4. An image costs the space of what the broker has released since, and that of the metadata. It ends with `release`, or
   with the process: the next start removes what a crash leaves.
5. The copied metadata are checked as a whole: a running broker never reads its whole SQLite file, so the copy may
   contain unnoticed damage.
6. If something cannot be read or listed, the image fails: a part of one does not look like all of it.

Each read takes one range, in a thread. No more of a file than that is in memory.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import trio

from warren.msgstore.files.file_system import FileSystem
from warren.msgstore.files.identities import identity_of
from warren.msgstore.files.pins import PinError, PinnedFile, Pins
from warren.msgstore.log.log_position import LogPosition
from warren.server.catalogue.writer import CatalogueWriter, InThread
from warren.server.data_dir import MESSAGES
from warren.server.logs import get_logger
from warren.server.message_store import MessageStoreService
from warren.server.start_errors import CatalogueError
from warren.server.threads import CATALOGUE, IMAGES

DIRECTORY: Final = "images"
CATALOGUE_FILE: Final = "catalogue.db"
# How long the log and SQL may take before the image begins to be made.
BEGIN_WITHIN_S: Final = 20.0
_PART_DEPTH: Final = 3  # below the directory of stages: a vhost, a stage, a part

log = get_logger("images")


class ImageError(Exception):
    """An image cannot be made or read; the text says why."""


class Metadata(Protocol):
    """The part of a catalogue that images need."""

    def copy_to(self, path: Path, store_id: bytes, /) -> None:
        """Write all of it into a new file of SQLite. Raises CatalogueError."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A file of an image: its `name` in the data directory, its `size`, and what tells it from others of that name."""

    name: str
    size: int
    identity: str


@dataclass(frozen=True, slots=True)
class Image:
    """An image. `taken_ms`: the time of its position, since the Unix epoch; `size`: the bytes of all files together."""

    holder: str
    position: LogPosition
    taken_ms: int
    size: int
    files: dict[str, ImageFile]


class Images:
    """The images of one broker, whose messages are in the root of `files`."""

    def __init__(
        self,
        messages: MessageStoreService,
        files: FileSystem,
        metadata: Metadata,
        writer: CatalogueWriter,
        data_dir: Path,
        in_thread: InThread,
    ) -> None:
        self._messages = messages
        self._pins = Pins(files)
        self._metadata = metadata
        self._writer = writer
        self._data_dir = data_dir
        self._directory = data_dir / DIRECTORY
        self._in_thread = in_thread

    def clear(self) -> None:
        """Remove what an earlier process has left."""
        if self._directory.is_dir():
            shutil.rmtree(self._directory, ignore_errors=True)

    async def take(self, holder: str) -> Image:
        """Make an image for `holder`, a word of ours without an image yet; call `release` afterwards.

        Raises:
            ImageError: that is not possible; no image is held.
        """
        directory = self._directory / holder
        is_made = False
        try:
            await self._in_thread(IMAGES, partial(_remove_leftovers, directory))
            await self._in_thread(IMAGES, partial(self._link_stages, directory))
            if not self._writer.healthy:
                raise ImageError("the metadata store is unavailable")
            with trio.move_on_after(BEGIN_WITHIN_S) as patience:
                async with self._writer.standing_still():
                    position, pinned = await self._messages.pin(holder)
                    taken_ms = time.time_ns() // 1_000_000
                    patience.deadline = float("inf")
                    copy = partial(self._metadata.copy_to, directory / CATALOGUE_FILE, position.store_id)
                    await self._in_thread(CATALOGUE, copy)
            if patience.cancelled_caught:
                raise ImageError(f"the message store or the metadata store did not answer within {BEGIN_WITHIN_S:g} s")
            await self._in_thread(IMAGES, partial(_check_metadata, directory / CATALOGUE_FILE))
            await self._in_thread(IMAGES, partial(self._link_stages, directory))
            found = await self._in_thread(IMAGES, partial(self._described, holder, directory, pinned))
            is_made = True
            size = sum(file.size for file in found)
            return Image(holder, position, taken_ms, size, {file.name: file for file in found})
        except (PinError, CatalogueError) as error:
            raise ImageError(str(error)) from None
        except OSError as error:
            raise ImageError(f"an image cannot be made: {error.strerror or error}") from None
        finally:
            if not is_made:
                await self.release(holder)

    async def release(self, holder: str) -> None:
        """Remove the image of `holder`, even an incomplete one."""
        self._messages.unpin(holder)
        with trio.CancelScope(shield=True):
            await self._in_thread(IMAGES, partial(shutil.rmtree, self._directory / holder, ignore_errors=True))

    async def read(self, image: Image, file: ImageFile, offset: int, length: int) -> bytes:
        """Return at most `length` bytes of a file from `offset` on, fewer where it ends.

        Raises:
            ImageError: they cannot be read.
        """
        work = partial(self._read, image.holder, file.name, file.size, offset, length)
        try:
            return await self._in_thread(IMAGES, work, abandon=True)
        except (PinError, OSError) as error:
            raise ImageError(f"{file.name}: {error}") from None

    # --- in a thread ------------------------------------------------------------------------------------------------

    def _link_stages(self, directory: Path) -> None:
        """Link the parts of stages that are not linked yet, or were written again. Raises OSError."""
        # Imported only for backups: it brings msgspec.
        from warren.server.staging import stage_files

        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        stages = self._data_dir / stage_files.DIRECTORY
        for part in _files_below(stages):
            relative = part.relative_to(stages)
            link = directory / stage_files.DIRECTORY / relative
            is_part = len(relative.parts) == _PART_DEPTH and not part.name.endswith(stage_files.UNFINISHED)
            if is_part:
                link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _link_if_there(part, link)

    def _described(self, holder: str, directory: Path, pinned: list[PinnedFile]) -> list[ImageFile]:
        found = [self._described_pin(holder, file) for file in pinned]
        for path in _files_below(directory):
            found.append(ImageFile(path.relative_to(directory).as_posix(), path.stat().st_size, ""))
        return sorted(found, key=lambda file: file.name)

    def _described_pin(self, holder: str, file: PinnedFile) -> ImageFile:
        identity = identity_of(file.name, file.size, partial(self._pins.read, holder, file))
        return ImageFile(f"{MESSAGES}/{file.name}", file.size, identity)

    def _read(self, holder: str, name: str, size: int, offset: int, length: int) -> bytes:
        if name.startswith(f"{MESSAGES}/"):
            return self._pins.read(holder, PinnedFile(name.removeprefix(f"{MESSAGES}/"), size), offset, length)
        with (self._directory / holder / name).open("rb") as file:
            file.seek(offset)
            return file.read(max(0, min(length, size - offset)))


def _remove_leftovers(directory: Path) -> None:
    """Remove an image that could not be removed when it was released. Raises OSError."""
    with suppress(FileNotFoundError):
        shutil.rmtree(directory)


def _check_metadata(copy: Path) -> None:
    from warren.server.catalogue import sqlite_file  # imports SQLAlchemy, which a broker in memory does without

    sqlite_file.check(copy)


def _files_below(directory: Path) -> Iterator[Path]:
    """Yield the files below a directory; none if it is gone. Raises OSError, which `Path.glob` does not always."""
    try:
        with os.scandir(directory) as scan:
            entries = list(scan)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files_below(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            yield Path(entry.path)


def _link_if_there(path: Path, link: Path) -> None:
    try:
        if not link.exists():
            os.link(path, link, follow_symlinks=False)
        elif not link.samefile(path):
            later = link.with_name(f"{link.name}.later")
            os.link(path, later, follow_symlinks=False)
            later.replace(link)
    except FileNotFoundError:
        return  # it was committed, or removed, a moment ago
