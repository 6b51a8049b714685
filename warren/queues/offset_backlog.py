"""Messages that stay in their places and are read by their offsets: those of a stream or a claim queue.

    offsets    first ... middle_from ... middle_to | ... next_number
                         middle: on disk only        tail: in memory, stored or about to be

1. An offset is the sequence number of the message. Messages come in at the end only, and leave from the beginning only;
   a reader takes nothing out.
2. All of them are stored, in their order. Everything below `synced_to` is on disk: an offset from there never stands
   for another message, even after a crash. On a log with replicas it is committed, too: recovered messages are from the
   first commit of this life on, since other nodes may lack the end of what was found.
3. It does not have a head, and nothing is read ahead: `pop` and its like are not called.

The subclasses define where the first message is, how far the beginning may be cut off, and how much of the tail leaves
memory when a batch has been closed.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import IndexPage, QueueIndex
from warren.queues.backlog import Backlog, nobody_waits
from warren.queues.message_run import NO_MESSAGES

# The ends of this many batches are remembered before it is checked which of them are synced.
CLOSED_MAX: Final = 16


class OffsetBacklog(Backlog):
    """The messages of one queue, by offset. Extend it with `first_number`, `batch_closed` and `page_lost`."""

    def __init__(self, log: MessageLog) -> None:
        super().__init__(log, nobody_waits)
        self.head, self.tail = NO_MESSAGES, self.head
        self._stored_to: i64 = 0  # everything below has been in a closed batch
        self._synced_to: i64 = 0  # and everything below this is synced, as of the last check
        self._closed: list[tuple[int, int]] = []  # offsets up to which batches went, and where those end in the log

    def append(self, message: Message) -> i64:
        """Add a message at the end and return its offset."""
        number: i64 = self.next_number
        self.next_number = number + 1
        self.log.resident_bytes += message.memory_bytes
        self.tail.append(message, number)
        return number

    def ready_or_fetch(self) -> bool:
        """Tell whether it is empty: the oldest message is never taken."""
        return self.is_empty()

    def restore(self, index: QueueIndex) -> None:
        """Take over the messages that recovery found: all are on disk."""
        super().restore(index)
        if not self.log.is_replicated:
            self._all_is_synced()
            return
        self._stored_to = self.next_number
        self._closed = [(int(self.next_number), int(self.log.durable_lsn) + 1)]

    def first_number(self) -> i64:
        """Return the offset of the oldest message, or of the next to come."""
        raise AssertionError("overridden")

    def messages(self, first: i64, end: i64) -> list[Message | None]:
        """Return those with offsets from `first` up to `end`, which are in the tail."""
        start: i64 = self.tail_from()
        return self.tail.items[first - start : end - start]

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
        first: i64 = self.first_number()
        return self._synced_to if self._synced_to > first else first

    def _batch_reaches(self, end: i64) -> None:
        """Note that everything below offset `end` that was in no earlier batch is in the batch just closed."""
        if end > self._stored_to:
            self._stored_to = end
            self._closed.append((int(end), int(self.log.entered_lsn())))
            if len(self._closed) > CLOSED_MAX:
                self.synced_to()

    def _all_is_synced(self) -> None:
        """Note that all messages were found on disk."""
        self._stored_to = self.next_number
        self._synced_to = self.next_number
        self._closed = []

    def _forget_stored(self, index: QueueIndex, start: i64, end: i64) -> tuple[int, int]:
        """Delete messages from the log, from offset `start` up to `end`; return how many, and their bytes."""
        count: i64 = index.live_count
        body_bytes: i64 = index.live_body_bytes
        self.log.batch.settle_range(index, start, end)
        return int(count - index.live_count), int(body_bytes - index.live_body_bytes)

    def page_lost(self, page_number: i64, page: IndexPage) -> i64:
        """Forget an index page that could not be read; return how many of its messages the queue has counted."""
        raise AssertionError("overridden")
