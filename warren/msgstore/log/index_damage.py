"""Damaged places of one queue's index: remembered, so that only an operator gives them up.

1. A damaged message keeps its entry, and the entry its reference to the segment. A damaged index page is out of the
   index, and stays here with its references: its entries are unknown.
2. Damaged places are not settled in a range (`Batch.settle_range`), sealed or copied. Deleting the queue removes them.
3. In memory only. A checkpoint has the entries and pages as others, so the next process finds the same when it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

if TYPE_CHECKING:
    from warren.msgstore.log.queue_index import IndexPage

NOWHERE: Final = 1 << 62


class IndexDamage:
    """The damaged messages and pages of an index with `page_entries` entries a page, known since `since_ms`."""

    def __init__(self, page_entries: i64, since_ms: i64) -> None:
        self.since_ms: i64 = since_ms
        self.numbers: set[int] = set()
        self.pages: dict[int, IndexPage] = {}  # by page number
        self.page_entries: i64 = page_entries

    def has(self, number: i64) -> bool:
        """Tell whether a message is damaged, or its page."""
        return int(number) in self.numbers or int(number // self.page_entries) in self.pages

    def first_from(self, number: i64) -> i64:
        """Return the first damaged number from `number` on, `NOWHERE` without one."""
        found: i64 = NOWHERE
        for each in self.numbers:
            if number <= each < found:
                found = each
        for page_number in self.pages:
            start: i64 = page_number * self.page_entries
            if start + self.page_entries > number and start < found:
                found = start if start > number else number
        return found

    def starts_between(self, first: i64, end: i64) -> list[int]:
        """Return the damaged numbers from `first` up to `end`, ascending; of a damaged page the first of these."""
        low, high = int(first), int(end)
        starts = {number for number in self.numbers if low <= number < high}
        size = int(self.page_entries)
        for page_number in self.pages:
            start = max(page_number * size, low)
            if start < min((page_number + 1) * size, high):
                starts.add(start)
        return sorted(starts)

    def message_count(self) -> int:
        """Return the number of damaged messages, those of damaged pages included."""
        return len(self.numbers) + sum([int(page.live) for page in self.pages.values()])

    def is_empty(self) -> bool:
        """Tell whether nothing is damaged any longer."""
        return not self.numbers and not self.pages
