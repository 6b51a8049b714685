"""The shared log, seen from the engine: the open batch, the order of commits, and their outcomes.

Rows to be stored gather in the open batch. Closing it makes a `CommitJob`, one frame; while that is being written the
next batch gathers, so that the batches grow with the load and no timer decides. A batch that is larger than a frame may
be (`frame_bytes`) is one commit of several jobs, one after the other in one segment.

1. One commit is under way at a time, and batches are closed, committed and reported in their order.
2. A waiter is told once its batch is written; if one of the batch's waiters asks for a sync, once it is committed. The
   part that carries commits out reports up to where they are committed (`CommitJob.committed_lsn`). An empty batch is
   done when all before it are.
3. When a batch is closed the indexes are exactly what replaying all frames up to `next_lsn` would make of them, and so
   are the references of the segments, except for those in ``reclamation`` and of doomed pages. Checkpoints are taken
   then.

4. A batch that is held open over many turns, or has very many rows while another one is committed, is written in
   portions (`write_ahead`), so that closing it takes little time: its frame begins a segment, for then the places of
   its records are known in advance. The portions are handed to the committer together, as one frame.

Batches and their frames are in ``batch.py``; when checkpoints are taken, and which segments are removed then, in
``checkpoint_cycle.py``; when other files are removed, in ``removals.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.batch import Batch, BatchWaiter, tell_all
from warren.msgstore.log.bodies_ahead import AheadFile, BodiesAhead
from warren.msgstore.log.checkpoint_cycle import CheckpointCycle
from warren.msgstore.log.damage_book import DamageBook
from warren.msgstore.log.doomed_pages import DoomedPages
from warren.msgstore.log.epoch_table import NO_LIFE, EpochTable
from warren.msgstore.log.jobs import CheckpointJob, CommitJob, Errand, PortionJob, SealJob, UnlinkJob
from warren.msgstore.log.message import Message
from warren.msgstore.log.own_writes import OwnWrites
from warren.msgstore.log.queue_index import LSN_MASK, PAGE_ENTRIES, IndexOwner, QueueIndex
from warren.msgstore.log.reclamation import Reclamation
from warren.msgstore.log.records import (
    FRAME_BYTES,
    FRAME_HEADER_BYTES,
    MESSAGE,
    PAGE,
    SEGMENT_HEADER_BYTES,
    STORE_TAG_BYTES,
    Checksum,
    MessageReader,
    RecordBuffers,
    RecordWriter,
    is_intact,
    names_of,
    padded,
    place_count,
    queue_id_of_place,
    record_length,
    sequence_number_of_place,
)
from warren.msgstore.log.removals import Removals
from warren.msgstore.log.sealed_streams import SealedStreams
from warren.msgstore.log.segments import Segment, SegmentTable

# A batch without waiters is closed when it has this much, or when it is `LINGER_S` old.
LINGER_BYTES: Final = 4 << 20
LINGER_ROWS: Final = 16384
LINGER_S: Final = 0.05
# A batch takes rows that are only moved out of memory up to here; the rest goes into the next ones.
PAGED_BYTES_MAX: Final = 4 << 20
PAGED_ROWS_MAX: Final = 16384
# With this much in the open batch publishers wait, until the shell knows better how much the disk can take.
BATCH_BYTES: Final = 8 << 20
# Likewise with this many rows more than messages: each takes time when the batch is closed. Rows beyond that, of dead
# letters for instance, are written in portions.
FURTHER_ROWS: Final = 32768

# Which publishers should wait (`MessageLog.pressure`).
NO_WAIT: Final = 0
LARGE_WAIT: Final = 1
ALL_WAIT: Final = 2


class FrameAhead:
    """The frame of a batch that is written in portions: it will begin at `lsn`, as the first of `segment`."""

    def __init__(self, writer: RecordWriter, segment: Segment) -> None:
        self.writer = writer
        self.segment = segment
        self.lsn: i64 = segment.base_lsn + SEGMENT_HEADER_BYTES


class MessageLog:
    """The open batch and the state of the log. `checksum` is the one that new segments use."""

    def __init__(self, checksum: Checksum, segment_bytes: int, page_entries: int = PAGE_ENTRIES) -> None:
        self.checksum = checksum
        self.algorithm: int = 0
        self.store_id: bytes = bytes(16)
        self.segment_bytes: i64 = segment_bytes
        self.frame_bytes: i64 = FRAME_BYTES  # the largest payload of more than one record
        self.page_entries: i64 = page_entries
        self.segments = SegmentTable()
        self.indexes: dict[int, QueueIndex] = {}
        self.reclamation = Reclamation(self)
        self.doomed = DoomedPages(self)
        self.checkpoints = CheckpointCycle(self)
        self.removals = Removals(self)
        self.reader = MessageReader()
        self.epoch: i64 = 1
        self.epochs = EpochTable()  # those that have a frame, and this one
        self.life_id: bytes = NO_LIFE  # of this process, random
        self.next_queue_id: int = 1
        self.recovered_lsn: i64 = 0  # where the frames end that a start has found
        self.is_replicated: bool = False  # other nodes copy it, and may lead with what is committed only
        self.void_below_lsn: i64 = 0  # droppable records below are from an earlier life

        self.now_ms: i64 = 0  # of this turn, in ms since the epoch; never goes back (``server.clock``)

        # Memory of messages that wait in queues, by our reckoning.
        self.resident_bytes: i64 = 0
        self.memory_bytes: i64 = 128 << 20  # above, stored messages leave memory
        self.under_pressure: bool = False  # store transient messages as well

        self.batch = Batch(self, 1)  # the open one
        self.batch_bytes: i64 = BATCH_BYTES  # with more in it publishers wait; set by the shell
        self.own = OwnWrites(self)
        self.ahead_file = AheadFile(self)
        self.on_open: Callable[[], None] | None = None  # something is in the batch: close it in `LINGER_S`
        self._record_buffers = RecordBuffers()  # of the writer of the open batch, which has one at most
        self._ahead: FrameAhead | None = None  # of the open batch, if portions of it are written
        self._is_new: bool = False  # this life has not written a frame

        # The log.
        self.next_lsn: i64 = 0  # where the next frame begins, unless it needs a new segment
        self.next_segment: i64 = 1
        self.next_base_lsn: i64 = 0
        self.written_lsn: i64 = 0
        self.durable_lsn: i64 = 0  # all below is committed: synced here, and wherever else that is required
        self.done_batch: i64 = 0
        self.last_crc: i64 = 0
        self.in_flight: CommitJob | None = None
        self._flying_waiters: list[BatchWaiter] = []
        self.commit_jobs: list[CommitJob] = []  # taken by the shell
        self.read_jobs: list[Errand] = []
        self.seal_jobs: list[SealJob] = []
        self.checkpoint_jobs: list[CheckpointJob] = []
        self.unlink_jobs: list[UnlinkJob] = []
        self.sealed = SealedStreams()
        self.damage = DamageBook(self.segments)
        self._waiting_reads: list[IndexOwner] = []

    @property
    def store_tag(self) -> bytes:
        """The tag that every frame of this store carries, and no other frame."""
        return self.store_id[:STORE_TAG_BYTES]

    # --- queues -----------------------------------------------------------------------------------------------------

    def new_index(self, queue_id: int, vhost: str, name: str, lane: i64, transient: bool) -> QueueIndex:
        """Begin to store messages of a queue."""
        assert queue_id not in self.indexes
        index = QueueIndex(self, queue_id, vhost, name, lane, transient)
        self.indexes[queue_id] = index
        return index

    def new_queue_id(self) -> int:
        """Return a number that no queue of this store ever had."""
        queue_id = self.next_queue_id
        self.next_queue_id += 1
        return queue_id

    def delete_queue(self, index: QueueIndex) -> None:
        """Record in the next frame that the queue is deleted."""
        index.deleted = True
        index.has_void = True
        index.owner = None
        index.forget_all()
        del self.indexes[int(index.queue_id)]
        if index.named:
            self.batch.delete(int(index.queue_id))

    def begin_life(self, next_segment: i64, end_lsn: i64) -> None:
        """Write in a new segment from now on, after `end_lsn` and all that was brought back, which is durable.

        `next_segment`: larger than the number of any file. Droppable records belong to an earlier life, and are void.
        """
        if next_segment > self.next_segment:
            self.next_segment = next_segment
        if end_lsn > self.next_base_lsn:
            self.next_base_lsn = end_lsn
        base_lsn: i64 = self.next_base_lsn
        self.next_lsn = base_lsn
        self.written_lsn = base_lsn
        self.durable_lsn = base_lsn
        self.void_below_lsn = base_lsn

    def begin_epoch(self, epoch: int, time_ms: int, life_id: bytes) -> None:
        """Record this epoch in the first frame, synced. A delivery after it makes an unfinished stop unclean.

        `life_id`: 16 random bytes that no other life of any store has.
        """
        self.epoch = epoch
        self.life_id = life_id
        self.epochs.begin(epoch, int(self.next_base_lsn) + SEGMENT_HEADER_BYTES)
        self.epochs.name(epoch, life_id)
        self._is_new = True
        self.batch.epoch_time_ms = time_ms
        self.force()

    # --- when the open batch is closed ------------------------------------------------------------------------------

    def wait(self, waiter: BatchWaiter, sync: bool) -> None:
        """Notify `waiter` when the open batch is done: synced when `sync`, else written."""
        batch = self.batch
        batch.waiters.append(waiter)
        if sync:
            batch.wants_sync = True

    def force(self) -> None:
        """Close the open batch soon and sync it, even if nothing waits for it."""
        batch = self.batch
        batch.is_forced = True
        batch.wants_sync = True

    def close_soon(self, sync: bool) -> int:
        """Close the open batch at the end of the turn and return its number; 0 when there is nothing in it."""
        batch = self.batch
        if not batch.is_begun:
            return 0
        batch.is_forced = True
        if sync:
            batch.wants_sync = True
        return int(batch.number)

    def hold_batch(self) -> bool:
        """Keep the batch open until `release_batch`. Return False if this batch is or was already held.

        Everything put into it meanwhile is written in one frame. A batch is held once only: all confirms wait for its
        end. After a refusal it closes soon, and the caller waits for the next one.
        """
        if not self.holdable_or_close():
            return False
        batch = self.batch
        batch.is_held = True
        batch.was_held = True
        return True

    def holdable_or_close(self) -> bool:
        """Tell whether the batch can be held; if not, have it closed soon."""
        batch = self.batch
        if batch.was_held:
            batch.is_forced = True
        return not batch.was_held

    def release_batch(self) -> None:
        """Release the batch that was held: it may be closed."""
        self.batch.is_held = False

    def is_congested(self) -> bool:
        """Tell whether too much waits to be written: publishers of large messages should wait, and own work."""
        return self.batch.row_bytes > self.batch_bytes

    def room_to_page(self) -> i64:
        """Return how many more bytes the open batch takes of messages that are stored only to leave memory.

        A confirm waits for all of the batch, and for the previous one.
        """
        most: i64 = self.batch_bytes if self.batch_bytes < PAGED_BYTES_MAX else PAGED_BYTES_MAX
        batch = self.batch
        if len(batch.messages) >= PAGED_ROWS_MAX or batch.row_bytes >= most:
            return 0
        return most - batch.row_bytes

    def pressure(self) -> i64:
        """Return which publishers should wait: none, those of large messages, or all.

        All do when too much of what waits to be written is of small messages, or for many queues.
        """
        batch = self.batch
        if batch.row_bytes - batch.large_bytes > self.batch_bytes:
            return ALL_WAIT
        if batch.further_rows > FURTHER_ROWS and not batch.was_held:
            return ALL_WAIT
        return LARGE_WAIT if batch.row_bytes > self.batch_bytes else NO_WAIT

    def is_idle(self) -> bool:
        """Tell whether everything is written."""
        batch = self.batch
        return self.in_flight is None and not batch.is_begun and not batch.waiters and not batch.is_forced

    def is_reclaiming(self) -> bool:
        """Tell whether segments may still lose references of messages that are gone already."""
        return not self.reclamation.is_empty() or len(self.doomed.pages) > 0

    def close_if_due(self, *, lingered: bool = False) -> None:
        """Close the open batch when it is time: it has a waiter, is large, or has `lingered`."""
        batch = self.batch
        if batch.is_held or self.in_flight is not None:
            is_large: bool = batch.is_held or batch.is_further or batch.further_rows > FURTHER_ROWS
            if is_large and batch.is_portion():
                self.write_ahead()
            return
        due = (
            len(batch.waiters) > 0
            or batch.is_forced
            or self._ahead is not None
            or lingered
            or batch.row_bytes >= LINGER_BYTES
            or batch.row_bytes > self.batch_bytes
            or len(batch.messages) >= LINGER_ROWS
        )
        if due:
            self._close(batch)

    def write_ahead(self) -> None:
        """Write a portion of the open batch, see (4): its content so far. It stays open."""
        ahead = self._ahead
        if ahead is None:
            segment = Segment(self.next_segment, self.next_base_lsn, self.segment_bytes)
            segment.end_lsn = segment.base_lsn + SEGMENT_HEADER_BYTES
            self.next_segment += 1
            self.segments.add(segment)
            ahead = FrameAhead(self._new_writer(), segment)
            self._ahead = ahead
        batch = self.batch
        ahead.writer.bodies = batch.bodies
        batch.write(ahead.writer)
        ahead.segment.capacity = self._capacity_for(FRAME_HEADER_BYTES + ahead.writer.payload_bytes)
        self.batch = batch.further()
        batch.enter(ahead.lsn + FRAME_HEADER_BYTES)
        failure = batch.close()
        if failure is not None:
            raise failure

    def entered_lsn(self) -> i64:
        """Return an LSN up to which the log is durable when everything is that has been entered so far."""
        ahead = self._ahead
        return self.next_lsn if ahead is None else ahead.lsn + FRAME_HEADER_BYTES

    def _close(self, batch: Batch) -> None:
        """Make a `CommitJob` of the open batch."""
        ahead = self._ahead
        writer = self._new_writer() if ahead is None else ahead.writer
        writer.bodies = batch.bodies
        batch.write(writer)
        self.checkpoints.log_grows_to(self.next_lsn + writer.payload_bytes)
        self.batch = Batch(self, batch.number + 1)
        job: CommitJob | None = None
        if writer.record_count:
            begins: bool = batch.bodies is not None
            frame: i64 = self._place_frame(writer.payload_bytes, begins) if ahead is None else self._place_ahead(ahead)
            job = self._put_jobs(batch, writer, frame)
            batch.enter(frame + FRAME_HEADER_BYTES)
        elif batch.wants_sync and self.durable_lsn < self.next_lsn:
            job = self._sync_job(batch)
            self.commit_jobs.append(job)
        if batch.bodies is not None:
            self.ahead_file.drop(batch.bodies)  # if its frame has not taken the file
        failure = batch.close()
        self._flying_waiters = batch.waiters
        self.removals.batch_closed()
        self.checkpoints.batch_closed()
        if job is None:
            self._done(batch.number)
        else:
            self.in_flight = job
        if failure is not None:
            raise failure  # not before: the batch is on its way, and others wait for it

    def _new_writer(self) -> RecordWriter:
        return RecordWriter(self.checksum, self.frame_bytes, self._record_buffers)

    def _place_frame(self, payload_bytes: i64, begins: bool) -> i64:
        """Return the LSN of the frame, beginning a segment for it when it does not fit, or when it `begins` one."""
        size: i64 = FRAME_HEADER_BYTES + payload_bytes
        segments = self.segments.segments
        if segments:
            current = segments[-1]
            has_room: bool = current.end_lsn + size <= current.base_lsn + current.capacity
            if has_room and not begins and not current.sealed:
                lsn: i64 = current.end_lsn
                current.end_lsn = lsn + size
                self.next_lsn = current.end_lsn
                return lsn
            current.sealed = True
        capacity: i64 = self._capacity_for(size)
        base: i64 = self.next_base_lsn
        segment = Segment(self.next_segment, base, capacity)
        self.next_segment += 1
        self.next_base_lsn = base + capacity
        segment.end_lsn = base + SEGMENT_HEADER_BYTES + size
        self.segments.add(segment)
        self.next_lsn = segment.end_lsn
        return base + SEGMENT_HEADER_BYTES

    def _place_ahead(self, ahead: FrameAhead) -> i64:
        """Return the LSN of a frame that was written in portions: its size is known now."""
        self._ahead = None
        segment = ahead.segment
        size: i64 = FRAME_HEADER_BYTES + ahead.writer.payload_bytes
        segment.capacity = self._capacity_for(size)
        segment.end_lsn = ahead.lsn + size
        segments = self.segments.segments
        if len(segments) > 1:
            segments[-2].sealed = True
        self.next_base_lsn = segment.base_lsn + segment.capacity
        self.next_lsn = segment.end_lsn
        return ahead.lsn

    def _capacity_for(self, frame_bytes: i64) -> i64:
        """Return the size of a segment that begins with such a frame."""
        least: i64 = padded(SEGMENT_HEADER_BYTES + frame_bytes)
        return self.segment_bytes if self.segment_bytes > least else least

    def _put_jobs(self, batch: Batch, writer: RecordWriter, lsn: i64) -> CommitJob:
        """Queue jobs that write the frames of a batch, the first at `lsn`; return the last one, which commits it.

        The first frame of an epoch is synced before the second is written: recovery takes a segment without its first
        frame for damaged when a later one is there (``recovery.py``).
        """
        segment = self.segments.segments[-1]
        frames = writer.take_frames()
        last: i64 = len(frames) - 1
        bodies = batch.bodies
        if bodies is not None:
            if bodies.is_placed():
                self.ahead_file.taken(bodies)
            else:
                bodies = None
        for at, frame in enumerate(frames):
            is_last: bool = at == last
            job = CommitJob(
                batch.number,
                lsn,
                segment.number,
                segment.base_lsn,
                segment.capacity,
                frame.chunks,
                frame.payload_bytes,
                frame.record_count,
                (batch.wants_sync and is_last) or self._is_new,
                not is_last,
            )
            self._is_new = False
            job.bodies = bodies
            self.commit_jobs.append(job)
            lsn = job.end_lsn()
        return job

    def _sync_job(self, batch: Batch) -> CommitJob:
        """Return a job that writes nothing, and syncs everything written."""
        segment = self.segments.segments[-1]
        base_lsn: i64 = segment.base_lsn
        return CommitJob(batch.number, self.next_lsn, segment.number, base_lsn, segment.capacity, [], 0, 0, True)

    def put_portion(self, plan: BodiesAhead) -> None:
        """Queue the write of the next portion of a plan (``bodies_ahead.py``)."""
        positions, chunks = plan.take_portion()
        self._put_portion(plan, positions, chunks)

    def drop_bodies(self, plan: BodiesAhead) -> None:
        """Queue the removal of the file of a plan."""
        self._put_portion(plan, [], [])

    def _put_portion(self, plan: BodiesAhead, positions: list[int], chunks: list[bytes]) -> None:
        segments = self.segments.segments
        segment: i64 = segments[-1].number if segments else 0
        file_bytes: i64 = self._capacity_for(FRAME_HEADER_BYTES + plan.end)
        self.commit_jobs.append(PortionJob(plan, self.batch.number, segment, positions, chunks, file_bytes))

    # --- outcomes ---------------------------------------------------------------------------------------------------

    def committed(self, job: CommitJob) -> None:
        """Take note of a job that the shell has carried out."""
        if isinstance(job, PortionJob):
            if job.chunks and job.bodies is not None:
                self.ahead_file.portion_written(job.bodies)
            return
        if job.is_continued:
            return
        assert job is self.in_flight
        self.in_flight = None
        if job.record_count:
            self.last_crc = job.crc
        self.written_lsn = job.end_lsn()
        if job.committed_lsn > self.durable_lsn:
            self.durable_lsn = job.committed_lsn
        assert not job.sync or self.durable_lsn >= self.written_lsn, "a batch is reported before it is committed"
        self._done(job.batch)
        self.removals.log_is_durable()
        self.checkpoints.log_is_durable()

    def _done(self, batch: i64) -> None:
        self.done_batch = batch
        waiters = self._flying_waiters
        self._flying_waiters = []
        failure: Exception | None = None
        try:
            tell_all(waiters, batch)
        except Exception as error:
            failure = error
        if self._waiting_reads:
            owners = self._waiting_reads
            self._waiting_reads = []
            for owner in owners:
                try:
                    owner.batch_closed()
                except Exception as error:
                    failure = error
        if failure is not None:
            raise failure

    def call_when_written(self, owner: IndexOwner) -> None:
        """Wake `owner` after the commit that is under way: the records for its read are not written yet."""
        self._waiting_reads.append(owner)

    # --- reads ----------------------------------------------------------------------------------------------------

    def is_page(self, data: bytes, length: i64) -> bool:
        """Tell whether `data` is an intact PAGE record of `length` bytes."""
        return record_length(data, 0) == length and data[8] == PAGE and is_intact(self.checksum, data, 0, length)

    def maybe_message(
        self, index: QueueIndex, number: i64, data: bytes, at: i64, length: i64, is_checked: bool
    ) -> Message | None:
        """Return the message that lies at ``data[at:]``; None when it is not the one that is expected there.

        `is_checked`: the record is known to be intact.
        """
        if record_length(data, at) != length or data[at + 8] != MESSAGE:
            return None
        if not is_checked and not is_intact(self.checksum, data, at, length):
            return None
        return self.reader.message(data, at) if _went_to(index, number, data, at) else None

    def maybe_large_message(self, index: QueueIndex, number: i64, pieces: list[bytes]) -> Message | None:
        """Return the message of the record that was read in `pieces`; None as `maybe_message`."""
        if not pieces or pieces[0][8] != MESSAGE:
            return None
        head = pieces[0]
        if names_of(head, 0) > len(head):
            head = b"".join(pieces)  # it went to thousands of queues
            pieces = [head]
        return self.reader.large_message(pieces) if _went_to(index, number, head, 0) else None

    def check_invariants(self) -> None:
        """Assert that the references of all indexes are those of the segments. For tests, when no page is absent."""
        refs: dict[int, int] = {}
        for index in self.indexes.values():
            index.check_invariants()
            if index.damage is not None and index.damage.pages:
                return
            for page in index.pages:
                if page is None:
                    continue
                if not page.resident:
                    return
                if page.lsn:
                    _count_ref(refs, int(self.segments.find(page.lsn).number))
                for at in range(0, len(page.entries), 2):
                    if page.entries[at]:
                        _count_ref(refs, int(self.segments.find(page.entries[at] & LSN_MASK).number))
        for page in self.reclamation.pages():
            for at in range(0, len(page.entries), 2):
                if page.entries[at]:
                    _count_ref(refs, int(self.segments.find(page.entries[at] & LSN_MASK).number))
        if self.doomed.pages or self.doomed.left:
            return
        for segment in self.segments.segments:
            counted = refs.get(int(segment.number), 0)
            assert counted == segment.live_refs + segment.droppable_refs, f"segment {segment.number}"
            assert segment.droppable_refs > 0 or segment.droppable_bytes == 0, f"segment {segment.number}"


def _went_to(index: QueueIndex, number: i64, data: bytes, at: i64) -> bool:
    """Tell whether the MESSAGE record at `at` has that place."""
    place: i64 = 0
    places: i64 = place_count(data, at)
    while place < places:
        if queue_id_of_place(data, at, place) == index.queue_id and sequence_number_of_place(data, at, place) == number:
            return True
        place += 1
    return False


def _count_ref(refs: dict[int, int], number: int) -> None:
    refs[number] = refs.get(number, 0) + 1
