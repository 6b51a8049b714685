"""Chunks of a stream: consecutive messages that its consumers share, and the read of one from the log.

A read reports its messages to the `ChunkReader`, which decides which consumers wait for them, and damage to its stream.
Index pages that it had to load are offered back when it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.offset_queue import OffsetRead
from warren.streams.stamp import stamped

if TYPE_CHECKING:
    from warren.streams.chunk_reader import ChunkReader
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

    def __init__(
        self, reader: ChunkReader, stream: Stream, index: QueueIndex, first: i64, end: i64, most_bytes: i64
    ) -> None:
        super().__init__(stream, index, first, end, most_bytes)
        self._reader = reader

    def fetched(self, messages: list[Message | None]) -> None:
        self._reader.chunk_read(self, Chunk(self.log, self.first, messages))
