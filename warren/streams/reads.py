"""Reads of a stream from the log: chunks for its consumers, the offset of a time.

A read belongs to its stream and reports messages and damage to it. Index pages that it had to load are offered back
when it is done. The stream decides which consumers wait for a chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.offset_queue import OffsetRead
from warren.streams.stamp import stamped

if TYPE_CHECKING:
    from warren.streams.stream import Stream


class Chunk:
    """Consecutive messages from offset ``first`` on, None for a damaged one. All cursors within share them.

    While a cursor uses it, it counts as memory of queues, together with the frames made of its messages.
    """

    def __init__(self, log: MessageLog, first: i64, messages: list[Message | None]) -> None:
        self._log = log
        self.first: i64 = first
        self.end: i64 = first + len(messages)
        self.messages = messages
        self._users: i64 = 0
        self._memory_bytes: i64 = 0
        for message in messages:
            if message is not None:
                self._memory_bytes += message.memory_bytes
        self._stamped: list[Message | None] = [None] * len(messages)

    def use(self) -> None:
        """Note one more user of the chunk."""
        if self._users == 0:
            self._log.resident_bytes += self._memory_bytes
        self._users += 1

    def give_up(self) -> None:
        """Note one user less of the chunk."""
        self._users -= 1
        if self._users == 0:
            self._log.resident_bytes -= self._memory_bytes

    def is_used(self) -> bool:
        """Tell whether anybody uses the chunk."""
        return self._users > 0

    def has(self, offset: i64) -> bool:
        """Tell whether the message at `offset` is here."""
        return self.first <= offset < self.end

    def stamped(self, offset: i64, message: Message) -> Message:
        """Return `message`, which is at `offset`, with its offset among its headers: made once for all."""
        at: i64 = offset - self.first
        made = self._stamped[at]
        if made is None:
            made = stamped(message, offset)
            self._stamped[at] = made
            self._memory_bytes += made.memory_bytes
            if self._users:
                self._log.resident_bytes += made.memory_bytes
        return made


class ChunkRead(OffsetRead):
    """Reads a chunk for consumers."""

    def __init__(self, stream: Stream, index: QueueIndex, first: i64, end: i64, most_bytes: i64) -> None:
        super().__init__(stream, index, first, end, most_bytes)
        self._stream = stream

    def fetched(self, messages: list[Message | None]) -> None:
        self._stream.chunk_read(self, Chunk(self.log, self.first, messages))


class TimeSearch:
    """Looks for the first message from offset `low` up to `high` that is not older than ``time_ms``."""

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

    def go_on(self) -> None:
        """Look at the message in the middle, or tell."""
        if self.stream.deleted:
            return
        if self.stream.messages.sealed_end() != self._sealed_end:
            self.stream.messages.offer_loaded(self._loaded)
            self.stream.seek_again(self.time_ms, self._told)
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
        self.go_on()


class _TimeRead(OffsetRead):
    """Reads the message at `offset`, or the next that can be read before `stop`."""

    def __init__(self, search: TimeSearch, offset: i64, stop: i64) -> None:
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
