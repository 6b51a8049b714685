"""Reads from the sealed part of a stream: chunks of its files, for consumers and for the data port.

    SealedRead (reader thread: read, check, uncompress) -> RawChunk: its columns -> `Chunk`: some hundred messages

1. At most `RAWS_MAX` raw chunks of a stream are in memory, those used last; one while memory is short. Chunks that all
   consumers have passed are given up. They count as memory of the log.
2. A chunk is read once for all consumers that wait for it.
3. A damaged chunk is reported once, and passed over. A chunk that has been replaced meanwhile is asked for again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from warren.msgstore.log.jobs import SealedRead
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.sealed_table import SealedChunk, SealedSegment
from warren.streams.cursor import Cursor
from warren.streams.raw_chunk import RawChunk

if TYPE_CHECKING:
    from warren.streams.stream import Stream

RAWS_MAX: Final = 4


class SealedReader:
    """The sealed chunks of a stream that are in memory, or being read."""

    def __init__(self, log: MessageLog) -> None:
        self._log = log
        self._raws: list[RawChunk] = []  # the one used last at the end
        self._loading: set[int] = set()
        self._bad: set[int] = set()

    def is_bad(self, place: SealedChunk) -> bool:
        """Tell whether a chunk turned out to be damaged."""
        return int(place.first) in self._bad

    def is_reading(self) -> bool:
        """Tell whether a read is under way."""
        return len(self._loading) > 0

    def maybe_raw(self, place: SealedChunk) -> RawChunk | None:
        """Return a chunk that is in memory."""
        for raw in self._raws:
            if raw.first == place.first and raw.end == place.end:
                if raw is not self._raws[-1]:
                    self._raws.remove(raw)
                    self._raws.append(raw)
                return raw
        return None

    def load(self, stream: Stream, segment: SealedSegment, place: SealedChunk) -> None:
        """Queue the read of a chunk, unless it is under way; the stream is notified."""
        if int(place.first) not in self._loading:
            self._loading.add(int(place.first))
            self._log.read_jobs.append(_Load(self, stream, segment, place))

    def loaded(self, job: _Load) -> None:
        """Take a chunk that was read; it may be unreadable."""
        stream = job.stream
        self._loading.discard(int(job.place.first))
        if stream.deleted:
            return
        if job.chunk is None:
            if stream.messages.sealer.table.has(job.place):
                self._bad.add(int(job.place.first))
                stream.sealed_lost(job.place.first)
        elif stream.consumers:
            raw = RawChunk(job.place, job.parts)
            self._log.resident_bytes += raw.cost_bytes
            self._raws.append(raw)
            most = 1 if self._log.resident_bytes > self._log.memory_bytes else RAWS_MAX
            while len(self._raws) > most:
                self._log.resident_bytes -= self._raws.pop(0).cost_bytes
        stream.wake()

    def forget_passed(self, cursors: list[Cursor]) -> None:
        """Give up chunks that all `cursors` have passed."""
        if self._raws:
            kept: list[RawChunk] = []
            for raw in self._raws:
                if any(cursor.next < raw.end for cursor in cursors):
                    kept.append(raw)
                else:
                    self._log.resident_bytes -= raw.cost_bytes
            self._raws = kept

    def forget(self) -> None:
        """Give all memory back."""
        for raw in self._raws:
            self._log.resident_bytes -= raw.cost_bytes
        self._raws = []


class _Load(SealedRead):
    """Reads a chunk for consumers."""

    def __init__(self, reader: SealedReader, stream: Stream, segment: SealedSegment, place: SealedChunk) -> None:
        super().__init__(stream.store_id, int(segment.first), int(place.position), int(place.stored_bytes))
        self.reader = reader
        self.stream = stream
        self.place = place

    def subject(self) -> tuple[str, str]:
        return self.stream.vhost_name, self.stream.name

    def finished(self) -> None:
        self.reader.loaded(self)


def read_sealed(
    stream: Stream, segment: SealedSegment, chunk: SealedChunk, told: Callable[[bytes | None], None]
) -> None:
    """Report a sealed chunk as it lies in its file, after its read; None: it cannot be read, or is gone."""
    stream.messages.log.read_jobs.append(_WholeRead(stream, segment, chunk, told))


class _WholeRead(SealedRead):
    """Reads a chunk as it lies in its file."""

    def __init__(
        self, stream: Stream, segment: SealedSegment, chunk: SealedChunk, told: Callable[[bytes | None], None]
    ) -> None:
        super().__init__(stream.store_id, int(segment.first), int(chunk.position), int(chunk.stored_bytes))
        self.wants_parts = False
        self._stream = stream
        self._told = told

    def subject(self) -> tuple[str, str]:
        return self._stream.vhost_name, self._stream.name

    def finished(self) -> None:
        self._told(self.chunk)
