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
from collections import deque
from collections.abc import Callable
from threading import Event
from typing import Any, Final, Protocol, TypeVar

import trio

from warren.msgstore.files.errors import StoreError, StoreUnreadableError
from warren.msgstore.files.pins import PinError, PinnedFile
from warren.msgstore.files.recovery import ADVICE
from warren.msgstore.files.store import ReadProblem, wall_time_ms
from warren.msgstore.log.checkpoint import CLEAN, seal
from warren.msgstore.log.compaction import PIECE_BYTES, Compaction
from warren.msgstore.log.jobs import (
    CheckpointJob,
    CommitJob,
    DropJob,
    Errand,
    SealedRead,
    SealJob,
    UnlinkJob,
)
from warren.msgstore.log.log_position import LogPosition, call_with_position
from warren.msgstore.log.message_log import LINGER_S, MessageLog
from warren.msgstore.log.scrub import PIECE_BYTES as SCRUB_PIECE_BYTES
from warren.msgstore.log.scrub import Scrubber
from warren.server import standard_streams
from warren.server.beats import next_beat
from warren.server.catalogue.writer import InThread
from warren.server.commit_pace import CommitPace
from warren.server.disk_space import RETRY_S, DiskSpace
from warren.server.errors import StartError
from warren.server.histogram import Histogram
from warren.server.logs import get_logger
from warren.server.settings import StoreSettings
from warren.server.store_reader import Mender, StoreReader
from warren.server.store_versions import Versions
from warren.server.store_workers import (
    Failure,
    Job,
    MendJob,
    Outcome,
    PinJob,
    QuarantineJob,
    ReleaseJob,
    Shortage,
    SpareJob,
    UnpinJob,
    Unread,
    Worker,
    kind_of,
)
from warren.server.supervision import ESSENTIAL, Supervision
from warren.server.threads import STORE, in_thread
from warren.server.unread_jobs import READ_ADVICE, UnreadJobs

EXIT_CODE: Final = 3
GRACE_S: Final = 5.0
STALL_S: Final = 1.0  # at a stop: how long the gate may take to open again
SYNC_WITHIN_S: Final = 1.0
# How long without writes before an unneeded checkpoint is taken, and how often that may happen.
IDLE_S: Final = 1.0
# Between two checkpoints that are taken for another reason than the length of the log.
CHECKPOINT_PAUSE_S: Final = 5.0
# How long unneeded segments wait for a checkpoint while others write, if they are too few to justify one.
DEAD_KEPT_S: Final = 60.0
COMPACTION_IDLE_S: Final = 1.0
# At most this often everything is read again.
SCRUB_EVERY_S: Final = 3600.0
SCRUB_IDLE_S: Final = 5.0

_WATCH_S: Final = SYNC_WITHIN_S / 2
_READ_RETRY_S: Final = 0.05
# How long a start waits for failing reads before it gives up.
READ_PATIENCE_S: Final = 30.0
_POLL_S: Final = 0.02
_DAMAGES_LOGGED_MAX: Final = 20

_Result = TypeVar("_Result")

log = get_logger("message_store")


def end_process() -> None:
    """End the process at once, as after a failure of the store."""
    standard_streams.finish()
    os._exit(EXIT_CODE)


class StoreFiles(Protocol):
    """The part of ``msgstore.files.store.Store`` that the threads need."""

    def commit(self, job: CommitJob, time_ms: int) -> None: ...
    def read(self, ranges: list[tuple[int, int]]) -> list[bytes]: ...
    def forget_cached(self, ranges: list[tuple[int, int]]) -> None: ...
    def seal(self, job: SealJob) -> None: ...
    def read_sealed(self, job: SealedRead) -> None: ...
    def drop_sealed(self, job: DropJob) -> None: ...
    def swap_sealed(self, stream_id: int, segments: list[int]) -> None: ...
    def unmake_sealed(self, stream_id: int, segment: int) -> None: ...
    def take_read_problems(self) -> list[ReadProblem]: ...
    def write_checkpoint(self, content: bytes) -> None: ...
    def release(self, numbers: list[int]) -> None: ...
    def unlink(self, numbers: list[int]) -> None: ...
    def prepare_spare(self, size: int) -> None: ...
    def quarantine(self, number: int) -> None: ...
    def pin(self, holder: str, position: LogPosition) -> list[PinnedFile]: ...
    def unpin(self, holder: str) -> None: ...
    def free_bytes(self) -> int: ...
    def close(self) -> None: ...


class Engine(Protocol):
    """The part of ``channels.broker.Broker`` that the service needs."""

    log: MessageLog

    def stored(self, job: CommitJob) -> None: ...
    def loaded(self, job: Errand) -> None: ...
    def set_alarm(self, resource: str, short: bool) -> None: ...


class Gate(Protocol):
    """Between the committer and the engine: whether to report a commit that this node has carried out."""

    def is_open(self, job: CommitJob) -> bool: ...

    def waits(self, job: CommitJob) -> bool:
        """Tell whether the gate is still closed, so that `gate_moved` follows when it opens. Any thread; a hint."""

    def trouble(self) -> str:
        """Return why commits wait, in a few words; empty if they do not."""


class OpenGate:
    """The gate of a single node."""

    def is_open(self, job: CommitJob) -> bool:
        return True

    def waits(self, job: CommitJob) -> bool:
        return False

    def trouble(self) -> str:
        return ""


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
        self.losses: tuple[dict[str, object], ...] = ()  # missing or damaged data that the start has found
        self.commit_times = Histogram()  # of writing and syncing a batch; written by the committer
        # Since the start.
        self.batches = 0  # carried out, including those that only synced
        self.syncs = 0
        self.written_bytes = 0
        self.synced_bytes = 0
        self.reads = 0
        self.checkpoints = 0
        # Segments of the log in which scrubbing has found damaged frames that are not mended, and when, in ms since
        # 1970.
        self.damaged_segments: dict[int, int] = {}
        self.errands = 0  # under way: requested by the engine, and not reported to it yet
        self._store = store
        self._broker = broker
        self._log = broker.log
        self._settings = settings
        self._wake = wake
        self._settle = settle
        self._on_failed = on_failed
        self._abandon = abandon
        self._clock_ms = clock_ms
        self._in_thread = in_thread
        self._tasks = Supervision() if tasks is None else tasks
        self._gate: Gate = OpenGate() if gate is None else gate
        self._mender = mender
        self._reads = StoreReader(store, broker.log.checksum, mender)
        self._held: CommitJob | None = None  # at the gate
        self._compaction = Compaction(broker.log)
        self._pace = CommitPace()  # used by the committer
        self._outcomes: deque[Outcome] = deque()
        self._committer = Worker("committer", self._commit, self._report, _committer_retries)
        self._reader = Worker("reader", self._reads.read, self._report, _reader_retries)
        self._housekeeper = Worker("housekeeper", self._keep_house, self._report, _housekeeper_retries)
        minimum_bytes = settings.disk_free_min_bytes
        self._space = DiskSpace(store, broker.log, minimum_bytes, broker.set_alarm, self._housekeeper.put, settle)
        self._ended = Event()
        self._stopping = False

        self._releasing = 0  # number of removals with the reader
        self._held_back: list[CheckpointJob] = []  # until the removals are with the housekeeper
        self._pinning = 0  # number of pins being made
        self._dropped_later: list[DropJob] = []  # until the pins are made
        self._unread = UnreadJobs(self._reader.put)
        self._quarantined: set[int] = set()
        self._clean_checkpoint = False
        self._progress = trio.Event()
        self._opened = trio.Event()
        self._log.on_open = self._on_open

    # --- on the loop: to the threads and back -----------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads."""
        self._committer.start()
        self._reader.start()
        self._housekeeper.start()

    def dispatch(self) -> None:
        """Hand the jobs of the log to the threads. Call it when there are any."""
        message_log = self._log
        if message_log.commit_jobs:
            jobs, message_log.commit_jobs = message_log.commit_jobs, []
            for job in jobs:
                self._committer.put(job)
        if message_log.read_jobs:
            reads, message_log.read_jobs = message_log.read_jobs, []
            self.errands += len(reads)
            for read in reads:
                if self._pinning and isinstance(read, DropJob):
                    self._dropped_later.append(read)
                else:
                    self._reader.put(read)
        if message_log.seal_jobs:
            seals, message_log.seal_jobs = message_log.seal_jobs, []
            self.errands += len(seals)
            for seal_job in seals:
                self._housekeeper.put(seal_job)
        if message_log.checkpoint_jobs:
            checkpoints, message_log.checkpoint_jobs = message_log.checkpoint_jobs, []
            for checkpoint in checkpoints:
                if self._releasing:
                    self._held_back.append(checkpoint)
                else:
                    self._housekeeper.put(checkpoint)
        if message_log.unlink_jobs:
            unlinks, message_log.unlink_jobs = message_log.unlink_jobs, []
            for unlink in unlinks:
                self._releasing += 1
                self._reader.put(ReleaseJob(unlink))

    def read_at_once(self) -> None:
        """Carry out the reads that the log requests, in this thread. Only before `start`.

        Raises:
            StartError: the disk does not return something.
        """
        message_log = self._log
        while message_log.read_jobs:
            reads, message_log.read_jobs = message_log.read_jobs, []
            for read in reads:
                patiently(lambda read=read: self._reads.read(read))  # type: ignore[misc]
                self._broker.loaded(read)

    def completed(self) -> None:
        """Report to the engine what the threads have done. The reactor calls this when woken, and then settles."""
        outcomes = self._outcomes
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
        if self._outcomes:
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
        if isinstance(outcome, CommitJob) and outcome.is_continued:
            self.written_bytes += int(outcome.payload_bytes)
            self._broker.stored(outcome)
            self._space.note_segment(outcome)
        elif isinstance(outcome, CommitJob):
            self.batches += 1
            self.written_bytes += int(outcome.payload_bytes)
            if outcome.sync:
                self.syncs += 1
                self.synced_bytes = self.written_bytes
            self._log.batch_bytes = self._pace.batch_bytes
            self._held = outcome
            self._pass_gate()
            self._space.maybe_prepare_spare(outcome)
            self._space.note_segment(outcome)
        elif isinstance(outcome, Errand):
            self._unread.done(outcome)
            self.reads += 1
            self.errands -= 1
            self._broker.loaded(outcome)
            if self._log.damages:
                self._tell_damages()
        elif isinstance(outcome, CheckpointJob):
            self.checkpoints += 1
            self._clean_checkpoint = bool(outcome.content[13] & CLEAN)
            self._log.checkpoints.written(outcome)
        elif isinstance(outcome, ReleaseJob):
            self._released(outcome)
        elif isinstance(outcome, SpareJob):
            self._space.spare_is_ready()
        elif isinstance(outcome, PinJob):
            outcome.over.set()
            self._pinned()
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

    def _released(self, job: ReleaseJob) -> None:
        self._releasing -= 1
        self._housekeeper.put(job.unlink)
        if not self._releasing:
            checkpoints, self._held_back = self._held_back, []
            for checkpoint in checkpoints:
                self._housekeeper.put(checkpoint)

    def _pinned(self) -> None:
        """A pin is made or was cancelled: postponed drops can continue."""
        self._pinning -= 1
        if not self._pinning:
            drops, self._dropped_later = self._dropped_later, []
            for drop in drops:
                self._reader.put(drop)

    def _tell_damages(self) -> None:
        damages, self._log.damages = self._log.damages, []
        for damage in damages[:_DAMAGES_LOGGED_MAX]:
            if damage.queue or damage.sequence_number >= 0:
                log.error(
                    "data of a queue is damaged on disk and not served",
                    vhost=damage.vhost,
                    queue=damage.queue,
                    sequence_number=damage.sequence_number,
                    segment=damage.segment,
                    lsn=damage.lsn,
                )
            else:
                log.error("the message log is damaged on disk", segment=damage.segment, lsn=damage.lsn, advice=ADVICE)
        if len(damages) > _DAMAGES_LOGGED_MAX:
            log.error("further damage on disk", places=len(damages) - _DAMAGES_LOGGED_MAX)
        if self._mender is None:
            for damage in damages:
                if damage.segment >= 0 and not damage.queue and damage.sequence_number < 0:
                    self.damaged_segments.setdefault(int(damage.segment), self._clock_ms())
        hurt = {int(damage.segment) for damage in damages if damage.segment >= 0}  # damage of streams is in other files
        for segment in hurt - self._quarantined:
            self._quarantined.add(segment)
            self._housekeeper.put(QuarantineJob(segment))
        if self._mender is not None:
            for damage in damages[:_DAMAGES_LOGGED_MAX]:
                if damage.segment >= 0:
                    self._housekeeper.put(MendJob(damage.segment, damage.lsn))

    # --- in the threads ---------------------------------------------------------------------------------------------

    def _commit(self, job: Job) -> None:
        assert isinstance(job, CommitJob)
        began_s = time.monotonic()
        self._store.commit(job, self._clock_ms())
        took_s = time.monotonic() - began_s
        self.commit_times.observe(took_s)
        self._pace.note(int(job.payload_bytes), took_s, synced=job.sync)

    def _keep_house(self, job: Job) -> None:
        store = self._store
        if isinstance(job, CheckpointJob):
            store.write_checkpoint(seal(job.content, self._log.checksum, int(job.last_crc)))
        elif isinstance(job, UnlinkJob):
            store.unlink(job.segments)
        elif isinstance(job, SpareJob):
            store.prepare_spare(job.size)
        elif isinstance(job, SealJob):
            job.carry_out(store)
        elif isinstance(job, PinJob):
            assert job.position is not None
            try:
                job.files = store.pin(job.holder, job.position)
            except PinError as error:
                job.error = error
        elif isinstance(job, UnpinJob):
            store.unpin(job.holder)
        elif isinstance(job, MendJob):
            assert self._mender is not None
            self._mender.mend_segment(job.segment, job.lsn)
        else:
            assert isinstance(job, QuarantineJob)
            store.quarantine(job.segment)

    def _report(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)
        if self._ended.is_set():
            return
        # After `append`: the gate may open from now on, and finds the outcome there.
        if not (isinstance(outcome, CommitJob) and self._gate.waits(outcome)):
            self._wake()
        if isinstance(outcome, Failure) and not self._ended.wait(GRACE_S):
            self._abandon()

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
        """Let the failing reads of a queue take what the disk returns; return the number of these reads.

        Bytes that the disk does not return count as damaged then.
        """
        reads = [each for each in self._unread.reads() if each.subject() == (vhost, queue)]
        for each in reads:
            if isinstance(each.job, Errand):
                self._reads.give_up(each.job)
                self._unread.hurry(each)
        return len(reads)

    # --- counts -----------------------------------------------------------------------------------------------------

    def compacted_segments(self) -> int:
        """Return the number of segments emptied since the start."""
        return int(self._compaction.segments_done)

    def moved_bytes(self) -> int:
        """Return the number of bytes copied for that."""
        return int(self._compaction.moved_bytes)

    # --- tasks ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Close batches in time, sync, take checkpoints in quiet times, watch the disk, compact, scrub. For ever."""
        async with trio.open_nursery() as nursery:
            keep = self._tasks.keep
            nursery.start_soon(keep, "store linger", self._linger, ESSENTIAL)
            nursery.start_soon(keep, "store sync", self._watch_writes, ESSENTIAL)
            nursery.start_soon(keep, "disk watch", self._space.watch, ESSENTIAL)
            nursery.start_soon(keep, "reads that fail", self._unread.run, ESSENTIAL)
            nursery.start_soon(keep, "compaction", self._compact)
            if self._settings.scrub_bytes_per_s:
                nursery.start_soon(keep, "scrubbing", self._scrub)

    def _on_open(self) -> None:
        if not self._opened.is_set():
            self._opened.set()

    async def _linger(self) -> None:
        message_log = self._log
        while True:
            await self._opened.wait()
            await trio.sleep(LINGER_S)
            # Another batch may have been opened meanwhile: then it is written a little early.
            if message_log.in_flight is None:
                self._opened = trio.Event()
                if not message_log.is_idle():
                    message_log.close_if_due(lingered=True)
                    self._settle()

    async def _watch_writes(self) -> None:
        message_log = self._log
        unsynced_lsn = -1  # the last LSN that was still unsynced in the previous round
        last_lsn = -1
        checkpoint_lsn = -1
        quiet_since = checkpoint_s = trio.current_time()
        while True:
            is_covered = message_log.next_lsn <= min(message_log.durable_lsn, message_log.checkpoints.lsn)
            if message_log.is_idle() and is_covered and not message_log.is_reclaiming() and not self._gain_bytes():
                await self._opened.wait()  # all that was written is synced and in a checkpoint
            await trio.sleep(_WATCH_S)
            if self._stopping:
                continue
            now = trio.current_time()
            if message_log.next_lsn != last_lsn:
                last_lsn = int(message_log.next_lsn)
                quiet_since = now
            if unsynced_lsn > message_log.durable_lsn:
                message_log.force()
                self._settle()
            unsynced_lsn = int(message_log.written_lsn)
            if message_log.checkpoints.lsn != checkpoint_lsn:
                checkpoint_lsn = int(message_log.checkpoints.lsn)
                checkpoint_s = now
            if now - checkpoint_s < CHECKPOINT_PAUSE_S:
                continue
            is_quiet = now - quiet_since >= IDLE_S
            if (is_quiet and message_log.next_lsn > checkpoint_lsn) or self._gains_space(now - checkpoint_s, is_quiet):
                checkpoint_s = now
                message_log.checkpoints.want()
                self._settle()

    def _gains_space(self, since_s: float, is_quiet: bool) -> bool:
        """Tell whether a checkpoint is worth its cost for the segments that it releases. `since_s`: since the last one.

        Without it a drained backlog would stay on disk until the log has grown by ``store.checkpoint_bytes``. That
        takes weeks if a client publishes only a little every second.
        """
        gain_bytes = self._gain_bytes()
        if is_quiet or since_s >= DEAD_KEPT_S or self._space.is_low:
            return gain_bytes > 0
        return gain_bytes >= self._log.checkpoints.every_bytes

    def _gain_bytes(self) -> int:
        return int(self._log.segments.gain_bytes(self._log.checkpoints.lsn, self._space.is_low))

    async def _compact(self) -> None:
        """Move live data out of sparse segments, a piece at a time."""
        compaction = self._compaction
        pause_s = PIECE_BYTES / self._settings.compaction_bytes_per_s
        while True:
            if self._stopping or self._log.is_congested() or self._space.shortages:
                await next_beat(COMPACTION_IDLE_S)
            elif compaction.is_busy():
                await trio.sleep(_POLL_S)
            elif compaction.step(urgent=self._space.is_low):
                self._settle()
                await trio.sleep(pause_s)
            else:
                await next_beat(COMPACTION_IDLE_S)

    async def _scrub(self) -> None:
        """Read sealed data again, a piece at a time, to find corruption that no read has met yet."""
        scrubber = Scrubber(self._log)
        begun_bytes = 0
        passes = 0
        pass_began = trio.current_time()
        while True:
            await trio.sleep(max(begun_bytes, SCRUB_PIECE_BYTES) / self._settings.scrub_bytes_per_s)
            if scrubber.passes > passes:
                passes = int(scrubber.passes)
                await trio.sleep_until(pass_began + SCRUB_EVERY_S)
                pass_began = trio.current_time()
            begun_bytes = 0 if self._stopping else scrubber.step()
            if begun_bytes:
                self._settle()
            elif not scrubber.is_busy():
                await trio.sleep(SCRUB_IDLE_S)  # no sealed data

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
                self._pinned()
                return
            job.position = position
            self._housekeeper.put(job)

        self._pinning += 1
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
        self._housekeeper.put(UnpinJob(holder))

    async def stop(self, deadline: float) -> bool:
        """Write open batches, take the checkpoint of a clean stop, end the threads; until `deadline` (trio time).

        Publishing and acknowledging have ended already. Commits that cannot pass the gate may take `STALL_S`: the other
        nodes stop, too. Returns whether all of it was done.
        """
        self._stopping = True
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
                    log.warning("the last commits are not confirmed, and nothing waits for them", reason=reason)
                    return False
            if not self.failed:
                return await self._in_thread(STORE, self._finish, abandon=True)
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

    def _finish(self) -> bool:
        self._committer.finish()
        self._reader.finish()
        if not (self._committer.join(GRACE_S) and self._reader.join(GRACE_S)):
            return False
        self._housekeeper.finish()
        if not self._housekeeper.join(GRACE_S):
            return False
        try:
            self._store.close()
        except StoreError as error:
            log.warning("the message log was not closed", reason=str(error))
            return False
        return True

    def end(self) -> None:
        """Detach from the threads: they no longer wake anybody nor end the process."""
        self._ended.set()
        self._committer.finish()
        self._reader.finish()
        self._housekeeper.finish()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads after `end`, at most `timeout_s` for each; tell whether all have ended."""
        return all(worker.join(timeout_s) for worker in (self._committer, self._reader, self._housekeeper))


def patiently(read: Callable[[], _Result], pause: Callable[[float], None] = time.sleep) -> _Result:
    """Return the result of `read`, which is called again while the disk does not return data. Blocks; at a start.

    Raises:
        StartError: the disk has not for `READ_PATIENCE_S`, or waiting does not help.
    """
    waited_s, pause_s = 0.0, _READ_RETRY_S
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


def _committer_retries(job: Job) -> float | None:
    return RETRY_S


def _reader_retries(job: Job) -> float | None:
    """Repeat reads at once, since no other job may overtake them."""
    return _READ_RETRY_S


def _housekeeper_retries(job: Job) -> float | None:
    """A job without space must not hold up one that makes space: it has another turn later."""
    return None
