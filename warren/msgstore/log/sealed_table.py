"""The table of a stream's own files: which chunk is where. ``msgstore.files.sealed_files`` has the files.

    offsets    first .......................................... end
               segment            segment            segment          each a file, the oldest first
               chunk chunk chunk  chunk chunk chunk  chunk

1. Chunks ascend. Where one ends the next begins, unless the messages between them are damaged. Offsets that a chunk
   does not have are gone.
2. A chunk is entered when it is synced. Segments leave whole, the oldest first; the last one may be appended to.
   Nothing is entered while the end is unread: chunks that the disk did not give may have the offsets after it.
3. About 160 bytes of memory a chunk, most of it the filter.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.columns import BODIES, PROPERTIES, ChunkHead

SEGMENT_HEADER_BYTES: Final = 64


class SealedChunk:
    """A chunk: the offsets that it stands for, its place, and the fields of its head."""

    def __init__(self, position: i64, head: ChunkHead) -> None:
        self.first: i64 = head.first
        self.end: i64 = head.end
        self.position: i64 = position
        self.stored_bytes: i64 = head.chunk_bytes
        self.count: i64 = head.count
        self.body_bytes: i64 = head.whole[BODIES]
        self.content_bytes: i64 = head.whole[BODIES] + head.whole[PROPERTIES]  # uncompressed
        self.max_time_us: i64 = head.max_time_us
        self.filter: bytes | None = head.filter if head.is_filtered else None
        self.has_unfiltered: bool = head.has_unfiltered


class SealedSegment:
    """A file: its chunks, and their sums."""

    def __init__(self, first: i64) -> None:
        self.first: i64 = first
        self.end: i64 = first
        self.chunks: list[SealedChunk] = []
        self.file_bytes: i64 = SEGMENT_HEADER_BYTES
        self.count: i64 = 0
        self.body_bytes: i64 = 0
        self.max_time_us: i64 = 0

    def add(self, chunk: SealedChunk) -> None:
        """Enter a chunk that comes after all others."""
        assert chunk.first >= self.end
        self.chunks.append(chunk)
        self.end = chunk.end
        self.file_bytes = chunk.position + chunk.stored_bytes
        self.count += chunk.count
        self.body_bytes += chunk.body_bytes
        if chunk.max_time_us > self.max_time_us:
            self.max_time_us = chunk.max_time_us

    def cut(self, end: i64) -> None:
        """Remove the chunks that reach beyond offset `end`; their bytes stay where they are."""
        while self.chunks and self.end > end:
            chunk = self.chunks.pop()
            self.count -= chunk.count
            self.body_bytes -= chunk.body_bytes
            self.end = self.chunks[-1].end if self.chunks else self.first


class SealedTable:
    """The segments of one stream."""

    def __init__(self) -> None:
        self.segments: list[SealedSegment] = []
        self.end: i64 = 0
        self.count: i64 = 0
        self.body_bytes: i64 = 0
        self.end_is_unread: bool = False

    def first(self) -> i64:
        """Return the oldest offset; `end` for an empty table."""
        return self.segments[0].first if self.segments else self.end

    def add_segment(self, segment: SealedSegment) -> None:
        """Enter a whole segment after all others."""
        assert not self.segments or segment.first >= self.end
        self.segments.append(segment)
        self.end = segment.end
        self.count += segment.count
        self.body_bytes += segment.body_bytes

    def add(self, chunk: SealedChunk, *, begins_segment: bool) -> None:
        """Enter a chunk after all others."""
        if begins_segment:
            self.segments.append(SealedSegment(chunk.first))
        segment = self.segments[-1]
        segment.add(chunk)
        self.end = chunk.end
        self.count += chunk.count
        self.body_bytes += chunk.body_bytes

    def cut(self, end: i64) -> None:
        """Remove the chunks that reach beyond offset `end`."""
        segments = self.segments
        while segments and segments[-1].end > end:
            segment = segments[-1]
            self.count -= segment.count
            self.body_bytes -= segment.body_bytes
            segment.cut(end)
            self.count += segment.count
            self.body_bytes += segment.body_bytes
            if not segment.chunks:
                segments.pop()
            self.end = segments[-1].end if segments else i64(0)

    def drop_oldest(self) -> SealedSegment:
        """Remove the oldest segment."""
        segment = self.segments.pop(0)
        self.count -= segment.count
        self.body_bytes -= segment.body_bytes
        return segment

    def replace(self, old: list[SealedSegment], made: SealedSegment) -> bool:
        """Put `made` in the place of consecutive segments; False when some of them are gone."""
        segments = self.segments
        at = 0
        while at < len(segments) and segments[at] is not old[0]:
            at += 1
        if segments[at : at + len(old)] != old:
            return False
        for segment in old:
            self.count -= segment.count
            self.body_bytes -= segment.body_bytes
        segments[at : at + len(old)] = [made]
        self.count += made.count
        self.body_bytes += made.body_bytes
        return True

    def place(self, offset: i64) -> tuple[SealedSegment, SealedChunk]:
        """Return the segment and the chunk that `offset` is in, or else the next one; it is before the end."""
        segments = self.segments
        low: i64 = 0
        high: i64 = len(segments) - 1
        while low < high:
            middle: i64 = (low + high) // 2
            if segments[middle].end > offset:
                high = middle
            else:
                low = middle + 1
        chunks = segments[low].chunks
        first: i64 = 0
        last: i64 = len(chunks) - 1
        while first < last:
            middle = (first + last) // 2
            if chunks[middle].end > offset:
                last = middle
            else:
                first = middle + 1
        return segments[low], chunks[first]

    def has(self, place: SealedChunk) -> bool:
        """Tell whether a chunk is still here: retention may have removed it, and compaction replaced it."""
        return len(self.segments) > 0 and place.first < self.end and self.place(place.first)[1] is place

    def chunks_between(self, first: i64, end: i64) -> list[tuple[SealedSegment, SealedChunk]]:
        """Return the chunks with offsets from `first` up to `end`, in order."""
        found: list[tuple[SealedSegment, SealedChunk]] = []
        if first >= end:
            return found
        for segment in self.segments:
            if segment.end > first and segment.first < end:
                for chunk in segment.chunks:
                    if chunk.end > first and chunk.first < end:
                        found.append((segment, chunk))
        return found

    def maybe_at_time(self, time_us: i64) -> SealedChunk | None:
        """Return the first chunk that has a message which is not older than a time; None: all are older."""
        for segment in self.segments:
            if segment.max_time_us >= time_us:
                for chunk in segment.chunks:
                    if chunk.max_time_us >= time_us:
                        return chunk
        return None
