"""The messages of a queue that were not delivered yet, in order: the first in memory, the rest on disk if it is long.

    sequence numbers    first ... | middle_from ... middle_to | ... next_number
                        head        middle                      tail
                        messages    on disk only, known to      messages that came since
                        in memory   the queue's index

1. Everything in the head is older than the middle, and the middle is older than the tail. A message comes into the tail
   only while there is a middle, so a short queue is all head.
2. The middle has only messages with entries in the index. Messages in the head and in the tail were not delivered.
3. The middle grows when a batch is closed, for only then is it known where a message is stored. While all queues
   together take more memory than they may, the head gives up its end, a bounded number of messages at a time; the tail
   always gives up all it can. Under pressure messages that are not stored yet are stored, a piece for each batch: as
   much as the batch has room for (`MessageLog.room_to_page`), in order within the piece.
4. The middle is read in order and ahead of the consumers, a piece at a time, one read under way for each queue. Such a
   read may take long (jobs.py (1)): it counts only where the index still points at the place that was read.
5. Index pages are resident for everything that was loaded, so that settling finds them (queue_index.py (2)).
6. A message taken out of turn leaves a gap in the head or the tail. Where nearly everything is gaps, the rest is stored
   and given up as under pressure: a message that nobody takes does not keep a place for each that has passed it.
7. A message that is taken out of turn to be delivered stays in the index until it is settled. `TakenNumbers` tells it
   from messages that wait in the middle, and keeps its index page resident.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from warren.msgstore.log.batch import written_bytes
from warren.msgstore.log.jobs import LARGE_RECORD_BYTES, RecordsRead, WholeRecordsRead
from warren.msgstore.log.message import MESSAGE_OVERHEAD_BYTES, Message
from warren.msgstore.log.message_log import MessageLog
from warren.msgstore.log.queue_index import LENGTH_SHIFT, LSN_MASK, IndexOwner, IndexPage, QueueIndex
from warren.msgstore.log.records import page_entries
from warren.queues.taken_numbers import TakenNumbers

# The bytes that the head keeps while memory is short (at least one message), and how many messages it gives up at once.
SHORT_HEAD_MESSAGES: Final = 64
SHORT_HEAD_BYTES: Final = 1 << 20
GIVE_UP_MAX: Final = 8192

LOAD_MESSAGES_MAX: Final = 2048
LOAD_BYTES_MAX: Final = 1 << 20
SHORT_LOAD_BYTES_MAX: Final = 32 << 10
LOAD_PAGES_MAX: Final = 8
# Messages lying this close are read in one go.
READ_GAP_BYTES: Final = 4096
# Settled messages between two unsettled ones take places in the head; a larger gap waits until the head is empty.
HEAD_GAP_MAX: Final = 4096
# How many places the head and the tail have per message, and in addition, before the rest is given up. Loaded messages
# use at most half of the additional places.
PLACES_PER_MESSAGE: Final = 64
SPARSE_MIN: Final = 16384


class PageLoad(WholeRecordsRead):
    """Index pages on their way back into memory."""

    def __init__(self, backlog: Backlog, pages: list[IndexPage]) -> None:
        super().__init__([(int(page.lsn), int(page.length)) for page in pages])
        self.backlog = backlog
        self.pages = pages
        self.generation: i64 = backlog.generation

    def subject(self) -> tuple[str, str]:
        return self.backlog.subject()

    def finished(self) -> None:
        self.backlog.pages_read(self)


class MessageLoad(RecordsRead):
    """Messages on their way back into memory. Entry n lies in range ``places[n]``."""

    def __init__(self, backlog: Backlog, ranges: list[tuple[int, int]]) -> None:
        super().__init__(ranges, [], backlog.log.checksum)
        self.backlog = backlog
        self.generation: i64 = backlog.generation
        self.numbers = vec[i64]()
        self.lsns = vec[i64]()
        self.lengths = vec[i64]()
        self.bodies = vec[i64]()
        self.places = vec[i64]()
        self.reserved_bytes: i64 = 0  # taken from the memory of all queues until the messages are here

    def damaged(self, checksum: Callable[[bytes, int], int]) -> list[int]:
        found: list[int] = []
        for at in range(len(self.numbers)):
            place = int(self.places[at])
            if self.is_damaged(place, int(self.lsns[at]) - self.ranges[place][0], int(self.lengths[at])):
                found.append(int(self.lsns[at]))
        return found

    def subject(self) -> tuple[str, str]:
        return self.backlog.subject()

    def finished(self) -> None:
        self.backlog.messages_read(self)


class Backlog(IndexOwner):
    """The never-delivered messages of one queue. `on_loaded` is told how many messages turned out to be damaged."""

    def __init__(self, log: MessageLog, on_loaded: Callable[[int, int], None]) -> None:
        self.log = log
        self.index: QueueIndex | None = None
        self.next_number: i64 = 0
        self.popped_number: i64 = 0  # sequence number of the message that `pop` returned last
        self.resident_count: i64 = 0  # messages in the head
        self.bodies_in_memory: i64 = 0  # bytes of the bodies of those in the head and the tail
        self.middle_count: i64 = 0
        self.generation: i64 = 0  # reads of an earlier one are void
        self.delivered_before: i64 = 0  # older messages may have been delivered before the last restart
        self._taken: TakenNumbers | None = None  # None: nothing was ever taken
        self._taken_below: i64 = 0  # larger than every number that was delivered out of turn
        self._on_loaded = on_loaded
        self._first: i64 = 0  # sequence number of _items[_head]
        self._items: list[Message | None] = []
        self._head: i64 = 0
        self._head_bytes: i64 = 0
        self._middle_from: i64 = 0
        self._middle_to: i64 = 0
        self._tail: list[Message | None] = []
        self._tail_count: i64 = 0
        self._tail_bytes: i64 = 0
        self._candidates_to: i64 = 0  # pages below this were offered for unloading
        self._loading: bool = False
        self._loading_to: i64 = 0
        self._waits_for_disk: bool = False

    def call_when_loaded(self, on_loaded: Callable[[int, int], None]) -> None:
        """Have `on_loaded` told from now on when messages were read from disk."""
        self._on_loaded = on_loaded

    # --- in and out -----------------------------------------------------------------------------------------------

    def skip_number(self) -> i64:
        """Return the number of a message that does not wait: the backlog is empty, and a consumer gets it at once."""
        number: i64 = self.next_number
        self.next_number = number + 1
        return number

    def pass_number(self) -> i64:
        """Return the number of a message that does not wait, whatever else waits."""
        if self._tail:
            self._tail.append(None)  # its numbers end with the last one
        return self.skip_number()

    def append(self, message: Message) -> i64:
        """Add a message at the end and return its number."""
        number: i64 = self.next_number
        self.next_number = number + 1
        cost: i64 = message.memory_bytes
        self.log.resident_bytes += cost
        self.bodies_in_memory += message.body_bytes
        if self.resident_count == 0 and self.middle_count == 0 and not self._tail:
            self._first = number
            self._items.append(message)
            self.resident_count = 1
            self._head_bytes += cost
        elif self.middle_count == 0 and not self._tail and number == self._first + len(self._items) - self._head:
            self._items.append(message)
            self.resident_count += 1
            self._head_bytes += cost
        else:
            self._tail.append(message)
            self._tail_count += 1
            self._tail_bytes += cost
        return number

    def pop(self) -> Message:
        """Remove and return the oldest message; `is_ready` has said that it is in memory."""
        items = self._items
        head: i64 = self._head
        message = items[head]
        while message is None:
            head += 1
            self._first += 1
            message = items[head]
        items[head] = None
        head += 1
        self.popped_number = self._first
        self._first += 1
        self.resident_count -= 1
        cost: i64 = message.memory_bytes
        self._head_bytes -= cost
        self.bodies_in_memory -= message.body_bytes
        self.log.resident_bytes -= cost
        if self.resident_count == 0:
            items.clear()
            head = 0
        elif head > 1024 and head * 2 > len(items):
            del items[:head]
            head = 0
        self._head = head
        if self.middle_count and not self._loading and self._head_bytes < LOAD_BYTES_MAX:
            log = self.log
            if log.resident_bytes < log.memory_bytes or self.resident_count * 2 < SHORT_HEAD_MESSAGES:
                self._load()
        return message

    def is_ready(self) -> bool:
        """Tell whether the oldest message is in memory; if it is on disk it is being fetched now."""
        if self.resident_count:
            return True
        if self.middle_count:
            if not self._loading:
                self._load()
            return False
        if self._tail:
            self._promote_tail()
            return True
        return False

    def is_empty(self) -> bool:
        """Tell whether nothing waits."""
        return self.resident_count == 0 and self.middle_count == 0 and self._tail_count == 0

    def head(self) -> Message:
        """Return the oldest message; `is_ready` has said that it is in memory."""
        self._skip_gap()
        message = self._items[self._head]
        assert message is not None
        return message

    def _skip_gap(self) -> None:
        """Have the head begin with a message; there is one."""
        items = self._items
        head: i64 = self._head
        if items[head] is not None:
            return
        while items[head] is None:
            head += 1
        self._first += head - self._head
        if head > 1024 and head * 2 > len(items):
            del items[:head]
            head = 0
        self._head = head

    def _promote_tail(self) -> None:
        self._items = self._tail
        self._head = 0
        self._first = self.next_number - len(self._tail)
        self.resident_count = self._tail_count
        self._head_bytes = self._tail_bytes
        self._tail = []
        self._tail_count = 0
        self._tail_bytes = 0

    # --- out of turn ----------------------------------------------------------------------------------------------

    def find(self, number: i64) -> Message | None:
        """Return the message with `number` if it waits in memory."""
        at: i64 = number - self._first
        if self.resident_count and 0 <= at < len(self._items) - self._head:
            return self._items[self._head + at]
        at = number - (self.next_number - len(self._tail))
        return self._tail[at] if at >= 0 and number < self.next_number else None

    def is_on_disk(self, number: i64) -> bool:
        """Tell whether a message with `number` may wait on disk only: certainly, when its index page is resident."""
        index = self.index
        if self.middle_count == 0 or index is None or not self._middle_from <= number < self._middle_to:
            return False
        page = index.page(number // index.page_entries)
        if page is None:
            return False
        taken = self._taken
        return (not page.resident or index.lsn_of(number) != 0) and (taken is None or not taken.has(number))

    def is_surely_on_disk(self, number: i64) -> bool:
        """Tell whether a message with `number` waits on disk only, and can be taken: its index page is resident."""
        index = self.index
        return index is not None and index.lsn_of_resident(number) != 0 and self.is_on_disk(number)

    def seek(self, number: i64) -> i64:
        """Return the first number from `number` on that waits in memory or may wait on disk, else `next_number`."""
        if self.resident_count:
            if number < self._first:
                number = self._first
            items = self._items
            at: i64 = self._head + number - self._first
            while at < len(items):
                if items[at] is not None:
                    return number
                at += 1
                number += 1
        if self.middle_count and number < self._middle_to:
            return number if number > self._middle_from else self._middle_from
        tail = self._tail
        at = number - (self.next_number - len(tail))
        if at < 0:
            at = 0
        while at < len(tail) and tail[at] is None:
            at += 1
        return self.next_number - len(tail) + at

    def stored_from(self, number: i64, most: i64) -> tuple[list[int], int]:
        """Return numbers from `number` on that may wait in the middle, at least `most` if there are, and their end.

        Of index pages that are absent these are all numbers.
        """
        index = self.index
        assert index is not None
        taken = self._taken
        size: i64 = index.page_entries
        end: i64 = self._middle_to
        numbers: list[int] = []
        counted: i64 = 0
        while number < end and counted < most:
            page_end: i64 = (number // size + 1) * size
            page = index.page(number // size)
            if page is None:
                number = page_end
                continue
            stop: i64 = page_end if page_end < end else end
            if page.resident:
                while number < stop and counted < most:
                    if index.lsn_of(number) != 0 and (taken is None or not taken.has(number)):
                        numbers.append(int(number))
                        counted += 1
                    number += 1
                continue
            while number < stop:
                numbers.append(int(number))
                number += 1
            counted += page.live
        return numbers, int(number) if number < end else int(end)

    def has_taken(self, page_number: i64) -> bool:
        """Tell whether an unsettled message of an index page was taken out of turn."""
        return self._taken is not None and self._taken.has_page(int(page_number))

    def take(self, number: i64) -> bool:
        """Take a message out of turn for a delivery; False when it does not wait. See `remove` and `settled`."""
        if not self.remove(number):
            return False
        if number >= self._taken_below:
            self._taken_below = number + 1
        index = self.index
        if index is not None:
            taken = self._taken
            if taken is None:
                taken = TakenNumbers()
                self._taken = taken
            taken.add(number, number // index.page_entries)
        return True

    def settled(self, number: i64) -> None:
        """Note that a message that `take` took is settled."""
        taken = self._taken
        index = self.index
        if taken is not None and index is not None:
            page_number: i64 = number // index.page_entries
            if taken.remove(number, page_number) and self.middle_count:
                index.unload_candidates.append(int(page_number))

    def remove(self, number: i64) -> bool:
        """Take a message out of the backlog; False when it does not wait. The caller settles it then.

        The index page of a message on disk must be resident.
        """
        message = self.find(number)
        if message is None:
            if not self.is_on_disk(number):
                return False
            self.middle_count -= 1
            if self.middle_count == 0 and self._loading:
                # The read under way is for messages that no longer wait; the next read is of another middle.
                self.generation += 1
                self._loading = False
            return True
        cost: i64 = message.memory_bytes
        self.log.resident_bytes -= cost
        self.bodies_in_memory -= message.body_bytes
        at: i64 = number - self._first
        if self.resident_count and 0 <= at < len(self._items) - self._head:
            self._items[self._head + at] = None
            self.resident_count -= 1
            self._head_bytes -= cost
            if self.resident_count == 0:
                self._items.clear()
                self._head = 0
            elif at == 0:
                self._skip_gap()
            return True
        self._tail[number - (self.next_number - len(self._tail))] = None
        self._tail_count -= 1
        self._tail_bytes -= cost
        if self._tail_count == 0:
            self._tail.clear()
        return True

    # --- where it stands ------------------------------------------------------------------------------------------

    def delivered_below(self) -> int:
        """Return the number below which messages have been delivered, now or before a restart.

        Messages that do not wait were delivered. A delivery out of turn makes the messages that wait before it suspect.
        """
        return max(self.oldest_number(), int(self.delivered_before), int(self._taken_below))

    def oldest_number(self) -> int:
        """Return the number of the oldest message that is waiting, or of the next to come."""
        if self.resident_count:
            self._skip_gap()
            return int(self._first)
        if self.middle_count:
            return int(self._middle_from)
        first = int(self.next_number) - len(self._tail)
        for message in self._tail:
            if message is not None:
                break
            first += 1
        return first

    # --- purged, closed, restored ---------------------------------------------------------------------------------

    def clear(self) -> None:
        """Settle everything that waits: purge."""
        if self.index is not None:
            if self.resident_count:
                self._settle_list(self._items, self._head, self._first, self.resident_count)
            if self.middle_count:
                self._settle_middle(self.index)
            if self._tail_count:
                self._settle_list(self._tail, 0, self.next_number - len(self._tail), self._tail_count)
        self._forget_all()

    def _settle_middle(self, index: QueueIndex) -> None:
        """Settle the middle, but not messages taken out of it: they are out for acknowledgement."""
        taken = self._taken
        first: i64 = self._middle_from
        if taken is not None:
            for number in taken.between(first, self._middle_to):
                if number > first:
                    self.log.batch.settle_range(index, first, number)
                first = number + 1
        if first < self._middle_to:
            self.log.batch.settle_range(index, first, self._middle_to)

    def _settle_list(self, messages: list[Message | None], at: i64, number: i64, count: i64) -> None:
        """Settle the messages from place `at` on, the first of which has `number`; there are `count` of them.

        Missing messages were taken out of turn, and may be out for acknowledgement.
        """
        index = self.index
        assert index is not None
        end: i64 = len(messages)
        if count == end - at:
            self.log.batch.settle_waiting(index, number, number + count)
            return
        while at < end:
            first: i64 = at
            while at < end and messages[at] is not None:
                at += 1
            if at > first:
                self.log.batch.settle_waiting(index, number, number + at - first)
            number += at - first + 1
            at += 1

    def close(self) -> None:
        """Release everything: the queue is deleted."""
        if self.index is not None:
            self.log.delete_queue(self.index)
            self.index = None
        self._forget_all()
        # The queue and this refer to each other: do not leave them to the cyclic collector.
        self._on_loaded = nobody_waits

    def _forget_all(self) -> None:
        reclamation = self.log.reclamation
        reclamation.add(self._items, self._head_bytes)
        reclamation.add(self._tail, self._tail_bytes)
        self._items = []
        self._head = 0
        self._head_bytes = 0
        self.resident_count = 0
        self._tail = []
        self._tail_count = 0
        self._tail_bytes = 0
        self.bodies_in_memory = 0
        self.middle_count = 0
        self.generation += 1
        self._loading = False

    def restore(self, index: QueueIndex) -> None:
        """Take over the messages that recovery found: all wait, and are on disk."""
        self.index = index
        index.owner = self
        self.next_number = index.next_number
        self._middle_from = index.first_page * index.page_entries
        self._middle_to = index.next_number
        self.middle_count = index.live_count
        self._candidates_to = index.first_page
        self._offer_pages()

    # --- for observers ------------------------------------------------------------------------------------------------

    def subject(self) -> tuple[str, str]:
        """Return vhost and name of the queue, as its index says."""
        index = self.index
        return ("", "") if index is None else (index.vhost, index.name)

    def memory_bytes(self) -> int:
        """Return roughly how many bytes the messages in memory take."""
        return int(self._head_bytes + self._tail_bytes)

    def sealed_end(self) -> i64:
        """Return the number up to which messages are in files of their own."""
        return 0

    def skip_sealed(self, number: i64, skip: i64) -> tuple[int, int]:
        """Skip at most `skip` sealed messages from `number` on; return the next number, and what is left of `skip`."""
        raise AssertionError("overridden where something is sealed")

    def look_sealed(self, number: i64, most: int, told: Callable[[list[tuple[int, Message]], int], None]) -> None:
        """Have sealed messages from `number` on told with their numbers, at most `most`, and the next number."""
        raise AssertionError("overridden where something is sealed")

    def sealed_count(self) -> int:
        """Return how many messages are neither in memory nor in the log, but in files of their own."""
        return 0

    def middle(self) -> tuple[int, int]:
        """Return where the middle begins and ends; without one, where the tail begins, twice."""
        tail: i64 = self.next_number - len(self._tail)
        if self.middle_count == 0:
            return int(tail), int(tail)
        return int(self._middle_from), int(self._middle_to)

    def next_resident(self, number: i64, end: i64) -> i64:
        """Return the next number that may be in memory, `end` when it would not be before `end`."""
        if self.resident_count:
            if number < self._first:
                return self._first if self._first < end else end
            if number < self._first + len(self._items) - self._head:
                return number
        tail: i64 = self.next_number - len(self._tail)
        if number < tail:
            return tail if tail < end else end
        return number

    def offer_loaded(self, page_numbers: list[int]) -> None:
        """Give up index pages that were loaded only for a look, where the middle does not need them."""
        index = self.index
        if index is not None and page_numbers:
            index.unload_candidates += page_numbers
            if self.middle_count:
                self._offer_pages()

    def residents(self) -> list[tuple[int, Message]]:
        """Return the messages in memory with their numbers, in order. For tests and small listings."""
        first = int(self._first) - int(self._head)
        tail = int(self.next_number) - len(self._tail)
        found = [(first + at, message) for at, message in enumerate(self._items) if message is not None]
        return found + [(tail + at, message) for at, message in enumerate(self._tail) if message is not None]

    def check_invariants(self) -> None:
        """Assert that the sums fit the messages in memory. For tests."""
        head = [message for message in self._items if message is not None]
        tail = [message for message in self._tail if message is not None]
        assert (len(head), len(tail)) == (self.resident_count, self._tail_count)
        assert self._head_bytes == sum([int(message.memory_bytes) for message in head])
        assert self._tail_bytes == sum([int(message.memory_bytes) for message in tail])
        assert self.bodies_in_memory == sum([int(message.body_bytes) for message in head + tail])

    # --- to disk --------------------------------------------------------------------------------------------------

    def batch_closed(self) -> None:
        """Let messages leave memory where the queue is long: a closed batch has stored them."""
        self._waits_for_disk = False
        if self._tail and self.middle_count == 0 and self.resident_count == 0:
            # Consumers have not asked since the head became empty: a tail that cannot shrink can do so as a head.
            self._promote_tail()
        if self._is_head_sparse() or (
            self.log.resident_bytes > self.log.memory_bytes
            and (
                self.resident_count > SHORT_HEAD_MESSAGES
                or (self._head_bytes > SHORT_HEAD_BYTES and self.resident_count > 1)
            )
        ):
            self._shorten_head()
        if self._tail:
            self._extend_middle()
        if self.middle_count:
            self._offer_pages()
            if not self._loading and self.resident_count == 0:
                self._load()

    def is_sparse(self) -> bool:
        """Tell whether the head or the tail has gaps for the most part: see `thin_out`."""
        return self._is_head_sparse() or self._is_tail_sparse()

    def _is_head_sparse(self) -> bool:
        return len(self._items) - self._head > SPARSE_MIN + PLACES_PER_MESSAGE * self.resident_count

    def _is_tail_sparse(self) -> bool:
        return len(self._tail) > SPARSE_MIN + PLACES_PER_MESSAGE * self._tail_count

    def thin_out(self) -> bool:
        """Give up gaps that are at an end; False when others are left, and messages between them have to be stored."""
        items = self._items
        if self.resident_count:
            end: i64 = len(items)
            while items[end - 1] is None:
                end -= 1
            del items[end:]
        if self._tail_count:
            tail = self._tail
            at: i64 = 0
            while tail[at] is None:
                at += 1
            del tail[:at]
        return not self.is_sparse()

    def _shorten_head(self) -> None:
        """Give up messages from the end of the head; under pressure have those before them stored, to go next."""
        if self._loading or (self._tail and self.middle_count == 0):
            return  # a read is under way for messages after the head, and the tail comes later
        keep_to: i64 = self._short_head_end()
        at: i64 = self._stored_from(keep_to)
        if at < len(self._items):
            self._give_up_from(at)
        if self.log.under_pressure or self._is_head_sparse():
            self._store_end(keep_to)

    def _stored_from(self, keep_to: i64) -> i64:
        """Return the place from which everything in the head is on disk, but at most `GIVE_UP_MAX` places."""
        items = self._items
        index = self.index
        at: i64 = len(items)
        least: i64 = at - GIVE_UP_MAX
        if index is None:
            return at
        if least < keep_to:
            least = keep_to
        number: i64 = self._first + at - self._head
        while at > least:
            if items[at - 1] is not None and index.lsn_of(number - 1) == 0:
                break
            at -= 1
            number -= 1
        return at

    def _give_up_from(self, at: i64) -> None:
        """Forget the head from this place on: the messages are in the index."""
        items = self._items
        leaving = items[at:]
        number: i64 = self._first + at - self._head
        count: i64 = 0
        left_bytes: i64 = 0
        for message in leaving:
            if message is not None:
                count += 1
                left_bytes += message.memory_bytes
                self.bodies_in_memory -= message.body_bytes
        index = self.index
        assert index is not None
        size: i64 = index.page_entries
        page_number: i64 = (number + size - 1) // size
        if self.middle_count == 0:
            self._middle_to = number + len(leaving)
            self._candidates_to = page_number
        else:
            while page_number * size < self._middle_from:
                index.unload_candidates.append(int(page_number))
                page_number += 1
        self._middle_from = number
        self.middle_count += count
        del items[at:]
        self.resident_count -= count
        self._head_bytes -= left_bytes
        self.log.resident_bytes -= left_bytes

    def _store_end(self, keep_to: i64) -> None:
        """Have the end of the head stored, as far as the open batch has room."""
        log = self.log
        index = self.index
        if index is None:
            return
        items = self._items
        at: i64 = len(items)
        least: i64 = at - GIVE_UP_MAX
        if least < keep_to:
            least = keep_to
        room: i64 = log.room_to_page()
        while at > least and room > 0:
            at -= 1
            message = items[at]
            if message is not None:
                room -= written_bytes(message)
        # In order, for that is how they will be read.
        for leaving in items[at:]:
            self._store_unless_stored(index, leaving, self._first + at - self._head)
            at += 1

    def _store_unless_stored(self, index: QueueIndex, message: Message | None, number: i64) -> None:
        # One with a row is in the open batch already: for us, or for another queue first.
        if message is not None and message.row < 0 and index.lsn_of(number) == 0:
            self.log.batch.add(index, message, number)

    def _short_head_end(self) -> i64:
        """Return the end of the part of the head that stays while memory is short."""
        items = self._items
        at: i64 = self._head
        end: i64 = self._head + SHORT_HEAD_MESSAGES
        if end > len(items):
            end = len(items)
        size: i64 = 0
        while at < end:
            message = items[at]
            if message is not None:
                if size > 0 and size + message.memory_bytes > SHORT_HEAD_BYTES:
                    break
                size += message.memory_bytes
            at += 1
        return at

    def _extend_middle(self) -> None:
        index = self.index
        first: i64 = self.next_number - len(self._tail)
        stored: i64 = self._stored_of(self._tail, first)
        if stored == 0 or index is None:
            return
        if self.middle_count == 0:
            self._middle_from = first
            self._candidates_to = first // index.page_entries
        left_bytes: i64 = 0
        left: i64 = 0
        for message in self._tail[:stored]:
            if message is not None:
                left += 1
                left_bytes += message.memory_bytes
                self.bodies_in_memory -= message.body_bytes
        del self._tail[:stored]
        self._tail_count -= left
        self._tail_bytes -= left_bytes
        self.log.resident_bytes -= left_bytes
        self._middle_to = first + stored
        self.middle_count += left

    def _stored_of(self, messages: list[Message | None], number: i64) -> i64:
        """Return how many places, from the first on, have their message on disk; under pressure store the rest too."""
        log = self.log
        index = self.index
        count: i64 = 0
        if index is None:
            return 0
        for message in messages:
            if message is not None and index.lsn_of(number + count) == 0:
                break
            count += 1
        at: i64 = count
        if log.under_pressure or self._is_tail_sparse():
            while at < len(messages) and log.room_to_page() > 0:
                self._store_unless_stored(index, messages[at], number + at)
                at += 1
        return count

    def _offer_pages(self) -> None:
        index = self.index
        assert index is not None
        size: i64 = index.page_entries
        end_page: i64 = self._middle_to // size
        start: i64 = self._middle_from
        if self._loading and self._loading_to > start:
            start = self._loading_to
        first_page: i64 = (start + size - 1) // size
        page_number: i64 = self._candidates_to if self._candidates_to > first_page else first_page
        while page_number < end_page:
            index.unload_candidates.append(int(page_number))
            page_number += 1
        self._candidates_to = end_page
        taken = self._taken
        if taken is not None and taken.numbers:
            # Those are offered when the messages taken from them are settled.
            candidates = index.unload_candidates
            index.unload_candidates = [number for number in candidates if not taken.has_page(number)]
        index.unload(first_page, end_page)

    # --- from disk ------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Ask for the next piece of the middle: its index pages if they are absent, else its messages."""
        index = self.index
        assert index is not None and not self._loading
        size: i64 = index.page_entries
        number: i64 = self._middle_from
        while number < self._middle_to:
            page = index.page(number // size)
            if page is None:
                number = (number // size + 1) * size
                continue
            if not page.resident:
                self._middle_from = number
                self._load_pages(index, number // size)
                return
            if self._gather(index, number):
                return
            # The rest of this page is settled.
            number = (number // size + 1) * size
        raise AssertionError("the middle has messages that the index does not know")

    def _load_pages(self, index: QueueIndex, page_number: i64) -> None:
        pages: list[IndexPage] = []
        size: i64 = index.page_entries
        while len(pages) < LOAD_PAGES_MAX and page_number * size < self._middle_to:
            page = index.page(page_number)
            if page is not None:
                if page.resident:
                    break
                pages.append(page)
            page_number += 1
        self._loading = True
        self._loading_to = page_number * size
        self.log.read_jobs.append(PageLoad(self, pages))

    def pages_read(self, job: PageLoad) -> None:
        """Go on with index pages that were read."""
        if job.generation != self.generation:
            return
        self._loading = False
        index = self.index
        assert index is not None
        log = self.log
        lost: i64 = 0
        lost_bytes: i64 = 0
        at: i64 = 0
        for page in job.pages:
            data = job.data[at]
            lsn, _ = job.ranges[at]
            at += 1
            if page.resident or page.lsn != lsn:
                continue  # compaction was faster
            if not log.is_page(data, page.length):
                lost += page.live
                lost_bytes += page.body_bytes
                log.report_damage(index, -1, page.lsn)
                index.lose_page(page)
                continue
            index.page_loaded(page, page_entries(data, 0), log.void_below_lsn)
        self.middle_count -= lost
        if self.middle_count:
            self._load()
        if lost:
            self._on_loaded(int(lost), int(lost_bytes))

    def _gather(self, index: QueueIndex, number: i64) -> bool:
        """Ask for messages from `number` on; False when its page has no more of them."""
        taken = self._taken
        base: i64 = self._first if self.resident_count else number  # where the head will begin
        if self.resident_count and (
            number - (self._first + len(self._items) - self._head) > HEAD_GAP_MAX
            or number - base > SPARSE_MIN // 2 + PLACES_PER_MESSAGE * self.resident_count
        ):
            return True  # later, when the head is empty
        log = self.log
        most_bytes: i64 = LOAD_BYTES_MAX if log.resident_bytes < log.memory_bytes else SHORT_LOAD_BYTES_MAX
        size: i64 = index.page_entries
        written_lsn: i64 = log.written_lsn
        ranges: list[tuple[int, int]] = []
        job = MessageLoad(self, ranges)
        start: i64 = 0
        end: i64 = 0
        file_end: i64 = 0
        total: i64 = 0
        previous: i64 = number
        while number < self._middle_to and total < most_bytes and len(job.numbers) < LOAD_MESSAGES_MAX:
            page = index.page(number // size)
            if page is None or not page.resident:
                break
            offset: i64 = 2 * (number % size)
            if offset >= len(page.entries):
                number = (number // size + 1) * size
                continue
            word0: i64 = page.entries[offset]
            if word0 == 0 or (taken is not None and taken.has(number)):
                number += 1
                continue
            lsn: i64 = word0 & LSN_MASK
            if lsn >= written_lsn or number - previous > HEAD_GAP_MAX:
                break
            if number - base > SPARSE_MIN // 2 + PLACES_PER_MESSAGE * (self.resident_count + len(job.numbers)):
                break
            word1: i64 = page.entries[offset + 1]
            length: i64 = word1 >> LENGTH_SHIFT
            if (
                start <= lsn <= end + READ_GAP_BYTES
                and lsn < file_end
                and lsn - start < LOAD_BYTES_MAX
                and length < LARGE_RECORD_BYTES
            ):
                if lsn + length > end:
                    end = lsn + length
            else:
                if end > 0:
                    ranges.append((int(start), int(end - start)))
                start = lsn
                end = lsn + length
                segment = log.segments.find(lsn)
                file_end = segment.base_lsn + segment.capacity
                if length >= LARGE_RECORD_BYTES:
                    job.alone.append(len(ranges))
                    file_end = 0
            job.numbers = append(job.numbers, number)
            job.lsns = append(job.lsns, lsn)
            job.lengths = append(job.lengths, length)
            job.bodies = append(job.bodies, word1 & 0xFFFFFFFF)
            job.places = append(job.places, len(ranges))
            total += length
            previous = number
            number += 1
        if len(job.numbers) == 0:
            if number < self._middle_to and index.lsn_of_resident(number) >= written_lsn:
                if not self._waits_for_disk:
                    self._waits_for_disk = True
                    log.call_when_written(self)
                return True
            return False
        ranges.append((int(start), int(end - start)))
        self._loading = True
        self._loading_to = previous + 1
        job.ranges = ranges
        job.reserved_bytes = total + i64(len(job.numbers)) * MESSAGE_OVERHEAD_BYTES
        log.resident_bytes += job.reserved_bytes
        log.read_jobs.append(job)
        return True

    def messages_read(self, job: MessageLoad) -> None:
        """Append messages that were read to the head."""
        self.log.resident_bytes -= job.reserved_bytes
        if job.generation != self.generation:
            return
        self._loading = False
        index = self.index
        assert index is not None
        log = self.log
        taken = self._taken
        items = self._items
        lost: i64 = 0
        lost_bytes: i64 = 0
        at: i64 = 0
        count: i64 = len(job.numbers)
        gone: i64 = 0
        while at < count:
            number: i64 = job.numbers[at]
            if index.lsn_of_resident(number) == 0 or (taken is not None and taken.has(number)):
                # Taken out of turn meanwhile.
                gone += 1
                at += 1
                continue
            place: i64 = job.places[at]
            start, _ = job.ranges[place]
            if place in job.large:
                message = log.maybe_large_message(index, number, job.large[place])
            else:
                message = log.maybe_message(
                    index, number, job.data[place], job.lsns[at] - start, job.lengths[at], job.is_checked
                )
            if message is None and index.lsn_of_resident(number) != job.lsns[at]:
                # Compaction has moved it, and its old place is gone: read again from here on.
                self._loading_to = number
                break
            if message is None:
                lost += 1
                lost_bytes += job.bodies[at]
                log.report_damage(index, number, job.lsns[at])
                at += 1
                continue
            if self.resident_count == 0:
                items.clear()
                self._head = 0
                self._first = number
            else:
                gap: i64 = number - (self._first + len(items) - self._head)
                while gap > 0:
                    items.append(None)
                    gap -= 1
            items.append(message)
            cost: i64 = message.memory_bytes
            self.resident_count += 1
            self._head_bytes += cost
            self.bodies_in_memory += message.body_bytes
            log.resident_bytes += cost
            at += 1
        self._middle_from = self._loading_to
        self.middle_count -= at - gone
        if self.middle_count and self.resident_count == 0:
            self._load()
        self._on_loaded(int(lost), int(lost_bytes))


def nobody_waits(lost: int, lost_bytes: int) -> None:
    """Stands for the listener of a read whose queue is gone."""
