"""What was removed all at once, such as the messages of a queue by a purge: taken apart here, a piece at a time.

1. They can no longer be found by a queue, a frame of the log or a checkpoint.
2. They count until they are taken apart: the references of their entries in the segments, and the messages in the
   memory of all queues.
3. A checkpoint knows only the references of indexes and doomed pages. So the references kept here are released before
   one is taken. Those are not more entries than the checkpoint would have had to write without the removal.

4. Messages to be settled one by one are settled in the batch in which they were removed: that batch is held open for
   them, or, where it has been held open before, everything is settled at once. A purge is in one frame of the log.

`MessageLog.reclamation` is one for all queues; a job of the broker continues it in its turns (``channels.jobs``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from librt.vecs import vec
from mypy_extensions import i64

from warren.msgstore.log.message import Message
from warren.msgstore.log.queue_index import LENGTH_SHIFT, LSN_MASK, IndexPage
from warren.msgstore.log.records import DROPPABLE

if TYPE_CHECKING:
    from warren.msgstore.log.message_log import MessageLog

# The work of a step, about a microsecond.
THINGS_PER_STEP: Final = 8
ENTRIES_PER_STEP: Final = 64
# The memory that the system takes back in a step: large messages are few and long.
BYTES_PER_STEP: Final = 16 << 10
# This many steps are settled at once: for small removals the batch is not held.
AT_ONCE_STEPS: Final = 64
_ALL_STEPS: Final = 1 << 40


class _Heap:
    """Things that go one by one; one of both is empty. `resident_bytes`: their part of the memory of all queues."""

    def __init__(self, things: list[Any], named: dict[Any, Any], resident_bytes: i64) -> None:
        self.things = things
        self.named = named
        self.resident_bytes: i64 = resident_bytes
        self.freed_bytes: i64 = 0  # by the last `shrink`

    def shrink(self, steps: i64) -> i64:
        """Release as much as this number of steps allows, one thing at least; return the number of steps used."""
        things = self.things
        named = self.named
        there: i64 = len(things) + len(named)
        thing_bytes: i64 = self.resident_bytes // there
        count: i64 = steps * THINGS_PER_STEP
        if thing_bytes * count > steps * BYTES_PER_STEP:
            count = steps * BYTES_PER_STEP // thing_bytes
        if count < 1:
            count = 1
        if count >= there:
            count = there
            self.freed_bytes = self.resident_bytes
        else:
            self.freed_bytes = thing_bytes * count
        self.resident_bytes -= self.freed_bytes
        done: i64 = 1 + count // THINGS_PER_STEP
        if done < self.freed_bytes // BYTES_PER_STEP:
            done = self.freed_bytes // BYTES_PER_STEP
        while count > 0:
            count -= 1
            if things:
                things.pop()
            else:
                named.popitem()
        return done


class Branch:
    """A level of a trie, with the levels below it."""

    def __init__(self) -> None:
        self.below: dict[str, Any] = {}


class _Tree(_Heap):
    """The levels of a trie: a level goes before those below it, which would all go with it otherwise."""

    def __init__(self, root: Branch) -> None:
        super().__init__([], root.below, 0)
        self._above: list[dict[str, Any]] = []  # the rest of the levels above `named`

    def shrink(self, steps: i64) -> i64:
        named = self.named
        above = self._above
        most: i64 = steps * THINGS_PER_STEP
        count: i64 = 0
        while count < most and named:
            count += 1
            level: Branch = named.popitem()[1]
            if level.below:
                if named:
                    above.append(named)
                named = level.below
            elif not named and above:
                named = above.pop()
        self.named = named
        return 1 + count // THINGS_PER_STEP


# Settles a message, which is at a place of its queue.
Settle = Callable[[Message, int], None]


class _Unsettled:
    """Messages by their places, the places in the order of settling, and the function that settles them.

    `messages` has those that are not settled yet; from `at` on `places` may have others. From the beginning: places
    that ascend are one range in the frame.
    """

    def __init__(self, places: list[int], messages: dict[int, Message], settle: Settle) -> None:
        self.places = places
        self.messages = messages
        self.at: i64 = 0
        self.settle = settle


class Reclamation:
    """Removed messages that must still be taken apart."""

    def __init__(self, log: MessageLog) -> None:
        self._log = log
        self._unsettled: list[_Unsettled] = []  # while there are any we hold the batch
        self._pages: list[IndexPage] = []
        self._heaps: list[_Heap] = []

    def is_empty(self) -> bool:
        """Tell whether nothing is left."""
        return not self._pages and not self._heaps and not self._unsettled

    def settle(self, places: list[int], messages: dict[int, Message], settle: Settle) -> None:
        """Settle messages that nothing else refers to, see (4); they are not resident by our reckoning.

        `places`: of all of them, and maybe others, which are skipped.
        """
        if not messages:
            return
        self._unsettled.append(_Unsettled(places, messages, settle))
        if len(self._unsettled) > 1:
            return
        self._settle_some(AT_ONCE_STEPS)
        if self._unsettled and not self._log.hold_batch():
            self._settle_some(_ALL_STEPS)

    def add_page(self, page: IndexPage) -> None:
        """Take a resident page that is out of its index; its PAGE record is released already."""
        self._pages.append(page)

    def add(self, things: list[Any], resident_bytes: i64) -> None:
        """Take over a list, and the part of it in the memory of all queues."""
        if things:
            self._heaps.append(_Heap(things, {}, resident_bytes))
        else:
            self._log.resident_bytes -= resident_bytes

    def add_named(self, named: dict[Any, Any], resident_bytes: i64) -> None:
        """Take over a dictionary, like `add`."""
        if named:
            self._heaps.append(_Heap([], named, resident_bytes))
        else:
            self._log.resident_bytes -= resident_bytes

    def add_tree(self, root: Branch) -> None:
        """Take over all levels below `root`."""
        if root.below:
            self._heaps.append(_Tree(root))

    def take_apart(self, steps: i64) -> i64:
        """Do at most `steps`, give or take one thing; return how many are left, below 0 after too many."""
        if self._unsettled:
            steps = self._settle_some(steps)
            if not self._unsettled:
                self._log.release_batch()
        pages = self._pages
        while steps > 0 and pages:
            page = pages.pop()
            steps -= 1 + len(page.entries) // (2 * ENTRIES_PER_STEP)
            self.release(page.entries, 0)
        heaps = self._heaps
        while steps > 0 and heaps:
            heap = heaps[-1]
            steps -= heap.shrink(steps)
            self._log.resident_bytes -= heap.freed_bytes
            if not heap.things and not heap.named:
                heaps.pop()
        return steps

    def _settle_some(self, steps: i64) -> i64:
        unsettled = self._unsettled
        while steps > 0 and unsettled:
            last = unsettled[-1]
            places = last.places
            at: i64 = last.at
            end: i64 = at + steps * THINGS_PER_STEP
            if end > len(places):
                end = len(places)
            steps -= 1 + (end - at) // THINGS_PER_STEP
            while at < end:
                place = places[at]
                message = last.messages.pop(place, None)
                if message is not None:
                    last.settle(message, place)
                at += 1
            last.at = at
            if at == len(places):
                unsettled.pop()
                self.add(places, 0)
        return steps

    def release_pages(self) -> None:
        """Release all references that are left, see (3)."""
        pages = self._pages
        self._pages = []
        for page in pages:
            self.release(page.entries, 0)

    def release(self, entries: vec[i64], void_below_lsn: i64) -> None:
        """Release the references of a page's entries; droppable ones below that LSN refer to nothing."""
        segments = self._log.segments
        at: i64 = 0
        end: i64 = len(entries)
        while at < end:
            word0: i64 = entries[at]
            droppable: bool = word0 & DROPPABLE != 0
            if word0 != 0 and not (droppable and word0 < void_below_lsn):
                segments.release(word0 & LSN_MASK, entries[at + 1] >> LENGTH_SHIFT, droppable)
            at += 2

    def pages(self) -> list[IndexPage]:
        """Return the pages whose references are still counted. For tests."""
        return self._pages
