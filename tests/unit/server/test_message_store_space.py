"""The message store without space: waiting and continuing work, and how often it looks at the disk.

The numbers in parentheses are the invariants in the header of ``warren/server/message_store.py``.
"""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing
from store_service import GIB, ServiceFixture, run

from warren.msgstore.log.columns import ColumnsWriter
from warren.msgstore.log.jobs import ReadJob, SealJob, UnlinkJob
from warren.server import disk_space, store_threads
from warren.server.settings import StoreSettings


def test_a_commit_without_space_is_repeated_while_everything_else_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """(3)"""
    monkeypatch.setattr(store_threads, "RETRY_S", 0.01)
    monkeypatch.setattr(disk_space, "RETRY_S", 0.01)

    async def test(f: ServiceFixture) -> None:
        f.files.refusals["commit"] = 1_000_000
        f.publish()
        await f.until(lambda: f.files.diary.count("commit refused") > 2)
        assert f.engine.alarms == [("disk", True)]
        assert f.service.trouble() == "the disk of the message store is full"
        assert f.engine.told == []
        f.log.read_jobs.append(ReadJob([(64, 8)]))
        f.settle()
        await f.until(lambda: f.engine.told == ["loaded 64: 8 bytes"])
        f.files.refusals["commit"] = 0
        await f.until_written()
        assert f.engine.told[1:] == ["stored 1"]
        assert f.engine.alarms == [("disk", True), ("disk", False)]
        assert f.service.trouble() == ""
        assert f.failures == 0

    with caplog.at_level(logging.INFO, logger="warren"):
        run(test)
    assert [record.getMessage() for record in caplog.records] == [
        "no space for the message store; publishers wait",
        "the message store has space again",
    ]


def test_a_checkpoint_without_space_is_repeated_and_holds_up_no_read() -> None:
    async def test(f: ServiceFixture) -> None:
        f.publish()
        await f.until_written()
        f.files.refusals["checkpoint"] = 3
        f.log.checkpoints.want()
        f.settle()
        await f.until(lambda: "checkpoint refused" in f.files.diary)
        f.log.read_jobs.append(ReadJob([(64, 8)]))
        f.settle()
        await f.until(lambda: "loaded 64: 8 bytes" in f.engine.told)
        await f.until(lambda: f.log.checkpoints.lsn > 0)
        assert f.engine.alarms == [("disk", True), ("disk", False)]
        assert f.files.diary.index("read 64") < f.files.diary.index("checkpoint")

    run(test, tasks=True)


def test_without_space_for_the_next_segment_publishers_wait_and_what_is_dead_goes() -> None:
    async def test(f: ServiceFixture) -> None:
        f.files.refusals["spare"] = 2
        while "spare refused" not in f.files.diary:
            f.publish()
            await f.until_written()
        await f.until(lambda: len(f.engine.alarms) == 2)
        assert f.engine.alarms == [("disk", True), ("disk", False)]
        assert "checkpoint" in f.files.diary
        assert f.files.diary.index("checkpoint") < f.files.diary.index("spare 65536")

    run(test, tasks=True)


def test_no_segment_is_made_ahead_while_a_commit_waits_for_space() -> None:
    async def test(f: ServiceFixture) -> None:
        f.files.refusals["spare"] = 1_000_000
        while "spare refused" not in f.files.diary:
            f.publish()
            await f.until_written()
        f.files.refusals["commit"] = 1_000_000
        f.publish()
        await f.until(lambda: "commit refused" in f.files.diary)
        await trio.sleep(2 * disk_space.RETRY_S)
        tried = f.files.diary.count("spare refused")
        await trio.sleep(10 * disk_space.RETRY_S)
        assert f.files.diary.count("spare refused") == tried
        f.files.refusals = {}
        await f.until(lambda: "spare 65536" in f.files.diary)
        assert f.files.diary[-1] == "spare 65536"
        assert f.engine.alarms == [("disk", True), ("disk", False)]

    run(test, tasks=True)


def test_a_read_that_met_a_shortage_is_not_overtaken() -> None:
    async def test(f: ServiceFixture) -> None:
        f.files.refusals["read"] = 2
        f.log.read_jobs.append(ReadJob([(64, 8)]))
        f.log.unlink_jobs.append(UnlinkJob([1]))
        f.settle()
        await f.until(lambda: "unlink [1]" in f.files.diary)
        assert f.files.diary == ["read refused", "read refused", "read 64", "release [1]", "unlink [1]"]
        await f.until(lambda: f.engine.alarms[-1:] == [("disk", False)])

    run(test)


def test_a_chunk_of_a_stream_without_space_is_written_later_and_holds_up_nothing() -> None:
    """Publishers wait meanwhile; the jobs that wait for the housekeeper after it make room."""

    async def test(f: ServiceFixture) -> None:
        f.files.refusals["seal"] = 3
        f.log.seal_jobs.append(SealJob(7, 0, 0, ColumnsWriter().finish(0, 10)))
        f.log.read_jobs.append(ReadJob([(64, 8)]))
        f.log.unlink_jobs.append(UnlinkJob([1]))
        f.settle()
        await f.until(lambda: "sealed 0" in f.engine.told and "unlink [1]" in f.files.diary)
        assert f.files.diary.count("seal refused") == 3
        assert f.files.diary.index("unlink [1]") < f.files.diary.index("seal 7 0")
        assert f.engine.alarms == [("disk", True), ("disk", False)]
        assert f.service.trouble() == ""

    run(test, tasks=True)


def test_publishers_wait_below_the_minimum_of_free_disk_and_go_on_well_above_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(f: ServiceFixture) -> None:
        await trio.sleep(2)
        assert f.engine.alarms == []
        f.files.free = GIB - 1
        await trio.sleep(2)
        assert f.engine.alarms == [("disk", True)]
        assert f.service.trouble() == ""
        f.files.free = GIB + GIB // 2 - 1
        await trio.sleep(5)
        f.files.free_error = OSError(5, "Input/output error")
        await trio.sleep(5)
        assert f.engine.alarms == [("disk", True)], "no flapping, and what is not known changes nothing"
        f.files.free_error = None
        f.files.free = GIB + GIB // 2
        await trio.sleep(2)
        assert f.engine.alarms == [("disk", True), ("disk", False)]

    run(test, StoreSettings(scrub_bytes_per_s=0, disk_free_min_bytes=GIB), tasks=True)
    assert [record.getMessage() for record in caplog.records] == [
        "free disk below the minimum",
        "the free disk space cannot be determined",
    ]


def test_the_nearer_the_minimum_the_more_often_the_disk_is_looked_at() -> None:
    async def test(f: ServiceFixture) -> None:
        f.files.free = GIB + 1
        await trio.sleep(1.5)
        f.files.free = GIB - 1
        await trio.sleep(0.1)
        assert f.engine.alarms == [("disk", True)]

    run(test, StoreSettings(scrub_bytes_per_s=0, disk_free_min_bytes=GIB), tasks=True)


def test_the_disk_is_looked_at_when_a_segment_has_taken_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_space, "DISK_CHECK_S", 1e9)

    async def test(f: ServiceFixture) -> None:
        f.files.free = 1 << 70
        f.publish()
        await f.until_written()
        f.files.free = GIB - 1
        while not f.engine.alarms:
            f.publish()
            await f.until_written()
            assert f.files.diary.count("spare 65536") <= 1, "a segment later"
        assert trio.current_time() < 1e6, "not by the clock"

    run(test, StoreSettings(scrub_bytes_per_s=0, disk_free_min_bytes=GIB), tasks=True)
