"""The shared log, seen from the engine: the open batch, the order of commits, and what became of them.

What is to be stored gathers in the open batch. Closing it makes a `CommitJob`, one frame; while that is being written
the next batch gathers, so that the batches grow with the load and no timer decides.

1. One commit is under way at a time, and batches are closed, committed and reported in their order.
2. A batch is one frame: what happens in one call of the engine (a publish to many queues, a transaction) is in one
   batch, and so entirely on disk or not at all.
3. A message has a row per queue in the open batch. Rows of messages that are settled before the batch is closed are
   cancelled: such a message is never written.
4. A waiter is told once its batch is written, and synced when one of the batch's waiters asks for that. An empty batch
   is done when all before it are.
5. When a batch is closed the indexes are exactly what replaying all frames up to `next_lsn` would make of them, and so
   are the references of the segments, but for those in ``remains`` and of doomed pages. Checkpoints are taken then.

    order of records in a frame:  EPOCH  QUEUE  ACK  PAGE  MESSAGE (and copies)  QUEUE_DELETED

A page is written as it is when the batch is closed: without what the batch settles, so its acks come before, and not
yet with what the batch stores and copies, so that comes behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from warren.msgstore.log.checkpoint_cycle import CheckpointCycle
from warren.msgstore.log.columns import CHUNK_BYTES, CHUNK_MESSAGES
from warren.msgstore.log.doomed_pages import DoomedPages
from warren.msgstore.log.jobs import CheckpointJob, CommitJob, Errand, SealJob, UnlinkJob
from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import LSN_MASK, PAGE_ENTRIES, IndexOwner, IndexPage, QueueIndex
from warren.msgstore.log.records import (
    DROPPABLE,
    EXPIRES,
    FRAME_HEADER_BYTES,
    MESSAGE,
    MOVED,
    PAGE,
    PLACES_MAX,
    SEGMENT_HEADER_BYTES,
    STORE_TAG_BYTES,
    Checksum,
    MessageReader,
    RecordWriter,
    is_intact,
    names_of,
    padded,
    place_count,
    queue_id_of_place,
    record_length,
    sequence_number_of_place,
)
from warren.msgstore.log.remains import Remains
from warren.msgstore.log.sealed_table import SealedStream, SealedTable
from warren.msgstore.log.segments import Segment, SegmentTable

# A batch that nobody waits for is closed when it has this much, or when it is `LINGER_S` old.
LINGER_BYTES: Final = 4 << 20
LINGER_ROWS: Final = 16384
LINGER_S: Final = 0.05
# What is only moved out of memory is taken into a batch up to here, and the rest into the next ones.
PAGED_BYTES_MAX: Final = 4 << 20
PAGED_ROWS_MAX: Final = 16384
# With so much in the open batch publishers wait, until the shell knows better what the disk can take.
BATCH_BYTES: Final = 8 << 20
# A few messages of this size are much to write; for them only those wait who publish such themselves.
LARGE_BODY_BYTES: Final = 1 << 20
# What a row adds to the frame besides the body, about.
ROW_BYTES: Final = 128
# What keeping a message in memory costs besides its content.
MESSAGE_OVERHEAD_BYTES: Final = 250


class BatchWaiter:
    """Somebody who waits for a batch: a channel in confirm mode."""

    def batch_done(self, batch: i64) -> None:
        """Everything that was in `batch` is as durable as was asked for."""
        raise AssertionError("overridden")


class Damage:
    """A place of the log that no longer has what was written there.

    `queue` and `vhost` are ``""`` when it is not known whose it was, `sequence_number` -1 when it is more than one.
    """

    def __init__(self, lsn: int, segment: int, vhost: str, queue: str, sequence_number: int) -> None:
        self.lsn = lsn
        self.segment = segment
        self.vhost = vhost
        self.queue = queue
        self.sequence_number = sequence_number


class CopyRow:
    """A record that compaction moves, with the places where it is still live."""

    def __init__(self, record: bytes, lsn: i64, flags: i64) -> None:
        self.record = record
        self.lsn: i64 = lsn
        self.flags: i64 = flags


class MessageLog:
    """The open batch and the state of the log. `checksum` is the one that new segments use."""

    def __init__(self, checksum: Checksum, segment_bytes: int, page_entries: int = PAGE_ENTRIES) -> None:
        self.checksum = checksum
        self.algorithm: int = 0
        self.store_id: bytes = bytes(16)
        self.segment_bytes: i64 = segment_bytes
        self.page_entries: i64 = page_entries
        self.segments = SegmentTable()
        self.indexes: dict[int, QueueIndex] = {}
        self.remains = Remains(self)
        self.doomed = DoomedPages(self)
        self.checkpoints = CheckpointCycle(self)
        self.reader = MessageReader()
        self.epoch: i64 = 1
        self.next_queue_id: int = 1
        self.void_below_lsn: i64 = 0  # droppable records below are from an earlier life

        self.now_ms: i64 = 0  # wall time of this turn in ms since the epoch; set by the shell

        # Memory of messages that wait in queues, by our reckoning.
        self.resident_bytes: i64 = 0
        self.memory_bytes: i64 = 128 << 20  # above, stored messages leave memory
        self.under_pressure: bool = False  # transient messages are to be stored as well
        self.batch_bytes: i64 = BATCH_BYTES  # with more in the open batch publishers wait; set by the shell

        # The open batch.
        self.batch: i64 = 1
        self.acking: list[QueueIndex] = []
        self._messages: list[Message] = []
        self._indexes: list[QueueIndex | None] = []
        self._numbers = vec[i64]()
        self._one_id = append(vec[i64](), 0)
        self._one_number = append(vec[i64](), 0)
        self._copies: list[CopyRow] = []
        self._pages: list[tuple[QueueIndex, int]] = []
        self._touched: list[QueueIndex] = []
        self._naming: list[QueueIndex] = []
        self._deleted: list[int] = []
        self._epoch_time_ms: i64 = -1
        self._row_bytes: i64 = 0
        self._large_bytes: i64 = 0  # of that, bodies of at least `LARGE_BODY_BYTES`
        self._waiters: list[BatchWaiter] = []
        self._wants_sync: bool = False
        self._is_held: bool = False
        self._held_batch: i64 = -1  # the last batch that was
        self._forced: bool = False
        self.on_open: Callable[[], None] | None = None  # something is in the batch: close it in `LINGER_S`
        self._told_open: bool = False

        # The log.
        self.next_lsn: i64 = 0  # where the next frame begins, unless it needs a new segment
        self.next_segment: i64 = 1
        self.next_base_lsn: i64 = 0
        self.written_lsn: i64 = 0
        self.durable_lsn: i64 = 0
        self.done_batch: i64 = 0
        self.last_crc: i64 = 0
        self.in_flight: CommitJob | None = None
        self._flying_waiters: list[BatchWaiter] = []
        self.commit_jobs: list[CommitJob] = []  # taken by the shell
        self.read_jobs: list[Errand] = []
        self.seal_jobs: list[SealJob] = []
        self.checkpoint_jobs: list[CheckpointJob] = []
        self.unlink_jobs: list[UnlinkJob] = []
        # Of streams, by queue id: what recovery found in files of their own, until they are restored; those that are
        # served. When a chunk is full.
        self.sealed: dict[int, SealedTable] = {}
        self.sealed_streams: dict[int, SealedStream] = {}
        self.seal_messages: i64 = CHUNK_MESSAGES
        self.seal_bytes: i64 = CHUNK_BYTES
        self.damages: list[Damage] = []  # taken by the shell
        self._waiting_reads: list[IndexOwner] = []

    @property
    def store_tag(self) -> bytes:
        """What every frame of this store carries, and no other frame."""
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
        """Have the next frame say that everything of the queue is gone."""
        index.deleted = True
        index.has_void = True
        index.owner = None
        index.forget_all()
        del self.indexes[int(index.queue_id)]
        if index.named:
            self._deleted.append(int(index.queue_id))
            self._open()

    # --- the open batch ---------------------------------------------------------------------------------------------

    def add(self, index: QueueIndex, message: Message, number: i64) -> None:
        """Give `message`, the `number`-th of its queue, a row in the open batch."""
        if message.row < 0:
            message.row = len(self._messages)
            self._row_bytes += message.body_bytes + ROW_BYTES
            if message.body_bytes >= LARGE_BODY_BYTES:
                self._large_bytes += message.body_bytes
        self._messages.append(message)
        self._indexes.append(index)
        self._numbers = append(self._numbers, number)
        if not index.touched:
            self._touch(index)
        if not self._told_open:
            self._open()

    def _touch(self, index: QueueIndex) -> None:
        index.touched = True
        self._touched.append(index)
        if not index.named:
            index.named = True
            self._naming.append(index)

    def cancel(self, index: QueueIndex, message: Message) -> None:
        """The message was settled before its batch: one place less to write, if it has one."""
        row: i64 = message.row
        total: i64 = len(self._messages)
        while row < total and self._messages[row] is message:
            if self._indexes[row] is index:
                self._indexes[row] = None
                return
            row += 1
        # The same message was published to other queues later on, as a recent-history exchange does.
        row = 0
        while row < total:
            if self._messages[row] is message and self._indexes[row] is index:
                self._indexes[row] = None
                return
            row += 1

    def settle(self, index: QueueIndex, message: Message, number: i64) -> None:
        """`message` is acknowledged, rejected or expired: forget it on disk, or never write it."""
        if message.row >= 0 and index.lsn_of(number) == 0:
            self.cancel(index, message)
        elif index.forget(number):
            index.note_ack(number)
            if not self._told_open:
                self._open()

    def settle_range(self, index: QueueIndex, first: i64, end: i64) -> None:
        """All stored messages of the queue from `first` up to `end` are gone."""
        index.forget_range(first, end)
        index.note_acks(first, end)
        self._open()

    def settle_waiting(self, index: QueueIndex, first: i64, end: i64) -> None:
        """All messages of the queue from `first` up to `end` are gone, and what of them is in the open batch: purge."""
        index.void_rows(first, end)
        self.settle_range(index, first, end)

    def copy(self, record: bytes, lsn: i64, flags: i64) -> None:
        """Move the record at `lsn` to the end of the log, for the places where it is still live."""
        self._copies.append(CopyRow(record, lsn, flags))
        self._row_bytes += len(record)
        self._open()

    def write_page(self, index: QueueIndex, page_number: i64) -> None:
        """Have the next frame hold the page as it then is."""
        page = index.page(page_number)
        assert page is not None
        if not page.queued:
            page.queued = True
            self._pages.append((index, int(page_number)))
            self._open()

    def begin_epoch(self, epoch: int, time_ms: int) -> None:
        """Have the first frame of this life say so, durably: what is delivered behind it makes an end unclean."""
        self.epoch = epoch
        self._epoch_time_ms = time_ms
        self.force()

    def wait(self, waiter: BatchWaiter, sync: bool) -> None:
        """Tell `waiter` when the open batch is done: synced when `sync`, else written."""
        self._waiters.append(waiter)
        if sync:
            self._wants_sync = True

    def force(self) -> None:
        """Close the open batch soon and sync it, whoever waits."""
        self._forced = True
        self._wants_sync = True

    def close_soon(self, sync: bool) -> int:
        """Close the open batch at the end of the turn and return its number; 0 when there is nothing in it."""
        if not self._told_open:
            return 0
        self._forced = True
        if sync:
            self._wants_sync = True
        return int(self.batch)

    def hold(self) -> bool:
        """Keep the batch open until `release`; False while another has it held, or had it before it was closed.

        What is put into it meanwhile is written in one frame. Nobody holds a batch that others have held already: their
        confirms, and those of everybody, wait for its end.
        """
        if self._held_batch == self.batch:
            return False
        self._is_held = True
        self._held_batch = self.batch
        return True

    def release(self) -> None:
        """Let the batch be closed that was held."""
        self._is_held = False

    def _open(self) -> None:
        if not self._told_open:
            self._told_open = True
            if self.on_open is not None:
                self.on_open()

    def is_congested(self) -> bool:
        """Tell whether so much waits to be written that publishers of large messages should wait."""
        return self._row_bytes > self.batch_bytes

    def room_to_page(self) -> i64:
        """Return how much more the open batch takes of what is stored only to leave memory, in bytes.

        Whoever waits for a confirm waits for all of the batch, and for the one before it.
        """
        most: i64 = self.batch_bytes if self.batch_bytes < PAGED_BYTES_MAX else PAGED_BYTES_MAX
        if len(self._messages) >= PAGED_ROWS_MAX or self._row_bytes >= most:
            return 0
        return most - self._row_bytes

    def is_crowded(self) -> bool:
        """Tell whether so much of that is of small messages that those who publish such should wait."""
        return self._row_bytes - self._large_bytes > self.batch_bytes

    def is_idle(self) -> bool:
        """Tell whether everything is written."""
        return self.in_flight is None and not self._told_open and not self._waiters and not self._forced

    # --- closing ----------------------------------------------------------------------------------------------------

    def close_if_due(self, *, lingered: bool = False) -> None:
        """Close the open batch when it is time: somebody waits, it is large, or it has `lingered`."""
        if self.in_flight is not None or self._is_held:
            return
        due = (
            len(self._waiters) > 0
            or self._forced
            or lingered
            or self._row_bytes >= LINGER_BYTES
            or self._row_bytes > self.batch_bytes
            or len(self._messages) >= LINGER_ROWS
        )
        if due:
            self._close()

    def _close(self) -> None:
        """Make a `CommitJob` of the open batch."""
        writer = RecordWriter(self.checksum)
        if self._epoch_time_ms >= 0:
            writer.epoch(self.epoch, self._epoch_time_ms)
            self._epoch_time_ms = -1
        naming = self._naming
        self._naming = []
        for index in naming:
            if index.deleted:
                continue
            writer.queue(index.queue_id, index.vhost.encode(), index.name.encode(), index.lane, index.transient)
        acking = self.acking
        self.acking = []
        for index in acking:
            ranges = index.take_acks()
            if not index.deleted:
                writer.acks(index.queue_id, ranges)
        pages, page_places = self._write_pages(writer)
        first_rows, row_lengths, row_places = self._write_messages(writer)
        copies, copy_lengths, copy_places = self._write_copies(writer)
        for queue_id in self._deleted:
            writer.queue_deleted(queue_id)
        self._deleted = []

        self.checkpoints.log_grows_to(self.next_lsn + writer.payload_bytes)
        sync: bool = self._wants_sync
        job: CommitJob | None = None
        frame: i64 = 0
        if writer.record_count:
            frame = self._place_frame(writer.payload_bytes)
            job = self._job(writer, frame, sync)
            self._enter_pages(pages, page_places, frame + FRAME_HEADER_BYTES)
            self._enter_messages(first_rows, row_lengths, row_places, frame + FRAME_HEADER_BYTES)
            self._enter_copies(copies, copy_lengths, copy_places, frame + FRAME_HEADER_BYTES)
        elif sync and self.durable_lsn < self.next_lsn:
            job = self._sync_job()
        self._reset_rows()
        touched = self._touched
        self._touched = []
        for index in touched:
            index.batch_closed()
            if index.owner is not None:
                index.owner.batch_closed()
        self._flying_waiters = self._waiters
        self._waiters = []
        self._wants_sync = False
        self._forced = False
        closed: i64 = self.batch
        self.batch = closed + 1
        self.checkpoints.batch_closed()
        if job is None:
            self._done(closed)
        else:
            self.in_flight = job
            self.commit_jobs.append(job)

    def _reset_rows(self) -> None:
        for message in self._messages:
            message.row = -1
        self._messages = []
        self._indexes = []
        self._numbers = vec[i64]()
        self._copies = []
        self._row_bytes = 0
        self._large_bytes = 0
        self._told_open = False

    def _write_pages(self, writer: RecordWriter) -> tuple[list[tuple[QueueIndex, IndexPage]], list[tuple[int, int]]]:
        wanted = self._pages
        self._pages = []
        written: list[tuple[QueueIndex, IndexPage]] = []
        places: list[tuple[int, int]] = []
        for index, page_number in wanted:
            page = index.page(page_number)
            if index.deleted or page is None or not page.queued:
                continue
            page.queued = False
            if not page.resident or not page.dirty:
                continue
            at = int(writer.payload_bytes)
            length = writer.page(index.queue_id, page_number, page.entries, index.transient)
            written.append((index, page))
            places.append((at, int(length)))
        return written, places

    def _enter_pages(
        self, written: list[tuple[QueueIndex, IndexPage]], places: list[tuple[int, int]], start: i64
    ) -> None:
        for (index, page), (at, length) in zip(written, places, strict=True):
            index.page_written(page, start + at, length)

    def _write_messages(self, writer: RecordWriter) -> tuple[vec[i64], vec[i64], vec[i64]]:
        """Write a record for each message with rows left; return first row, length and position of each."""
        firsts = vec[i64]()
        lengths = vec[i64]()
        positions = vec[i64]()
        total: i64 = len(self._messages)
        row: i64 = 0
        while row < total:
            message = self._messages[row]
            first: i64 = row
            if row + 1 == total or self._messages[row + 1] is not message:
                # One place, the common case: without making lists for it.
                row += 1
                only = self._indexes[first]
                if only is not None and only.has_void and only.is_void(self._numbers[first]):
                    self._indexes[first] = None
                    only = None
                if only is not None:
                    self._one_id[0] = only.queue_id
                    self._one_number[0] = self._numbers[first]
                    firsts = append(firsts, first)
                    positions = append(positions, writer.payload_bytes)
                    kept_flags: i64 = 0 if message.persistent and not only.transient else DROPPABLE
                    lengths = append(lengths, writer.message(message, kept_flags, self._one_id, self._one_number))
                continue
            queue_ids = vec[i64]()
            numbers = vec[i64]()
            droppable: bool = not message.persistent
            while row < total and self._messages[row] is message and row - first < PLACES_MAX:
                index = self._indexes[row]
                if index is not None:
                    if index.has_void and index.is_void(self._numbers[row]):
                        self._indexes[row] = None
                    else:
                        if index.transient and not droppable:
                            if len(queue_ids):
                                break
                            droppable = True
                        elif droppable and message.persistent and not index.transient:
                            break
                        queue_ids = append(queue_ids, index.queue_id)
                        numbers = append(numbers, self._numbers[row])
                row += 1
            if len(queue_ids) == 0:
                continue
            firsts = append(firsts, first)
            positions = append(positions, writer.payload_bytes)
            flags: i64 = DROPPABLE if droppable else 0
            lengths = append(lengths, writer.message(message, flags, queue_ids, numbers))
        return firsts, lengths, positions

    def _enter_messages(self, firsts: vec[i64], lengths: vec[i64], positions: vec[i64], start: i64) -> None:
        total: i64 = len(self._messages)
        at: i64 = 0
        count: i64 = len(firsts)
        while at < count:
            row: i64 = firsts[at]
            end: i64 = firsts[at + 1] if at + 1 < count else total
            message = self._messages[row]
            lsn: i64 = start + positions[at]
            length: i64 = lengths[at]
            flags: i64 = 0
            if message.expiration_ms >= 0 and message.time_ms != 0:
                flags = EXPIRES
            if not message.persistent:
                flags |= DROPPABLE
            while row < end and self._messages[row] is message:
                index = self._indexes[row]
                if index is not None:
                    number: i64 = self._numbers[row]
                    index.add(number, lsn, flags | (DROPPABLE if index.transient else 0), length, message.body_bytes)
                row += 1
            at += 1

    def _write_copies(self, writer: RecordWriter) -> tuple[list[CopyRow], list[int], list[int]]:
        copied: list[CopyRow] = []
        lengths: list[int] = []
        positions: list[int] = []
        for row in self._copies:
            queue_ids = vec[i64]()
            numbers = vec[i64]()
            for index, number in self.live_places(row.record, 0, row.lsn):
                queue_ids = append(queue_ids, index.queue_id)
                numbers = append(numbers, number)
            if len(queue_ids) == 0:
                continue
            positions.append(int(writer.payload_bytes))
            lengths.append(int(writer.copy(row.record, row.flags | MOVED, queue_ids, numbers)))
            copied.append(row)
        return copied, lengths, positions

    def _enter_copies(self, copied: list[CopyRow], lengths: list[int], positions: list[int], start: i64) -> None:
        for row, length, at in zip(copied, lengths, positions, strict=True):
            for index, number in self.live_places(row.record, 0, row.lsn):
                index.relocate(number, start + at, length)
                if not index.touched:
                    self._touch(index)

    def live_places(self, data: bytes, at: i64, lsn: i64) -> list[tuple[QueueIndex, int]]:
        """Return where the MESSAGE record ``data[at:]``, read from `lsn`, is live, as far as its pages are resident."""
        found: list[tuple[QueueIndex, int]] = []
        place: i64 = 0
        places: i64 = place_count(data, at)
        while place < places:
            index = self.indexes.get(queue_id_of_place(data, at, place))
            number: i64 = sequence_number_of_place(data, at, place)
            if index is not None and index.lsn_of_resident(number) == lsn:
                found.append((index, int(number)))
            place += 1
        return found

    def _place_frame(self, payload_bytes: i64) -> i64:
        """Return the LSN of the frame, beginning a segment for it when it does not fit."""
        size: i64 = FRAME_HEADER_BYTES + payload_bytes
        segments = self.segments.segments
        if segments:
            current = segments[-1]
            if not current.sealed and current.end_lsn + size <= current.base_lsn + current.capacity:
                lsn: i64 = current.end_lsn
                current.end_lsn = lsn + size
                self.next_lsn = current.end_lsn
                return lsn
            current.sealed = True
        capacity: i64 = self.segment_bytes
        if capacity < SEGMENT_HEADER_BYTES + size:
            capacity = padded(SEGMENT_HEADER_BYTES + size)
        base: i64 = self.next_base_lsn
        segment = Segment(self.next_segment, base, capacity)
        self.next_segment += 1
        self.next_base_lsn = base + capacity
        segment.end_lsn = base + SEGMENT_HEADER_BYTES + size
        self.segments.add(segment)
        self.next_lsn = segment.end_lsn
        return base + SEGMENT_HEADER_BYTES

    def _job(self, writer: RecordWriter, lsn: i64, sync: bool) -> CommitJob:
        segment = self.segments.segments[-1]
        return CommitJob(
            self.batch,
            lsn,
            segment.number,
            segment.base_lsn,
            segment.capacity,
            writer.take_chunks(),
            writer.payload_bytes,
            writer.record_count,
            sync,
        )

    def _sync_job(self) -> CommitJob:
        """Nothing to write, but what is written is to be synced."""
        segment = self.segments.segments[-1]
        return CommitJob(self.batch, self.next_lsn, segment.number, segment.base_lsn, segment.capacity, [], 0, 0, True)

    # --- outcomes ---------------------------------------------------------------------------------------------------

    def committed(self, job: CommitJob) -> None:
        """The shell has carried `job` out."""
        assert job is self.in_flight
        self.in_flight = None
        end: i64 = job.lsn
        if job.record_count:
            end += FRAME_HEADER_BYTES + job.payload_bytes
            self.last_crc = job.crc
        self.written_lsn = end
        if job.sync:
            self.durable_lsn = end
        self._done(job.batch)
        self.checkpoints.log_is_durable()

    def _done(self, batch: i64) -> None:
        self.done_batch = batch
        waiters = self._flying_waiters
        self._flying_waiters = []
        for waiter in waiters:
            waiter.batch_done(batch)
        if self._waiting_reads:
            owners = self._waiting_reads
            self._waiting_reads = []
            for owner in owners:
                owner.batch_closed()

    def call_when_written(self, owner: IndexOwner) -> None:
        """Have `owner` look again after the commit that is under way: what it wants to read is not written yet."""
        self._waiting_reads.append(owner)

    # --- what is read ---------------------------------------------------------------------------------------------

    def is_page(self, data: bytes, length: i64) -> bool:
        """Tell whether `data` is an intact PAGE record of `length` bytes."""
        return record_length(data, 0) == length and data[8] == PAGE and is_intact(self.checksum, data, 0, length)

    def report_damage(self, index: QueueIndex, number: i64, lsn: i64) -> None:
        """Tell the operator of a message, or with -1 of a page of them, that cannot be read."""
        segment = self.segments.find(lsn)
        self.damages.append(Damage(int(lsn), int(segment.number), index.vhost, index.name, int(number)))

    def maybe_message(self, index: QueueIndex, number: i64, data: bytes, at: i64, length: i64) -> Message | None:
        """Return the message that lies at ``data[at:]``; None when it is not the one that is expected there."""
        if record_length(data, at) != length or data[at + 8] != MESSAGE:
            return None
        if not is_intact(self.checksum, data, at, length):
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
        for page in self.remains.pages():
            for at in range(0, len(page.entries), 2):
                if page.entries[at]:
                    _count_ref(refs, int(self.segments.find(page.entries[at] & LSN_MASK).number))
        if self.doomed.pages:
            return
        for segment in self.segments.segments:
            counted = refs.get(int(segment.number), 0)
            assert counted == segment.live_refs + segment.droppable_refs, f"segment {segment.number}"


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
