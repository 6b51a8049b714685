"""The threads of the message store with files that do what the test says; the log is the real one.

The numbers in parentheses are the invariants in the header of ``warren/server/message_store.py``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest
import trio
import trio.testing
from jumping_clock import run_jumping

from warren.msgstore.files.errors import StoreFailedError, StoreFullError
from warren.msgstore.files.pins import PinError, PinnedFile
from warren.msgstore.files.store import ReadProblem
from warren.msgstore.log.checkpoint import CLEAN, snapshot
from warren.msgstore.log.checksum import checksum_function, default_algorithm
from warren.msgstore.log.columns import ColumnsWriter
from warren.msgstore.log.jobs import CommitJob, DropJob, Errand, ReadJob, SealedRead, SealJob, UnlinkJob
from warren.msgstore.log.log_position import LogPosition
from warren.msgstore.log.message import Envelope, Message
from warren.msgstore.log.message_log import LINGER_S, Damage, MessageLog
from warren.server import message_store
from warren.server.message_store import IDLE_CHECKPOINT_EVERY_S, Gate, MessageStoreService
from warren.server.settings import StoreSettings

# A content header frame of an empty body: type, channel, size, class, weight, body size, flags, end.
CONTENT = b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00" + bytes(8) + b"\x00\x00\xce"
GIB = 1 << 30


class FakeFiles:
    """Keeps a diary. `refusals`: how often each kind of call finds no space; `broken`: what fails."""

    def __init__(self) -> None:
        self.diary: list[str] = []
        self.refusals: dict[str, int] = {}
        self.broken = ""
        self.defect = ""
        self.commit_gate = threading.Event()
        self.commit_gate.set()
        self.committing = threading.Event()
        self.read_gate = threading.Event()
        self.read_gate.set()
        self.pin_gate = threading.Event()
        self.pin_gate.set()
        self.unpinnable = ""
        self.before_gates: list[threading.Event] = []
        self.free = 100 * GIB
        self.free_error: OSError | None = None
        self.problems: list[ReadProblem] = []
        self.checkpoints: list[bytes] = []
        self.times: list[int] = []

    def _pass(self, gate: threading.Event) -> None:
        self.before_gates.append(gate)
        gate.wait()
        self.before_gates.remove(gate)

    def held(self) -> int:
        """Return how many threads wait until the test lets them go on."""
        return sum(not gate.is_set() for gate in self.before_gates)

    def _do(self, kind: str, what: str) -> None:
        if self.refusals.get(kind, 0):
            self.refusals[kind] -= 1
            self.diary.append(f"{kind} refused")
            raise StoreFullError(f"{kind}: No space left on device")
        if self.broken == kind:
            raise StoreFailedError(f"{kind}: Input/output error")
        assert self.defect != kind, "our own fault"
        self.diary.append(f"{kind} {what}".rstrip())

    def commit(self, job: CommitJob, time_ms: int) -> None:
        self.committing.set()
        self._pass(self.commit_gate)
        self.times.append(time_ms)
        self._do("commit", f"{job.batch}{' sync' if job.sync else ''}")
        job.crc = int(job.batch)
        if job.sync:
            job.committed_lsn = job.end_lsn()

    def read(self, ranges: list[tuple[int, int]]) -> list[bytes]:
        self._pass(self.read_gate)
        self._do("read", str(ranges[0][0]))
        return [bytes(length) for _, length in ranges]

    def seal(self, job: SealJob) -> None:
        self._do("seal", f"{job.stream_id} {job.segment}")

    def read_sealed(self, job: SealedRead) -> None:
        self._do("read", f"{job.stream_id} {job.segment}")

    def drop_sealed(self, job: DropJob) -> None:
        self._do("drop", f"{job.stream_id} {job.segments}")

    def swap_sealed(self, stream_id: int, segments: list[int]) -> None:
        self._do("swap", f"{stream_id} {segments}")

    def unmake_sealed(self, stream_id: int, segment: int) -> None:
        self._do("unmake", f"{stream_id} {segment}")

    def take_read_problems(self) -> list[ReadProblem]:
        taken, self.problems = self.problems, []
        return taken

    def write_checkpoint(self, content: bytes) -> None:
        self._do("checkpoint", "clean" if content[13] & CLEAN else "")
        self.checkpoints.append(content)

    def release(self, numbers: list[int]) -> None:
        self._do("release", str(numbers))

    def unlink(self, numbers: list[int]) -> None:
        self._do("unlink", str(numbers))

    def prepare_spare(self, size: int) -> None:
        self._do("spare", str(size))

    def quarantine(self, number: int) -> None:
        self._do("quarantine", str(number))

    def pin(self, holder: str, position: LogPosition) -> list[PinnedFile]:
        self._pass(self.pin_gate)
        if self.unpinnable:
            raise PinError(self.unpinnable)
        self._do("pin", f"{holder} {position.lsn}")
        return [PinnedFile("checkpoint", 1)]

    def unpin(self, holder: str) -> None:
        self._do("unpin", holder)

    def free_bytes(self) -> int:
        if self.free_error is not None:
            raise self.free_error
        return self.free

    def close(self) -> None:
        self.diary.append("close")


class FakeEngine:
    """A broker that is only a message log, and remembers what it is told."""

    def __init__(self) -> None:
        self.log = MessageLog(checksum_function(default_algorithm()), 64 << 10)
        self.log.checkpoints.take = lambda: snapshot(self.log)
        self.told: list[str] = []
        self.alarms: list[tuple[str, bool]] = []

    def stored(self, job: CommitJob) -> None:
        self.told.append(f"stored {job.batch}")
        self.log.committed(job)

    def loaded(self, job: Errand) -> None:
        if isinstance(job, SealJob):
            self.told.append(f"sealed {job.segment}")
            return
        if isinstance(job, DropJob):
            return
        assert isinstance(job, ReadJob)
        self.told.append(f"loaded {job.ranges[0][0]}: {sum(map(len, job.data))} bytes")

    def set_alarm(self, resource: str, short: bool) -> None:
        if not self.alarms or self.alarms[-1] != (resource, short):
            self.alarms.append((resource, short))

    def turn(self) -> None:
        self.log.close_if_due()


class WatchedWorker(message_store.Worker):
    """A thread of the service that tells whether it has something to do, so that a clock does not jump over that."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._asked = 0
        self._done = 0
        self._pausing = False
        put, carry_out, retries = self.put, self._carry_out, self._retries

        def counted(job: message_store.Job | None) -> None:
            self._asked += job is not None
            put(job)

        def carried_out(job: message_store.Job) -> None:
            self._pausing = False
            carry_out(job)

        def pausing(job: message_store.Job) -> float | None:
            pause_s = retries(job)
            self._pausing = pause_s is not None
            return pause_s

        self.put, self._carry_out, self._retries = counted, carried_out, pausing

    def _do(self, job: message_store.Job) -> bool:
        try:
            return super()._do(job)
        finally:
            self._done += 1

    def is_busy(self) -> bool:
        """Tell whether a job is under way, and does not wait until it is tried again."""
        return self._asked > self._done and not self._pausing


class Fixture:
    """A service with a reactor that only turns when it is woken."""

    def __init__(self, settings: StoreSettings, gate: Gate | None = None) -> None:
        self.files = FakeFiles()
        self.engine = FakeEngine()
        self.log = self.engine.log
        self.failures = 0
        self.poll_s = 0.002
        self.abandoned = threading.Event()
        self.wakes: set[str] = set()
        self.token: trio.lowlevel.TrioToken | None = None
        self.workers: list[WatchedWorker] = []
        with patch.object(message_store, "Worker", self._worker):
            self.service = MessageStoreService(
                self.files,
                self.engine,
                settings,
                self._wake,
                self.settle,
                self._failed,
                self.abandoned.set,
                lambda: 42,
                gate=gate,
            )
        self._index = self.log.new_index(1, "/", "q", 0, False)
        self._number = 0

    def _worker(self, *arguments: Any) -> WatchedWorker:
        self.workers.append(WatchedWorker(*arguments))
        return self.workers[-1]

    def is_busy(self) -> bool:
        """Tell whether a thread has something to do that nobody holds up."""
        return sum(worker.is_busy() for worker in self.workers) > self.files.held()

    def _wake(self) -> None:
        self.wakes.add(threading.current_thread().name)
        assert self.token is not None
        self.token.run_sync_soon(self.turn)

    def turn(self) -> None:
        self.service.completed()
        self.settle()

    def settle(self) -> None:
        self.engine.turn()
        self.service.dispatch()

    def _failed(self) -> None:
        self.failures += 1

    def publish(self, *, force: bool = True) -> None:
        """Put a message into the open batch; `force`: to be closed and synced at once."""
        message = Message(Envelope("", "q"), CONTENT, 1, 0, 0, True)
        self.log.batch.add(self._index, message, self._number)
        self._number += 1
        if force:
            self.log.force()
        self.settle()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await trio.sleep(self.poll_s)

    async def until_written(self) -> None:
        await self.until(self.log.is_idle)


def run(
    test: Callable[[Fixture], Awaitable[None]],
    settings: StoreSettings | None = None,
    *,
    tasks: bool = False,
    gate: Gate | None = None,
) -> Fixture:
    """Run `test`: with the service's tasks on a clock that jumps over every wait, or without and in real time."""
    if settings is None:
        settings = StoreSettings(scrub_bytes_per_s=0)
    fixture = Fixture(settings, gate)
    if tasks:
        fixture.poll_s = 0.05

    async def main() -> None:
        fixture.token = trio.lowlevel.current_trio_token()
        fixture.service.start()
        async with trio.open_nursery() as nursery:
            if tasks:
                nursery.start_soon(fixture.service.run)
            try:
                await test(fixture)
            finally:
                fixture.service.end()
                fixture.files.commit_gate.set()
                fixture.files.read_gate.set()
                fixture.files.pin_gate.set()
                nursery.cancel_scope.cancel()

    if tasks:
        run_jumping(main, fixture.is_busy)
    else:
        trio.run(main)
    return fixture


# Work


def test_batches_are_committed_in_order_and_reported_on_the_loop_only() -> None:
    async def test(f: Fixture) -> None:
        f.files.commit_gate.clear()
        f.publish()
        f.publish()
        f.publish()
        assert f.engine.told == []
        f.files.commit_gate.set()
        await f.until_written()
        assert f.files.diary == ["commit 1 sync", "commit 2 sync"], "what gathers during a commit is one batch"
        assert f.engine.told == ["stored 1", "stored 2"]
        assert f.wakes == {"committer"}
        assert f.files.times == [42, 42]

    run(test)


class ClosedGate:
    """Lets nothing pass until it is opened."""

    def __init__(self) -> None:
        self.open = False
        self.asked: list[int] = []

    def is_open(self, job: CommitJob) -> bool:
        self.asked.append(int(job.batch))
        return self.open

    def trouble(self) -> str:
        return "" if self.open else "the gate is closed"


def test_a_commit_is_reported_when_the_gate_lets_it_pass_and_the_next_follows() -> None:
    """(7)"""
    gate = ClosedGate()

    async def test(f: Fixture) -> None:
        f.publish()
        f.publish()
        await f.until(lambda: gate.asked == [1])
        assert f.engine.told == []
        assert f.service.trouble() == "the gate is closed"
        f.service.gate_moved()
        assert (f.engine.told, gate.asked) == ([], [1, 1])
        gate.open = True
        f.service.gate_moved()
        assert f.engine.told == ["stored 1"]
        f.settle()
        await f.until_written()
        assert f.engine.told == ["stored 1", "stored 2"]
        f.service.gate_moved()
        assert gate.asked == [1, 1, 1, 2], "nothing waits there any more"
        assert f.service.trouble() == ""

    run(test, gate=gate)


def test_nothing_passes_the_gate_when_the_store_has_failed() -> None:
    """(4)"""
    gate = ClosedGate()

    async def test(f: Fixture) -> None:
        f.publish()
        await f.until(lambda: gate.asked == [1])
        f.files.broken = "read"
        f.log.read_jobs.append(ReadJob([(64, 8)]))
        f.settle()
        await f.until(lambda: f.failures == 1)
        gate.open = True
        f.service.gate_moved()
        assert f.engine.told == []

    run(test, gate=gate)


def test_what_was_done_is_counted_and_how_long_commits_took() -> None:
    async def test(f: Fixture) -> None:
        f.publish()
        await f.until_written()
        first = f.service.written_bytes
        assert (f.service.batches, f.service.syncs, f.service.reads) == (1, 1, 0)
        assert first > 0
        assert f.service.synced_bytes == first
        f.publish(force=False)
        f.log.close_if_due(lingered=True)
        f.settle()
        await f.until_written()
        assert (f.service.batches, f.service.syncs) == (2, 1)
        assert f.service.written_bytes > f.service.synced_bytes == first
        f.log.force()
        f.settle()
        await f.until_written()
        assert (f.service.batches, f.service.syncs) == (3, 2)
        assert f.service.written_bytes == f.service.synced_bytes > first
        f.log.read_jobs.append(ReadJob([(64, 8)]))
        f.log.checkpoints.want()
        f.settle()
        await f.until(lambda: f.service.reads == 1 and f.service.checkpoints == 1)
        assert f.service.commit_times.count == f.service.batches
        assert f.service.commit_times.sum_s > 0
        assert (f.service.compacted_segments(), f.service.moved_bytes()) == (0, 0)

    run(test)


def test_a_segment_is_removed_behind_the_reads_that_were_asked_for_before_and_ahead_of_the_next_checkpoint() -> None:
    """(1)"""

    async def test(f: Fixture) -> None:
        f.publish()
        await f.until_written()
        f.files.diary.clear()
        f.files.read_gate.clear()
        for lsn in (64, 128):
            f.log.read_jobs.append(ReadJob([(lsn, 8), (lsn + 8, 1)]))
            f.settle()
        f.log.unlink_jobs.append(UnlinkJob([1, 2]))
        f.settle()
        f.log.checkpoints.want()
        f.log.read_jobs.append(ReadJob([(256, 8)]))
        f.settle()
        f.files.read_gate.set()
        await f.until(lambda: f.log.checkpoints.lsn > 0 and len(f.engine.told) == 4)
        reader = [entry for entry in f.files.diary if entry.startswith(("read", "release"))]
        assert reader == ["read 64", "read 128", "release [1, 2]", "read 256"]
        housekeeper = [entry for entry in f.files.diary if entry not in reader]
        assert housekeeper == ["unlink [1, 2]", "checkpoint"]
        assert f.engine.told[1:] == ["loaded 64: 9 bytes", "loaded 128: 9 bytes", "loaded 256: 8 bytes"]
        assert f.wakes == {"committer", "reader", "housekeeper"}

    run(test)


def test_a_checkpoint_is_written_whole_and_reported() -> None:
    async def test(f: Fixture) -> None:
        f.publish()
        f.log.checkpoints.want()
        f.settle()
        await f.until(lambda: f.log.checkpoints.lsn > 0)
        assert f.log.checkpoints.lsn == f.log.next_lsn
        content = f.files.checkpoints[0]
        assert int.from_bytes(content[40:44], "big") == f.log.last_crc, "of the frame before"
        assert f.log.checksum(content[:-4], 0) == int.from_bytes(content[-4:], "big")

    run(test)


def test_the_next_segment_is_made_when_half_of_this_one_is_written() -> None:
    async def test(f: Fixture) -> None:
        spares = 0
        while spares == 0:
            f.publish()
            await f.until_written()
            await f.until(lambda: not f.log.in_flight)
            spares = sum(entry.startswith("spare") for entry in f.files.diary)
        assert f.log.next_lsn > f.log.segment_bytes // 2
        assert f.log.next_lsn < f.log.segment_bytes * 3 // 4
        for _ in range(20):
            f.publish()
            await f.until_written()
        assert f.files.diary.count("spare 65536") == 1

    run(test)


def test_damages_are_logged_and_their_segment_is_copied_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test(f: Fixture) -> None:
        f.publish()
        await f.until_written()
        for number in range(2):
            f.log.damages.append(Damage(100, 1, "/", "q", number))
            f.log.damages.append(Damage(200, 1, "", "", -1))
            f.log.damages.append(Damage(-1, -1, "/", "a stream", 7))  # in a file of its own
            f.files.problems.append(ReadProblem(1, 100, "Input/output error"))
            f.log.read_jobs.append(ReadJob([(64, 8)]))
            f.settle()
            await f.until(lambda number=number: len(f.engine.told) == 2 + number)  # type: ignore[misc]
        f.log.checkpoints.want()
        f.settle()
        await f.until(lambda: "checkpoint" in f.files.diary)
        assert [entry for entry in f.files.diary if entry.startswith("quarantine")] == ["quarantine 1"]

    run(test)
    said = [record.getMessage() for record in caplog.records]
    assert sorted(said) == [
        "data of a queue is damaged on disk and not served",
        "data of a queue is damaged on disk and not served",
        "data of a queue is damaged on disk and not served",
        "data of a queue is damaged on disk and not served",
        "the message log cannot be read",
        "the message log cannot be read",
        "the message log is damaged on disk",
        "the message log is damaged on disk",
    ]


# No space


def test_a_commit_without_space_is_repeated_while_everything_else_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """(3)"""
    monkeypatch.setattr(message_store, "RETRY_S", 0.01)

    async def test(f: Fixture) -> None:
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
    async def test(f: Fixture) -> None:
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
    async def test(f: Fixture) -> None:
        f.files.refusals["spare"] = 2
        while "spare refused" not in f.files.diary:
            f.publish()
            await f.until_written()
        await f.until(lambda: len(f.engine.alarms) == 2)
        assert f.engine.alarms == [("disk", True), ("disk", False)]
        assert "checkpoint" in f.files.diary
        assert f.files.diary.index("checkpoint") < f.files.diary.index("spare 65536")

    run(test, tasks=True)


def test_a_read_that_met_a_shortage_is_not_overtaken() -> None:
    async def test(f: Fixture) -> None:
        f.files.refusals["read"] = 2
        f.log.read_jobs.append(ReadJob([(64, 8)]))
        f.log.unlink_jobs.append(UnlinkJob([1]))
        f.settle()
        await f.until(lambda: "unlink [1]" in f.files.diary)
        assert f.files.diary == ["read refused", "read refused", "read 64", "release [1]", "unlink [1]"]
        await f.until(lambda: f.engine.alarms[-1:] == [("disk", False)])

    run(test)


def test_a_chunk_of_a_stream_without_space_is_written_later_and_holds_up_nothing() -> None:
    """Publishers wait meanwhile; what is with the housekeeper behind it makes room."""

    async def test(f: Fixture) -> None:
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


# Failure


@pytest.mark.parametrize("kind", ["commit", "read", "checkpoint", "seal"])
def test_after_a_failure_nothing_is_stored_and_the_process_is_to_stop(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """(4)"""

    async def test(f: Fixture) -> None:
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
    monkeypatch.setattr(message_store, "GRACE_S", 0.01)

    async def test(f: Fixture) -> None:
        f.files.broken = "commit"
        f.publish()
        await trio.to_thread.run_sync(f.abandoned.wait)

    run(test)


def test_a_fault_of_the_engine_at_what_was_stored_is_a_failure_of_the_store() -> None:
    """What it holds is not trusted any more; that the reactor goes on would hide that nothing is confirmed."""

    async def test(f: Fixture) -> None:
        with patch.object(f.engine, "stored", side_effect=AssertionError("not in flight")):
            f.publish()
            await f.until(lambda: f.failures > 0)
        assert f.service.failed == "internal error: AssertionError('not in flight')"

    assert run(test).failures == 1


def test_a_timer_that_fails_is_started_again() -> None:
    async def test(f: Fixture) -> None:
        with patch.object(f.service, "_settle", side_effect=MemoryError()) as settle:
            f.publish(force=False)
            await f.until(lambda: settle.call_count > 0)
        f.publish(force=False)
        await f.until_written()

    fixture = run(test, tasks=True)
    assert fixture.failures == 0
    assert fixture.engine.told


def test_our_own_fault_in_a_thread_is_a_failure_with_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def test(f: Fixture) -> None:
        f.files.defect = "commit"
        f.publish()
        await f.until(lambda: f.failures == 1)
        assert "our own fault" in f.service.failed

    run(test)
    [record] = caplog.records
    assert record.exc_info is not None


# Time


def test_a_batch_that_nobody_waits_for_is_written_soon_and_synced_within_a_second() -> None:
    """(5)"""

    async def test(f: Fixture) -> None:
        start = trio.current_time()
        f.publish(force=False)
        await trio.sleep(LINGER_S / 2)
        assert f.files.diary == []
        await f.until(lambda: f.log.written_lsn > 0)
        assert f.files.diary == ["commit 1"]
        assert trio.current_time() - start < LINGER_S + 0.5
        await f.until(lambda: f.log.durable_lsn == f.log.next_lsn)
        assert f.files.diary == ["commit 1", "commit 2 sync"]
        assert trio.current_time() - start < LINGER_S + 1.5

    run(test, tasks=True)


def test_a_batch_that_was_opened_during_a_commit_is_written_after_it() -> None:
    async def test(f: Fixture) -> None:
        f.files.commit_gate.clear()
        f.publish()
        f.publish(force=False)
        await trio.sleep(10 * LINGER_S)
        assert f.engine.told == []
        f.files.commit_gate.set()
        await f.until_written()
        assert f.files.diary[:2] == ["commit 1 sync", "commit 2"]

    run(test, tasks=True)


def test_a_checkpoint_is_taken_when_it_is_quiet_and_only_when_something_was_written() -> None:
    async def test(f: Fixture) -> None:
        await trio.sleep(3 * IDLE_CHECKPOINT_EVERY_S)
        assert f.files.diary == []
        for _ in range(20):
            f.publish()
            await trio.sleep(0.9)
        assert f.files.checkpoints == [], "it was not quiet"
        await trio.sleep(10 * IDLE_CHECKPOINT_EVERY_S)
        assert len(f.files.checkpoints) == 1
        assert f.log.checkpoints.lsn == f.log.next_lsn
        for _ in range(5):
            f.publish()
            await trio.sleep(2)
        assert len(f.files.checkpoints) <= 4, "not after each pause"

    run(test, tasks=True)


def test_publishers_wait_below_the_minimum_of_free_disk_and_go_on_well_above_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(f: Fixture) -> None:
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


class StepCounter(trio.abc.Instrument):
    """Counts how often any task of the service goes on."""

    def __init__(self) -> None:
        self.steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += task.name.endswith("Supervision.keep")


def test_a_store_with_nothing_to_do_hardly_ever_wakes() -> None:
    async def test(f: Fixture) -> None:
        await trio.sleep(10)
        counter = StepCounter()
        trio.lowlevel.add_instrument(counter)
        await trio.sleep(100)
        trio.lowlevel.remove_instrument(counter)
        assert counter.steps < 3 * 100

    run(test, StoreSettings(), tasks=True)


def test_the_nearer_the_minimum_the_more_often_the_disk_is_looked_at() -> None:
    async def test(f: Fixture) -> None:
        f.files.free = GIB + 1
        await trio.sleep(1.5)
        f.files.free = GIB - 1
        await trio.sleep(0.1)
        assert f.engine.alarms == [("disk", True)]

    run(test, StoreSettings(scrub_bytes_per_s=0, disk_free_min_bytes=GIB), tasks=True)


def test_the_disk_is_looked_at_when_a_segment_has_taken_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_store, "DISK_CHECK_S", 1e9)

    async def test(f: Fixture) -> None:
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


# Waiting and the end


def test_deleted_waits_until_everything_is_durable() -> None:
    async def test(f: Fixture) -> None:
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
    async def test(f: Fixture) -> None:
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
    async def test(f: Fixture) -> None:
        f.publish()
        f.log.checkpoints.want()
        f.publish(force=False)
        assert await f.service.stop(trio.current_time() + 60)
        assert f.files.diary[-2:] == ["checkpoint clean", "close"]
        assert f.files.diary.count("checkpoint clean") == 1
        assert f.log.durable_lsn == f.log.next_lsn == f.log.checkpoints.lsn
        names = {thread.name for thread in threading.enumerate()}
        assert not names & {"committer", "reader"}

    run(test, tasks=True)


def test_a_stop_with_nothing_to_write_ends_with_a_clean_checkpoint_too() -> None:
    async def test(f: Fixture) -> None:
        f.publish()
        f.log.checkpoints.want()
        await f.until(lambda: f.log.checkpoints.lsn > 0 and f.log.is_idle())
        assert await f.service.stop(trio.current_time() + 60)
        assert f.files.diary[-2:] == ["checkpoint clean", "close"]

    run(test, tasks=True)


def test_a_stop_gives_up_at_its_deadline() -> None:
    async def test(f: Fixture) -> None:
        f.files.commit_gate.clear()
        f.publish()
        assert not await f.service.stop(trio.current_time() + 1)
        assert "close" not in f.files.diary

    run(test, tasks=True)


def test_a_stop_without_space_gives_up_too_and_the_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_store, "RETRY_S", 0.01)

    async def test(f: Fixture) -> None:
        f.files.refusals["commit"] = 1_000_000
        f.publish()
        assert not await f.service.stop(trio.current_time() + 1)
        f.service.end()
        await f.until(lambda: "committer" not in {thread.name for thread in threading.enumerate()})
        assert f.failures == 0

    run(test, tasks=True)


def test_a_store_that_has_failed_is_not_stopped_cleanly() -> None:
    async def test(f: Fixture) -> None:
        f.files.broken = "commit"
        f.publish()
        await f.until(lambda: f.failures == 1)
        assert not await f.service.stop(trio.current_time() + 1000)

    run(test)


def test_threads_that_are_left_behind_wake_nobody() -> None:
    fixture: list[Fixture] = []

    async def test(f: Fixture) -> None:
        fixture.append(f)
        f.files.commit_gate.clear()
        f.publish()
        await trio.to_thread.run_sync(f.files.committing.wait)
        f.service.end()
        f.files.commit_gate.set()
        await f.until(lambda: "committer" not in {thread.name for thread in threading.enumerate()})
        await trio.sleep(0.05)
        assert f.wakes == set()
        assert f.engine.told == []

    run(test)


# Pins


def test_a_pin_is_at_what_is_durable_and_behind_the_jobs_of_before() -> None:
    """(7)"""

    async def test(f: Fixture) -> None:
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

    async def test(f: Fixture) -> None:
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
    async def test(f: Fixture) -> None:
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
    async def test(f: Fixture) -> None:
        f.publish()
        f.files.unpinnable = "no hard links here"
        with pytest.raises(PinError, match="no hard links here"):
            await f.service.pin("copy")
        f.publish()
        await f.until_written()
        assert not f.service.failed

    run(test)
