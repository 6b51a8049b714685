"""Reads of the message store that fail: they are repeated, and nothing is concluded from them.

The numbers in parentheses are the invariants in the header of ``warren/server/message_store.py``.
"""

from __future__ import annotations

import pytest
import trio
from store_service import ServiceFixture, run

from warren.msgstore.files.store_errors import StoreUnreadableError
from warren.msgstore.log.jobs import ReadJob
from warren.server.message_store import READ_PATIENCE_S, patiently
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
    assert "the broker stops while reads of the message store fail; what they are for is kept" in caplog.messages


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
