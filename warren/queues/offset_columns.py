"""Ranges of an offset queue as columns, for readers of many messages at a time: the data port.

    tail: in memory   |   middle: read from the log        -> `ColumnsWriter` -> a chunk

1. One chunk is made at a time, of at most `RANGE_MESSAGES` or about `RANGE_BYTES`: making it delays others by at most
   about a millisecond.
2. Only synced messages are read. Unreadable ones are left out, and the chunk says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.columns import Columns, ColumnsWriter
from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.offset_queue import OffsetQueue, OffsetRead

RANGE_MESSAGES: Final = 4096
RANGE_BYTES: Final = 2 << 20

# Gets a chunk, and its end offset.
Told = Callable[[Columns, int], None]


def read_columns(
    queue: OffsetQueue, first: int, end: int, *, bodies: bool, properties: bool, told: Told, counted: bool = False
) -> None:
    """Report a chunk of the messages from offset `first` on, up to `end` at most: immediately, or after a read.

    `counted`: the queue that the messages are from counted their deliveries.
    There must be messages from `first` to `end`, all of them synced. A queue that is deleted meanwhile tells nothing,
    or what was read by then.
    """
    offsets = queue.offsets
    tail: i64 = offsets.tail_from()
    writer = ColumnsWriter(bodies=bodies, properties=properties, counted=counted)
    if first >= tail:
        offset: i64 = first
        stop: i64 = min(end, first + RANGE_MESSAGES)
        for message in offsets.messages(offset, stop):
            assert message is not None
            writer.add(offset, message, queue.knows_deliveries and message.attempts > 0)
            offset += 1
            if writer.content_bytes >= RANGE_BYTES:
                break
        told(writer.finish(first, offset), int(offset))
    elif offsets.index is not None:
        stop = min(end, tail, first + RANGE_MESSAGES)
        _ColumnsRead(queue, offsets.index, first, stop, writer, told).begin()


class _ColumnsRead(OffsetRead):
    """Reads a range out of the log."""

    def __init__(
        self, queue: OffsetQueue, index: QueueIndex, first: i64, end: i64, writer: ColumnsWriter, told: Told
    ) -> None:
        super().__init__(queue, index, first, end, RANGE_BYTES)
        self._queue = queue
        self._writer = writer
        self._told = told

    def fetched(self, messages: list[Message | None]) -> None:
        writer = self._writer
        knows_deliveries: bool = self._queue.knows_deliveries
        for number, message in zip(self.numbers, messages, strict=True):
            if message is not None:
                writer.add(number, message, knows_deliveries and message.attempts > 0)
        end = self.reached()
        self._queue.offsets.offer_loaded(self.loaded)
        self._told(writer.finish(self.first, end), end)
