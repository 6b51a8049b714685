"""The messages of a queue that were not delivered yet, in order: the first in memory, the rest on disk if it is long.

    sequence numbers    first ... | middle_from ... middle_to | ... next_number
                        head        middle                      tail
                        messages    on disk only, known to      messages that came since
                        in memory   the queue's index

1. Everything in the head is older than the middle, and the middle is older than the tail. A message whose number
   directly follows the end of the head is appended to the head, even to an empty one. There can be no middle or tail
   then: their numbers would come first. So a short queue is all head.
2. The middle has only messages with entries in the index. Messages in the head and in the tail were not delivered.
3. The middle grows when a batch is closed, for only then is it known where a message is stored. While all queues
   together take more memory than they may, the head gives up its end, a bounded number of messages at a time; the tail
   always gives up all it can. Under pressure messages that are not stored yet are stored, a piece for each batch: as
   much as the batch has room for (`MessageLog.room_to_page`), in order within the piece.
4. The middle is read in order and ahead of the consumers (``queues.middle_reader``).
5. Index pages are resident for everything that was loaded, so that settling finds them (queue_index.py (2)).
6. A message taken out of turn leaves a gap in the head or the tail (``queues.message_run``). When a run is mostly gaps,
   its remaining messages are paged out, so that one untaken message does not keep a slot for every message taken after
   it. One that is taken from the middle stays in the index until it is settled (middle.py (2)).
7. A queue that was short since the start has no middle and no tail of its own: `NO_MIDDLE` and `NO_MESSAGES` stand for
   them. So an idle queue is small.
8. The tail has a place for each number up to `next_number`, so its gaps at the end stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import IndexOwner, QueueIndex
from warren.queues.message_run import GONE_MIN, NO_MESSAGES, MessageRun
from warren.queues.middle import NO_MIDDLE, Middle
from warren.queues.middle_reader import LOAD_BYTES_MAX, MiddleReader

# The bytes that the head keeps while memory is short (at least one message), and how many messages it gives up at once.
SHORT_HEAD_MESSAGES: Final = 64
SHORT_HEAD_BYTES: Final = 1 << 20
GIVE_UP_MAX: Final = 8192


class Backlog(IndexOwner):
    """The never-delivered messages of one queue. ``on_loaded`` is told when some were read, and how many are lost."""

    def __init__(self, log: MessageLog, on_loaded: Callable[[int, int], None]) -> None:
        self.log = log
        self.index: QueueIndex | None = None  # see `begin_storing`
        self.next_number: i64 = 0
        self.popped_number: i64 = 0  # sequence number of the message that `pop` returned last
        self.delivered_before: i64 = 0  # older messages may have been delivered before the last restart
        self.head = MessageRun()
        self.middle = NO_MIDDLE  # see `need_middle`
        self.tail = NO_MESSAGES
        self._reader: MiddleReader | None = None  # None: nothing was read yet
        self._taken_below: i64 = 0  # larger than every number that was delivered out of turn
        self.on_loaded = on_loaded

    def begin_storing(self, index: QueueIndex) -> None:
        """Take the index that the messages are stored in."""
        self.index = index
        if self.middle is not NO_MIDDLE:
            self.middle.index = index
        index.owner = self

    def need_middle(self) -> Middle:
        """Return the middle to be changed."""
        middle = self.middle
        if middle is NO_MIDDLE:
            middle = Middle(self.index, self.log.page_entries)
            self.middle = middle
        return middle

    # --- in and out -----------------------------------------------------------------------------------------------

    def skip_number(self) -> i64:
        """Return the number of a message that does not wait: the backlog is empty, and a consumer gets it at once."""
        number: i64 = self.next_number
        self.next_number = number + 1
        return number

    def pass_number(self) -> i64:
        """Return the number of a message that does not wait, whatever else waits."""
        if self.tail.items:
            self.tail.items.append(None)
        return self.skip_number()

    def append(self, message: Message) -> i64:
        """Add a message at the end and return its number."""
        number: i64 = self.next_number
        run = self.head
        items = run.items
        if number != run.first + len(items) - run.at:  # else it follows the head at once (1)
            if items or self.middle.count or self.tail.items:
                run = self.tail
                if run is NO_MESSAGES:
                    run = MessageRun()
                    self.tail = run
                items = run.items
            if not items:
                run.first = number
        items.append(message)
        self.next_number = number + 1
        cost: i64 = message.memory_bytes
        self.log.resident_bytes += cost
        run.count += 1
        run.memory_bytes += cost
        run.body_bytes += message.body_bytes
        return number

    def pop(self) -> Message:
        """Remove and return the oldest message; `ready_or_fetch` has said that it is in memory."""
        head = self.head
        items = head.items
        at: i64 = head.at
        number: i64 = head.first
        message = items[at]
        while message is None:
            at += 1
            number += 1
            message = items[at]
        items[at] = None
        at += 1
        self.popped_number = number
        head.first = number + 1
        count: i64 = head.count - 1
        head.count = count
        cost: i64 = message.memory_bytes
        head.memory_bytes -= cost
        head.body_bytes -= message.body_bytes
        self.log.resident_bytes -= cost
        if count == 0:
            items.clear()
            at = 0
        elif at > GONE_MIN and at * 2 > len(items):
            del items[:at]
            at = 0
        head.at = at
        if self.middle.count:
            try:
                self._read_ahead()
            except MemoryError:
                pass  # `ready_or_fetch` asks again: the message must not be lost for that
        return message

    def _read_ahead(self) -> None:
        """Read on if the head is short."""
        head = self.head
        log = self.log
        if head.memory_bytes < LOAD_BYTES_MAX and (
            log.resident_bytes < log.memory_bytes or head.count * 2 < SHORT_HEAD_MESSAGES
        ):
            self._read()

    def _read(self) -> None:
        """Read the next piece of the middle, unless a read is under way."""
        reader = self._reader
        if reader is None:
            index = self.index
            assert index is not None
            reader = MiddleReader(self, index)
            self._reader = reader
        if not reader.is_reading:
            reader.advance()

    def ready_or_fetch(self) -> bool:
        """Tell whether the oldest message is in memory; if it is on disk it is being fetched now."""
        if self.head.count:
            return True
        if self.middle.count:
            self._read()
            return False
        if self.tail.items:
            self.head, self.tail = self.tail, self.head
            return True
        return False

    def is_empty(self) -> bool:
        """Tell whether nothing waits."""
        return self.head.count == 0 and self.middle.count == 0 and self.tail.count == 0

    def oldest(self) -> Message:
        """Return the oldest message; `ready_or_fetch` has said that it is in memory."""
        head = self.head
        head.skip_gap()
        message = head.items[head.at]
        assert message is not None
        return message

    # --- out of turn ----------------------------------------------------------------------------------------------

    def find(self, number: i64) -> Message | None:
        """Return the message with `number` if it waits in memory."""
        message = self.head.find(number)
        return self.tail.find(number) if message is None else message

    def seek(self, number: i64) -> i64:
        """Return the first number from `number` on that waits in memory or may wait on disk, else `next_number`."""
        head = self.head
        if head.count and number < head.end():
            number = head.seek(number)
            if number < head.end():
                return number
        middle = self.middle
        if middle.count and number < middle.end:
            return number if number > middle.start else middle.start
        tail = self.tail
        if tail.count and number < tail.end():
            return tail.seek(number)
        return self.next_number

    def take(self, number: i64) -> bool:
        """Take a message out of turn for a delivery; False when it does not wait. See `remove`."""
        if not self.remove(number):
            return False
        if number >= self._taken_below:
            self._taken_below = number + 1
        return True

    def remove(self, number: i64) -> bool:
        """Take a message out of the backlog; False when it does not wait. See `Middle.settled`.

        The index page of a message on disk must be resident.
        """
        for run in (self.head, self.tail):
            message = run.find(number)
            if message is not None:
                self.need_middle().note_taken(number)
                run.take(message, number)
                self.log.resident_bytes -= message.memory_bytes
                return True
        middle = self.middle
        if not middle.may_have(number):
            return False
        middle.count -= 1
        if middle.count == 0:
            self._void_read()
        middle.note_taken(number)
        return True

    def _void_read(self) -> None:
        reader = self._reader
        if reader is not None:
            reader.void()

    # --- where it stands ------------------------------------------------------------------------------------------

    def delivered_below(self) -> int:
        """Return the number below which messages have been delivered, now or before a restart.

        Messages that do not wait were delivered. A delivery out of turn makes the messages that wait before it suspect.
        """
        return max(self.oldest_number(), int(self.delivered_before), int(self._taken_below))

    def oldest_number(self) -> int:
        """Return the number of the oldest message that is waiting, or of the next to come."""
        run = self.head
        if run.count == 0:
            if self.middle.count:
                return int(self.middle.start)
            run = self.tail
            if run.count == 0:
                return int(self.next_number)
        run.skip_gap()
        return int(run.first)

    # --- purged, closed, restored ---------------------------------------------------------------------------------

    def clear(self) -> None:
        """Settle everything that waits: purge."""
        index = self.index
        if index is not None:
            if self.head.count:
                self.head.settle(index)
            if self.middle.count:
                self.middle.settle(index)
            if self.tail.count:
                self.tail.settle(index)
        self._forget_all()

    def close(self) -> None:
        """Release everything: the queue is deleted."""
        if self.index is not None:
            self.log.delete_queue(self.index)
            self.index = None
        self._forget_all()
        self.middle = NO_MIDDLE
        # The queue, the reader and this refer to each other: do not leave them to the cyclic collector.
        self.on_loaded = nobody_waits
        self._reader = None

    def _forget_all(self) -> None:
        for run in (self.head, self.tail):
            if run.items:
                run.clear(self.log)
        if self.middle.count:
            self.middle.count = 0
        self._void_read()

    def restore(self, index: QueueIndex) -> None:
        """Take over the messages that recovery found: all wait, and are on disk."""
        self.begin_storing(index)
        self.next_number = index.next_number
        if index.live_count == 0:
            return
        middle = self.need_middle()
        middle.begin(index.first_page * index.page_entries, index.next_number, index.first_page)
        middle.count = index.live_count
        middle.offer_pages(0)

    # --- for observers ------------------------------------------------------------------------------------------------

    def body_bytes(self) -> int:
        """Return how many bytes the bodies of the messages in memory have."""
        return int(self.head.body_bytes + self.tail.body_bytes)

    def memory_bytes(self) -> int:
        """Return roughly how many bytes the messages in memory take."""
        return int(self.head.memory_bytes + self.tail.memory_bytes)

    def sealed_end(self) -> i64:
        """Return the number up to which messages are in files of their own."""
        return 0

    def skip_sealed(self, number: i64, skip: i64) -> tuple[int, int]:
        """Skip at most `skip` sealed messages from `number` on; return the next number, and what is left of `skip`."""
        raise AssertionError("overridden where something is sealed")

    def look_sealed(self, number: i64, most: int, told: Callable[[list[tuple[int, Message]], int], None]) -> None:
        """Give `told` sealed messages from `number` on with their numbers, at most `most`, and the next number."""
        raise AssertionError("overridden where something is sealed")

    def sealed_count(self) -> int:
        """Return how many messages are neither in memory nor in the log, but in files of their own."""
        return 0

    def tail_from(self) -> i64:
        """Return the number from which on messages are in the tail, or the next to come."""
        return self.tail.first if self.tail.items else self.next_number

    def on_disk(self) -> tuple[int, int]:
        """Return where the middle begins and ends; without one, where the tail begins, twice."""
        middle = self.middle
        if middle.count == 0:
            return int(self.tail_from()), int(self.tail_from())
        return int(middle.start), int(middle.end)

    def offer_loaded(self, page_numbers: list[int]) -> None:
        """Give up index pages that were loaded only for a look, where the middle does not need them."""
        index = self.index
        if index is not None and page_numbers:
            index.unload_candidates += page_numbers
            if self.middle.count:
                self._offer_pages()

    def residents(self) -> list[tuple[int, Message]]:
        """Return the messages in memory with their numbers, in order. For tests and small listings."""
        return self.head.numbered() + self.tail.numbered()

    def check_invariants(self) -> None:
        """Assert (1), (7) and (8) of the module header, and that the sums fit the messages in memory. For tests."""
        assert not NO_MESSAGES.items and NO_MIDDLE.index is None and NO_MIDDLE.count == NO_MIDDLE.end == 0
        head, middle, tail = self.head, self.middle, self.tail
        head.check_invariants()
        tail.check_invariants()
        assert head.end() <= self.on_disk()[0]
        if middle.count:
            assert middle.start < middle.end <= self.tail_from()
        if tail.count:
            assert head.end() < tail.end() == self.next_number

    # --- to disk --------------------------------------------------------------------------------------------------

    def batch_closed(self) -> None:
        """Release messages from memory where the queue is long: a closed batch has stored them."""
        if self.tail.items and self.middle.count == 0 and self.head.count == 0:
            # Consumers have not asked since the head became empty: a tail that cannot shrink can do so as a head.
            self.head, self.tail = self.tail, self.head
        head = self.head
        if head.is_sparse() or (
            self.log.resident_bytes > self.log.memory_bytes
            and (head.count > SHORT_HEAD_MESSAGES or (head.memory_bytes > SHORT_HEAD_BYTES and head.count > 1))
        ):
            self._shorten_head()
        if self.tail.items:
            self._extend_middle()
        if self.middle.count:
            self._offer_pages()
            if head.count == 0:
                self._read()

    def _offer_pages(self) -> None:
        reader = self._reader
        self.middle.offer_pages(0 if reader is None else reader.needed_to())

    def thin_out(self) -> bool:
        """Free gaps, if these are the most part; False when messages between them would have to be stored first."""
        if self.head.is_sparse():
            self.head.trim()
        return not self.head.is_sparse() and not self.tail.is_sparse()

    def _shorten_head(self) -> None:
        """Give up messages from the end of the head; under pressure have those before them stored, to go next."""
        index = self.index
        reader = self._reader
        if index is None or (reader is not None and reader.is_reading) or (self.tail.items and self.middle.count == 0):
            return  # a read is under way for messages after the head, and the tail comes later
        head = self.head
        keep_to: i64 = head.short_to(SHORT_HEAD_MESSAGES, SHORT_HEAD_BYTES)
        at: i64 = head.stored_from(index, max(keep_to, len(head.items) - GIVE_UP_MAX))
        if at < len(head.items):
            self._give_up_from(index, at)
        if self.log.under_pressure or head.is_sparse():
            least: i64 = max(keep_to, len(head.items) - GIVE_UP_MAX)
            head.store(index, head.room_from(least, self.log.room_to_page()), whole=True)

    def _give_up_from(self, index: QueueIndex, at: i64) -> None:
        """Forget the head from this place on: the messages are in the index."""
        head = self.head
        middle = self.need_middle()
        number: i64 = head.first + at - head.at
        size: i64 = index.page_entries
        page_number: i64 = (number + size - 1) // size
        if middle.count == 0:
            middle.begin(number, head.end(), page_number)
        else:
            while page_number * size < middle.start:
                index.unload_candidates.append(int(page_number))
                page_number += 1
            middle.start = number
        cut = head.cut_end(at)
        middle.count += cut.count
        self.log.resident_bytes -= cut.memory_bytes

    def _extend_middle(self) -> None:
        """Give up the beginning of the tail, as far as it is on disk; under pressure store the rest, too."""
        index = self.index
        if index is None:
            return
        tail = self.tail
        at: i64 = tail.stored_to(index)
        if self.log.under_pressure or tail.is_sparse():
            tail.store(index, at, whole=False)
        places: i64 = at - tail.at
        if places == 0:
            return
        middle = self.need_middle()
        if middle.count == 0:
            middle.begin(tail.first, tail.first, tail.first // index.page_entries)
        middle.end = tail.first + places
        cut = tail.cut_beginning(places)
        middle.count += cut.count
        self.log.resident_bytes -= cut.memory_bytes


def nobody_waits(lost: int, lost_bytes: int) -> None:
    """Do nothing, as the listener of a read whose queue is gone."""
