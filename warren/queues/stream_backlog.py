"""The messages of a stream: all of them on disk, the latest also in memory. Nobody takes any out.

    offsets    first ...    middle_from ... middle_to | ... next_number
    gone, by retention      middle                      tail
                            on disk only                messages in memory, stored or about to be

1. An offset is the sequence number of the message. The middle is everything that is not in the tail.
2. The tail gives up its beginning when it is twice as long as it is to be, and only what a closed batch has stored.
3. Retention takes whole pages of the index away, the oldest first, and none that reaches into the tail or is the last:
   so the last message stays, and with it the number of the next.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.msgstore.message import Message
from warren.msgstore.message_log import MESSAGE_OVERHEAD_BYTES, MessageLog
from warren.msgstore.queue_index import BODY_MASK, IndexPage, QueueIndex
from warren.queues.backlog import Backlog
from warren.queues.stream_stamp import stamped

# What stays in memory for consumers: a fraction of a second of a fast publisher, so that who is a little behind need
# not read what was just written. Without consumers, and while memory is short, it is less.
READ_TAIL_MESSAGES: Final = 65536
READ_TAIL_BYTES: Final = 16 << 20
TAIL_MESSAGES: Final = 4096
TAIL_BYTES: Final = 1 << 20
SHORT_TAIL_MESSAGES: Final = 64
SHORT_TAIL_BYTES: Final = 32 << 10


class StreamBacklog(Backlog):
    """The messages of one stream. There is no head, and `pop` and its like are not called."""

    def __init__(self, log: MessageLog) -> None:
        super().__init__(log, _nobody_waits)
        self.is_read: bool = False  # there are consumers
        self._stored_to: i64 = 0  # what is below has been in a closed batch
        self._stamped: list[Message | None] = []  # of the tail, as it is delivered; None: not yet
        self._stamped_bytes: i64 = 0

    def append(self, message: Message) -> i64:
        """Add a message behind all others and return its offset."""
        number: i64 = self.next_number
        self.next_number = number + 1
        cost: i64 = message.body_bytes + MESSAGE_OVERHEAD_BYTES
        self.log.resident_bytes += cost
        self._tail.append(message)
        self._stamped.append(None)
        self._tail_count += 1
        self._tail_bytes += cost
        return number

    def restore(self, index: QueueIndex) -> None:
        """Take over what recovery found: everything is on disk."""
        super().restore(index)
        self._stored_to = index.next_number

    def first_number(self) -> i64:
        """Return the offset of the oldest message, or of the next to come."""
        return self._middle_from if self.middle_count else self.tail_from()

    def tail_from(self) -> i64:
        """Return the offset from which on messages are in memory."""
        return self.next_number - len(self._tail)

    def batch_closed(self) -> None:
        """What was published is stored now, so the oldest of it can leave memory."""
        index = self.index
        if index is None:
            return
        stored: i64 = self._stored_to
        while stored < self.next_number and index.lsn_of(stored) != 0:
            stored += 1
        self._stored_to = stored
        log = self.log
        most: i64 = READ_TAIL_MESSAGES if self.is_read else TAIL_MESSAGES
        most_bytes: i64 = READ_TAIL_BYTES if self.is_read else TAIL_BYTES
        if log.resident_bytes > log.memory_bytes or log.under_pressure:
            most = SHORT_TAIL_MESSAGES
            most_bytes = SHORT_TAIL_BYTES
        if self._tail_count > 2 * most or self._tail_bytes + self._stamped_bytes > 2 * most_bytes:
            self._shorten_tail(index, most, most_bytes)
        if self.middle_count:
            self._offer_pages()

    def _shorten_tail(self, index: QueueIndex, most: i64, most_bytes: i64) -> None:
        first: i64 = self.tail_from()
        number: i64 = first
        left_bytes: i64 = 0
        stamped_bytes: i64 = 0
        count: i64 = self._tail_count
        for message in self._tail:
            kept_bytes: i64 = self._tail_bytes + self._stamped_bytes - left_bytes - stamped_bytes
            if number == self._stored_to or (count <= most and kept_bytes <= most_bytes):
                break
            assert message is not None
            cost: i64 = message.body_bytes + MESSAGE_OVERHEAD_BYTES
            left_bytes += cost
            if self._stamped[number - first] is not None:
                stamped_bytes += cost
            count -= 1
            number += 1
        if number == first:
            return
        if self.middle_count == 0:
            self._middle_from = first
            self._candidates_to = first // index.page_entries
        del self._tail[: number - first]
        del self._stamped[: number - first]
        self.middle_count += number - first
        self._middle_to = number
        self._tail_count = count
        self._tail_bytes -= left_bytes
        self._stamped_bytes -= stamped_bytes
        self.log.resident_bytes -= left_bytes + stamped_bytes

    def messages(self, first: i64, end: i64) -> list[Message | None]:
        """Return those with offsets from `first` up to `end`, which are in the tail."""
        start: i64 = self.tail_from()
        return self._tail[first - start : end - start]

    def stamped(self, offset: i64, message: Message) -> Message:
        """Return `message`, which is in the tail, with its offset among its headers: made once for all consumers."""
        at: i64 = offset - self.tail_from()
        made = self._stamped[at]
        if made is None:
            made = stamped(message, offset)
            self._stamped[at] = made
            cost: i64 = message.body_bytes + MESSAGE_OVERHEAD_BYTES
            self._stamped_bytes += cost
            self.log.resident_bytes += cost
        return made

    def read_by(self, anybody: bool) -> None:
        """Note whether there are consumers."""
        self.is_read = anybody
        if not anybody:
            self.log.resident_bytes -= self._stamped_bytes
            self._stamped_bytes = 0
            self._stamped = [None] * len(self._tail)
            self.batch_closed()

    def close(self) -> None:
        """The stream is deleted: let go of everything."""
        self.log.resident_bytes -= self._stamped_bytes
        self._stamped_bytes = 0
        self._stamped = []
        super().close()

    def memory_bytes(self) -> int:
        """Return what the messages in memory take, about."""
        return super().memory_bytes() + int(self._stamped_bytes)

    # --- retention ------------------------------------------------------------------------------------------------

    def droppable_to(self) -> i64:
        """Return the offset up to which the oldest page reaches if it may go; 0 when there is none that may."""
        index = self.index
        if self.middle_count == 0 or index is None:
            return 0
        end: i64 = (self._middle_from // index.page_entries + 1) * index.page_entries
        return end if end <= self._middle_to and end < self.next_number else i64(0)

    def oldest_page_bytes(self) -> i64:
        """Return how many bytes the bodies of the oldest page have."""
        index = self.index
        assert index is not None
        page = index.page(self._middle_from // index.page_entries)
        return i64(0) if page is None else body_bytes_of(page)

    def drop_to(self, end: i64) -> tuple[int, int]:
        """Forget what is before offset `end`, where a page of the middle ends; return how many, and their bytes."""
        index = self.index
        assert index is not None
        count: i64 = index.live_count
        body_bytes: i64 = index.live_body_bytes
        self.log.settle_range(index, self._middle_from, end)
        dropped: i64 = count - index.live_count
        # Pages that are lost have nothing to be forgotten.
        while end < self._middle_to and index.page(end // index.page_entries) is None:
            end += index.page_entries
        self._middle_from = end
        self.middle_count -= dropped
        if self._candidates_to < end // index.page_entries:
            self._candidates_to = end // index.page_entries
        return int(dropped), int(body_bytes - index.live_body_bytes)

    def page_lost(self, page: IndexPage) -> None:
        """An index page cannot be read, and so none of its messages."""
        self.middle_count -= page.live


def body_bytes_of(page: IndexPage) -> i64:
    """Return how many bytes the bodies of the messages of an index page have."""
    if not page.resident:
        return page.body_bytes
    total: i64 = 0
    at: i64 = 0
    while at < len(page.entries):
        if page.entries[at] != 0:
            total += page.entries[at + 1] & BODY_MASK
        at += 2
    return total


def _nobody_waits(lost: int, lost_bytes: int) -> None:
    """Streams do not load ahead."""
