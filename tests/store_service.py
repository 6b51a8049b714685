"""The message store's service and its threads, with files that do what a test says; the log is the real one."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import trio
import trio.testing
from jumping_clock import run_jumping

from warren.msgstore.files.pins import PinError, PinnedFile
from warren.msgstore.files.segment_reads import ReadProblem
from warren.msgstore.files.store_errors import StoreFailedError, StoreFullError, StoreUnreadableError
from warren.msgstore.log.checkpoint import CLEAN, snapshot
from warren.msgstore.log.checksum import checksum_function, default_algorithm
from warren.msgstore.log.jobs import CommitJob, DropJob, Errand, ReadJob, SealedRead, SealJob
from warren.msgstore.log.log_position import LogPosition
from warren.msgstore.log.message import Envelope, Message
from warren.msgstore.log.message_log import MessageLog
from warren.server import store_threads
from warren.server.message_store import MessageStoreService
from warren.server.settings import StoreSettings
from warren.server.store_reader import Mender
from warren.server.store_threads import Gate
from warren.server.store_workers import Job, Worker

# A content header frame of an empty body: type, channel, size, class, weight, body size, flags, end.
CONTENT = b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00" + bytes(8) + b"\x00\x00\xce"
GIB = 1 << 30


class FakeFiles:
    """Keeps a diary. `refusals`: how often each kind of call finds no space; `broken`: the calls that fail."""

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
        self.unreadable = False
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
        """Return the number of threads that wait until the test releases them."""
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
        if self.unreadable:
            self.diary.append(f"read {ranges[0][0]} failed")
            raise StoreUnreadableError("log/0000000001", "Input/output error", 1, ranges[0][0])
        self._do("read", str(ranges[0][0]))
        return [bytes(length) for _, length in ranges]

    def forget_cached(self, ranges: list[tuple[int, int]]) -> None:
        self.diary.append(f"forget {ranges[0][0]}")

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


class WatchedWorker(Worker):
    """A thread of the service that tells whether it has something to do, so that a clock does not jump over that."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._asked = 0
        self._done = 0
        self._pausing = False
        put, carry_out, retries = self.put, self._carry_out, self._retries

        def counted(job: Job | None) -> None:
            self._asked += job is not None
            put(job)

        def carried_out(job: Job) -> None:
            self._pausing = False
            carry_out(job)

        def pausing(job: Job) -> float | None:
            pause_s = retries(job)
            self._pausing = pause_s is not None
            return pause_s

        self.put, self._carry_out, self._retries = counted, carried_out, pausing

    def _do(self, job: Job) -> bool:
        try:
            return super()._do(job)
        finally:
            self._done += 1

    def is_busy(self) -> bool:
        """Tell whether a job is under way, and does not wait until it is tried again."""
        return self._asked > self._done and not self._pausing


class ServiceFixture:
    """A service with a reactor that only turns when it is woken."""

    def __init__(self, settings: StoreSettings, gate: Gate | None = None, mender: Mender | None = None) -> None:
        self.files = FakeFiles()
        self.engine = FakeEngine()
        self.log = self.engine.log
        self.failures = 0
        self.poll_s = 0.002
        self.abandoned = threading.Event()
        self.wakes: set[str] = set()
        self.token: trio.lowlevel.TrioToken | None = None
        self.workers: list[WatchedWorker] = []
        with patch.object(store_threads, "Worker", self._worker):
            self.service = MessageStoreService(
                self.files,
                self.engine,
                settings,
                wake=self._wake,
                settle=self.settle,
                on_failed=self._failed,
                abandon=self.abandoned.set,
                clock_ms=lambda: 42,
                gate=gate,
                mender=mender,
            )
        self.index = self.log.new_index(1, "/", "q", 0, False)
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

    def publish(self, *, force: bool = True, size: int = 0) -> None:
        """Put a message into the open batch, of `size` bytes and some; `force`: to be closed and synced at once."""
        message = Message(Envelope("", "q"), CONTENT + bytes(size), 1, 0, 0, True)
        self.log.batch.add(self.index, message, self._number)
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
    test: Callable[[ServiceFixture], Awaitable[None]],
    settings: StoreSettings | None = None,
    *,
    tasks: bool = False,
    gate: Gate | None = None,
    mender: Mender | None = None,
) -> ServiceFixture:
    """Run `test`: with the service's tasks on a clock that jumps over every wait, or without and in real time."""
    if settings is None:
        settings = StoreSettings(scrub_bytes_per_s=0)
    fixture = ServiceFixture(settings, gate, mender)
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
