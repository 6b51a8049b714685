"""Compaction: the live records of a sparse segment are copied to the end of the log, so that the file can be removed.

1. Only one segment at a time is compacted, only sealed ones that the checkpoint covers, and the emptiest first.
2. A copy keeps queue and sequence number: order lives in the index. Acks may come at any moment; when the copy is
   written, its place is checked again for being live (batch.py).
3. The old file is removed like any other dead segment: after a checkpoint that was taken when nothing pointed into it.
   A crash at any step leaves the old records, or the old and the new.
4. A damaged record stays where it is, and its segment is not tried again: evidence is not tidied away. A segment left
   for another reason is tried again, up to `TRIES_MAX` times.
5. Only the index pages in memory tell which records are live. Pages leave memory while others are read: so absent pages
   are looked for again before anything is copied, and a page whose messages are being copied stays until that is done.
6. A record that is larger than a piece is read in pieces and checked in the thread, and they are written as they are:
   to look through 128 MiB on the loop, or to copy them, would hold up all clients.
7. A segment whose read fails for long is left (`leave`), and tried again after that read has succeeded.

    a step:   read a piece of the segment -> read the absent index pages that it concerns -> copy what is live
              (until none is absent)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from warren.msgstore.log.jobs import PIECE_BYTES as LARGE_PIECE_BYTES
from warren.msgstore.log.jobs import Files, ReadJob, WholeRecordsRead
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import IndexPage, QueueIndex
from warren.msgstore.log.records import (
    DELIVERED,
    DROPPABLE,
    EXPIRES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    MESSAGE,
    MESSAGE_HEAD_BYTES,
    PAGE,
    PAGE_HEAD_BYTES,
    PLACE_BYTES,
    REPUBLISHED,
    SEGMENT_HEADER_BYTES,
    TIMED,
    is_intact,
    names_of,
    padded,
    page_entries,
    place_count,
    queue_id_of_place,
    record_length,
    sequence_number_of_place,
    unsigned_word,
)
from warren.msgstore.log.segments import Segment

PIECE_BYTES: Final = 1 << 20
TRIES_MAX: Final = 4
# How often the absent pages of one piece are read, while others of it leave memory.
ROUNDS_MAX: Final = 8


class PieceRead(ReadJob):
    """A piece of the segment."""

    def __init__(self, compaction: Compaction, segment: Segment, lsn: int, length: int) -> None:
        super().__init__([(lsn, length)])
        self.compaction = compaction
        self.segment = segment

    def finished(self) -> None:
        if self.compaction.takes(self, self.segment):
            self.compaction.piece_read(self.data[0])


class LargeRead(ReadJob):
    """A MESSAGE record that is larger than a piece: the `head` bytes up to the end of its places, then the rest."""

    def __init__(self, compaction: Compaction, segment: Segment, lsn: int, head: int, length: int) -> None:
        ranges = [(lsn, head)]
        for at in range(head, length, LARGE_PIECE_BYTES):
            ranges.append((lsn + at, min(LARGE_PIECE_BYTES, length - at)))
        super().__init__(ranges)
        self.compaction = compaction
        self.segment = segment
        self.length: i64 = length
        self.is_whole: bool = False
        self._checksum = compaction.log.checksum

    def carry_out(self, files: Files) -> None:
        self.data = files.read(self.ranges)
        head = self.data[0]
        self.is_whole = False
        if len(head) != self.ranges[0][1] or names_of(head, 0) != len(head) or unsigned_word(head, 4) != self.length:
            return
        crc = self._checksum(head[4:], 0)
        size: i64 = len(head)
        for piece in self.data[1:]:
            crc = self._checksum(piece, crc)
            size += len(piece)
        self.is_whole = size == self.length and crc == unsigned_word(head, 0)

    def damaged(self, checksum: Callable[[bytes, int], int]) -> list[int]:
        return [] if self.is_whole else [self.ranges[0][0]]

    def finished(self) -> None:
        if self.compaction.takes(self, self.segment):
            self.compaction.large_read(self)


class PagesRead(WholeRecordsRead):
    """The index pages that a piece concerns."""

    def __init__(
        self, compaction: Compaction, segment: Segment, pages: list[tuple[QueueIndex, int, IndexPage]]
    ) -> None:
        super().__init__([(int(page.lsn), int(page.length)) for _, _, page in pages])
        self.compaction = compaction
        self.segment = segment
        self.pages = pages

    def finished(self) -> None:
        if self.compaction.takes(self, self.segment):
            self.compaction.pages_read(self)


class Compaction:
    """Empties one segment after the other. The shell calls `step` as often as the rate allows it to."""

    def __init__(self, log: MessageLog) -> None:
        self.log = log
        self.moved_bytes: i64 = 0  # since the start
        self.segments_done: i64 = 0
        self._segment: Segment | None = None
        self._at: i64 = 0  # LSN of the next read
        self._frame_end: i64 = 0  # LSN at which the frame ends in which `_at` is; equal to `_at`: a frame begins there
        self.reading: ReadJob | None = None  # under way
        self._piece = b""
        self._large: LargeRead | None = None  # instead of a piece
        self._met_damage: bool = False  # in this segment
        self._rounds: i64 = 0  # in which pages were read for the piece
        # Of segments in which something was left: how often that was, and with which batch the last copies come.
        self._tries: dict[int, int] = {}
        self._copied_with: dict[int, int] = {}

    def is_busy(self) -> bool:
        """Tell whether a step is under way."""
        return self.reading is not None

    def takes(self, read: ReadJob, segment: Segment) -> bool:
        """Take the outcome of `read`; False when its segment was left meanwhile, which may be tried again now."""
        if read is not self.reading:
            self._tries.pop(int(segment.number), None)
            return False
        self.reading = None
        return True

    def leave(self) -> None:
        """Continue with another segment: the read under way fails, see (7)."""
        segment = self._segment
        assert segment is not None
        self.reading = None
        self._piece = b""
        self._large = None
        self._segment = None
        self._tries[int(segment.number)] = TRIES_MAX
        self._copied_with[int(segment.number)] = 0

    def step(self, *, urgent: bool = False) -> bool:
        """Begin to move the next piece; False when there is nothing to do. `urgent`: any dead bytes are worth it."""
        if self.reading is not None:
            return True
        segment = self._segment
        if segment is None or segment.live_refs == 0 or self._at >= segment.end_lsn:
            if segment is not None:
                self._finish(segment)
            segment = self._choose(urgent)
            self._segment = segment
            if segment is None:
                return False
            self._met_damage = False
            self._at = segment.base_lsn + SEGMENT_HEADER_BYTES
            self._frame_end = self._at
        self._read(PIECE_BYTES)
        return True

    def _choose(self, urgent: bool) -> Segment | None:
        """Return the segment whose file would give most for the least copying."""
        best: Segment | None = None
        for segment in self.log.segments.segments:
            size: i64 = segment.end_lsn - segment.base_lsn
            if not segment.is_sparse(urgent) or segment.end_lsn > self.log.checkpoints.lsn:
                continue
            if self._rests(int(segment.number)):
                continue
            if best is None or segment.kept_bytes() * (best.end_lsn - best.base_lsn) < best.kept_bytes() * size:
                best = segment
        return best

    def _rests(self, number: int) -> bool:
        """Tell whether another look at a segment would not help: copies wait for their batch, or it was tried often."""
        tries = self._tries.get(number, 0)
        return tries > 0 and (tries >= TRIES_MAX or self._copied_with[number] > self.log.done_batch)

    def _finish(self, segment: Segment) -> None:
        self.segments_done += 1
        number = int(segment.number)
        if segment.live_refs:
            self._tries[number] = TRIES_MAX if self._met_damage else self._tries.get(number, 0) + 1
            self._copied_with[number] = int(self.log.batch.number)
        if len(self._tries) > 2 * len(self.log.segments.segments):
            there = {int(each.number) for each in self.log.segments.segments}
            self._tries = {each: tries for each, tries in self._tries.items() if each in there}
            self._copied_with = {each: self._copied_with[each] for each in self._tries}

    def _read(self, size: i64) -> None:
        segment = self._segment
        assert segment is not None
        left: i64 = segment.end_lsn - self._at
        self._ask(PieceRead(self, segment, int(self._at), int(left if left < size else size)))

    def _ask(self, read: ReadJob) -> None:
        self.reading = read
        self.log.read_jobs.append(read)

    def piece_read(self, data: bytes) -> None:
        """Handle a piece that was read: find the index pages that it needs."""
        segment = self._segment
        assert segment is not None
        if segment.live_refs == 0 or not data:
            self._at = segment.end_lsn
            return
        self._piece = data
        self._rounds = 0
        self._go_on()

    def large_read(self, job: LargeRead) -> None:
        """Handle a large record that was read: find the index pages that it needs."""
        self._large = job
        self._rounds = 0
        self._go_on()

    def _go_on(self) -> None:
        """Move the live records of the piece, or the large one, or read its absent index pages."""
        large = self._large
        pages: list[tuple[QueueIndex, int, IndexPage]] = []
        if self._rounds >= ROUNDS_MAX:
            pass  # those that are absent now stay where they are
        elif large is None:
            pages = self._absent_pages(self._piece)
        elif large.is_whole:
            self._ask_for_places(large.data[0], 0, pages, set())
        if not pages:
            if large is None:
                self._move()
            else:
                self._move_large(large)
            return
        segment = self._segment
        assert segment is not None
        self._rounds += 1
        self._ask(PagesRead(self, segment, pages))

    def _absent_pages(self, data: bytes) -> list[tuple[QueueIndex, int, IndexPage]]:
        pages: list[tuple[QueueIndex, int, IndexPage]] = []
        asked: set[IndexPage] = set()
        frame_end: i64 = self._frame_end
        pos: i64 = 0
        while pos < len(data):
            if self._at + pos == frame_end:
                if pos + FRAME_HEADER_BYTES > len(data) or data[pos : pos + 4] != FRAME_MAGIC:
                    break
                pos += FRAME_HEADER_BYTES
                frame_end = self._at + pos + unsigned_word(data, pos - FRAME_HEADER_BYTES + 4)
                continue
            length: i64 = record_length(data, pos)
            if length == 0:
                break
            kind: i64 = data[pos + 8]
            fits = _fits(data, pos, length, kind)
            if fits and kind == MESSAGE:
                self._ask_for_places(data, pos, pages, asked)
            elif fits and kind == PAGE:
                index = self.log.indexes.get(read_i64_be(data, pos + 16))
                if index is not None:
                    page = index.page(read_i64_be(data, pos + 24))
                    if page is not None and page.lsn == self._at + pos:
                        _ask(index, read_i64_be(data, pos + 24), pages, asked)
            pos += padded(length)
        return pages

    def _ask_for_places(
        self, data: bytes, pos: i64, pages: list[tuple[QueueIndex, int, IndexPage]], asked: set[IndexPage]
    ) -> None:
        place: i64 = place_count(data, pos)
        while place > 0:
            place -= 1
            index = self.log.indexes.get(queue_id_of_place(data, pos, place))
            if index is not None:
                number: i64 = sequence_number_of_place(data, pos, place) // index.page_entries
                _ask(index, number, pages, asked)

    def pages_read(self, job: PagesRead) -> None:
        """Move the live records: the index pages are here."""
        log = self.log
        for (index, page_number, page), (lsn, _), data in zip(job.pages, job.ranges, job.data, strict=True):
            if page.resident or page.lsn != lsn or index.deleted or index.page(page_number) is not page:
                continue
            if not log.is_page(data, page.length):
                continue
            index.page_loaded(page, page_entries(data, 0), log.void_below_lsn)
            # It stays until it is written again.
            page.dirty = True
            index.unload_candidates.append(page_number)
        self._go_on()

    def _move(self) -> None:
        data = self._piece
        self._piece = b""
        pos: i64 = 0
        while pos < len(data):
            if self._at + pos == self._frame_end:
                if pos + FRAME_HEADER_BYTES > len(data) or data[pos : pos + 4] != FRAME_MAGIC:
                    break
                pos += FRAME_HEADER_BYTES
                self._frame_end = self._at + pos + unsigned_word(data, pos - FRAME_HEADER_BYTES + 4)
                continue
            length: i64 = record_length(data, pos)
            if length == 0:
                break
            kind: i64 = data[pos + 8]
            if kind in (MESSAGE, PAGE) and _fits(data, pos, length, kind):
                self._move_record(data, pos, length, kind)
            pos += padded(length)
        if pos > 0:
            self._at += pos
            return
        # Nothing fits: one record is larger than the piece, or the bytes are not a record.
        segment = self._segment
        assert segment is not None
        length = unsigned_word(data, 4) if len(data) >= 8 else 0
        # A damaged frame head may have put us anywhere, and `_frame_end` as well.
        left: i64 = min(self._frame_end, segment.end_lsn) - self._at
        if not len(data) < length <= left or len(data) < MESSAGE_HEAD_BYTES:
            self._at = segment.end_lsn
        elif data[8] == MESSAGE and names_of(data, 0) <= length:
            self._ask(LargeRead(self, segment, int(self._at), int(names_of(data, 0)), int(length)))
        else:
            self._at += padded(length)

    def _move_large(self, large: LargeRead) -> None:
        self._large = None
        if not large.is_whole:
            self._met_damage = True
        elif self._is_live(large.data[0], 0, self._at, hold=True):
            self.log.batch.copy(large.data[0], self._at, _kept_flags(large.data[0], 0), large.data[1:])
            self.moved_bytes += large.length
        self._at += padded(large.length)

    def _move_record(self, data: bytes, pos: i64, length: i64, kind: i64) -> None:
        log = self.log
        lsn: i64 = self._at + pos
        if kind == PAGE:
            index = log.indexes.get(read_i64_be(data, pos + 16))
            if index is None:
                return
            page_number: i64 = read_i64_be(data, pos + 24)
            page = index.page(page_number)
            if page is not None and page.lsn == lsn and page.resident:
                page.dirty = True
                log.batch.write_page(index, page_number)
                index.unload_candidates.append(int(page_number))
            return
        if not self._is_live(data, pos, lsn, hold=False):
            return
        if not is_intact(log.checksum, data, pos, length):
            self._met_damage = True
            return
        self._is_live(data, pos, lsn, hold=True)
        log.batch.copy(data[pos : pos + length], lsn, _kept_flags(data, pos))
        self.moved_bytes += length

    def _is_live(self, data: bytes, pos: i64, lsn: i64, *, hold: bool) -> bool:
        """Tell whether a MESSAGE record is live. `hold`: its index pages change with its copy, and stay until then."""
        is_live: bool = False
        place: i64 = place_count(data, pos)
        while place > 0:
            place -= 1
            index = self.log.indexes.get(queue_id_of_place(data, pos, place))
            number: i64 = sequence_number_of_place(data, pos, place)
            if index is not None and index.lsn_of_resident(number) == lsn:
                if not hold:
                    return True
                is_live = True
                page = index.page(number // index.page_entries)
                assert page is not None
                page.dirty = True  # (5)
        return is_live


def _kept_flags(data: bytes, pos: i64) -> i64:
    return i64(data[pos + 9]) & (DROPPABLE | TIMED | EXPIRES | DELIVERED | REPUBLISHED)


def _fits(data: bytes, pos: i64, length: i64, kind: i64) -> bool:
    """Tell whether the record is long enough for its fixed fields. Its crc is only checked before it is copied."""
    if kind == MESSAGE:
        return MESSAGE_HEAD_BYTES + PLACE_BYTES * place_count(data, pos) <= length
    return kind != PAGE or length >= PAGE_HEAD_BYTES


def _ask(
    index: QueueIndex, page_number: i64, pages: list[tuple[QueueIndex, int, IndexPage]], asked: set[IndexPage]
) -> None:
    """Put an absent page on the list, once."""
    page = index.page(page_number)
    if page is not None and not page.resident and page not in asked:
        asked.add(page)
        pages.append((index, int(page_number), page))
