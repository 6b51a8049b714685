"""Messages that stay where they are and are read by their offsets: what a stream and a claim queue keep.

    offsets    first ... middle_from ... middle_to | ... next_number
                         middle: on disk only        tail: in memory, stored or about to be

1. An offset is the sequence number of the message. Messages come in at the end only, and leave from the beginning only;
   who reads takes nothing out.
2. All of them are stored, in their order. What is below `synced_to` is on disk: an offset from there never stands for
   another message, whatever crash comes.
3. There is no head and nothing is read ahead: `pop` and its like are not called.

The classes that extend this one say where the first message is, how far the beginning may be cut off, and how much of
the tail leaves memory when a batch has been closed.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import IndexPage, QueueIndex
from warren.queues.backlog import Backlog, nobody_waits

# Of so many batches it is remembered where they ended, before anybody looks which of them are synced.
CLOSED_MAX: Final = 16


class OffsetBacklog(Backlog):
    """The messages of one queue, by offset. Extend it with `first_number`, `batch_closed` and `page_lost`."""

    def __init__(self, log: MessageLog) -> None:
        super().__init__(log, nobody_waits)
        self._stored_to: i64 = 0  # what is below has been in a closed batch
        self._synced_to: i64 = 0  # and what is below this is synced, as far as anybody has asked
        self._closed: list[tuple[int, int]] = []  # offsets up to which batches went, and where those end in the log

    def append(self, message: Message) -> i64:
        """Add a message behind all others and return its offset."""
        number: i64 = self.next_number
        self.next_number = number + 1
        cost: i64 = message.memory_bytes
        self.log.resident_bytes += cost
        self.bodies_in_memory += message.body_bytes
        self._tail.append(message)
        self._tail_count += 1
        self._tail_bytes += cost
        return number

    def is_ready(self) -> bool:
        """Tell that nobody takes the oldest message."""
        return self.is_empty()

    def restore(self, index: QueueIndex) -> None:
        """Take over what recovery found: everything is on disk."""
        super().restore(index)
        self._all_is_synced()

    def first_number(self) -> i64:
        """Return the offset of the oldest message, or of the next to come."""
        raise AssertionError("overridden")

    def tail_from(self) -> i64:
        """Return the offset from which on messages are in memory."""
        return self.next_number - len(self._tail)

    def messages(self, first: i64, end: i64) -> list[Message | None]:
        """Return those with offsets from `first` up to `end`, which are in the tail."""
        start: i64 = self.tail_from()
        return self._tail[first - start : end - start]

    def synced_to(self) -> i64:
        """Return the offset below which everything is synced."""
        closed = self._closed
        durable_lsn: i64 = self.log.durable_lsn
        done = 0
        for end, lsn in closed:
            if lsn > durable_lsn:
                break
            self._synced_to = end
            done += 1
        if done:
            del closed[:done]
        return self._synced_to

    def _batch_reaches(self, end: i64) -> None:
        """The batch that has just been closed has everything below offset `end` that none before it had."""
        if end > self._stored_to:
            self._stored_to = end
            self._closed.append((int(end), int(self.log.entered_lsn())))
            if len(self._closed) > CLOSED_MAX:
                self.synced_to()

    def _all_is_synced(self) -> None:
        """What there is was found on disk."""
        self._stored_to = self.next_number
        self._synced_to = self.next_number

    def _forget_stored(self, index: QueueIndex, start: i64, end: i64) -> tuple[int, int]:
        """Have the log forget what it has from offset `start` up to `end`; return how many, and their bytes."""
        count: i64 = index.live_count
        body_bytes: i64 = index.live_body_bytes
        self.log.batch.settle_range(index, start, end)
        return int(count - index.live_count), int(body_bytes - index.live_body_bytes)

    def page_lost(self, page_number: i64, page: IndexPage) -> i64:
        """An index page could not be read and is no more; return how many of its messages were counted by the queue."""
        raise AssertionError("overridden")
