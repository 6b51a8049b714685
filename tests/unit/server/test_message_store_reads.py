"""Reads of the message store that fail: they are repeated, and nothing is concluded from them.

The numbers in parentheses are the invariants in the header of ``warren/server/message_store.py``.
"""

from __future__ import annotations

import pytest
import trio
from store_service import ServiceFixture, run

from warren.msgstore.files.store_errors import StoreUnreadableError
from warren.msgstore.log.doomed_pages import DOOMED_PER_JOB
from warren.msgstore.log.jobs import ReadJob
from warren.server.message_store import READ_PATIENCE_S, patiently
from warren.server.settings import StoreSettings
from warren.server.start_errors import StartError


def test_a_read_that_fails_leaves_the_line_and_comes_again_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    """(10)"""

    async def test(f: ServiceFixture) -> None:
        f.publish()
        await f.until_written()
        f.files.unreadable = True
        f.log.read_jobs.append(ReadJob([(64, 8)]))
        f.settle()
        await f.until(lambda: f.files.diary.count("read 64 failed") >= 5)
        assert f.service.trouble() == "the disk of the message store cannot be read"
        assert f.engine.told == ["stored 1"] and f.failures == 0
        f.files.unreadable = False
        f.log.read_jobs.append(ReadJob([(128, 8)]))
        f.settle()
        await f.until(lambda: len(f.engine.told) == 3)
        assert sorted(f.engine.told) == ["loaded 128: 8 bytes", "loaded 64: 8 bytes", "stored 1"]
        assert f.service.trouble() == ""

    run(test, tasks=True)
    assert caplog.messages == ["a file of the message store cannot be read now; the read is repeated until it succeeds"]


def test_a_stop_does_not_wait_for_reads_that_fail(caplog: pytest.LogCaptureFixture) -> None:
    """(10)"""

    async def test(f: ServiceFixture) -> None:
        f.publish()
        await f.until_written()
        f.files.unreadable = True
        f.log.read_jobs.append(ReadJob([(64, 8)]))
        f.settle()
        await f.until(lambda: "read 64 failed" in f.files.diary)
        assert await f.service.stop(trio.current_time() + 60)
        assert "checkpoint clean" in f.files.diary

    run(test, tasks=True)
    assert "the broker stops while reads of the message store fail; unread messages are kept" in caplog.messages


def test_a_start_waits_for_reads_that_fail_and_is_refused_at_last() -> None:
    pauses: list[float] = []
    answers = ["no"] * 3

    def read() -> str:
        if answers:
            answers.pop()
            raise StoreUnreadableError("checkpoint", "Input/output error")
        return "here"

    assert patiently(read, pauses.append) == "here"
    assert pauses == [0.05, 0.1, 0.2]
    answers += ["no"] * 1000
    with pytest.raises(StartError, match="checkpoint cannot be read: Input/output error; nothing was changed"):
        patiently(read, pauses.append)
    assert sum(pauses[3:]) >= READ_PATIENCE_S


class BadPlace:
    """A place of the log that the disk does not give: the first one that is read from now on."""

    def __init__(self, f: ServiceFixture) -> None:
        self.lsn = -1
        self._read = f.files.read
        f.files.read = self.read  # type: ignore[method-assign]
        f.engine.loaded = lambda job: job.finished()  # type: ignore[method-assign]

    def read(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        if self.lsn < 0:
            self.lsn = ranges[0][0]
        if self.lsn == ranges[0][0]:
            raise StoreUnreadableError("log/0000000001", "Input/output error", 1, self.lsn)
        return self._read(ranges)

    def heal(self) -> None:
        self.lsn = 1 << 60


def test_a_segment_that_cannot_be_read_does_not_hold_up_the_compaction_of_others() -> None:
    """(10), compaction.py (6)"""

    async def test(f: ServiceFixture) -> None:
        f.log.segment_bytes = 2048
        for _ in range(60):
            f.publish()
            await f.until_written()
        for number in range(60):
            if number % 8:
                f.log.batch.settle_range(f.index, number, number + 1)
        place = BadPlace(f)
        f.log.checkpoints.want()
        f.settle()
        await f.until(lambda: place.lsn >= 0)
        await trio.sleep(60)
        assert f.service.upkeep.compacted_segments() == 2
        assert len(f.service.unread()) == 1, "nothing is concluded from it"
        place.heal()
        await f.until(lambda: not f.service.unread())

    run(test, tasks=True)


def test_doomed_pages_that_cannot_be_read_do_not_hold_up_others_or_a_start() -> None:
    """(10), doomed_pages.py (4)"""

    async def test(f: ServiceFixture) -> None:
        for _ in range(DOOMED_PER_JOB + 6):
            f.publish()
        await f.until_written()
        place = BadPlace(f)
        f.log.doomed.restore([(64, 8, False)] * DOOMED_PER_JOB + [(72, 8, False)] * 6)
        f.service.read_at_once()
        f.settle()
        await f.until(lambda: not f.log.doomed.pages)
        assert f.log.segments.segments[0].live_refs == DOOMED_PER_JOB
        assert len(f.log.doomed.left) == DOOMED_PER_JOB
        place.heal()
        await f.until(lambda: not f.log.doomed.left)
        assert f.log.segments.segments[0].live_refs == 0

    run(test, tasks=True)


def test_a_place_that_cannot_be_read_does_not_end_scrubbing(caplog: pytest.LogCaptureFixture) -> None:
    """(10), scrub.py (4)"""

    async def test(f: ServiceFixture) -> None:
        f.log.segment_bytes = 2048
        place = BadPlace(f)
        for _ in range(60):
            f.publish()
            await f.until_written()
        await f.until(lambda: place.lsn >= 0)
        await trio.sleep(20)
        assert {"read 2112", "read 4160"} <= set(f.files.diary), "the other segments"

    run(test, StoreSettings(scrub_bytes_per_s=1 << 20), tasks=True)
    assert "scrubbing has left out a place that cannot be read" in caplog.messages
