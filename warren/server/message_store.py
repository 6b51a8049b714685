"""Run the threads of the message store: they write, read and remove as the message log requests.

The log (``msgstore.log.message_log``) gathers batches and says what to write, read and remove. It knows neither time
nor disk. Three threads do the work. The committer writes and syncs, the reader reads. The housekeeper does the work
that nothing waits for: checkpoints, spare segments, copies for the quarantine, removal, pins.

1. Each thread does its jobs one after the other, in the order of the requests, except (10). A segment that will be
   removed goes through the reader first, so that a read requested earlier still finds it. The segment is removed before
   the next checkpoint, which no longer contains it.
2. Outcomes reach the engine on the loop only, in `completed`. A thread leaves them in a queue and wakes the reactor
   through its eventfd: a confirm does not wait for a scheduler.
3. When there is no space, the same commit is tried again every `RETRY_S`, for ever. Publishers wait meanwhile, confirms
   stop, and everything that does not need space continues.
4. When the disk fails, or the engine fails at an outcome of a thread, confirms stop for good and the process ends
   within `GRACE_S`, even when something hangs on the failed disk. From then on the state of the engine is not trusted;
   the contents of the disk are.
5. Written data is synced after `SYNC_WITHIN_S` at the latest, whether a client waits for it or not. A batch that no
   client waits for is written about `LINGER_S` after its first message at the latest.
6. The duration of commits decides how much the next ones may hold (``commit_pace.py``).
7. The housekeeper makes a pin (``msgstore.files.pins``) after everything that was requested before its position was
   told. From the request of the pin on, streams do not drop anything. So the pin has all that the log has released.
8. The engine learns of a commit when the gate lets it pass: at once on a single node; with followers when the required
   ones have it. At most one commit waits at the gate, since only one is under way at a time. A commit that has to wait
   there does not wake the loop: the event that opens the gate does. A continued frame does not wait there: only the
   last frame of its batch does.
9. Bytes that a read finds damaged are read once more, past the cache of the system. If they are still damaged they are
   mended before the engine takes them, provided another node has them (`Mender`). So clients do not notice.
10. Bytes that the disk does not return for the moment are not damaged. The read leaves the line, so that later jobs can
    be done. It is tried again with back-off for as long as the process runs; the engine is told when it has succeeded.
    Nothing else waits for it: a file that is no longer needed is removed, and the read finds then that it is gone. A
    stop does not wait for such reads, and everything that they asked for stays referred to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import trio

from warren.msgstore.files.pins import PinnedFile
from warren.msgstore.files.store import wall_time_ms
from warren.msgstore.files.store_errors import StoreUnreadableError
from warren.msgstore.log.checkpoint import CLEAN
from warren.msgstore.log.doomed_pages import DoomedRead
from warren.msgstore.log.jobs import (
    CheckpointJob,
    CommitJob,
    Errand,
)
from warren.msgstore.log.log_position import LogPosition, call_with_position
from warren.msgstore.log.message_log import MessageLog
from warren.server import standard_streams
from warren.server.catalogue.writer import InThread
from warren.server.disk_space import RETRY_S, DiskSpace
from warren.server.histogram import Histogram
from warren.server.logs import get_logger
from warren.server.losses import Losses
from warren.server.settings import StoreSettings
from warren.server.start_errors import StartError
from warren.server.store_damage import StoreDamage
from warren.server.store_reader import Mender, StoreReader
from warren.server.store_threads import READ_RETRY_S, Gate, OpenGate, StoreFiles, StoreThreads
from warren.server.store_upkeep import StoreUpkeep
from warren.server.store_versions import Versions
from warren.server.store_workers import (
    Failure,
    Outcome,
    PinJob,
    ReleaseJob,
    Shortage,
    SpareJob,
    UnpinJob,
    Unread,
    kind_of,
)
from warren.server.supervision import Supervision
from warren.server.threads import STORE, in_thread
from warren.server.unread_jobs import READ_ADVICE, UnreadJobs

EXIT_CODE: Final = 3
STALL_S: Final = 1.0  # at a stop: how long the gate may take to open again
# How long a start waits for failing reads before it gives up.
READ_PATIENCE_S: Final = 30.0
_POLL_S: Final = 0.02

_Result = TypeVar("_Result")

log = get_logger("message_store")


def end_process() -> None:
    """End the process at once, as after a failure of the store."""
    standard_streams.finish()
    os._exit(EXIT_CODE)


class Engine(Protocol):
    """The part of ``channels.broker.Broker`` that the service needs."""

    log: MessageLog

    def stored(self, job: CommitJob) -> None: ...
    def loaded(self, job: Errand) -> None: ...
    def set_alarm(self, resource: str, short: bool) -> None: ...


class StoreCounts:
    """The work that was done since the start."""

    def __init__(self) -> None:
        self.commit_times = Histogram()  # of writing and syncing a batch; written by the committer
        self.batches = 0  # carried out, including those that only synced
        self.syncs = 0
        self.written_bytes = 0
        self.synced_bytes = 0
        self.reads = 0
        self.checkpoints = 0


class MessageStoreService:
    """Carries out the requests of the message log of `broker`, with the files of `store`.

    `wake` makes the reactor call `completed` soon, from any thread; `settle` lets the engine finish its turn; both may
    be set later. `on_failed` is called once, when the process has to stop. `abandon` ends the process when it does not.
    """

    def __init__(
        self,
        store: StoreFiles,
        broker: Engine,
        settings: StoreSettings,
        *,
        wake: Callable[[], None],
        settle: Callable[[], None],
        on_failed: Callable[[], None],
        abandon: Callable[[], None] = end_process,
        clock_ms: Callable[[], int] = wall_time_ms,
        in_thread: InThread = in_thread,
        tasks: Supervision | None = None,
        gate: Gate | None = None,
        mender: Mender | None = None,
    ) -> None:
        self.failed = ""  # the reason for the failure of the store
        self.versions: Versions | None = None  # of Warren: made by, and written by
        self.losses = Losses()  # of the start
        self.counts = StoreCounts()
        self.errands = 0  # under way: requested by the engine, and not reported to it yet
        self._broker = broker
        self._log = broker.log
        self._settle = settle
        self._on_failed = on_failed
        self._clock_ms = clock_ms
        self._in_thread = in_thread
        self._gate: Gate = OpenGate() if gate is None else gate
        self._reads = StoreReader(store, broker.log.checksum, mender)
        self._held: CommitJob | None = None  # at the gate
        commit_times = self.counts.commit_times
        self.threads = StoreThreads(
            store,
            broker.log,
            self._reads,
            mender,
            self._gate,
            commit_times,
            wake=wake,
            abandon=abandon,
            clock_ms=clock_ms,
        )
        keep_house = self.threads.keep_house
        self.damage = StoreDamage(broker.log, keep_house, clock_ms, is_mended=mender is not None)
        minimum_bytes = settings.disk_free_min_bytes
        self._space = DiskSpace(store, broker.log, minimum_bytes, broker.set_alarm, keep_house, settle)
        self._unread = UnreadJobs(self.threads.read)
        tasks = Supervision() if tasks is None else tasks
        self.upkeep = StoreUpkeep(broker.log, settings, self._space, self._unread, settle, tasks)
        self._clean_checkpoint = False
        self._progress = trio.Event()

    # --- on the loop: to the threads and back -----------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads."""
        self.threads.start()

    def dispatch(self) -> None:
        """Hand the jobs of the log to the threads. Call it when there are any."""
        self.errands += self.threads.dispatch()

    def read_at_once(self) -> None:
        """Carry out the reads that the log requests, in this thread. Only before `start`.

        Those of doomed pages are left to the reader: nothing at a start needs them.

        Raises:
            StartError: the disk does not return something.
        """
        message_log = self._log
        later: list[Errand] = []
        while message_log.read_jobs:
            reads, message_log.read_jobs = message_log.read_jobs, []
            for read in reads:
                if isinstance(read, DoomedRead):
                    later.append(read)
                    continue
                patiently(lambda read=read: self._reads.read(read))  # type: ignore[misc]
                self._broker.loaded(read)
        message_log.read_jobs = later

    def completed(self) -> None:
        """Report to the engine what the threads have done. The reactor calls this when woken, and then settles."""
        outcomes = self.threads.outcomes
        while outcomes and not self.failed:
            outcome = outcomes.popleft()
            try:
                self._take(outcome)
            except Exception as error:
                self._fail(Failure(f"internal error: {error!r}", error))
        if not self._progress.is_set():
            self._progress.set()

    def gate_moved(self) -> None:
        """Report the commit at the gate to the engine, if the gate is open now. On the loop; settle afterwards."""
        if self.threads.outcomes:
            self.completed()
        if self.failed:
            return
        try:
            self._pass_gate()
        except Exception as error:
            self._fail(Failure(f"internal error: {error!r}", error))
        if not self._progress.is_set():
            self._progress.set()

    def _pass_gate(self) -> None:
        job = self._held
        if job is not None and self._gate.is_open(job):
            self._held = None
            self._broker.stored(job)

    def _take(self, outcome: Outcome) -> None:
        counts = self.counts
        if isinstance(outcome, CommitJob) and outcome.is_continued:
            counts.written_bytes += int(outcome.written_bytes())
            self._broker.stored(outcome)
            self._space.note_segment(outcome)
        elif isinstance(outcome, CommitJob):
            counts.batches += 1
            counts.written_bytes += int(outcome.written_bytes())
            if outcome.sync:
                counts.syncs += 1
                counts.synced_bytes = counts.written_bytes
            self._log.batch_bytes = self.threads.pace.batch_bytes
            self._held = outcome
            self._pass_gate()
            self._space.maybe_prepare_spare(outcome)
            self._space.note_segment(outcome)
        elif isinstance(outcome, Errand):
            self._unread.done(outcome)
            counts.reads += 1
            self.errands -= 1
            self._broker.loaded(outcome)
            if self._log.damage.reports:
                self.damage.tell()
        elif isinstance(outcome, CheckpointJob):
            counts.checkpoints += 1
            self._clean_checkpoint = bool(outcome.content[13] & CLEAN)
            self._log.checkpoints.written(outcome)
        elif isinstance(outcome, ReleaseJob):
            self.threads.released(outcome)
        elif isinstance(outcome, SpareJob):
            self._space.spare_is_ready()
        elif isinstance(outcome, PinJob):
            outcome.over.set()
            self.threads.pin_is_over()
        elif isinstance(outcome, Shortage):
            self._space.met(outcome)
            return
        elif isinstance(outcome, Unread):
            self._unread.add(outcome)
            return
        elif isinstance(outcome, Failure):
            self._fail(outcome)
            return
        if self._space.shortages:
            self._space.found(kind_of(outcome))

    # --- trouble ----------------------------------------------------------------------------------------------------

    def trouble(self) -> str:
        """Return why the store cannot do its work, in a few words; empty if it can."""
        if self.failed:
            return "the message store has failed"
        if self._unread.trouble():
            return "the disk of the message store cannot be read"
        return "the disk of the message store is full" if self._space.shortages else self._gate.trouble()

    def _fail(self, failure: Failure) -> None:
        self.failed = failure.reason
        log.error("the message store has failed; the broker stops", reason=failure.reason, exception=failure.error)
        self._on_failed()

    # --- what cannot be read ----------------------------------------------------------------------------------------

    def unread(self) -> list[dict[str, Any]]:
        """Return the failing reads, as the API shows them; the oldest first."""
        return self._unread.described(self._clock_ms())

    def failed_reads(self) -> int:
        """Return how often reads have failed since the start."""
        return self._unread.failures

    def give_up_reads(self, vhost: str, queue: str) -> int:
        """Accept what the disk returns for the failing reads of a queue; return the number of these reads.

        Bytes that the disk does not return count as damaged then.
        """
        reads = [each for each in self._unread.reads() if each.subject() == (vhost, queue)]
        for each in reads:
            if isinstance(each.job, Errand):
                self._reads.give_up(each.job)
                self._unread.hurry(each)
        return len(reads)

    # --- waiting ----------------------------------------------------------------------------------------------------

    async def deleted(self) -> None:
        """Return when everything requested from the log until now is durable, deleted queues above all."""
        message_log = self._log
        if message_log.is_idle() and message_log.durable_lsn >= message_log.next_lsn:
            return
        message_log.force()
        batch = int(message_log.batch.number)
        self._settle()
        while message_log.done_batch < batch:
            await self._next_progress()

    async def restored(self, under_way: Callable[[], bool]) -> None:
        """Return when the reads that the engine needs before it can take publishes are no longer `under_way`.

        Raises:
            StartError: the disk does not return the data.
        """
        while under_way():
            self._settle()
            await self._next_progress()
            if self._unread.longest_s() > READ_PATIENCE_S:
                raise StartError(f"message store: {self._unread.trouble()}; {READ_ADVICE}")

    async def pin(self, holder: str) -> tuple[LogPosition, list[PinnedFile]]:
        """Hold the durable state of the store and its files for `holder`, which has no pin, until `unpin`.

        Raises:
            PinError: that is not possible; no pin is held.
        """
        job = PinJob(holder)

        def told(position: LogPosition) -> None:
            if job.is_given_up:
                self.threads.pin_is_over()
                return
            job.position = position
            self.threads.keep_house(job)

        self.threads.pins += 1
        call_with_position(self._log, told)
        try:
            self._settle()
            await job.over.wait()
        except trio.Cancelled:
            job.is_given_up = True
            self.unpin(holder)
            raise
        if job.error is not None:
            raise job.error
        assert job.position is not None
        return job.position, job.files

    def unpin(self, holder: str) -> None:
        """Release the pin of `holder` soon."""
        self.threads.keep_house(UnpinJob(holder))

    async def stop(self, deadline: float) -> bool:
        """Write open batches, take the checkpoint of a clean stop, end the threads; until `deadline` (trio time).

        Publishing and acknowledging have ended already. Commits that cannot pass the gate may take `STALL_S`: the other
        nodes stop, too. Returns whether all of it was done.
        """
        self.upkeep.is_stopping = True
        self._unread.tell_stop()
        stalls_at_s = trio.current_time() + STALL_S
        with trio.move_on_at(deadline):
            while not self.failed and not self._is_clean():
                self._log.checkpoints.want(clean=True)
                self._settle()
                await self._next_progress()
                reason = self._gate.trouble()
                if not reason:
                    stalls_at_s = trio.current_time() + STALL_S
                elif trio.current_time() >= stalls_at_s:
                    log.warning("the last commits are not confirmed, and are no longer waited for", reason=reason)
                    return False
            if not self.failed:
                return await self._in_thread(STORE, self.threads.finish, abandon=True)
        return False

    def _is_clean(self) -> bool:
        """Tell whether the checkpoint on disk is a clean one, and the log has no frame after it."""
        message_log = self._log
        return self._clean_checkpoint and message_log.is_idle() and message_log.checkpoints.lsn == message_log.next_lsn

    async def _next_progress(self) -> None:
        # An empty batch is done without an outcome of a thread: hence the second way out.
        self._progress = trio.Event()
        with trio.move_on_after(_POLL_S):
            await self._progress.wait()

    async def run(self) -> None:
        """Close batches in time, sync, take checkpoints in quiet times, watch the disk, compact, scrub. For ever."""
        await self.upkeep.run()

    def end(self) -> None:
        """Detach from the threads: they no longer wake anybody nor end the process."""
        self.threads.end()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads after `end`, at most `timeout_s` for each; tell whether all have ended."""
        return self.threads.join(timeout_s)


def patiently(read: Callable[[], _Result], pause: Callable[[float], None] = time.sleep) -> _Result:
    """Return the result of `read`, which is called again while the disk does not return data. Blocks; at a start.

    Raises:
        StartError: the disk has not for `READ_PATIENCE_S`, or waiting does not help.
    """
    waited_s, pause_s = 0.0, READ_RETRY_S
    while True:
        try:
            return read()
        except StoreUnreadableError as error:
            if waited_s >= READ_PATIENCE_S or not error.passes:
                raise StartError(f"message store: {error}; nothing was changed. {READ_ADVICE}") from None
            if waited_s == 0:
                log.error("the message store cannot be read; the start waits", file=error.path, reason=error.why)
        pause(pause_s)
        waited_s += pause_s
        pause_s = min(2 * pause_s, RETRY_S)
