"""The threads of the message store: their jobs, their order, and the beginning of a commit.

The numbers in parentheses are the invariants in the header of ``warren/server/message_store.py``.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing
from store_service import ServiceFixture, run

from warren.msgstore.files.segment_reads import ReadProblem
from warren.msgstore.log.bodies_ahead import BodiesAhead
from warren.msgstore.log.checksum import checksum_function, default_algorithm
from warren.msgstore.log.damage_book import Damage
from warren.msgstore.log.jobs import (
    CommitJob,
    Errand,
    PortionJob,
    ReadJob,
    RecordsRead,
    UnlinkJob,
    WholeRecordsRead,
)
from warren.msgstore.log.message_log import LINGER_S
from warren.server.settings import StoreSettings
from warren.server.store_upkeep import CHECKPOINT_PAUSE_S, DEAD_KEPT_S


def test_batches_are_committed_in_order_and_reported_on_the_loop_only() -> None:
    async def test(f: ServiceFixture) -> None:
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
        self.tells = False  # in advance, that it is closed
        self.asked: list[int] = []

    def is_open(self, job: CommitJob) -> bool:
        self.asked.append(int(job.batch))
        return self.open

    def waits(self, job: CommitJob) -> bool:
        return self.tells and not self.open

    def trouble(self) -> str:
        return "" if self.open else "the gate is closed"


def test_a_commit_is_reported_when_the_gate_lets_it_pass_and_the_next_follows() -> None:
    """(7)"""
    gate = ClosedGate()

    async def test(f: ServiceFixture) -> None:
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


def test_the_loop_is_not_woken_for_a_commit_that_waits_at_the_gate_and_learns_of_it_when_that_moves() -> None:
    """(8)"""
    gate = ClosedGate()
    gate.tells = True

    async def test(f: ServiceFixture) -> None:
        f.publish()
        await f.until(lambda: len(f.service.threads.outcomes) == 1)
        assert (f.wakes, gate.asked) == (set(), [])
        f.service.gate_moved()
        assert (f.engine.told, gate.asked) == ([], [1, 1])
        gate.open = True
        f.service.gate_moved()
        assert f.engine.told == ["stored 1"]

    run(test, gate=gate)


def test_the_loop_is_woken_for_contents_written_ahead_whatever_the_gate_says() -> None:
    """(8): the next portion is requested when the loop learns of this one. They count as written once."""
    gate = ClosedGate()
    gate.tells = True

    async def test(f: ServiceFixture) -> None:
        log = f.engine.log
        plan = BodiesAhead(log.ahead_file.sizes, log.frame_bytes)
        log.commit_jobs.append(PortionJob(plan, log.batch.number, 0, [0], [bytes(100)], 1000))
        f.service.dispatch()
        await f.until(lambda: len(f.engine.told) == 1)
        assert gate.asked == []
        assert f.service.counts.written_bytes == 100
        job = CommitJob(1, 0, 1, 0, 1000, [bytes(160)], 160, 1, True, True)
        job.ahead_bytes = 100
        log.commit_jobs.append(job)
        f.service.dispatch()
        await f.until(lambda: len(f.engine.told) == 2)
        assert f.service.counts.written_bytes == 160

    run(test, gate=gate)


def test_nothing_passes_the_gate_when_the_store_has_failed() -> None:
    """(4)"""
    gate = ClosedGate()

    async def test(f: ServiceFixture) -> None:
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
    async def test(f: ServiceFixture) -> None:
        f.publish()
        await f.until_written()
        first = f.service.counts.written_bytes
        assert (f.service.counts.batches, f.service.counts.syncs, f.service.counts.reads) == (1, 1, 0)
        assert first > 0
        assert f.service.counts.synced_bytes == first
        f.publish(force=False)
        f.log.close_if_due(lingered=True)
        f.settle()
        await f.until_written()
        assert (f.service.counts.batches, f.service.counts.syncs) == (2, 1)
        assert f.service.counts.written_bytes > f.service.counts.synced_bytes == first
        f.log.force()
        f.settle()
        await f.until_written()
        assert (f.service.counts.batches, f.service.counts.syncs) == (3, 2)
        assert f.service.counts.written_bytes == f.service.counts.synced_bytes > first
        f.log.read_jobs.append(ReadJob([(64, 8)]))
        f.log.checkpoints.want()
        f.settle()
        await f.until(lambda: f.service.counts.reads == 1 and f.service.counts.checkpoints == 1)
        assert f.service.counts.commit_times.count == f.service.counts.batches
        assert f.service.counts.commit_times.sum_s > 0
        assert (f.service.upkeep.compacted_segments(), f.service.upkeep.moved_bytes()) == (0, 0)

    run(test)


def test_a_segment_is_removed_behind_the_reads_that_were_asked_for_before_and_ahead_of_the_next_checkpoint() -> None:
    """(1)"""

    async def test(f: ServiceFixture) -> None:
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
    async def test(f: ServiceFixture) -> None:
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
    async def test(f: ServiceFixture) -> None:
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
    async def test(f: ServiceFixture) -> None:
        f.publish()
        await f.until_written()
        for number in range(2):
            f.log.damage.reports.append(Damage(100, 1, "/", "q", number))
            f.log.damage.reports.append(Damage(200, 1, "", "", -1))
            f.log.damage.reports.append(Damage(-1, -1, "/", "a stream", 7))  # in a file of its own
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


def test_a_batch_that_nobody_waits_for_is_written_soon_and_synced_within_a_second() -> None:
    """(5)"""

    async def test(f: ServiceFixture) -> None:
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
    async def test(f: ServiceFixture) -> None:
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
    async def test(f: ServiceFixture) -> None:
        await trio.sleep(3 * CHECKPOINT_PAUSE_S)
        assert f.files.diary == []
        for _ in range(20):
            f.publish()
            await trio.sleep(0.9)
        assert f.files.checkpoints == [], "it was not quiet"
        await trio.sleep(10 * CHECKPOINT_PAUSE_S)
        assert len(f.files.checkpoints) == 1
        assert f.log.checkpoints.lsn == f.log.next_lsn
        for _ in range(5):
            f.publish()
            await trio.sleep(2)
        assert len(f.files.checkpoints) <= 4, "not after each pause"

    run(test, tasks=True)


async def _drain_beside_a_trickle(f: ServiceFixture, backlog: int, seconds: int) -> float | None:
    """Store a backlog and acknowledge it, while somebody publishes twice a second; return when its files went."""
    f.log.segment_bytes = 2048
    for _ in range(backlog):
        f.publish()
        await f.until_written()
    f.log.batch.settle_range(f.index, 0, backlog)
    f.log.force()
    f.settle()
    drained = trio.current_time()
    while trio.current_time() - drained < seconds:
        f.publish(size=500)
        await trio.sleep(0.5)
        if any(entry.startswith("unlink") for entry in f.files.diary):
            return trio.current_time() - drained
    return None


def test_files_of_a_backlog_that_is_drained_go_within_a_minute_though_it_is_never_quiet() -> None:
    async def test(f: ServiceFixture) -> None:
        took = await _drain_beside_a_trickle(f, 60, 300)
        assert took is not None and CHECKPOINT_PAUSE_S < took < DEAD_KEPT_S + 5
        assert len(f.files.checkpoints) == 1, "and not one checkpoint after the other"

    run(test, tasks=True)


def test_files_of_a_backlog_that_is_drained_go_soon_when_they_are_large_or_the_disk_is_low() -> None:
    async def large(f: ServiceFixture) -> None:
        f.log.checkpoints.every_bytes = 8192
        took = await _drain_beside_a_trickle(f, 60, 300)
        assert took is not None and took < 2 * CHECKPOINT_PAUSE_S

    async def low(f: ServiceFixture) -> None:
        f.files.free = 1
        await f.until(lambda: f.engine.alarms == [("disk", True)])
        took = await _drain_beside_a_trickle(f, 60, 300)
        assert took is not None and took < 2 * CHECKPOINT_PAUSE_S

    run(large, tasks=True)
    run(low, tasks=True)


def test_without_a_file_to_be_gained_no_checkpoint_is_taken_while_others_write() -> None:
    async def test(f: ServiceFixture) -> None:
        assert await _drain_beside_a_trickle(f, 0, 300) is None
        assert f.files.checkpoints == []

    run(test, tasks=True)


def test_what_compaction_could_free_behind_the_checkpoint_has_one_taken_too() -> None:
    """A message in each file is left, so that none is dead before they are compacted."""

    async def test(f: ServiceFixture) -> None:
        f.log.segment_bytes = 2048
        for _ in range(60):
            f.publish(size=100)
            await f.until_written()
        for number in range(60):
            if number % 8:
                f.log.batch.settle_range(f.index, number, number + 1)
        f.log.force()
        f.settle()
        for _ in range(int(2 * (DEAD_KEPT_S + 5))):
            f.publish(size=500)
            await trio.sleep(0.5)
        assert len(f.files.checkpoints) == 1
        assert f.log.segments.gain_bytes(f.log.checkpoints.lsn, False) == 0

    run(test, tasks=True)


def test_files_that_nothing_needs_any_more_go_when_nobody_writes() -> None:
    """A delete reads the log before it knows which files are dead, and that read writes nothing."""

    async def test(f: ServiceFixture) -> None:
        f.log.segment_bytes = 2048
        for _ in range(60):
            f.publish()
            await f.until_written()
        await f.until(lambda: len(f.files.checkpoints) == 1)
        await trio.sleep(10)
        assert not any(entry.startswith("unlink") for entry in f.files.diary)
        f.log.segments.segments[0].live_refs = 0  # as the last of its pages had been read
        f.log.doomed.pages = [(64, 64, False)]
        f.service.upkeep.on_open()  # as when the queue was deleted
        await trio.sleep(CHECKPOINT_PAUSE_S)
        f.log.doomed.pages = []
        await f.until(lambda: any(entry.startswith("unlink") for entry in f.files.diary))

    run(test, tasks=True)


class StepCounter(trio.abc.Instrument):
    """Counts how often any task of the service is resumed."""

    def __init__(self) -> None:
        self.steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += task.name.endswith("Supervision.keep")


def test_a_store_with_nothing_to_do_hardly_ever_wakes() -> None:
    async def test(f: ServiceFixture) -> None:
        await trio.sleep(10)
        counter = StepCounter()
        trio.lowlevel.add_instrument(counter)
        await trio.sleep(100)
        trio.lowlevel.remove_instrument(counter)
        assert counter.steps < 3 * 100

    run(test, StoreSettings(), tasks=True)


class FakeMender:
    """Says that it has mended what it is asked for, so often."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.asked: list[tuple[str, list[int]]] = []

    def mend(self, job: Errand, places: list[int]) -> bool:
        self.asked.append((type(job).__name__, places))
        self.times -= 1
        return self.times >= 0

    def mend_unread(self, job: Errand, segment: int) -> bool:
        return self.mend(job, [segment])

    def mend_segment(self, number: int, lsn: int) -> None:
        self.asked.append(("segment", [number, lsn]))


@pytest.mark.parametrize(("times", "reads"), [(1, 3), (0, 2)])
def test_what_a_read_finds_damaged_is_read_again_when_it_is_mended_before_the_engine_is_told(
    times: int, reads: int
) -> None:
    """(9)"""
    mender = FakeMender(times)

    async def test(f: ServiceFixture) -> None:
        f.publish()
        await f.until_written()
        f.log.read_jobs.append(WholeRecordsRead([(64, 8)]))
        f.settle()
        await f.until(lambda: len(f.engine.told) == 2)
        assert [entry for entry in f.files.diary if entry.startswith("read")] == ["read 64"] * reads
        assert "forget 64" in f.files.diary, "the second read is past the cache"

    run(test, mender=mender)
    assert mender.asked == [("WholeRecordsRead", [64])]


def test_what_scrubbing_finds_is_mended_behind_its_copy() -> None:
    """(9)"""
    mender = FakeMender(0)

    async def test(f: ServiceFixture) -> None:
        f.publish()
        await f.until_written()
        f.log.damage.reports += [Damage(200, 1, "", "", -1), Damage(-1, -1, "/", "a stream", 7)]
        f.log.read_jobs.append(ReadJob([(64, 8)]))
        f.settle()
        await f.until(lambda: len(mender.asked) == 1)
        assert "quarantine 1" in f.files.diary

    run(test, mender=mender)
    assert mender.asked == [("segment", [1, 200])]


def test_a_record_is_damaged_when_its_length_or_a_bit_is_not_what_was_written() -> None:
    checksum = checksum_function(default_algorithm())
    rest = (24).to_bytes(4, "big") + bytes(range(16))
    record = checksum(rest, 0).to_bytes(4, "big") + rest
    job = RecordsRead([(64, 24), (128, 48)], [], checksum)
    job.data = [record, bytes(24) + record]
    assert not job.is_damaged(0, 0, 24) and not job.is_damaged(1, 24, 24)
    assert job.is_damaged(0, 0, 16) and job.is_damaged(1, 0, 24) and job.is_damaged(1, 32, 24)
    whole = WholeRecordsRead([(64, 24), (128, 24), (192, 24), (256, 24)])
    whole.data = [record, record[:-1] + b"x", record[:20], b""]
    assert whole.damaged(checksum) == [128, 192, 256]
    assert ReadJob([(64, 8)]).damaged(checksum) == [], "nothing is known of what it reads"
    large = RecordsRead([(64, 24)], [0], checksum)
    large.large = {0: []}
    assert large.is_damaged(0, 0, 24)
