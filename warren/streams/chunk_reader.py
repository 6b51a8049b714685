"""The chunks that the cursors of a stream read: which are in memory, which are being read, who gets them.

    cursor before the tail ---> a chunk that another cursor holds, or that one has left last
                           ---> sealed: a raw chunk in memory (`SealedReader`), of which some messages become a chunk
                           ---> else a read begins; the cursors that wait for its messages get them together

1. A cursor holds at most the one chunk that its next offset is in. At most one read is under way for an offset.
2. Chunks count as memory of the log, and are small while that is short.
3. Sealed chunks without a message that a cursor wants are passed over unread. Looking for them costs a part of the turn
   (`looked`).
4. The chunk that a cursor has left last stays for the next cursor, as long as a read is under way or a turn lasts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.queues.dispatch import DRAIN_BUDGET
from warren.streams.cursor import Cursor
from warren.streams.reads import Chunk, ChunkRead
from warren.streams.sealed_reads import SealedReader

if TYPE_CHECKING:
    from warren.streams.stream import Stream

# How many messages are read, or taken from the tail, at a time; and while memory is short.
CHUNK_MESSAGES: Final = 1024
CHUNK_BYTES: Final = 1 << 20
SHORT_CHUNK_MESSAGES: Final = 64
SHORT_CHUNK_BYTES: Final = 32 << 10


class ChunkReader:
    """The chunks of one stream, from its first consumer on."""

    def __init__(self, stream: Stream) -> None:
        self.looked: i64 = 0  # the cost of looking for the last chunk, in messages
        self.sealed = SealedReader(stream.messages.log)
        self._stream = stream
        self._log = stream.messages.log
        self._reads: list[ChunkRead] = []
        self._latest: Chunk | None = None  # the chunk that a cursor has left last

    def is_reading(self) -> bool:
        """Tell whether a read is under way."""
        return len(self._reads) > 0 or self.sealed.is_reading()

    # --- for a cursor ---------------------------------------------------------------------------------------------

    def chunk_for(self, cursor: Cursor) -> Chunk | None:
        """Give `cursor` a chunk with its next message, which is not in the tail; None when that is being read."""
        self.looked = 0
        stream = self._stream
        messages = stream.messages
        first: i64 = messages.first_number()
        tail: i64 = messages.tail_from()
        if cursor.next < first:
            stream.pass_over(cursor, first)  # retention was here
            if cursor.next >= tail or cursor.next >= stream.visible_end:
                stream.wake()
                return None
        cursor.leave_chunk()
        chunk: Chunk | None = None
        if cursor.next < messages.sealed_end():
            chunk = self._sealed_chunk_for(cursor)
            if chunk is None and cursor.next < messages.sealed_end():
                return None  # it is being read, or others have a turn
        if chunk is None:
            if cursor.next >= tail:
                stream.wake()
                return None
            chunk = self._shared(cursor.next)
            if chunk is None:
                self._read(cursor.next, tail)
                return None
        chunk.use()
        cursor.chunk = chunk
        return chunk

    def _sealed_chunk_for(self, cursor: Cursor) -> Chunk | None:
        """Move `cursor` to sealed messages that it may want, as far as a turn goes; return them if in memory."""
        stream = self._stream
        table = stream.messages.sealer.table
        wanted = cursor.wanted
        while cursor.next < table.end:
            segment, place = table.place(cursor.next)
            if cursor.next < place.first:
                stream.pass_over(cursor, place.first)
            is_wanted: bool = not self.sealed.is_bad(place)
            if is_wanted and wanted is not None:
                is_wanted = wanted.may_be_in(place)
                self.looked += wanted.cost
            if not is_wanted:
                stream.pass_over(cursor, place.end)
                if self.looked >= DRAIN_BUDGET:
                    stream.wake()
                    return None
                continue
            chunk = self._shared(cursor.next)
            if chunk is not None:
                return chunk
            raw = self.sealed.maybe_raw(place)
            if raw is None:
                self.sealed.load(stream, segment, place)
                return None
            at: i64 = raw.place_of(cursor.next)
            if at == raw.count:
                stream.pass_over(cursor, place.end)
                continue
            first: i64 = raw.offset_at(at)
            stream.pass_over(cursor, first)
            if cursor.next == first:  # else the cursor was at a message to send again, and continues elsewhere
                return Chunk(self._log, first, raw.messages(at, self._chunk_messages()))
        return None

    def _shared(self, offset: i64) -> Chunk | None:
        latest = self._latest
        if latest is not None and latest.has(offset):
            return latest
        for cursor in self._stream.reading.values():
            chunk = cursor.chunk
            if chunk is not None and chunk.has(offset):
                return chunk
        return None

    # --- from the log ---------------------------------------------------------------------------------------------

    def _is_memory_short(self) -> bool:
        return self._log.resident_bytes > self._log.memory_bytes

    def _chunk_messages(self) -> i64:
        return SHORT_CHUNK_MESSAGES if self._is_memory_short() else CHUNK_MESSAGES

    def _read(self, offset: i64, tail: i64) -> None:
        """Read the messages from `offset` on, unless they are being read."""
        for read in self._reads:
            if read.first <= offset < read.end:
                return
        index = self._stream.messages.index
        assert index is not None
        end: i64 = min(tail, offset + self._chunk_messages())
        most_bytes: i64 = SHORT_CHUNK_BYTES if self._is_memory_short() else CHUNK_BYTES
        under_way = ChunkRead(self, self._stream, index, offset, end, most_bytes)
        self._reads.append(under_way)
        under_way.begin()

    def chunk_read(self, read: ChunkRead, chunk: Chunk) -> None:
        """Give a chunk to all cursors that wait for it."""
        self._reads.remove(read)
        stream = self._stream
        stream.messages.offer_loaded(read.loaded)
        if not stream.cursors:
            return  # nobody would release it
        if chunk.first < stream.messages.sealed_end():
            stream.wake()  # sealed meanwhile: messages that the log has forgotten are missing here
            return
        self.keep_latest(chunk)
        for cursor in stream.reading.values():
            if cursor.chunk is None and chunk.has(cursor.next):
                chunk.use()
                cursor.chunk = chunk
        stream.wake()

    # --- given up -------------------------------------------------------------------------------------------------

    def keep_latest(self, chunk: Chunk) -> None:
        """Keep a chunk for the next cursor, instead of the one that was kept before."""
        chunk.use()
        if self._latest is not None:
            self._latest.give_up()
        self._latest = chunk

    def turn_over(self, cursors: list[Cursor]) -> None:
        """Give up the chunks that all `cursors` have passed: each has had its turn."""
        latest = self._latest
        if latest is not None and not self._reads and not self.sealed.is_reading():
            latest.give_up()
            self._latest = None
        self.sealed.forget_passed(cursors)

    def forget(self) -> None:
        """Give up all chunks that cursors do not hold: the last consumer has gone."""
        if self._latest is not None:
            self._latest.give_up()
            self._latest = None
        self.sealed.forget()
