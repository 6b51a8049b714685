"""Backups that clients hold, on a clock that jumps; the numbers are those in ``server/copies/backups.py``."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing

from warren.msgstore.log.log_position import LogPosition
from warren.server.copies.backups import FAILED, LEASE_S, PIECE_MAX_BYTES, READY, Backup, Backups, Busy, DiskLow, Gone
from warren.server.copies.images import Image, ImageError, ImageFile
from warren.server.management import Management
from warren.server.supervision import Supervision

FILE = ImageFile("catalogue.db", 1 << 30, "")


class FakeImages:
    """Makes images when `gate` is open. `error`: the reason to fail; `held`: the holders of images."""

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.error = ""
        self.held: set[str] = set()

    async def take(self, holder: str) -> Image:
        await self.gate.wait()
        if self.error:
            raise ImageError(self.error)
        self.held.add(holder)
        return Image(holder, LogPosition(9, 9, 1, 0, 1, bytes(16)), 5, FILE.size, {FILE.name: FILE})

    async def read(self, image: Image, file: ImageFile, offset: int, length: int) -> bytes:
        return bytes(min(length, file.size - offset))

    async def release(self, holder: str) -> None:
        self.held.discard(holder)


class Fixture:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.images = FakeImages()
        self.images.gate.set()
        self.alarms: set[str] = set()
        view = SimpleNamespace(has_alarm=lambda resource: resource in self.alarms)
        management = SimpleNamespace(view=view, images=self.images, tasks=Supervision())
        self.backups = Backups(cast(Management, management))

    async def begin(self, user: str = "guest") -> Backup:
        backup = self.backups.begin(user, self.nursery)
        await backup.over.wait()
        return backup


def run(test: Callable[[Fixture], Awaitable[None]]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await test(Fixture(nursery))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_there_is_one_at_a_time() -> None:
    """(1)"""

    async def test(f: Fixture) -> None:
        first = await f.begin("anna")
        with pytest.raises(Busy, match="user 'anna' is making a backup"):
            f.backups.begin("bob", f.nursery)
        f.backups.end(first)
        await trio.testing.wait_all_tasks_blocked()
        assert not f.images.held
        assert (await f.begin("bob")).state == READY

    run(test)


def test_who_is_silent_loses_it_and_who_asks_keeps_it() -> None:
    """(2)"""

    async def test(f: Fixture) -> None:
        backup = await f.begin()
        for _ in range(10):
            await trio.sleep(LEASE_S - 2)
            assert f.backups.maybe_find(backup.id) is backup
        assert f.images.held == {"backup"}
        await trio.sleep(LEASE_S + 2)
        assert f.backups.maybe_find(backup.id) is None
        assert f.backups.current() is None
        assert not f.images.held

    run(test)


def test_a_wrong_id_finds_nothing_and_keeps_nothing() -> None:
    async def test(f: Fixture) -> None:
        backup = await f.begin()
        await trio.sleep(LEASE_S / 2)
        assert f.backups.maybe_find("other") is None
        await trio.sleep(LEASE_S / 2 + 2)
        assert f.backups.maybe_find(backup.id) is None

    run(test)


def test_none_is_begun_or_goes_on_while_the_disk_is_short() -> None:
    """(3)"""

    async def test(f: Fixture) -> None:
        backup = await f.begin()
        f.alarms.add("memory")
        await trio.sleep(5)
        assert f.backups.maybe_find(backup.id) is backup
        f.alarms.add("disk")
        await trio.sleep(5)
        assert f.backups.maybe_find(backup.id) is None
        assert not f.images.held
        with pytest.raises(DiskLow):
            f.backups.begin("guest", f.nursery)

    run(test)


def test_an_image_that_cannot_be_made_is_told_and_holds_nothing() -> None:
    async def test(f: Fixture) -> None:
        f.images.error = "no hard links"
        backup = await f.begin()
        assert (backup.state, backup.reason) == (FAILED, "no hard links")
        with pytest.raises(Gone):
            await f.backups.read(backup, FILE, 0, 1)
        f.backups.end(backup)
        await trio.testing.wait_all_tasks_blocked()
        assert f.backups.current() is None

    run(test)


def test_a_failed_backup_does_not_keep_the_next_one_out() -> None:
    """(1): its client may be gone, and end nothing."""

    async def test(f: Fixture) -> None:
        f.images.error = "the metadata store does not answer"
        failed = await f.begin("anna")
        assert f.backups.maybe_find(failed.id) is failed
        f.images.error = ""
        backup = await f.begin("bob")
        assert backup.state == READY
        f.backups.end(failed)
        for _ in range(4):
            assert f.backups.maybe_find(backup.id) is backup
            assert f.images.held == {"backup"}
            await trio.sleep(LEASE_S / 2)

    run(test)


def test_one_that_is_ended_while_it_is_being_made_is_over() -> None:
    async def test(f: Fixture) -> None:
        f.images.gate = trio.Event()
        backup = f.backups.begin("guest", f.nursery)
        await trio.testing.wait_all_tasks_blocked()
        f.backups.end(backup)
        await backup.over.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert f.backups.current() is None

    run(test)


def test_a_piece_comes_with_its_checksum_and_has_a_bound() -> None:
    """(4)"""

    async def test(f: Fixture) -> None:
        backup = await f.begin()
        data, crc = await f.backups.read(backup, FILE, 0, 1 << 30)
        assert len(data) == PIECE_MAX_BYTES
        assert crc == zlib.crc32(data)

    run(test)


def test_a_backup_that_fails_by_a_defect_has_a_reason() -> None:
    """Without one it would be taken for a backup that is ready."""

    async def test(f: Fixture) -> None:
        async def take(holder: str) -> Image:
            raise RuntimeError("a defect")

        f.images.take = take  # type: ignore[method-assign]
        backup = await f.begin()
        assert (backup.state, backup.reason) == (FAILED, "it could not be made: see the broker's log")

    run(test)
