"""The part of a backlog that is on disk only: which messages it has, and which index pages it needs.

1. It has the messages from `start` up to `end` that have an entry in the index and are not taken. `count` is their
   number; without any, `start` and `end` mean nothing.
2. A message that is taken out of turn, to be delivered or because it dies, stays in the index until it is settled.
   `TakenNumbers` tells it from messages that wait, and keeps its index page resident. One of a queue without an index
   is noted, too: the index may come before it is settled.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.queue_index import QueueIndex
from warren.queues.taken_numbers import TakenNumbers


class Middle:
    """The middle of a backlog whose messages are in `index`; None: nothing of the queue is stored.

    `page_entries`: how many messages have their entries in one page of an index.
    """

    def __init__(self, index: QueueIndex | None, page_entries: i64) -> None:
        self.index = index
        self.start: i64 = 0
        self.end: i64 = 0
        self.count: i64 = 0
        self.offered_to: i64 = 0  # pages below this were offered for unloading
        self._page_entries: i64 = page_entries
        self._taken: TakenNumbers | None = None  # None: nothing was ever taken

    def begin(self, number: i64, end: i64, page_number: i64) -> None:
        """Begin an empty middle at `number`; pages from `page_number` on are offered for unloading."""
        self.start = number
        self.end = end
        self.offered_to = page_number

    def has_taken(self, number: i64) -> bool:
        """Tell whether a message was taken, and is not settled."""
        taken = self._taken
        return taken is not None and taken.has(number)

    def has_taken_of(self, page_number: i64) -> bool:
        """Tell whether an unsettled message of an index page was taken."""
        return self._taken is not None and self._taken.has_page(int(page_number))

    def may_have(self, number: i64) -> bool:
        """Tell whether a message with `number` may wait here: certainly, when its index page is resident."""
        index = self.index
        if self.count == 0 or index is None or not self.start <= number < self.end:
            return False
        page = index.page(number // index.page_entries)
        return page is not None and (not page.resident or index.lsn_of(number) != 0) and not self.has_taken(number)

    def has(self, number: i64) -> bool:
        """Tell whether a message with `number` waits here and can be taken: its index page is resident."""
        index = self.index
        return index is not None and index.lsn_of_resident(number) != 0 and self.may_have(number)

    def numbers_from(self, number: i64, most: i64) -> tuple[list[int], int]:
        """Return numbers from `number` on that may wait here, at least `most` if there are, and their end.

        Of index pages that are absent these are all numbers.
        """
        index = self.index
        assert index is not None
        size: i64 = index.page_entries
        end: i64 = self.end
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
                    if index.lsn_of(number) != 0 and not self.has_taken(number):
                        numbers.append(int(number))
                        counted += 1
                    number += 1
                continue
            while number < stop:
                numbers.append(int(number))
                number += 1
            counted += page.live
        return numbers, int(number) if number < end else int(end)

    def note_taken(self, number: i64) -> None:
        """Note that a message, here or in memory, was taken out of turn."""
        taken = self._taken
        if taken is None:
            taken = TakenNumbers()
            self._taken = taken
        taken.add(number, number // self._page_entries)

    def settled(self, number: i64) -> None:
        """Note that a message that was taken is settled."""
        taken = self._taken
        if taken is not None:
            page_number: i64 = number // self._page_entries
            index = self.index
            if taken.remove(number, page_number) and self.count and index is not None:
                index.unload_candidates.append(int(page_number))

    def settle(self, index: QueueIndex) -> None:
        """Settle everything, but not messages taken out of it: they are out for acknowledgement."""
        batch = index.log.batch
        taken = self._taken
        first: i64 = self.start
        if taken is not None:
            for number in taken.between(first, self.end):
                if number > first:
                    batch.settle_range(index, first, number)
                first = number + 1
        if first < self.end:
            batch.settle_range(index, first, self.end)

    def offer_pages(self, needed_to: i64) -> None:
        """Offer pages of the middle for unloading; those with messages below `needed_to` are being read."""
        index = self.index
        assert index is not None
        size: i64 = index.page_entries
        end_page: i64 = self.end // size
        start: i64 = needed_to if needed_to > self.start else self.start
        first_page: i64 = (start + size - 1) // size
        page_number: i64 = self.offered_to if self.offered_to > first_page else first_page
        while page_number < end_page:
            index.unload_candidates.append(int(page_number))
            page_number += 1
        self.offered_to = end_page
        taken = self._taken
        if taken is not None and taken.numbers:
            # Those are offered when the messages taken from them are settled.
            candidates = index.unload_candidates
            index.unload_candidates = [number for number in candidates if not taken.has_page(number)]
        index.unload(first_page, end_page)


# Stands for the middle of a backlog that has never had one, and stays empty.
NO_MIDDLE: Final = Middle(None, 1)
