"""Scrubbing: sealed files are read again, slowly and for ever, so that corruption is found before it hurts.

1. A pass reads every frame of every sealed segment of the log once, a piece at a time, and then every chunk of every
   stream that is there by then; the shell sets the pace.
2. A wrong crc is reported once (`DamageBook.reports`) and changes nothing: recovery and the readers of single messages
   decide for themselves which bytes they believe.
3. A segment may be removed while it is being scrubbed. Nothing is requested for a segment that is gone: the pass
   continues with the next one.
4. A read that the shell leaves, since the disk does not give it, says nothing about the bytes. The pass continues after
   them: in the log with the next frame that begins there.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from warren.msgstore.log.jobs import Errand, ReadJob, SealedRead
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.records import (
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    SEGMENT_HEADER_BYTES,
    STORE_TAG_AT,
    STORE_TAG_BYTES,
    unsigned_word,
)
from warren.msgstore.log.replay import next_head
from warren.msgstore.log.sealed_table import SealedChunk, SealedSegment
from warren.msgstore.log.segments import Segment

PIECE_BYTES: Final = 1 << 20
# The number of streams in which one step looks for a chunk, and which a new scrubber begins with.
LOOKED_AT_MAX: Final = 1000


class ScrubRead(ReadJob):
    """The next piece."""

    def __init__(self, scrubber: Scrubber, lsn: int, length: int) -> None:
        super().__init__([(lsn, length)])
        self.scrubber = scrubber

    def finished(self) -> None:
        if self.is_left:
            self.scrubber.piece_left(self.ranges[0][1])
        else:
            self.scrubber.piece_read(self.data[0])


class ChunkScrub(SealedRead):
    """The next chunk of a stream."""

    def __init__(self, scrubber: Scrubber, stream_id: int, segment: SealedSegment, place: SealedChunk) -> None:
        super().__init__(stream_id, int(segment.first), int(place.position), int(place.stored_bytes))
        self.scrubber = scrubber
        self.place = place
        self.wants_parts = False

    def finished(self) -> None:
        self.scrubber.chunk_read(self)


class Scrubber:
    """Goes round all sealed files. The shell calls `step` as often as the rate allows it."""

    def __init__(self, log: MessageLog) -> None:
        self.log = log
        self.read_bytes: i64 = 0  # since the start
        self.passes: i64 = 0
        self.looked_at_max: i64 = LOOKED_AT_MAX
        self._begun_bytes: i64 = 0  # in this pass
        self._segment: Segment | None = None
        self._passed: i64 = 0  # number of the last segment of this pass that was read
        self._at: i64 = 0
        self._left: i64 = 0  # payload of the frame that is still to be read
        self._frame_lsn: i64 = 0
        self._crc: int = 0
        self._expected_crc: int = 0
        self._streams: list[int] | None = None  # those that are left of this pass; None: the log is not done yet
        self._offset: i64 = 0  # where the last chunk ends of the last one of them
        self._is_lost: bool = False  # where the next frame begins is not known
        self.reading: Errand | None = None  # under way
        self._reported: set[int] = set()

    def step(self) -> int:
        """Begin the next read; return its size in bytes.

        0: the last is not here yet, the pass is over, or there was nothing in the streams that were looked at.
        """
        if self.reading is not None:
            return 0
        length: i64 = self._begin_piece()
        if length == 0:
            length = self._begin_chunk()
        if length > 0:
            self._begun_bytes += length
        elif not self._streams:
            if self._begun_bytes > 0:
                self.passes += 1
            self._begun_bytes = 0
            self._passed = 0
            self._streams = None
        return int(length)

    def is_busy(self) -> bool:
        """Tell whether something that was asked for is not here yet."""
        return self.reading is not None

    def _ask(self, read: Errand) -> None:
        self.reading = read
        self.log.read_jobs.append(read)

    def _begin_piece(self) -> i64:
        segment = self._segment
        if segment is None or self._at >= segment.end_lsn or self._is_gone(segment):
            segment = self._next_segment()
            self._segment = segment
            if segment is None:
                return 0
            self._passed = segment.number
            self._at = segment.base_lsn + SEGMENT_HEADER_BYTES
            self._left = 0
            self._is_lost = False
        length: i64 = segment.end_lsn - self._at
        if length > PIECE_BYTES:
            length = PIECE_BYTES
        self._ask(ScrubRead(self, int(self._at), int(length)))
        return length

    def _is_gone(self, segment: Segment) -> bool:
        return self.log.segments.maybe_find(segment.base_lsn) is not segment

    def _next_segment(self) -> Segment | None:
        for segment in self.log.segments.segments:
            if not segment.sealed or segment.end_lsn > self.log.written_lsn or int(segment.number) in self._reported:
                continue
            if segment.end_lsn <= segment.base_lsn + SEGMENT_HEADER_BYTES:
                continue  # without a frame
            if segment.number > self._passed:
                return segment
        return None

    def _begin_chunk(self) -> i64:
        streams = self.log.sealed.served
        left = self._streams
        if left is None:
            left = self._streams = list(reversed(streams))
        looks: i64 = self.looked_at_max
        while left and looks > 0:
            stream_id = left[-1]
            stream = streams.get(stream_id)
            if stream is not None:
                table = stream.sealed()
                if table.segments and self._offset < table.end:
                    segment, chunk = table.place(self._offset)
                    self._offset = chunk.end
                    self._ask(ChunkScrub(self, stream_id, segment, chunk))
                    return chunk.stored_bytes
            left.pop()
            self._offset = 0
            looks -= 1
        return 0

    def chunk_read(self, job: ChunkScrub) -> None:
        """Check a chunk that is here, or cannot be read, or is gone by now."""
        self.reading = None
        if job.is_left:
            return
        if job.chunk is not None:
            self.read_bytes += len(job.chunk)
            return
        stream = self.log.sealed.served.get(job.stream_id)
        if stream is None:
            return
        if stream.sealed().has(job.place):
            stream.chunk_damaged(job.place)

    def piece_left(self, length: i64) -> None:
        """Continue after a piece that the disk does not give (4)."""
        self.reading = None
        self._at += length
        self._left = 0
        self._is_lost = True

    def piece_read(self, data: bytes) -> None:
        """Check the frames in the piece."""
        self.reading = None
        segment = self._segment
        assert segment is not None
        if self._is_gone(segment):
            return
        self.read_bytes += len(data)
        pos: i64 = self._next_frame(data) if self._is_lost else 0
        while pos < len(data):
            if self._left == 0:
                if pos + FRAME_HEADER_BYTES > len(data):
                    break
                lsn: i64 = self._at + pos
                tag = data[pos + STORE_TAG_AT : pos + STORE_TAG_AT + STORE_TAG_BYTES]
                if data[pos : pos + 4] != FRAME_MAGIC or read_i64_be(data, pos + 8) != lsn or tag != self.log.store_tag:
                    self._report(segment, lsn)
                    return
                self._frame_lsn = lsn
                self._left = unsigned_word(data, pos + 4)
                self._expected_crc = int(unsigned_word(data, pos + 52))
                self._crc = self.log.checksum(data[pos : pos + 52], 0)
                pos += FRAME_HEADER_BYTES
            size: i64 = len(data) - pos
            if size > self._left:
                size = self._left
            self._crc = self.log.checksum(data[pos : pos + size], self._crc)
            self._left -= size
            pos += size
            if self._left == 0 and self._crc != self._expected_crc:
                self._report(segment, self._frame_lsn)
                return
        if pos == 0:
            self._report(segment, self._at)
            return
        self._at += pos

    def _next_frame(self, data: bytes) -> i64:
        """Return where in a piece the next frame begins; if none does, how far the next piece may begin after it."""
        at: i64 = next_head(self.log.store_tag, data, 0)
        while at >= 0 and read_i64_be(data, at + 8) != self._at + at:
            at = next_head(self.log.store_tag, data, int(at) + 8)
        if at < 0:
            return len(data)
        self._is_lost = False
        return at

    def _report(self, segment: Segment, lsn: i64) -> None:
        self._reported.add(int(segment.number))
        self.log.damage.report_frame(lsn, segment.number)
        self._at = segment.end_lsn
