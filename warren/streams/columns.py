"""Ranges of a stream as columns, for whoever reads many messages at a time: the data port.

    tail: what is in memory   |   middle: read from the log        -> `ColumnsWriter` -> a chunk

1. A chunk is made at a time, of at most `RANGE_MESSAGES` or about `RANGE_BYTES`: making it holds up nobody else for
   more than about a millisecond.
2. Only what is synced is read. What cannot be read is left out, and the chunk says that it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.columns import Columns, ColumnsWriter
from warren.msgstore.log.jobs import SealedRead
from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import IndexPage
from warren.msgstore.log.sealed_table import SealedChunk, SealedSegment
from warren.queues.fetch import Fetch
from warren.streams.stream import Stream

RANGE_MESSAGES: Final = 4096
RANGE_BYTES: Final = 2 << 20

# Gets a chunk, and the offset that it ends at.
Told = Callable[[Columns, int], None]


def read_columns(stream: Stream, first: int, end: int, *, bodies: bool, properties: bool, told: Told) -> None:
    """Tell a chunk of the messages from offset `first` on, up to `end` at most: at once, or when they have been read.

    There are messages from `first` to `end`: neither has retention removed any of them, nor is one not yet synced.
    A stream that is deleted meanwhile tells nothing, or what there was.
    """
    messages = stream.messages
    tail: i64 = messages.tail_from()
    writer = ColumnsWriter(bodies=bodies, properties=properties)
    if first >= tail:
        offset: i64 = first
        stop: i64 = min(end, first + RANGE_MESSAGES)
        for message in messages.messages(offset, stop):
            assert message is not None
            writer.add(offset, message, False)
            offset += 1
            if writer.content_bytes >= RANGE_BYTES:
                break
        told(writer.finish(first, offset), int(offset))
        return
    if messages.index is None:
        return
    _RangeRead(stream, first, min(end, int(tail), first + RANGE_MESSAGES), writer, told).begin()


def read_sealed(
    stream: Stream, segment: SealedSegment, chunk: SealedChunk, told: Callable[[bytes | None], None]
) -> None:
    """Tell a sealed chunk as it lies in its file, when it has been read; None: it cannot be read, or is gone."""
    stream.messages.log.read_jobs.append(_SealedChunkRead(stream, segment, chunk, told))


class _SealedChunkRead(SealedRead):
    """Reads a chunk as it lies in its file."""

    def __init__(
        self, stream: Stream, segment: SealedSegment, chunk: SealedChunk, told: Callable[[bytes | None], None]
    ) -> None:
        super().__init__(stream.store_id, int(segment.first), int(chunk.position), int(chunk.stored_bytes))
        self.wants_parts = False
        self._told = told

    def finished(self) -> None:
        self._told(self.chunk)


class _RangeRead(Fetch):
    """Reads a range out of the log."""

    def __init__(self, stream: Stream, first: int, end: int, writer: ColumnsWriter, told: Told) -> None:
        index = stream.messages.index
        assert index is not None
        super().__init__(index.log, index, list(range(first, end)), RANGE_BYTES)
        self._stream = stream
        self._first = first
        self._end = end
        self._writer = writer
        self._told = told

    def fetched(self, messages: list[Message | None]) -> None:
        writer = self._writer
        for number, message in zip(self.numbers, messages, strict=True):
            if message is not None:
                writer.add(number, message, False)
        end = self.left[0] if self.left else self._end
        self._stream.messages.offer_loaded(self.loaded)
        self._told(writer.finish(self._first, end), end)

    def page_damaged(self, page: IndexPage) -> None:
        self._stream.page_damaged(page)

    def message_damaged(self, number: i64, lsn: i64) -> None:
        self._stream.message_damaged(number, lsn)
