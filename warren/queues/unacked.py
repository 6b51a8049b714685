"""The deliveries of a channel that wait for their answers, by delivery tag.

The list is indexed by tag: acknowledgements come nearly always in order, so taking the oldest is one look.

When old deliveries stay unanswered while later ones are settled, the few old ones move to ``_stragglers``, some with
each answer: one forgotten message must not pin a list of millions of empty places. The same happens when very many tags
went to consumers without acks. A delivery that a transaction gives back becomes a straggler too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

from warren.msgstore.log.message import Message
from warren.queues.least_key import LeastKey
from warren.queues.turns import Waiter

if TYPE_CHECKING:
    from warren.queues.base_queue import BaseQueue
    from warren.queues.consumer import Consumer

COMPACT_MIN: Final = 256
SPARSE_MIN: Final = 4096
MOVED_AT_ONCE: Final = 512

# Shared by channels without stragglers, as most are: never changed.
_NO_STRAGGLERS: Final[dict[int, Delivery]] = {}
_NO_TAGS: Final = LeastKey()


@mypyc_attr(acyclic=True, free_list_len=1)
class Delivery:
    """A message at a client. ``consumer`` is None for a basic.get."""

    __slots__ = ("consumer", "message", "queue", "sequence_number", "tag")

    def __init__(
        self, tag: i64, message: Message, queue: BaseQueue, sequence_number: i64, consumer: Consumer | None
    ) -> None:
        self.tag: i64 = tag
        self.message = message
        self.queue = queue
        self.sequence_number: i64 = sequence_number
        self.consumer = consumer


class UnackedDeliveries(Waiter):
    """Unanswered deliveries; the ledger of a channel is one (``queues.delivery``)."""

    def __init__(self) -> None:
        super().__init__()
        self.unacked_count: i64 = 0
        self.swept_tag: i64 = 0  # up to here the broker has looked for deliveries that wait too long
        self._entries: list[Delivery | None] = []
        self._first_tag: i64 = 1  # tag of _entries[0]
        self._head: i64 = 0  # everything before this is settled
        self._live: i64 = 0  # unsettled in _entries
        self._stragglers = _NO_STRAGGLERS
        self._straggler_tags = _NO_TAGS

    def remember(self, delivery: Delivery) -> None:
        """Add a delivery, with a tag above all others."""
        entries = self._entries
        if self._live == 0:
            # The list has nothing that waits: start it at this tag, so that no-ack tags do not leave gaps.
            if self._head or len(entries):
                entries.clear()
                self._head = 0
            self._first_tag = delivery.tag
        else:
            gap: i64 = delivery.tag - self._first_tag - i64(len(entries))
            if gap > SPARSE_MIN and self._live * 8 < gap:
                self._move_oldest(len(entries))
                entries.clear()
                self._head = 0
                self._first_tag = delivery.tag
                gap = 0
            while gap > 0:
                entries.append(None)
                gap -= 1
        entries.append(delivery)
        self._live += 1
        self.unacked_count += 1

    def find(self, tag: i64) -> Delivery | None:
        """Return the delivery with `tag` if it is still unanswered."""
        index: i64 = tag - self._first_tag
        if index >= self._head and index < len(self._entries):
            return self._entries[index]
        if self._stragglers:
            return self._stragglers.get(int(tag))
        return None

    def is_outstanding(self, tag: i64) -> bool:
        """Tell whether the delivery with `tag` waits for its answer."""
        return self.find(tag) is not None

    def oldest_tag(self) -> int:
        """Return the tag of the oldest unanswered delivery, or 0."""
        if self._stragglers:
            return self._straggler_tags.get()
        entries = self._entries
        at: i64 = self._head
        while at < len(entries):
            entry = entries[at]
            if entry is not None:
                return int(entry.tag)
            at += 1
        return 0

    def is_oldest(self, tag: i64) -> bool:
        """Tell whether every delivery below `tag` was answered."""
        oldest: i64 = self.oldest_tag()
        return oldest == 0 or oldest >= tag

    def unanswered(self) -> list[Delivery | None]:
        """Return all unanswered deliveries in the order of their tags, with gaps between them.

        A shallow snapshot, cheap even for a million, so that the caller can process it in pieces.
        """
        found: list[Delivery | None] = [self._stragglers[tag] for tag in self._straggler_tags.in_order()]
        found.extend(self._entries[self._head :])
        return found

    def mean_bytes(self, most: i64) -> i64:
        """Return the mean memory of the messages that were delivered last, of `most` or fewer."""
        entries = self._entries
        at: i64 = len(entries)
        end: i64 = at - most if at > most else i64(0)
        count: i64 = 0
        total: i64 = 0
        while at > end:
            at -= 1
            entry = entries[at]
            if entry is not None:
                count += 1
                total += entry.message.memory_bytes
        return total // count if count > 0 else i64(0)

    def outstanding_between(self, first: i64, last: i64) -> list[int]:
        """Return the tags from `first` to `last` that wait for their answer, oldest first.

        The cost is the number of outstanding deliveries or the size of the range, whichever is less.
        """
        found: list[int] = []
        stragglers = self._stragglers
        if last - first < len(stragglers):
            for number in range(int(first), int(last) + 1):
                if number in stragglers:
                    found.append(number)
        elif stragglers:
            found = [tag for tag in self._straggler_tags.in_order() if first <= tag <= last]
        entries = self._entries
        at: i64 = first - self._first_tag
        if at < self._head:
            at = self._head
        end: i64 = last - self._first_tag + 1
        if end > len(entries):
            end = len(entries)
        while at < end:
            entry = entries[at]
            if entry is not None:
                found.append(int(entry.tag))
            at += 1
        return found

    def maybe_take(self, tag: i64) -> Delivery | None:
        """Remove and return the delivery with `tag` if it is still unanswered."""
        index: i64 = tag - self._first_tag
        if index >= self._head and index < len(self._entries):
            delivery = self._entries[index]
            if delivery is not None:
                self._entries[index] = None
                self._live -= 1
                self.unacked_count -= 1
                if index == self._head:
                    self._head = index + 1
                self._compact()
                return delivery
        elif self._stragglers:
            straggler = self._stragglers.pop(int(tag), None)
            if straggler is not None:
                self._straggler_tags.went(int(tag))
                self.unacked_count -= 1
                return straggler
        return None

    def maybe_take_oldest(self, up_to: i64) -> Delivery | None:
        """Remove and return the oldest delivery with a tag of at most `up_to`; 0: no limit. None when all are answered.

        The caller settles or requeues it, and calls `release`.
        """
        if self._stragglers:
            straggler = self._straggler_tags.get()
            if up_to != 0 and straggler > up_to:
                return None
            self.unacked_count -= 1
            self._straggler_tags.went(straggler)
            return self._stragglers.pop(straggler)
        entries = self._entries
        end: i64 = len(entries)
        head: i64 = self._head
        while head < end:
            delivery = entries[head]
            if delivery is None:
                head += 1
                continue
            if up_to != 0 and delivery.tag > up_to:
                break
            entries[head] = None
            self._head = head + 1
            self._live -= 1
            self.unacked_count -= 1
            return delivery
        self._head = head
        self._compact()
        return None

    def restore(self, delivery: Delivery) -> None:
        """Put back a delivery that `take` returned and that was not released: tx.rollback."""
        self.unacked_count += 1
        if delivery.tag <= self.swept_tag:
            self.swept_tag = delivery.tag - 1
        index: i64 = delivery.tag - self._first_tag
        if index < 0 or index >= len(self._entries) or (index < self._head and self._stragglers):
            self._straggle(delivery)
            return
        self._entries[index] = delivery
        self._live += 1
        if index < self._head:
            self._head = index

    def _straggle(self, delivery: Delivery) -> None:
        if self._stragglers is _NO_STRAGGLERS:
            self._stragglers = {}
            self._straggler_tags = LeastKey()
        tag = int(delivery.tag)
        self._stragglers[tag] = delivery
        try:
            self._straggler_tags.came(tag)
        except BaseException:
            del self._stragglers[tag]  # else nobody finds it as the oldest one
            raise

    def _compact(self) -> None:
        entries = self._entries
        size: i64 = len(entries)
        if self._live == 0:
            if size:
                entries.clear()
            self._head = 0
        elif self._head > COMPACT_MIN and self._head * 2 > size:
            del entries[: self._head]
            self._first_tag += self._head
            self._head = 0
        elif size - self._head > SPARSE_MIN and self._live * 8 < size - self._head:
            self._maybe_move_oldest()

    def _maybe_move_oldest(self) -> None:
        """Make stragglers of some of the oldest; the rest with further answers."""
        try:
            self._move_oldest(MOVED_AT_ONCE)
        except MemoryError:
            return  # the delivery that is being answered is out already, and would be in no place

    def _move_oldest(self, places: i64) -> None:
        """Make stragglers of the deliveries in the first places of the list. An error leaves the rest in it."""
        entries = self._entries
        end: i64 = self._head + places
        if end > len(entries):
            end = len(entries)
        while self._head < end:
            entry = entries[self._head]
            if entry is not None:
                self._straggle(entry)
                entries[self._head] = None
                self._live -= 1
            self._head += 1


def deliveries_of(queue: BaseQueue, entries: list[Delivery | None]) -> list[Delivery]:
    """Return those of the deliveries that are of `queue`."""
    return [entry for entry in entries if entry is not None and entry.queue is queue]
