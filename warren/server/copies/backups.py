"""Serve backups over HTTP: an image is held for one client as long as the client sends requests now and then.

    begin  ->  making  ->  ready: read, piece by piece  ->  end
                      \\->  failed

1. Only one backup exists at a time: each holds space that the broker has released. A failed one holds none. It is known
   until the next one begins, so that its client learns of the reason.
2. A client that is silent for `LEASE_S` loses its backup. So a killed client does not hold space for longer.
3. While the disk is short (`store.disk_free_min_bytes`) no backup begins, and one under way is cancelled: publishers
   would wait for its end.
4. Memory holds the list of the backup's files, and a piece of at most `PIECE_MAX_BYTES` for each request.
"""

from __future__ import annotations

import secrets
import zlib
from dataclasses import dataclass, field
from typing import Final

import trio

from warren.server.copies.images import Image, ImageError, ImageFile
from warren.server.logs import get_logger
from warren.server.management import Management

HOLDER: Final = "backup"
LEASE_S: Final = 60.0
CHECK_S: Final = 1.0
PIECE_MAX_BYTES: Final = 4 << 20

MAKING: Final = "making"
READY: Final = "ready"
FAILED: Final = "failed"

log = get_logger("backups")


class Refused(Exception):
    """A backup is not begun; the text says why."""


class Busy(Refused):
    """Another backup exists already."""


class DiskLow(Refused):
    """There is no space for a backup."""


class Gone(Exception):
    """The backup is over."""


@dataclass(slots=True)
class Backup:
    """One backup, of the user who began it."""

    id: str
    user: str
    state: str = MAKING
    reason: str = ""  # why it has failed
    image: Image | None = None
    touched_s: float = 0.0  # on trio's clock
    over: trio.Event = field(default_factory=trio.Event)  # it is ready, or has failed
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Backups:
    """The backups of one broker."""

    def __init__(self, management: Management) -> None:
        self._management = management
        self._current: Backup | None = None

    def current(self) -> Backup | None:
        """Return the current backup."""
        return self._current

    def maybe_find(self, identifier: str) -> Backup | None:
        """Return a backup that is not over, and renew its lease."""
        found = self._current
        if found is None or not secrets.compare_digest(found.id.encode(), identifier.encode()):
            return None
        found.touched_s = trio.current_time()
        return found

    def begin(self, user: str, nursery: trio.Nursery) -> Backup:
        """Begin a backup; `Backup.over` tells when it is ready, or has failed.

        Raises:
            Refused: `Busy`, `DiskLow`.
        """
        if self._current is not None and self._current.state != FAILED:
            raise Busy(f"user '{self._current.user}' is making a backup; one that is no longer read ends by itself")
        if self._management.view.has_alarm("disk"):
            raise DiskLow("the disk is low on space")
        backup = Backup(secrets.token_hex(8), user, touched_s=trio.current_time())
        self._current = backup
        nursery.start_soon(self._management.tasks.once, "backup", self._hold, backup)
        return backup

    def end(self, backup: Backup) -> None:
        """Release the image of a backup."""
        backup.scope.cancel()

    async def read(self, backup: Backup, file: ImageFile, offset: int, length: int) -> tuple[bytes, int]:
        """Return at most `length` bytes of a file from `offset` on, and their CRC-32.

        Raises:
            Gone: it is over. ImageError: they cannot be read.
        """
        image = backup.image
        if image is None or backup.state != READY:
            raise Gone
        data = await self._management.images.read(image, file, offset, min(length, PIECE_MAX_BYTES))
        return data, zlib.crc32(data)

    async def _hold(self, backup: Backup) -> None:
        """Make the image, and hold it until the backup ends."""
        images = self._management.images
        try:
            with backup.scope:
                try:
                    backup.image = await images.take(HOLDER)
                    backup.state = READY
                except ImageError as error:
                    log.warning("a backup cannot be made", user=backup.user, reason=str(error))
                    backup.reason = str(error)
                finally:
                    if backup.state == MAKING:
                        backup.state = FAILED
                        backup.reason = backup.reason or "it could not be made: see the broker's log"
                    backup.over.set()
                await self._until_over(backup)
        finally:
            if backup.image is not None:  # without one, the next backup may have begun
                await images.release(HOLDER)
            if self._current is backup:
                self._current = None

    async def _until_over(self, backup: Backup) -> None:
        if backup.image is not None:
            log.info("a backup has begun", user=backup.user, lsn=backup.image.position.lsn, bytes=backup.image.size)
        while True:
            await trio.sleep(CHECK_S)
            if trio.current_time() - backup.touched_s >= LEASE_S:
                log.warning("a backup is over: nobody has read it for a while", user=backup.user)
                return
            if self._management.view.has_alarm("disk"):
                log.warning("a backup is given up: the disk is low on space", user=backup.user)
                return
