"""Backups: everything durable of the broker, read by an administrator a piece at a time, for `warren ctl backup`.

    POST -> id -> files -> data of each, in pieces -> DELETE

1. It is for administrators only: hashes of passwords and messages of all vhosts are in it.
2. Beginning one is answered when it can be read, or after `WAIT_S` with how far it is.
3. Each piece comes with its CRC-32, computed where it was read.

The lifetime of one, and its cost, are in ``server.copies.backups``; its content is in ``server.copies.images``.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec
import trio

from warren import __version__
from warren.mgmt_plugin.http.json_pieces import Rows
from warren.mgmt_plugin.http.numbers import integer
from warren.mgmt_plugin.http.server import HttpError, Response
from warren.mgmt_plugin.listing import Described
from warren.mgmt_plugin.routes import Access, Call, Handlers, Route, bad_request
from warren.server.copies.backups import MAKING, PIECE_MAX_BYTES, READY, Backup, Backups, Busy, DiskLow, Gone, Refused
from warren.server.copies.images import ImageError, ImageFile

WAIT_S: Final = 20.0
CRC_HEADER: Final = "X-Warren-CRC32"
_RETRY_AFTER: Final = (("Retry-After", "10"),)


def _describe(backup: Backup) -> Described:
    image = backup.image
    if image is None:
        return {
            "backup": backup.id, "user": backup.user, "state": backup.state, "reason": backup.reason or None,
        }  # fmt: skip
    position = image.position
    return {
        "backup": backup.id,
        "user": backup.user,
        "state": backup.state,
        "reason": backup.reason or None,
        "warren": __version__,
        "taken_at": image.taken_ms,
        "store_id": position.store_id.hex(),
        "lsn": position.lsn,
        "crc": position.crc,
        "segment": position.segment,
        "epoch": position.epoch,
        "files": len(image.files),
        "bytes": image.size,
    }


def _describe_file(file: ImageFile) -> Described:
    return {"name": file.name, "bytes": file.size, "identity": file.identity}


def _refused(error: Refused) -> HttpError:
    if isinstance(error, DiskLow):
        return HttpError(507, "disk_low", str(error))
    assert isinstance(error, Busy)
    return HttpError(409, "busy", str(error), _RETRY_AFTER)


_P: Final = "/api/warren/backups"
_B: Final = f"{_P}/{{backup}}"
_ADMIN: Final = Access.ADMINISTRATOR


class BackupHandlers(Handlers):
    """Handlers of backups. `nursery` has the task that holds one."""

    def __init__(self, backups: Backups, nursery: trio.Nursery) -> None:
        self._backups = backups
        self._nursery = nursery

    async def begin_backup(self, call: Call) -> Response:
        try:
            backup = self._backups.begin(call.operator.name, self._nursery)
        except Refused as error:
            raise _refused(error) from None
        with trio.move_on_after(WAIT_S):
            await backup.over.wait()
        if backup.reason:
            self._backups.end(backup)
            raise HttpError(503, "no_backup", backup.reason)
        return Response(202 if backup.state == MAKING else 201, msgspec.json.encode(_describe(backup)))

    async def list_backups(self, call: Call) -> list[Described]:
        current = self._backups.current()
        return [] if current is None else [_describe(current)]

    async def show_backup(self, call: Call) -> Described:
        return _describe(self._the_backup(call))

    async def list_files(self, call: Call) -> Rows:
        image = self._the_ready_backup(call).image
        assert image is not None
        return Rows(list(image.files.values()), _describe_file)

    async def read_file(self, call: Call) -> Response:
        backup = self._the_ready_backup(call)
        assert backup.image is not None
        file = backup.image.files.get(call.query.get("name", ""))
        if file is None:
            raise HttpError(404, "no_file", "the backup does not have that file")
        try:
            offset, length = integer(call.query.get("offset", "0")), integer(call.query.get("length", ""))
        except ValueError:
            offset, length = -1, 0
        if not (offset >= 0 and 0 < length <= PIECE_MAX_BYTES):
            raise bad_request(f"offset must be a number from 0, length one from 1 to {PIECE_MAX_BYTES}")
        call.request.hold(max(0, min(length, file.size - offset)))
        try:
            data, crc = await self._backups.read(backup, file, offset, length)
        except Gone:
            raise _gone() from None
        except ImageError as error:
            raise HttpError(500, "unreadable", str(error)) from None
        headers = ((CRC_HEADER, f"{crc:08x}"),)
        return Response(200, content_type="application/octet-stream", headers=headers, blocks=(data,))

    async def end_backup(self, call: Call) -> None:
        self._backups.end(self._the_backup(call))

    def _the_backup(self, call: Call) -> Backup:
        found = self._backups.maybe_find(call.params["backup"])
        if found is None:
            raise _gone()
        return found

    def _the_ready_backup(self, call: Call) -> Backup:
        found = self._the_backup(call)
        if found.state != READY:
            raise HttpError(409, "not_ready", found.reason or "the backup is being made")
        return found

    ROUTES: ClassVar = (
        Route("POST", _P, _ADMIN, begin_backup, "Begin a backup: freeze everything durable for copying"),
        Route("GET", _P, _ADMIN, list_backups, "The backup in progress"),
        Route("GET", _B, _ADMIN, show_backup, "A backup: its place in the log and its size"),
        Route("GET", f"{_B}/files", _ADMIN, list_files, "The files of a backup"),
        Route(
            "GET",
            f"{_B}/data",
            _ADMIN,
            read_file,
            "A piece of a file of a backup, with its CRC-32",
            query=("name", "offset", "length"),
        ),
        Route("DELETE", _B, _ADMIN, end_backup, "End a backup: release what it froze"),
    )


def _gone() -> HttpError:
    return HttpError(
        404, "no_backup", "this backup has ended: it was not read for a while, the disk is low, or it was stopped"
    )
