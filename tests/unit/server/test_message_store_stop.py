"""How the message store ends: after a failure, and when it is told to.

The numbers in parentheses are the invariants in the header of ``warren/server/message_store.py``.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest
import trio
import trio.testing
from store_service import ServiceFixture, run
from unit.server.test_message_store import ClosedGate

from warren.msgstore.log.columns import ColumnsWriter
from warren.msgstore.log.jobs import ReadJob, SealJob
from warren.server import disk_space, store_threads
from warren.server.message_store import STALL_S


@pytest.mark.parametrize("kind", ["commit", "read", "checkpoint", "seal"])
def test_after_a_failure_nothing_is_stored_and_the_process_is_to_stop(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """(4)"""

    async def test(f: ServiceFixture) -> None:
        f.publish()
        await f.until_written()
        f.files.broken = kind
        f.log.checkpoints.want()
        f.log.read_jobs.append(ReadJob([(64, 8)]))
        f.log.seal_jobs.append(SealJob(7, 0, 0, ColumnsWriter().finish(0, 10)))
        f.publish()
        await f.until(lambda: f.failures == 1)
        told = list(f.engine.told)
        f.publish()
        await trio.sleep(0.1)
        assert f.engine.told == told
        assert f.failures == 1
        assert f.service.trouble() == "the message store has failed"
        assert f.service.failed == f"{kind}: Input/output error"
        if kind == "commit":
            assert told[0] == "stored 1" and "stored 2" not in told

    fixture = run(test)
    assert [record.getMessage() for record in caplog.records] == ["the message store has failed; the broker stops"]
    assert not fixture.abandoned.is_set()


def test_a_process_that_does_not_stop_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """(4): something hangs on the disk that failed."""
    monkeypatch.setattr(store_threads, "GRACE_S", 0.01)

    async def test(f: ServiceFixture) -> None:
        f.files.broken = "commit"
        f.publish()
        await trio.to_thread.run_sync(f.abandoned.wait)

    run(test)


def test_a_fault_of_the_engine_at_what_was_stored_is_a_failure_of_the_store() -> None:
    """The engine's state is no longer trusted; a running reactor would hide that nothing is confirmed."""

    async def test(f: ServiceFixture) -> None:
        with patch.object(f.engine, "stored", side_effect=AssertionError("not in flight")):
            f.publish()
            await f.until(lambda: f.failures > 0)
        assert f.service.failed == "internal error: AssertionError('not in flight')"

    assert run(test).failures == 1


def test_a_timer_that_fails_is_started_again() -> None:
    async def test(f: ServiceFixture) -> None:
        with patch.object(f.service.upkeep, "_settle", side_effect=MemoryError()) as settle:
            f.publish(force=False)
            await f.until(lambda: settle.call_count > 0)
        f.publish(force=False)
        await f.until_written()

    fixture = run(test, tasks=True)
    assert fixture.failures == 0
    assert fixture.engine.told


def test_our_own_fault_in_a_thread_is_a_failure_with_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def test(f: ServiceFixture) -> None:
        f.files.defect = "commit"
        f.publish()
        await f.until(lambda: f.failures == 1)
        assert "our own fault" in f.service.failed

    run(test)
    [record] = caplog.records
    assert record.exc_info is not None


def test_deleted_waits_until_everything_is_durable() -> None:
    async def test(f: ServiceFixture) -> None:
        await f.service.deleted()
        assert f.files.diary == []
        f.publish(force=False)
        await f.service.deleted()
        assert f.files.diary == ["commit 1 sync"]
        assert f.log.durable_lsn == f.log.next_lsn
        f.files.commit_gate.clear()
        f.publish(force=False)
        f.log.close_if_due(lingered=True)
        f.settle()
        with trio.move_on_after(0.1):
            await f.service.deleted()
            raise AssertionError("it is not written")
        f.files.commit_gate.set()
        await f.service.deleted()
        assert f.files.diary == ["commit 1 sync", "commit 2", "commit 3 sync"]

    run(test)


def test_restored_waits_until_everything_is_read_that_the_engine_asks_for() -> None:
    async def test(f: ServiceFixture) -> None:
        wanted = [1, 2, 3]

        def under_way() -> bool:
            """Ask for the next when the one before has come, as a scan does."""
            if wanted and len(f.engine.told) == 3 - len(wanted):
                f.log.read_jobs.append(ReadJob([(wanted.pop(0), 8)]))
            return len(f.engine.told) < 3

        await f.service.restored(under_way)
        assert f.engine.told == [f"loaded {lsn}: 8 bytes" for lsn in (1, 2, 3)]
        await f.service.restored(lambda: False)

    run(test)


def test_a_clean_stop_ends_with_a_clean_checkpoint_and_closed_files() -> None:
    async def test(f: ServiceFixture) -> None:
        f.publish()
        f.log.checkpoints.want()
        f.publish(force=False)
        assert await f.service.stop(trio.current_time() + 60)
        assert f.files.diary[-2:] == ["checkpoint clean", "close"]
        assert f.files.diary.count("checkpoint clean") == 1
        assert f.log.durable_lsn == f.log.next_lsn == f.log.checkpoints.lsn
        assert f.service.join(0), "its threads are over"

    run(test, tasks=True)


def test_a_stop_with_nothing_to_write_ends_with_a_clean_checkpoint_too() -> None:
    async def test(f: ServiceFixture) -> None:
        f.publish()
        f.log.checkpoints.want()
        await f.until(lambda: f.log.checkpoints.lsn > 0 and f.log.is_idle())
        assert await f.service.stop(trio.current_time() + 60)
        assert f.files.diary[-2:] == ["checkpoint clean", "close"]

    run(test, tasks=True)


def test_a_stop_gives_up_at_its_deadline() -> None:
    async def test(f: ServiceFixture) -> None:
        f.files.commit_gate.clear()
        f.publish()
        assert not await f.service.stop(trio.current_time() + 1)
        assert "close" not in f.files.diary

    run(test, tasks=True)


def test_a_stop_without_space_gives_up_too_and_the_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_threads, "RETRY_S", 0.01)
    monkeypatch.setattr(disk_space, "RETRY_S", 0.01)

    async def test(f: ServiceFixture) -> None:
        f.files.refusals["commit"] = 1_000_000
        f.publish()
        assert not await f.service.stop(trio.current_time() + 1)
        f.service.end()
        await f.until(lambda: f.service.join(0))
        assert f.failures == 0

    run(test, tasks=True)


def test_a_store_that_has_failed_is_not_stopped_cleanly() -> None:
    async def test(f: ServiceFixture) -> None:
        f.files.broken = "commit"
        f.publish()
        await f.until(lambda: f.failures == 1)
        assert not await f.service.stop(trio.current_time() + 1000)

    run(test)


def test_threads_that_are_left_behind_wake_nobody() -> None:
    fixture: list[ServiceFixture] = []

    async def test(f: ServiceFixture) -> None:
        fixture.append(f)
        f.files.commit_gate.clear()
        f.publish()
        await trio.to_thread.run_sync(f.files.committing.wait)
        f.service.end()
        f.files.commit_gate.set()
        await f.until(lambda: f.service.join(0))
        await trio.sleep(0.05)
        assert f.wakes == set()
        assert f.engine.told == []

    run(test)


def test_a_stop_does_not_wait_for_commits_that_other_nodes_have_to_have_and_that_are_gone() -> None:
    gate = ClosedGate()

    async def test(f: ServiceFixture) -> None:
        f.publish()
        await f.until(lambda: gate.asked != [])
        began_s = trio.current_time()
        assert not await f.service.stop(began_s + 1000.0)
        assert trio.current_time() < began_s + 1000.0
        assert f.engine.told == []

    run(test, gate=gate)


def test_a_stop_waits_for_other_nodes_that_come_back_meanwhile() -> None:
    gate = ClosedGate()

    async def test(f: ServiceFixture) -> None:
        f.publish()
        await f.until(lambda: gate.asked != [])
        async with trio.open_nursery() as nursery:

            async def open_it() -> None:
                await trio.sleep(STALL_S / 2)
                gate.open = True
                f.service.gate_moved()

            nursery.start_soon(open_it)
            assert await f.service.stop(trio.current_time() + 1000.0)
        assert "stored 1" in f.engine.told

    run(test, gate=gate)
