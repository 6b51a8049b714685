"""The index of one queue: where in the log each of its stored messages is.

An entry is two words, for one sequence number:

    word0   LSN of the MESSAGE record | flags in the 3 low bits (records lie at multiples of 8); 0: no live message
            1 the message has a time to live of its own; 2 DROPPABLE
    word1   length of the record << 32 | bytes of the body

A page holds the entries of `page_entries` consecutive sequence numbers. A page is

    resident, dirty     in memory only, or newer than its PAGE record in the log
    resident, clean     in memory, and the same as its PAGE record
    absent              only its PAGE record

1. Every stored message that is not settled has an entry, whether a client has it, a consumer waits for it, or it lies
   in the middle of a long backlog.
2. An absent page is exactly as its PAGE record says: a page is loaded before one of its entries changes. Only pages
   whose messages were not loaded yet are absent, so settling finds its page in memory.
3. Each live entry, and each PAGE record in use, is one reference to the segment it points into (`SegmentTable`).
4. A range is settled page by page: pages that it covers leave the index at once, and their references are released
   later, by the log's reclamation or, for absent ones, by its doomed pages.
5. Damaged places keep their references (``index_damage``).
6. `note_ack` gathers the acks for the next frame; `forget` and its like do the book-keeping and note nothing, so that
   recovery can use them.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from warren.msgstore.log.index_damage import IndexDamage
from warren.msgstore.log.records import DROPPABLE, EXPIRES

if TYPE_CHECKING:
    from warren.msgstore.log.message_log import MessageLog
    from warren.msgstore.log.records import RecordWriter

PAGE_ENTRIES: Final = 256
LENGTH_SHIFT: Final = 32
BODY_MASK: Final = 0xFFFFFFFF
LSN_MASK: Final = ~7
EXPIRING: Final = 1


class IndexPage:
    """The entries of consecutive sequence numbers."""

    def __init__(self) -> None:
        self.entries = vec[i64]()  # as many as were ever needed; those missing at the end are 0
        self.live: i64 = 0  # entries that are not 0
        self.droppable: i64 = 0  # entries that mean nothing after a restart
        self.body_bytes: i64 = 0  # of the live ones that are not droppable
        self.lsn: i64 = 0  # of the PAGE record, 0: none
        self.length: i64 = 0
        self.resident: bool = True
        self.dirty: bool = True
        self.queued: bool = False  # to be written with the next frame


@mypyc_attr(allow_interpreted_subclasses=True)  # tests own indexes
class IndexOwner:
    """The keeper of an index's messages: told after each batch, and asked for values that a checkpoint needs."""

    def batch_closed(self) -> None:
        """Note that the rows of this queue have their entries now."""

    def delivered_below(self) -> int:
        """Return the sequence number below which messages may have been delivered before."""
        return 0

    def given_up(self, count: i64, body_bytes: i64) -> None:
        """Note that an operator has given up damaged messages, which are settled: their number, and bytes of bodies."""


class QueueIndex:
    """The stored messages of the queue `queue_id`."""

    def __init__(self, log: MessageLog, queue_id: int, vhost: str, name: str, lane: i64, transient: bool) -> None:
        self.log = log
        self.queue_id: i64 = queue_id
        self.vhost = vhost
        self.name = name
        self.lane: i64 = lane  # which messages of the queue these are: see queues.lanes
        self.transient: bool = transient  # the queue itself is gone after a restart
        self.owner: IndexOwner | None = None
        self.named: bool = False  # a QUEUE record of this life, or the checkpoint, names it
        self.touched: bool = False  # on the log's list of queues to tell after the batch
        self.deleted: bool = False
        self.has_void: bool = False  # rows in the open batch are void: all of them when it is deleted, else see below
        self._void: list[int] = []  # where ranges of such numbers begin and end, in turn, ascending
        self.next_number: i64 = 0  # larger than every sequence number that was stored
        self.live_count: i64 = 0
        self.live_body_bytes: i64 = 0  # of those that are not droppable
        self.droppable_count: i64 = 0  # live entries that mean nothing after a restart
        self.delivered_below: i64 = 0  # as the checkpoint or the recovery says
        self.damaged_count: i64 = 0  # messages found damaged, in this life or an earlier one
        self.damage: IndexDamage | None = None  # None: no damage is known
        self.has_expiring: bool = False  # messages with a time to live of their own were ever stored
        self.page_entries: i64 = log.page_entries
        self.first_page: i64 = 0  # number of pages[0]
        self.pages: list[IndexPage | None] = []
        self.unload_candidates: list[int] = []  # numbers of pages whose messages are all on disk only
        self._ack_first: i64 = 0
        self._ack_end: i64 = 0
        self._ack_ranges: list[tuple[int, int]] = []
        self._acking: bool = False

    # --- entries --------------------------------------------------------------------------------------------------

    def add(self, number: i64, lsn: i64, flags: i64, length: i64, body_bytes: i64) -> None:
        """Enter the message with sequence `number`, whose record of `length` bytes is at `lsn`."""
        page_number: i64 = number // self.page_entries
        page = self._page_to_fill(page_number)
        offset: i64 = 2 * (number - page_number * self.page_entries)
        word0: i64 = lsn | (flags & DROPPABLE)
        if flags & EXPIRES:
            word0 |= EXPIRING
            self.has_expiring = True
        self._put(page, offset, word0, length << LENGTH_SHIFT | (body_bytes & BODY_MASK))
        page.live += 1
        self.live_count += 1
        if flags & DROPPABLE:
            page.droppable += 1
            self.droppable_count += 1
        else:
            page.body_bytes += body_bytes & BODY_MASK
            self.live_body_bytes += body_bytes & BODY_MASK
        if number >= self.next_number:
            self.next_number = number + 1
        self.log.segments.refer(lsn, length, flags & DROPPABLE != 0)

    def _put(self, page: IndexPage, offset: i64, word0: i64, word1: i64) -> None:
        entries = page.entries
        size: i64 = len(entries)
        if offset < size:
            entries[offset] = word0
            entries[offset + 1] = word1
        else:
            while size < offset:
                entries = append(entries, 0)
                size += 1
            entries = append(entries, word0)
            page.entries = append(entries, word1)
        page.dirty = True

    def _page_to_fill(self, page_number: i64) -> IndexPage:
        pages = self.pages
        at: i64 = page_number - self.first_page
        if 0 <= at < len(pages):
            found = pages[at]
            if found is not None:
                assert found.resident
                return found
        return self._new_page(page_number)

    def _new_page(self, page_number: i64) -> IndexPage:
        pages = self.pages
        page = IndexPage()
        if not pages:
            self.first_page = page_number
            pages.append(page)
            return page
        if page_number < self.first_page:
            # The page was settled and dropped while a message of it waited: for its batch, or to be stored at all.
            missing: list[IndexPage | None] = [None] * int(self.first_page - page_number)
            self.pages = missing + pages
            self.first_page = page_number
            pages = self.pages
        at: i64 = page_number - self.first_page
        if at >= len(pages):
            previous: i64 = self.first_page + len(pages) - 1
            while at > len(pages):
                pages.append(None)
            pages.append(page)
            self._drop_if_settled(previous)
            return page
        pages[at] = page
        return page

    def page(self, page_number: i64) -> IndexPage | None:
        """Return the page, resident or not; None when none of its messages is live."""
        at: i64 = page_number - self.first_page
        if 0 <= at < len(self.pages):
            return self.pages[at]
        return None

    def lsn_of(self, number: i64) -> i64:
        """Return where the message is, 0 when it is not stored or settled. Its page must be resident."""
        page = self.page(number // self.page_entries)
        if page is None:
            return 0
        assert page.resident
        offset: i64 = 2 * (number % self.page_entries)
        if offset >= len(page.entries):
            return 0
        return page.entries[offset] & LSN_MASK

    def body_bytes_of(self, number: i64) -> i64:
        """Return the bytes of a message's body; -1 when it is not stored, settled, or its page is absent."""
        page = self.page(number // self.page_entries)
        at: i64 = 2 * (number % self.page_entries)
        if page is None or not page.resident or at >= len(page.entries) or page.entries[at] == 0:
            return -1
        return page.entries[at + 1] & BODY_MASK

    def lsn_of_resident(self, number: i64) -> i64:
        """Return where the message is; 0 when it is not stored, settled, or its page is absent."""
        page = self.page(number // self.page_entries)
        return self.lsn_of(number) if page is not None and page.resident else 0

    def restore_page(self, page_number: i64, page: IndexPage) -> None:
        """Enter a page of a checkpoint; they come in ascending order."""
        pages = self.pages
        if not pages:
            self.first_page = page_number
        while self.first_page + len(pages) < page_number:
            pages.append(None)
        pages.append(page)
        self.live_count += page.live
        self.live_body_bytes += page.body_bytes

    def need_damage(self) -> IndexDamage:
        """Return the known damage."""
        damage = self.damage
        if damage is None:
            damage = IndexDamage(self.page_entries, self.log.now_ms)
            self.damage = damage
            self.log.damage.indexes[int(self.queue_id)] = self
        return damage

    def forget_damage(self) -> None:
        """Forget the damage: nothing is damaged any longer."""
        self.damage = None
        self.log.damage.indexes.pop(int(self.queue_id), None)

    def is_damaged(self, number: i64) -> bool:
        """Tell whether a message is known to be damaged, or its page."""
        damage = self.damage
        return damage is not None and damage.has(number)

    def damage_message(self, number: i64) -> bool:
        """Note that the record of a message is damaged; False when that is known already. Its entry stays."""
        damage = self.need_damage()
        if int(number) in damage.numbers:
            return False
        damage.numbers.add(int(number))
        self.damaged_count += 1
        return True

    def lose_page(self, page: IndexPage) -> None:
        """Handle a damaged PAGE record: its messages are not served, and its references stay."""
        at = self.pages.index(page)
        self.damaged_count += page.live
        self.need_damage().pages[int(self.first_page + at)] = page
        self.drop_page(page)

    def drop_page(self, page: IndexPage) -> None:
        """Take a page out of the index, whatever it refers to."""
        at = self.pages.index(page)
        self.pages[at] = None
        self.live_count -= page.live
        self.droppable_count -= page.droppable
        self.live_body_bytes -= page.body_bytes

    def give_up_page(self, page_number: i64) -> None:
        """Release a damaged page; its segments keep the unknown references."""
        damage = self.need_damage()
        page = damage.pages.pop(int(page_number))
        self.release_record(page)

    def forget(self, number: i64) -> bool:
        """Take the entry away; False if it does not exist. Its page must be resident."""
        page_number: i64 = number // self.page_entries
        page = self.page(page_number)
        if page is None:
            return False
        assert page.resident, "an entry of an absent page is settled"
        offset: i64 = 2 * (number - page_number * self.page_entries)
        if offset >= len(page.entries):
            return False
        word0: i64 = page.entries[offset]
        if word0 == 0:
            return False
        word1: i64 = page.entries[offset + 1]
        page.entries[offset] = 0
        page.dirty = True
        page.live -= 1
        self.live_count -= 1
        if word0 & DROPPABLE:
            page.droppable -= 1
            self.droppable_count -= 1
        else:
            page.body_bytes -= word1 & BODY_MASK
            self.live_body_bytes -= word1 & BODY_MASK
        self.log.segments.release(word0 & LSN_MASK, word1 >> LENGTH_SHIFT, word0 & DROPPABLE != 0)
        if page.live == 0:
            self._drop_if_settled(page_number)
        return True

    def _drop_if_settled(self, page_number: i64) -> None:
        """Drop a page without live entries, unless messages are still to come into it."""
        pages = self.pages
        at: i64 = page_number - self.first_page
        if at < 0 or at >= len(pages) or at == len(pages) - 1:
            return
        page = pages[at]
        if page is not None:
            if page.live != 0:
                return
            self.release_record(page)
            pages[at] = None
        if at == 0:
            self._drop_gone()

    def _drop_gone(self) -> None:
        """Remove leading gaps from `pages`."""
        pages = self.pages
        dead: i64 = 0
        while dead < len(pages) and pages[dead] is None:
            dead += 1
        del pages[:dead]
        self.first_page += dead

    def relocate(self, number: i64, lsn: i64, length: i64) -> None:
        """Point the live entry of `number` to the copy at `lsn`. Its page must be resident."""
        page = self.page(number // self.page_entries)
        assert page is not None and page.resident
        offset: i64 = 2 * (number % self.page_entries)
        word0: i64 = page.entries[offset]
        word1: i64 = page.entries[offset + 1]
        droppable: bool = word0 & DROPPABLE != 0
        segments = self.log.segments
        segments.release(word0 & LSN_MASK, word1 >> LENGTH_SHIFT, droppable)
        segments.refer(lsn, length, droppable)
        page.entries[offset] = lsn | (word0 & 7)
        page.entries[offset + 1] = length << LENGTH_SHIFT | (word1 & BODY_MASK)
        page.dirty = True

    # --- pages in the log -----------------------------------------------------------------------------------------

    def page_written(self, page: IndexPage, lsn: i64, length: i64) -> None:
        """Note that the page, as it is now, has its PAGE record at `lsn`."""
        self.release_record(page)
        page.lsn = lsn
        page.length = length
        page.dirty = False
        self.log.segments.refer(lsn, length, self.transient)

    def release_record(self, page: IndexPage) -> None:
        """Release the PAGE record, if there is one."""
        if page.lsn != 0:
            self.log.segments.release(page.lsn, page.length, self.transient)
            page.lsn = 0

    def page_loaded(self, page: IndexPage, entries: vec[i64], droppables_below: i64) -> None:
        """Make an absent page resident. Droppable entries below the LSN given are from before a restart: void."""
        assert not page.resident
        at: i64 = 0
        live: i64 = 0
        while at < len(entries):
            word0: i64 = entries[at]
            if word0 != 0:
                if word0 & DROPPABLE and word0 < droppables_below:
                    entries[at] = 0
                else:
                    live += 1
            at += 2
        page.entries = entries
        page.live = live
        page.resident = True
        page.dirty = False

    def make_absent(self, page: IndexPage) -> None:
        """Give the memory of a clean page back."""
        assert page.resident and not page.dirty and page.lsn != 0
        page.entries = vec[i64]()
        page.resident = False

    def unload(self, first_page: i64, end_page: i64) -> None:
        """Free the memory of the candidates between those pages: written ones immediately; write the others first."""
        candidates = self.unload_candidates
        if not candidates:
            return
        written_lsn: i64 = self.log.written_lsn
        kept: list[int] = []
        for page_number in candidates:
            page = self.page(page_number)
            if page is None or not page.resident or page_number < first_page or page_number >= end_page:
                continue
            if page.dirty:
                self.log.batch.write_page(self, page_number)
                kept.append(page_number)
            elif page.lsn < written_lsn:
                self.make_absent(page)
            else:
                kept.append(page_number)
        self.unload_candidates = kept

    # --- many at once ---------------------------------------------------------------------------------------------

    def forget_range(self, first: i64, end: i64) -> None:
        """Take all entries from `first` up to (not including) `end` away; pages that only has in part are resident."""
        size: i64 = self.page_entries
        number: i64 = max(first, self.first_page * size)
        is_any: bool = False
        while number < end:
            page_number: i64 = number // size
            at: i64 = page_number - self.first_page
            if at >= len(self.pages):
                break
            page_end: i64 = (page_number + 1) * size
            page = self.pages[at]
            if page is not None:
                if number % size == 0 and page_end <= end:
                    self._let_go(page)
                    self.pages[at] = None
                    is_any = True
                else:
                    stop: i64 = page_end if page_end < end else end
                    self._forget_entries(page, number % size, stop - page_number * size)
                    if page.live == 0 and at < len(self.pages) - 1:
                        self.release_record(page)
                        self.pages[at] = None
                        is_any = True
            number = page_end
        if is_any and self.pages[0] is None:
            self._drop_gone()

    def _let_go(self, page: IndexPage) -> None:
        """Subtract a whole page from the counts; its references go later."""
        self.live_count -= page.live
        self.droppable_count -= page.droppable
        self.live_body_bytes -= page.body_bytes
        if page.resident:
            self.release_record(page)
            self.log.reclamation.add_page(page)
        else:
            self.log.doomed.add(self, page)

    def _forget_entries(self, page: IndexPage, first: i64, end: i64) -> None:
        """Take the entries from place `first` up to `end` of a page away."""
        assert page.resident, "entries of an absent page are settled"
        entries = page.entries
        segments = self.log.segments
        at: i64 = 2 * first
        stop: i64 = min(2 * end, i64(len(entries)))
        while at < stop:
            word0: i64 = entries[at]
            if word0 != 0:
                word1: i64 = entries[at + 1]
                entries[at] = 0
                page.dirty = True
                page.live -= 1
                self.live_count -= 1
                if word0 & DROPPABLE:
                    page.droppable -= 1
                    self.droppable_count -= 1
                else:
                    page.body_bytes -= word1 & BODY_MASK
                    self.live_body_bytes -= word1 & BODY_MASK
                segments.release(word0 & LSN_MASK, word1 >> LENGTH_SHIFT, word0 & DROPPABLE != 0)
            at += 2

    def forget_all(self) -> None:
        """Remove everything: the queue is deleted."""
        pages = self.pages
        self.pages = []
        for page in pages:
            if page is not None:
                self._let_go(page)
        damage = self.damage
        if damage is not None:
            self.forget_damage()
            for page in damage.pages.values():
                self.log.doomed.add(self, page)

    # --- the open batch -------------------------------------------------------------------------------------------

    def void_rows(self, first: i64, end: i64) -> None:
        """Void the rows of the open batch that numbers from `first` up to `end` have now: they are not written.

        No such number has come later than those of an earlier call.
        """
        if not self.touched:
            return  # it has no rows
        void = self._void
        assert not void or void[-1] <= first
        self.has_void = True
        if void and void[-1] == first:
            void[-1] = int(end)
        else:
            void.append(int(first))
            void.append(int(end))

    def is_void(self, number: i64) -> bool:
        """Tell whether the row of `number` is void."""
        return self.deleted or bisect_right(self._void, int(number)) & 1 == 1

    def batch_closed(self) -> None:
        """Forget the rows of the batch that was closed."""
        self.touched = False
        if self.has_void:
            self.has_void = self.deleted
            self._void = []

    # --- acks -----------------------------------------------------------------------------------------------------

    def note_ack(self, number: i64) -> None:
        """Record in the next frame that `number` is gone."""
        if number == self._ack_end and self._ack_end > self._ack_first:
            self._ack_end = number + 1
            return
        self.note_acks(number, number + 1)

    def note_acks(self, first: i64, end: i64) -> None:
        """Record in the next frame that the numbers from `first` up to `end` are gone."""
        if not self._acking:
            self.log.batch.acking.append(self)
            self._acking = True  # not before: they would not be written
        if self._ack_end > self._ack_first:
            self._ack_ranges.append((int(self._ack_first), int(self._ack_end)))
        self._ack_first = first
        self._ack_end = end

    def ack_range_count(self) -> i64:
        """Return the number of ranges that the next frame acknowledges, joined or not."""
        return i64(len(self._ack_ranges)) + 1

    def write_acks(self, writer: RecordWriter) -> None:
        """Write the noted acks, unless the queue is deleted; they are no longer noted."""
        if self._ack_ranges or self.deleted:
            ranges = self._take_acks()
            if not self.deleted:
                writer.acks(self.queue_id, ranges)
            return
        # One range, the common case: without making lists for it.
        self._acking = False
        if self._ack_end > self._ack_first:
            writer.ack_range(self.queue_id, self._ack_first, self._ack_end - self._ack_first)
        self._ack_first = 0
        self._ack_end = 0

    def _take_acks(self) -> list[tuple[int, int]]:
        """Return the noted ranges as (first, count), ascending and joined."""
        self._acking = False
        ranges = self._ack_ranges
        if self._ack_end > self._ack_first:
            ranges.append((int(self._ack_first), int(self._ack_end)))
        self._ack_ranges = []
        self._ack_first = 0
        self._ack_end = 0
        if len(ranges) > 1:
            ranges.sort()
        joined: list[tuple[int, int]] = []
        first: i64 = -1
        end: i64 = -1
        for start, stop in ranges:
            if start != end:
                if first >= 0:
                    joined.append((int(first), int(end - first)))
                first = start
            end = stop
        if first >= 0:
            joined.append((int(first), int(end - first)))
        return joined

    def check_invariants(self) -> None:
        """Assert the counts by the rules of the module header. For tests."""
        if any(page is not None and not page.resident for page in self.pages):
            return
        live = 0
        droppable = 0
        body_bytes = 0
        for page in self.pages:
            if page is None:
                continue
            count = droppable_here = bytes_here = 0
            for at in range(0, len(page.entries), 2):
                if page.entries[at] != 0:
                    count += 1
                    if page.entries[at] & DROPPABLE:
                        droppable_here += 1
                    else:
                        bytes_here += int(page.entries[at + 1] & BODY_MASK)
                    assert self.has_expiring or page.entries[at] & EXPIRING == 0
            assert (count, droppable_here, bytes_here) == (page.live, page.droppable, page.body_bytes)
            live += count
            droppable += droppable_here
            body_bytes += bytes_here
        assert live == self.live_count
        assert droppable == self.droppable_count
        assert body_bytes == self.live_body_bytes
