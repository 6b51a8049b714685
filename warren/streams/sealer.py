"""How a stream leaves the log: its synced messages are gathered into chunks, which go into files of its own.

    synced, in the tail ---add---> `ColumnsWriter` ---full---> SealJob (housekeeper: write, sync) ---> entered in the
    synced, in the log --Fetch-^                                                  table; the log forgets the range

1. A message is in the log, or in a chunk that is synced, and for a moment in both. It is served from wherever it is.
2. Only synced messages are gathered: a chunk never has an offset that could stand for another message after a crash.
3. Chunks are full when they are sealed: a short stream stays in the log, whose compaction takes care of it.
4. One chunk at a time is gathered, and one is written. Gathered messages count as memory of the log. While memory is
   short nothing is gathered ahead: a chunk is read back from the log when there is enough for a whole one.
5. Messages that retention removes while they are gathered do not become part of a chunk.
6. Nothing is sealed from the first damaged message on: the log would forget it. It is served from the log meanwhile.
   Nor is anything sealed while the end of what is sealed is unread, see ``msgstore.files.sealed_files`` (5).
7. Sealing of messages that were found at a start begins `SEALING_MS` after it (`RecoveredSealing`), whether messages
   are published or not.
8. Files have `segment_bytes_of` the rules of the stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.msgstore.log.columns import ColumnsWriter, maybe_head
from warren.msgstore.log.jobs import SealJob
from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.sealed_table import SealedChunk, SealedSegment, SealedTable
from warren.queues.offset_queue import OffsetRead
from warren.queues.queue_host import QueueHost
from warren.queues.rules import QueueRules
from warren.queues.timers import Timer
from warren.streams.consumer import filter_value_of

if TYPE_CHECKING:
    from warren.streams.stream import Stream

# A file is full from here on, unless the stream says otherwise. A stream with a small limit has smaller files, but not
# smaller than `SEGMENT_MIN_BYTES`.
SEGMENT_BYTES: Final = 64 << 20
SEGMENT_MIN_BYTES: Final = 1 << 20
# How long after a start a stream begins to seal messages that were not sealed before it.
SEALING_MS: Final = 1_000
# A chunk is begun with this many messages. Reads back from the log take this many at a time.
BEGIN_SHARE: Final = 16
READ_MESSAGES: Final = 2048
READ_BYTES: Final = 1 << 20


class Sealer:
    """The sealed chunks of a stream, and the one that is sealed next. It belongs to the stream's backlog."""

    def __init__(self, log: MessageLog) -> None:
        self.log = log
        self.table = SealedTable()
        self.segment_bytes: i64 = SEGMENT_BYTES
        self.next: i64 = 0  # the offset that is gathered next; messages below may leave memory
        self._writer: ColumnsWriter | None = None
        self._first: i64 = 0  # offset of the chunk that is being gathered
        self._cost_bytes: i64 = 0  # of that
        self._job: _Seal | None = None
        self._reading: bool = False
        self._closed: bool = False

    def is_busy(self) -> bool:
        """Tell whether a chunk is being written."""
        return self._job is not None

    def step(self, stream: Stream) -> None:
        """Gather the messages that are synced by now, and seal chunks that are full.

        Called when a batch is closed, when a written batch may have filled a chunk, and when a chunk has been written.
        """
        if self._reading or self._closed or self.table.end_is_unread:
            return
        messages = stream.messages
        log = self.log
        sealed = log.sealed
        synced: i64 = messages.synced_to()
        index = messages.index
        if index is not None and index.damage is not None:
            synced = min(synced, index.damage.first_from(self.table.end))
        if self._writer is None and not self._begin(stream, synced):
            return
        writer = self._writer
        assert writer is not None
        while not self._is_full(writer) and self.next < synced:
            tail: i64 = messages.tail_from()
            if self.next < tail:
                self._read(stream, min(tail, synced, self.next + sealed.chunk_messages - writer.count))
                return
            offset: i64 = self.next
            stop: i64 = min(synced, offset + sealed.chunk_messages - writer.count)
            for message in messages.messages(offset, stop):
                assert message is not None
                self._add(writer, offset, message)
                offset += 1
                if writer.content_bytes >= sealed.chunk_bytes:
                    break
            self.next = offset
        self._account(writer)
        if self._is_full(writer):
            if self._job is None:
                self._seal(stream, writer)
        elif log.resident_bytes > log.memory_bytes:
            self._give_up()

    def may_fill(self, stream: Stream, end: i64) -> bool:
        """Tell whether there may be enough for a chunk when everything before offset `end` is synced."""
        sealed = self.log.sealed
        first: i64 = self._first
        if self._writer is None:
            job = self._job
            first = stream.messages.first_unsealed() if job is None else job.end
        return end - first >= sealed.chunk_messages or stream.unsealed_bytes() >= sealed.chunk_bytes

    def _begin(self, stream: Stream, synced: i64) -> bool:
        """Begin to gather a chunk, if it is worth it."""
        log = self.log
        sealed = log.sealed
        first: i64 = stream.messages.first_unsealed()
        job = self._job
        if job is not None:
            first = job.end
        if first >= synced:
            return False
        # Do not read messages back from disk for only a part of a chunk.
        is_whole: bool = log.resident_bytes > log.memory_bytes or first < stream.messages.tail_from()
        share: i64 = 1 if is_whole else BEGIN_SHARE
        if synced - first < sealed.chunk_messages // share and stream.unsealed_bytes() < sealed.chunk_bytes // share:
            return False
        self._first = first
        self.next = first
        self._writer = ColumnsWriter()
        return True

    def _is_full(self, writer: ColumnsWriter) -> bool:
        sealed = self.log.sealed
        return writer.count >= sealed.chunk_messages or writer.content_bytes >= sealed.chunk_bytes

    def _add(self, writer: ColumnsWriter, offset: i64, message: Message) -> None:
        writer.add(offset, message, False)
        writer.filter_by(filter_value_of(message))

    def _account(self, writer: ColumnsWriter | None) -> None:
        cost: i64 = 0 if writer is None else writer.content_bytes
        self.log.resident_bytes += cost - self._cost_bytes
        self._cost_bytes = cost

    def _give_up(self) -> None:
        """Forget the gathered messages: they are in the log."""
        self._writer = None
        self._account(None)

    # --- from the log ---------------------------------------------------------------------------------------------

    def _read(self, stream: Stream, end: i64) -> None:
        index = stream.messages.index
        if index is None:
            return
        self._reading = True
        _SealRead(self, stream, self.next, min(end, self.next + READ_MESSAGES)).begin()

    def was_read(self, stream: Stream, first: i64, messages: list[Message | None], end: i64) -> None:
        """Gather the messages before `end`, which were read back; None where retention was faster."""
        self._reading = False
        writer = self._writer
        if writer is None or self._closed or self.next != first:
            return
        offset: i64 = first
        for message in messages:
            if message is not None:
                self._add(writer, offset, message)
            offset += 1
        self.next = end
        self.step(stream)

    # --- to the file ----------------------------------------------------------------------------------------------

    def _seal(self, stream: Stream, writer: ColumnsWriter) -> None:
        self._writer = None
        self._account(None)
        segments = self.table.segments
        segment: i64 = self._first
        position: i64 = 0
        if segments and segments[-1].file_bytes < self.segment_bytes and segments[-1].body_bytes < self.segment_bytes:
            segment = segments[-1].first
            position = segments[-1].file_bytes
        job = _Seal(self, stream, int(segment), int(position), writer, self._first, self.next)
        self._job = job
        self.log.seal_jobs.append(job)

    def sealed(self, job: _Seal) -> None:
        """Take in a chunk that is written and synced."""
        self._job = None
        head = maybe_head(job.head)
        assert head is not None
        if self._closed:
            self.log.removals.drop(job.stream_id, [job.segment])
            return
        self.table.add(SealedChunk(job.placed_at, head), begins_segment=job.position == 0)
        stream = job.stream
        stream.messages.sealed(job.end)
        stream.retention.keep_length()
        if job.position == 0:
            stream.segment_completed()
        self.step(stream)

    # --- retention ------------------------------------------------------------------------------------------------

    def dropped(self, end: i64) -> None:
        """Forget the gathered messages if some are before `end`: retention has removed those from the log."""
        if self._writer is not None and self._first < end:
            self._give_up()

    def may_drop_oldest(self) -> bool:
        """Tell whether a segment can be removed. The last one stays: it tells where the log continues."""
        return len(self.table.segments) > 1

    def drop_oldest(self, stream_id: int) -> SealedSegment:
        """Remove the oldest segment; reads that were asked for before still find it."""
        segment = self.table.drop_oldest()
        self.log.removals.drop(stream_id, [int(segment.first)])
        return segment

    def close(self, stream_id: int) -> None:
        """Remove everything: the stream is deleted."""
        self._closed = True
        self._give_up()
        firsts = [int(segment.first) for segment in self.table.segments]
        if self._job is not None and firsts and self._job.segment == firsts[-1]:
            firsts.pop()  # when it is written
        self.log.removals.drop(stream_id, firsts)
        self.table = SealedTable()


class RecoveredSealing(Timer):
    """Has a stream seal the messages that were found at a start: everything before offset `end`."""

    def __init__(self, stream: Stream, host: QueueHost, end: i64) -> None:
        super().__init__()
        self._stream: Stream | None = stream
        self._host = host
        self._end: i64 = end
        self._host.timers.at(host.log.now_ms + SEALING_MS, self)

    def due(self, now_ms: i64) -> None:
        stream = self._stream
        if stream is not None:
            stream.messages.sealer.step(stream)
            if stream.messages.synced_to() < self._end:
                self._host.timers.at(now_ms + SEALING_MS, self)

    def close(self) -> None:
        """Stop: the stream is deleted."""
        self._host.timers.cancel(self)
        self._stream = None  # it refers to us, and we to it: do not leave it to the cyclic collector


def segment_bytes_of(rules: QueueRules) -> i64:
    """Return the size of a segment file: at most a quarter of what is kept, so that removing one does not halve it."""
    size: i64 = rules.segment_bytes if rules.segment_bytes > 0 else SEGMENT_BYTES
    if rules.max_length_bytes >= 0:
        size = min(size, max(rules.max_length_bytes // 4, SEGMENT_MIN_BYTES))
    return size


class _Seal(SealJob):
    """The chunk with the offsets from `first` up to ``end``."""

    def __init__(
        self, sealer: Sealer, stream: Stream, segment: int, position: int, writer: ColumnsWriter, first: i64, end: i64
    ) -> None:
        super().__init__(stream.store_id, segment, position, writer.finish(first, end))
        self.sealer = sealer
        self.stream = stream
        self.end: i64 = end

    def finished(self) -> None:
        self.sealer.sealed(self)


class _SealRead(OffsetRead):
    """Reads back messages that left memory before they were gathered."""

    def __init__(self, sealer: Sealer, stream: Stream, first: i64, end: i64) -> None:
        index = stream.messages.index
        assert index is not None
        super().__init__(stream, index, first, end, READ_BYTES)
        self._sealer = sealer
        self._stream = stream

    def fetched(self, messages: list[Message | None]) -> None:
        end = self.reached()
        damage = self.index.damage
        if damage is not None:
            end = min(end, int(damage.first_from(self.first)))
        self._stream.messages.offer_loaded(self.loaded)
        self._sealer.was_read(self._stream, self.first, messages[: end - int(self.first)], end)
