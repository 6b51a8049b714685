"""Pins: files of the message store that stay while somebody copies them.

The numbers in parentheses are the invariants in the header of ``warren/server/message_store.py``.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing
from store_service import ServiceFixture, run

from warren.msgstore.files.pins import PinError, PinnedFile
from warren.msgstore.log.jobs import DropJob, ReadJob


def test_a_pin_is_at_what_is_durable_and_behind_the_jobs_of_before() -> None:
    """(7)"""

    async def test(f: ServiceFixture) -> None:
        f.publish(force=False)
        position, files = await f.service.pin("copy")
        assert (position.lsn, position.crc) == (f.log.durable_lsn, f.log.last_crc)
        assert position.base_lsn < position.lsn == f.log.next_lsn
        assert (position.segment, position.epoch, position.store_id) == (1, f.log.epoch, f.log.store_id)
        assert files == [PinnedFile("checkpoint", 1)]
        assert f.files.diary == ["commit 1 sync", f"pin copy {position.lsn}"]
        f.service.unpin("copy")
        await f.until(lambda: f.files.diary[-1] == "unpin copy")

    run(test)


def test_nothing_is_dropped_of_a_stream_from_when_a_pin_is_asked_for_until_it_is_made() -> None:
    """(7)"""

    async def test(f: ServiceFixture) -> None:
        f.publish()
        await f.until_written()
        f.files.commit_gate.clear()
        f.files.pin_gate.clear()
        f.publish()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(f.service.pin, "copy")
            await trio.testing.wait_all_tasks_blocked()
            f.log.read_jobs.append(DropJob(7, [0]))
            f.log.read_jobs.append(ReadJob([(64, 8)]))
            f.settle()
            await f.until(lambda: "read 64" in f.files.diary)
            f.files.commit_gate.set()
            await f.until(lambda: f.files.held() == 1)
            f.log.read_jobs.append(DropJob(7, [16384]))
            f.log.read_jobs.append(ReadJob([(128, 8)]))
            f.settle()
            await f.until(lambda: "read 128" in f.files.diary)
            assert "drop" not in " ".join(f.files.diary)
            f.files.pin_gate.set()
        await f.until(lambda: "drop 7 [16384]" in f.files.diary)
        pinned = next(at for at, entry in enumerate(f.files.diary) if entry.startswith("pin"))
        assert not f.service.failed
        assert pinned < f.files.diary.index("drop 7 [0]") < f.files.diary.index("drop 7 [16384]")

    run(test)


def test_a_pin_that_nobody_waits_for_any_more_is_let_go_of() -> None:
    async def test(f: ServiceFixture) -> None:
        f.publish()
        await f.until_written()
        f.files.pin_gate.clear()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(f.service.pin, "late")
                await f.until(lambda: f.files.held() == 1)
                scope.cancel()
        f.log.read_jobs.append(DropJob(7, [0]))
        f.settle()
        f.files.pin_gate.set()
        await f.until(lambda: "drop 7 [0]" in f.files.diary and "unpin late" in f.files.diary)
        f.files.commit_gate.clear()
        f.publish()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(f.service.pin, "never")
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        f.files.commit_gate.set()
        f.log.read_jobs.append(DropJob(8, [0]))
        f.settle()
        await f.until(lambda: "drop 8 [0]" in f.files.diary)
        assert not any(entry.startswith("pin never") for entry in f.files.diary)

    run(test)


def test_a_pin_that_cannot_be_made_says_why_and_the_store_goes_on() -> None:
    async def test(f: ServiceFixture) -> None:
        f.publish()
        f.files.unpinnable = "no hard links here"
        with pytest.raises(PinError, match="no hard links here"):
            await f.service.pin("copy")
        f.publish()
        await f.until_written()
        assert not f.service.failed

    run(test)
