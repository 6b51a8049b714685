"""The messages of a stream: all of them on disk, the latest also in memory. Consumers do not take any out.

    offsets    first ...        sealed_end      middle_from ... middle_to | ... next_number
    gone, by   sealed: in files of the stream   middle: in the log          tail: in memory, stored or about to be;
    retention                                                               its beginning may be sealed already

1. An offset is the sequence number of the message. The middle is everything that is neither sealed nor in the tail.
2. The tail drops its beginning when it is twice as long as it should be, but only messages stored by a closed batch.
3. Retention removes whole pages of the index, the oldest first. It keeps the last page, and pages that reach into the
   tail: so the last message stays, and with it the number of the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import BODY_MASK, IndexOwner, IndexPage, QueueIndex
from warren.msgstore.log.sealed_table import SealedTable
from warren.queues.fetch import Fetch
from warren.queues.offset_backlog import OffsetBacklog
from warren.streams.raw_chunk import SealedLook
from warren.streams.sealer import Sealer
from warren.streams.stamp import stamped

if TYPE_CHECKING:
    from warren.streams.stream import Stream

# The messages that stay in memory for consumers: a fraction of a second of a fast publisher. So a consumer that is
# slightly late need not read from disk. Without consumers, and while memory is short, fewer messages stay.
READ_TAIL_MESSAGES: Final = 65536
READ_TAIL_BYTES: Final = 16 << 20
TAIL_MESSAGES: Final = 4096
TAIL_BYTES: Final = 1 << 20
SHORT_TAIL_MESSAGES: Final = 64
SHORT_TAIL_BYTES: Final = 32 << 10
# Index pages are written out only where this much of the log is not sealed: otherwise it is forgotten before that pays.
OFFERED_FROM: Final = 65536


class StreamBacklog(OffsetBacklog):
    """The messages of one stream."""

    def __init__(self, log: MessageLog) -> None:
        super().__init__(log)
        self.is_read: bool = False  # there are consumers
        self.sealer = Sealer(log)
        self.stream: Stream | None = None  # whose messages are sealed, if they are
        self._looks_again: bool = False  # when the batch is written
        self._stale_count: i64 = 0  # entries of the index for sealed messages, before `_stale_end`
        self._stale_end: i64 = 0
        self._stale_is_counted: bool = False  # they count as messages that the log had at the start
        self._stamped: list[Message | None] = []  # the tail as it is delivered, as far as there was need; None: not yet
        self._stamped_bytes: i64 = 0

    def restore(self, index: QueueIndex) -> None:
        """Take over the messages that recovery found: all are on disk. The log need not keep the sealed ones."""
        super().restore(index)
        end: i64 = self.sealer.table.end
        self.sealed(end)
        if self.next_number < end:
            self.next_number = end
            self.need_middle().end = end
            self._all_is_synced()
        self._middle_begins_at(end)
        self._restore_stale(index)

    def restore_sealed(self, table: SealedTable) -> None:
        """Take over the sealed messages, before those of the log."""
        self.sealer.table = table
        end: i64 = table.end
        self.next_number = end
        self._all_is_synced()
        middle = self.need_middle()
        middle.start = end
        middle.end = end

    def first_number(self) -> i64:
        table = self.sealer.table
        return table.first() if table.segments else self.first_unsealed()

    def first_unsealed(self) -> i64:
        """Return the oldest offset that is not sealed, or the next to come."""
        if self.middle.count:
            return self.middle.start
        tail: i64 = self.tail_from()
        return tail if tail > self.sealer.table.end else self.sealer.table.end

    def first_in_log(self) -> i64:
        """Return the oldest offset that the log has by its index, or the next to come; only right after a restore."""
        index = self.index
        if index is None or index.live_count == self._stale_count:
            return self.next_number
        size: i64 = index.page_entries
        number: i64 = max(index.first_page * size, self.sealer.table.end)
        while number < self.next_number:
            page = index.page(number // size)
            page_end: i64 = (number // size + 1) * size
            if page is not None and not page.resident:
                # Entries go from the beginning of a page.
                return max(number, page_end - page.live)
            while number < page_end:
                if page is not None and index.lsn_of(number) != 0:
                    return number
                number += 1
        return self.next_number

    def sealed_end(self) -> i64:
        """Return the offset up to which everything is sealed."""
        return self.sealer.table.end

    def skip_sealed(self, number: i64, skip: i64) -> tuple[int, int]:
        """Pass over whole chunks; see `Backlog.skip_sealed`."""
        table = self.sealer.table
        first: i64 = table.first()
        if number < first:
            number = first
        while skip > 0 and number < table.end:
            _, chunk = table.place(number)
            if number > chunk.first or skip < chunk.count:
                break
            skip -= chunk.count
            number = chunk.end
        return int(number), int(skip)

    def look_sealed(self, number: i64, most: int, told: Callable[[list[tuple[int, Message]], int], None]) -> None:
        """See `Backlog.look_sealed`."""
        stream = self.stream
        assert stream is not None
        segment, chunk = self.sealer.table.place(number)
        self.log.read_jobs.append(SealedLook(stream.store_id, segment, chunk, number, most, told))

    def sealed(self, end: i64) -> None:
        """Note that everything before offset `end` is sealed: the log need no longer keep it.

        Where `end` lies in an index page that is absent, the first entries of that page stay until it is loaded again.
        The rest of that page is complete: an absent page is full, and loses entries from its beginning only.
        """
        index = self.index
        if index is not None:
            self._settle_stale(index)
            size: i64 = index.page_entries
            first: i64 = index.first_page * size
            settled_to: i64 = end
            page = index.page(end // size)
            is_absent: bool = page is not None and not page.resident
            if is_absent:
                settled_to = end // size * size
            if first < settled_to:
                self.log.batch.settle_range(index, first, settled_to)
            if self._stale_end <= settled_to:
                self._stale_count = 0
                self._stale_is_counted = False
            if page is not None and is_absent and settled_to < end:
                self._stale_end = end
                self._stale_count = max(page.live - (settled_to + size - end), 0)
        self._middle_begins_at(end)

    def _settle_stale(self, index: QueueIndex) -> None:
        page = index.page(self._stale_end // index.page_entries)
        if self._stale_count == 0 or (page is not None and not page.resident):
            return
        count, body_bytes = self._forget_stored(index, index.first_page * index.page_entries, self._stale_end)
        if self._stale_is_counted and self.stream is not None:
            self.stream.ready.lost(count, body_bytes)
        self._stale_count = 0
        self._stale_is_counted = False

    def _restore_stale(self, index: QueueIndex) -> None:
        """Read the page whose first entries are sealed. Until then they count as messages of the log."""
        if self._stale_count:
            self._stale_is_counted = True
            _StalePageRead(self, index, self._stale_end).begin()

    def stale_page_read(self) -> None:
        """Settle the sealed entries of the page, which has been read."""
        index = self.index
        if index is not None and not index.deleted:
            self._settle_stale(index)
            self._middle_begins_at(self.sealer.table.end)

    def _middle_begins_at(self, end: i64) -> None:
        middle = self.need_middle()
        if middle.start < end:
            middle.start = end
        index = self.index
        middle.count = 0
        if index is not None and middle.end > middle.start:
            # All entries of the index, except those of messages in the tail.
            tail: i64 = max(self.tail_from(), self.sealer.table.end)
            live: i64 = index.live_count - max(self._stored_to - tail, 0) - self._stale_count
            middle.count = max(live, 0)

    def sealed_count(self) -> int:
        """Return how many messages are sealed and no longer in memory."""
        table = self.sealer.table
        return int(max(table.count - max(table.end - self.tail_from(), 0), 0))

    def batch_closed(self) -> None:
        """Release the oldest published messages from memory: a closed batch has stored them."""
        index = self.index
        if index is None:
            return
        self._batch_reaches(min(index.next_number, self.next_number))  # they are stored in their order
        log = self.log
        most: i64 = READ_TAIL_MESSAGES if self.is_read else TAIL_MESSAGES
        most_bytes: i64 = READ_TAIL_BYTES if self.is_read else TAIL_BYTES
        if log.resident_bytes > log.memory_bytes or log.under_pressure:
            most = SHORT_TAIL_MESSAGES
            most_bytes = SHORT_TAIL_BYTES
        if self.tail.count > 2 * most or self.tail.memory_bytes + self._stamped_bytes > 2 * most_bytes:
            self._shorten_tail(index, most, most_bytes)
        stream = self.stream
        if stream is not None:
            self._seal(stream)
        if self.middle.count and (stream is None or most == SHORT_TAIL_MESSAGES or self.middle.count > OFFERED_FROM):
            self._offer_pages()

    def _seal(self, stream: Stream) -> None:
        """Seal synced messages. Look again after this batch if it may fill a chunk: another batch may never come."""
        self.sealer.step(stream)
        if (
            not self._looks_again
            and self._stored_to > self._synced_to
            and self.sealer.may_fill(stream, self._stored_to)
        ):
            self._looks_again = True
            self.log.call_when_written(_Look(self))

    def look_again(self) -> None:
        """Seal again: a batch has been written, and synced if it needs that."""
        self._looks_again = False
        stream = self.stream
        if stream is not None:
            self._seal(stream)

    def _shorten_tail(self, index: QueueIndex, most: i64, most_bytes: i64) -> None:
        first: i64 = self.tail_from()
        number: i64 = first
        # Messages that are sealed soon stay, unless memory is short: otherwise they would have to be read back.
        stop: i64 = self._stored_to
        if self.stream is not None and most != SHORT_TAIL_MESSAGES and self.sealer.next < stop:
            stop = self.sealer.next
        left_bytes: i64 = 0
        stamped_bytes: i64 = 0
        count: i64 = self.tail.count
        for message in self.tail.items:
            kept_bytes: i64 = self.tail.memory_bytes + self._stamped_bytes - left_bytes - stamped_bytes
            if number >= stop or (count <= most and kept_bytes <= most_bytes):
                break
            assert message is not None
            left_bytes += message.memory_bytes
            if number - first < len(self._stamped):
                made = self._stamped[number - first]
                if made is not None:
                    stamped_bytes += made.memory_bytes
            count -= 1
            number += 1
        if number == first:
            return
        middle = self.need_middle()
        if middle.count == 0:
            middle.begin(first, number, first // index.page_entries)
        middle.end = number
        self._cut_tail(number - first)
        self._middle_begins_at(self.sealer.table.end)

    def removed_below(self, first: i64) -> None:
        """Forget sealed messages before offset `first`, which retention has removed; some may also be in the tail."""
        start: i64 = self.tail_from()
        if first <= start:
            return
        self._cut_tail(first - start)

    def _cut_tail(self, places: i64) -> None:
        """Release the oldest messages from memory."""
        stamped_bytes: i64 = 0
        for made in self._stamped[:places]:
            if made is not None:
                stamped_bytes += made.memory_bytes
        del self._stamped[:places]
        self._stamped_bytes -= stamped_bytes
        self.log.resident_bytes -= self.tail.cut_beginning(places).memory_bytes + stamped_bytes

    def stamped(self, offset: i64, message: Message) -> Message:
        """Return `message`, which is in the tail, with its offset among its headers: made once for all consumers."""
        at: i64 = offset - self.tail_from()
        missing: i64 = at + 1 - len(self._stamped)
        if missing == 1:
            self._stamped.append(None)
        elif missing > 1:
            self._stamped += [None] * int(missing)
        made = self._stamped[at]
        if made is None:
            made = stamped(message, offset)
            self._stamped[at] = made
            self._stamped_bytes += made.memory_bytes
            self.log.resident_bytes += made.memory_bytes
        return made

    def read_by(self, anybody: bool) -> None:
        """Note whether there are consumers."""
        self.is_read = anybody
        if not anybody:
            self.log.resident_bytes -= self._stamped_bytes
            self._stamped_bytes = 0
            self._stamped = []
            self.batch_closed()

    def close(self) -> None:
        """Release everything: the stream is deleted."""
        self.log.reclamation.add(self._stamped, self._stamped_bytes)
        self._stamped_bytes = 0
        self._stamped = []
        self.stream = None
        super().close()

    def given_up(self, count: i64, body_bytes: i64) -> None:
        self._middle_begins_at(self.sealer.table.end)
        stream = self.stream
        if stream is not None:
            stream.ready.lost(int(count), int(body_bytes))
            self.sealer.step(stream)

    def memory_bytes(self) -> int:
        """Return roughly how many bytes the messages in memory take."""
        return super().memory_bytes() + int(self._stamped_bytes)

    def check_invariants(self) -> None:
        super().check_invariants()
        assert self._stamped_bytes == sum([int(made.memory_bytes) for made in self._stamped if made is not None])

    # --- retention ------------------------------------------------------------------------------------------------

    def droppable_to(self) -> i64:
        """Return the offset up to which the oldest page of the log reaches if it may go; 0 when none may."""
        index = self.index
        if self.middle.count == 0 or index is None or self.sealer.table.segments or self.sealer.is_busy():
            return 0
        end: i64 = (self.middle.start // index.page_entries + 1) * index.page_entries
        return end if end <= self.middle.end and end < self.next_number else i64(0)

    def oldest_page_bytes(self) -> i64:
        """Return how many bytes the bodies of the oldest page have."""
        index = self.index
        assert index is not None
        page = index.page(self.middle.start // index.page_entries)
        return i64(0) if page is None else body_bytes_of(page)

    def drop_to(self, end: i64) -> tuple[int, int]:
        """Forget messages before offset `end`, where a page of the middle ends; return how many, and their bytes."""
        index = self.index
        assert index is not None
        count, body_bytes = self._forget_stored(index, self.middle.start, end)
        # Pages that are lost have nothing to be forgotten.
        while end < self.middle.end and index.page(end // index.page_entries) is None:
            end += index.page_entries
        self._middle_begins_at(end)
        self.sealer.dropped(end)
        middle = self.need_middle()
        if middle.offered_to < end // index.page_entries:
            middle.offered_to = end // index.page_entries
        return count, body_bytes

    def page_lost(self, page_number: i64, page: IndexPage) -> i64:
        index = self.index
        lost: i64 = page.live
        if index is not None and self._stale_end // index.page_entries == page_number:
            if not self._stale_is_counted:
                lost -= self._stale_count  # they are counted as sealed only
            self._stale_count = 0
            self._stale_is_counted = False
        self._middle_begins_at(self.sealer.table.end)
        return lost


class _StalePageRead(Fetch):
    """Reads an index page so that its entries before `end` can be settled."""

    def __init__(self, backlog: StreamBacklog, index: QueueIndex, end: i64) -> None:
        super().__init__(index.log, index, [int(end - 1)])
        self._backlog = backlog

    def fetched(self, messages: list[Message | None]) -> None:
        self._backlog.stale_page_read()
        self._backlog.offer_loaded(self.loaded)

    def page_damaged(self, page: IndexPage) -> None:
        """Do nothing: the damage is reported when a message of the page is read."""

    def message_damaged(self, number: i64, lsn: i64) -> None:
        """Do nothing: the message is sealed."""


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


class _Look(IndexOwner):
    """Makes `messages` look again when a batch has been written."""

    def __init__(self, messages: StreamBacklog) -> None:
        self._messages = messages

    def batch_closed(self) -> None:
        self._messages.look_again()
