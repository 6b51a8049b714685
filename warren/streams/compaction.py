"""Compaction by key of the sealed part of a stream (``x-cleanup: compact``): of each key the last message stays.

    mark      all chunks, the newest first: which messages are the last of their key
    rewrite   segments, the oldest first, small ones together: the messages that stay, into a new file
    swap      once everything in the log by now is committed (removals.py), the table points into the new file, and the
              reader puts it in the place of the old ones

1. A message keeps its offset. The last segment, and messages not sealed yet, are looked at but not rewritten: so the
   last message of a key is never removed, and a consumer that has caught up has seen the last of each.
2. The key is the routing key, or the header that ``x-key-header`` names. A message without that header stays.
3. An empty body is a tombstone: it replaces the messages of its key. It is removed itself `TOMBSTONE_MS` after it was
   published, so that an occasional reader learns that the key is gone.
4. A crash at any time leaves the old files or the new one: the new one gets its name when it is synced, in one step.
5. It runs when as much has come since the last run as that run left (`Compactor`). It looks at `STEP_MESSAGES` at a
   time, so that nobody waits for it. Keys that do not fit into `KEYS_BYTES` are not compacted this time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.amqp.field_table import maybe_value
from warren.amqp.properties import headers_of
from warren.msgstore.log.columns import Columns, ColumnsWriter, maybe_head
from warren.msgstore.log.jobs import Errand, Files, Removal, SealedRead, SealJob
from warren.msgstore.log.sealed_table import SealedChunk, SealedSegment
from warren.streams.consumer import filter_value_of
from warren.streams.raw_chunk import RawChunk

if TYPE_CHECKING:
    from warren.streams.stream import Stream

STEP_MESSAGES: Final = 1024
KEYS_BYTES: Final = 64 << 20
_KEY_COST_BYTES: Final = 100
TOMBSTONE_MS: Final = 24 * 3600 * 1000


class _Marked:
    """A chunk, and a bit for each of its messages: whether it stays."""

    def __init__(self, segment: SealedSegment, chunk: SealedChunk) -> None:
        self.segment = segment
        self.chunk = chunk
        self.stays = bytearray(int(chunk.count + 7) // 8)
        self.count: i64 = 0
        self.body_bytes: i64 = 0


class Compactor:
    """Compacts a stream time and again. It is made for the first segment that is full while the rules ask for it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._run: Compaction | None = None
        self._compacted_to: i64 = 0  # since the start

    def segment_completed(self) -> None:
        """Begin a compaction if it is worth it: a segment is full, and another one has begun."""
        table = self._stream.messages.sealer.table
        if self._run is not None or len(table.segments) < 2:
            return
        clean_bytes: i64 = 0
        dirty_bytes: i64 = 0
        for segment in table.segments[:-1]:
            if segment.first < self._compacted_to:
                clean_bytes += segment.body_bytes
            else:
                dirty_bytes += segment.body_bytes
        if dirty_bytes >= clean_bytes:
            self._run = Compaction(self, self._stream, self._stream.rules.key_header)
            self._run.begin()

    def over(self, run: Compaction) -> None:
        """Note that a compaction is over."""
        self._compacted_to = run.end
        self._run = None
        self._stream.forget_sealed_chunks()


class Compaction:
    """One compaction of a stream. `compactor` is told when it is over."""

    def __init__(self, compactor: Compactor, stream: Stream, key_header: str) -> None:
        self._compactor = compactor
        self._stream = stream
        self._log = stream.messages.log
        self._key_header = key_header.encode()
        self._tombstones_to_us: i64 = (self._log.now_ms - TOMBSTONE_MS) * 1000
        self._keys: set[str] = set()
        self._keys_bytes: i64 = 0
        table = stream.messages.sealer.table
        self._last = table.segments[-1]
        self.end: i64 = self._last.first  # everything before is compacted
        self._marks: list[_Marked] = []  # the oldest first
        for segment in table.segments:
            for chunk in segment.chunks:
                self._marks.append(_Marked(segment, chunk))
        self._at: i64 = len(self._marks)  # marks from here on are done
        self._raw: RawChunk | None = None
        self._row: i64 = 0
        # The part that is being rewritten.
        self._groups: list[list[_Marked]] = []
        self._group: list[_Marked] = []
        self._group_at: i64 = 0
        self._writer = ColumnsWriter(compacted=True)
        self._chunk_first: i64 = 0
        self._made: list[SealedChunk] = []
        self._position: i64 = 0

    def begin(self) -> None:
        """Read the first chunk."""
        self._next_to_mark()

    def _ends(self) -> bool:
        """Tell whether the stream is deleted; then remove the unfinished new file."""
        if not self._stream.deleted:
            return False
        if self._group:
            self._unmake(self._group)
            self._group = []
        return True

    # --- mark -----------------------------------------------------------------------------------------------------

    def _next_to_mark(self) -> None:
        self._at -= 1
        if self._at < 0:
            self._plan()
        else:
            self._read(self._marks[self._at])

    def _read(self, mark: _Marked) -> None:
        self._log.read_jobs.append(_CompactionRead(self, self._stream.store_id, mark))

    def chunk_read(self, mark: _Marked, raw: RawChunk | None) -> None:
        """Mark a chunk that was read; None: it cannot be read, or retention has removed it."""
        if self._ends():
            return
        self._raw = raw
        marking = not self._groups
        if raw is None:
            # Its contents are unknown: it stays as it is, and so does every segment it would be merged with.
            mark.count = -1
            self._row = 0
        else:
            self._row = raw.count if marking else i64(0)
        self.advance()

    def advance(self) -> None:
        """Look at the next messages of the chunk that is here."""
        if self._ends():
            return
        if self._groups:
            self._copy()
            return
        raw = self._raw
        mark = self._marks[self._at]
        stop: i64 = 0
        if raw is not None:
            stop = max(self._row - STEP_MESSAGES, 0)
            while self._row > stop:
                self._row -= 1
                self._mark(mark, raw, self._row)
        if self._row > 0:
            self._log.read_jobs.append(_Pause(self))
        else:
            self._raw = None
            self._next_to_mark()

    def _mark(self, mark: _Marked, raw: RawChunk, row: i64) -> None:
        """Decide about one message; the later ones have been looked at."""
        key = self._key_of(raw, row)
        body_bytes: i64 = raw.body_bytes_at(row)
        if key is not None:
            if key in self._keys:
                return
            if self._keys_bytes < KEYS_BYTES:
                self._keys.add(key)
                self._keys_bytes += len(key) + _KEY_COST_BYTES
                if body_bytes == 0 and raw.time_at(row) < self._tombstones_to_us:
                    return
        mark.stays[row >> 3] |= 1 << (row & 7)
        mark.count += 1
        mark.body_bytes += body_bytes

    def _key_of(self, raw: RawChunk, row: i64) -> str | None:
        if not self._key_header:
            return raw.envelope_at(row).routing_key
        headers = headers_of(raw.header_payload_at(row))
        value = maybe_value(headers, self._key_header) if headers else None
        return None if value is None else f"{value}"

    # --- rewrite --------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Decide which segments are rewritten, and which of them together."""
        self._keys = set()
        groups: list[list[_Marked]] = []
        group: list[_Marked] = []
        group_bytes: i64 = 0
        at: i64 = 0
        count: i64 = len(self._marks)
        while at < count:
            segment = self._marks[at].segment
            marks: list[_Marked] = []
            left_bytes: i64 = 0
            is_readable = True
            while at < count and self._marks[at].segment is segment:
                mark = self._marks[at]
                marks.append(mark)
                left_bytes += mark.body_bytes
                if mark.count < 0 or self._is_beside_gap(at):
                    is_readable = False
                at += 1
            if segment is self._last or not is_readable or group_bytes + left_bytes > self._segment_bytes():
                if group:
                    groups.append(group)
                group = []
                group_bytes = 0
            if segment is not self._last and is_readable:
                group = group + marks
                group_bytes += left_bytes
        if group:
            groups.append(group)
        self._groups = [each for each in groups if _is_worth_it(each)]
        self._marks = []
        self._next_group()

    def _is_beside_gap(self, at: i64) -> bool:
        """Tell whether there is a gap before or after a chunk: then the gap and the rest of the chunk stay."""
        marks = self._marks
        chunk = marks[at].chunk
        if at > 0 and marks[at - 1].chunk.end != chunk.first:
            return True
        return at + 1 < len(marks) and marks[at + 1].chunk.first != chunk.end

    def _segment_bytes(self) -> i64:
        return self._stream.messages.sealer.segment_bytes

    def _next_group(self) -> None:
        if not self._groups:
            self._compactor.over(self)
            return
        self._group = self._groups[0]
        self._group_at = 0
        self._writer = ColumnsWriter(compacted=True)
        self._chunk_first = self._group[0].chunk.first
        self._made = []
        self._position = 0
        self._read(self._group[0])

    def _copy(self) -> None:
        raw = self._raw
        mark = self._group[self._group_at]
        if raw is None:
            self._give_up_group()
            return
        writer = self._writer
        sealed = self._log.sealed
        stop: i64 = min(self._row + STEP_MESSAGES, raw.count)
        while self._row < stop:
            row: i64 = self._row
            self._row = row + 1
            if mark.stays[row >> 3] & 1 << (row & 7):
                message = raw.message(row)
                writer.add(raw.offset_at(row), message, False)
                writer.filter_by(filter_value_of(message))
                if writer.count >= sealed.chunk_messages or writer.content_bytes >= sealed.chunk_bytes:
                    self._write(raw.offset_at(row) + 1)
                    return
        if self._row < raw.count:
            self._log.read_jobs.append(_Pause(self))
            return
        self._raw = None
        self._group_at += 1
        if self._group_at < len(self._group):
            self._read(self._group[self._group_at])
        elif self._chunk_first < mark.chunk.end:
            self._write(mark.chunk.end)
        else:
            self._swap()

    def _write(self, end: i64) -> None:
        columns = self._writer.finish(self._chunk_first, end)
        segment = int(self._group[0].segment.first)
        job = _CompactionSeal(self, self._stream.store_id, segment, int(self._position), columns)
        self._writer = ColumnsWriter(compacted=True)
        self._chunk_first = end
        self._log.seal_jobs.append(job)

    def written(self, job: SealJob) -> None:
        """Note a chunk of the new file that is written, and continue."""
        head = maybe_head(job.head)
        assert head is not None
        chunk = SealedChunk(job.placed_at, head)
        self._made.append(chunk)
        self._position = chunk.position + chunk.stored_bytes
        if self._ends():
            return
        if self._raw is not None:
            self.advance()
        else:
            self._swap()

    def _swap(self) -> None:
        """Queue the replacement of the old files by the new one."""
        old: list[SealedSegment] = []
        for mark in self._group:
            if not old or old[-1] is not mark.segment:
                old.append(mark.segment)
        self._log.removals.add(_Swap(self, self._stream.store_id, old))

    def swap_goes(self, old: list[SealedSegment]) -> bool:
        """Switch reads to the new file from now on: later reads come after the swap.

        False when retention was faster or the stream ended: some of the old files are gone.
        """
        if self._ends():
            return False
        made = SealedSegment(old[0].first)
        for chunk in self._made:
            made.add(chunk)
        made.end = old[-1].end
        stream = self._stream
        if not stream.messages.sealer.table.replace(old, made):
            self._give_up_group()
            return False
        count: i64 = 0
        body_bytes: i64 = 0
        for segment in old:
            count += segment.count
            body_bytes += segment.body_bytes
        stream.ready.lost(int(count - made.count), int(body_bytes - made.body_bytes))
        return True

    def swapped(self) -> None:
        """Continue with the next group: the new file is in its place."""
        if not self._stream.deleted:
            self._groups.pop(0)
            self._next_group()

    def _give_up_group(self) -> None:
        """Give up the group: retention was faster, or a chunk cannot be read."""
        group = self._groups.pop(0)
        self._raw = None
        self._unmake(group)
        self._next_group()

    def _unmake(self, group: list[_Marked]) -> None:
        self._log.read_jobs.append(_Unmake(self._stream.store_id, int(group[0].segment.first)))


def _is_worth_it(group: list[_Marked]) -> bool:
    """Tell whether there are messages to remove or segments to merge."""
    return any(mark.count < mark.chunk.count or mark.segment is not group[0].segment for mark in group)


class _CompactionRead(SealedRead):
    def __init__(self, compaction: Compaction, stream_id: int, mark: _Marked) -> None:
        chunk = mark.chunk
        super().__init__(stream_id, int(mark.segment.first), int(chunk.position), int(chunk.stored_bytes))
        self._compaction = compaction
        self._mark = mark

    def finished(self) -> None:
        raw = None if self.chunk is None else RawChunk(self._mark.chunk, self.parts)
        self._compaction.chunk_read(self._mark, raw)


class _CompactionSeal(SealJob):
    def __init__(self, compaction: Compaction, stream_id: int, segment: int, position: int, columns: Columns) -> None:
        super().__init__(stream_id, segment, position, columns)
        self.is_replacement = True
        self._compaction = compaction

    def finished(self) -> None:
        self._compaction.written(self)


class _Pause(Errand):
    """Does nothing: it gives others a turn meanwhile."""

    def __init__(self, compaction: Compaction) -> None:
        self._compaction = compaction

    def carry_out(self, files: Files) -> None:
        """Do nothing."""

    def finished(self) -> None:
        self._compaction.advance()


class _Swap(Removal):
    """Puts the new file of a segment in the place of the old one, and of those that were merged into it."""

    def __init__(self, compaction: Compaction, stream_id: int, old: list[SealedSegment]) -> None:
        super().__init__()
        self._compaction = compaction
        self._old = old
        self._stream_id = stream_id
        self._segments = [int(segment.first) for segment in old]

    def goes(self) -> bool:
        return self._compaction.swap_goes(self._old)

    def replaced(self) -> tuple[int, list[int]]:
        return self._stream_id, self._segments

    def carry_out(self, files: Files) -> None:
        files.swap_sealed(self._stream_id, self._segments)

    def finished(self) -> None:
        super().finished()
        self._compaction.swapped()


class _Unmake(Errand):
    """Removes the new file of a segment that will not replace the old ones. It is never read."""

    def __init__(self, stream_id: int, segment: int) -> None:
        self._stream_id = stream_id
        self._segment = segment

    def carry_out(self, files: Files) -> None:
        files.unmake_sealed(self._stream_id, self._segment)

    def finished(self) -> None:
        """Do nothing: nobody waits for that."""
