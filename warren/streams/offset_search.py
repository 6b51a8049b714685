"""The offset at which reading begins: `find` says what a `Start` means now.

    first, last, next     known at once
    an offset             itself, whether it exists or not
    a time                sealed: by the table, then in one chunk. In the tail: message by message. Between them, in the
                          log: a binary search, one read for each step

1. A time means the first message that is not older. Messages that come in the meantime are newer.
2. If messages are sealed during a search, it begins again: they are no longer where it looks.
3. Nothing is told once the stream is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.msgstore.log.jobs import SealedRead
from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import QueueIndex
from warren.msgstore.log.sealed_table import SealedChunk, SealedSegment
from warren.queues.offset_queue import OffsetRead
from warren.streams.consumer import AT_FIRST, AT_LAST, AT_NEXT, AT_TIME, Start
from warren.streams.raw_chunk import RawChunk

if TYPE_CHECKING:
    from warren.streams.stream import Stream


def find(stream: Stream, start: Start, told: Callable[[int], None]) -> None:
    """Report the offset that `start` means now, maybe after a look on disk. Never if the stream is deleted."""
    messages = stream.messages
    if start.kind == AT_TIME:
        seek(stream, start.value, told)
    elif start.kind == AT_FIRST:
        told(int(messages.first_number()))
    elif start.kind == AT_LAST:
        last: i64 = messages.next_number - 1
        first: i64 = messages.first_number()
        told(int(last if last > first else first))
    elif start.kind == AT_NEXT:
        told(int(messages.next_number))
    else:
        told(int(start.value))


def seek(stream: Stream, time_ms: i64, told: Callable[[int], None]) -> None:
    """Report the offset of the first message that is not older than a time."""
    messages = stream.messages
    sealed = messages.sealer.table.maybe_at_time(time_ms * 1000)
    if sealed is not None:
        segment, place = messages.sealer.table.place(sealed.first)
        messages.log.read_jobs.append(_SealedTimeRead(stream, segment, place, time_ms * 1000, told))
        return
    offset: i64 = messages.tail_from()
    for message in messages.messages(offset, messages.next_number):
        assert message is not None
        if message.time_ms >= time_ms:
            break
        offset += 1
    index = messages.index
    if offset > messages.tail_from() or messages.middle.count == 0 or index is None:
        told(int(offset))
    else:
        _TimeSearch(stream, index, time_ms, messages.first_unsealed(), offset, told).advance()


class _TimeSearch:
    """Looks in the log for the first message from offset `low` up to `high` that is not older than ``time_ms``."""

    def __init__(
        self, stream: Stream, index: QueueIndex, time_ms: i64, low: i64, high: i64, told: Callable[[int], None]
    ) -> None:
        self.stream = stream
        self.index = index
        self.time_ms: i64 = time_ms
        self._low: i64 = low
        self._high: i64 = high
        self._told = told
        self._loaded: list[int] = []
        self._sealed_end: i64 = stream.messages.sealed_end()

    def advance(self) -> None:
        """Look at the message in the middle, or tell."""
        if self.stream.deleted:
            return
        if self.stream.messages.sealed_end() != self._sealed_end:
            self.stream.messages.offer_loaded(self._loaded)
            seek(self.stream, self.time_ms, self._told)
            return
        if self._low < self._high:
            _TimeRead(self, (self._low + self._high) // 2, self._high).begin()
        else:
            self.stream.messages.offer_loaded(self._loaded)
            self._told(int(self._low))

    def found(self, offset: i64, message: Message | None, loaded: list[int]) -> None:
        """Narrow the search by the message at `offset`; None when the messages from there on are damaged."""
        self._loaded += loaded
        if message is not None and message.time_ms < self.time_ms:
            self._low = offset + 1
        else:
            self._high = offset
        self.advance()


class _TimeRead(OffsetRead):
    """Reads the message at `offset`, or the next that can be read before `stop`."""

    def __init__(self, search: _TimeSearch, offset: i64, stop: i64) -> None:
        super().__init__(search.stream, search.index, offset, offset + 1)
        self._search = search
        self._at: i64 = offset
        self._stop: i64 = stop

    def fetched(self, messages: list[Message | None]) -> None:
        message = messages[0]
        if message is None:
            self._at = self._next_stored()
        if message is None and self._at < self._stop:
            self.numbers = [int(self._at)]
            self.begin()
        elif message is not None and message.time_ms < self._search.time_ms:
            self._search.found(self._at, message, self.loaded)
        else:
            self._search.found(self.first, message, self.loaded)

    def _next_stored(self) -> i64:
        """Return the next offset that may have a message, without asking for each of the pages that are gone."""
        index = self.index
        size: i64 = index.page_entries
        at: i64 = self._at + 1
        while at < self._stop and not index.deleted:
            page = index.page(at // size)
            if page is None:
                at = (at // size + 1) * size
            elif page.resident and index.lsn_of(at) == 0:
                at += 1
            else:
                return at
        return self._stop


class _SealedTimeRead(SealedRead):
    """Looks in a chunk for the first message that is not older than a time; tells where it begins if it is damaged."""

    def __init__(
        self, stream: Stream, segment: SealedSegment, place: SealedChunk, time_us: i64, told: Callable[[int], None]
    ) -> None:
        super().__init__(stream.store_id, int(segment.first), int(place.position), int(place.stored_bytes))
        self._stream = stream
        self._place = place
        self._time_us: i64 = time_us
        self._told = told

    def subject(self) -> tuple[str, str]:
        return self._stream.vhost_name, self._stream.name

    def finished(self) -> None:
        if self._stream.deleted:
            return
        found: i64 = self._place.first
        if self.chunk is not None:
            raw = RawChunk(self._place, self.parts)
            at: i64 = 0
            while at < raw.count and raw.time_at(at) < self._time_us:
                at += 1
            found = raw.offset_at(at) if at < raw.count else raw.end
        self._told(int(found))
