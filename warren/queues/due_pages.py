"""Numbers for held messages: those that are due at about the same time have entries in the same index pages.

A lane numbers its messages as they come while it holds few, and while they are due soon. Of many messages with delays
of hours each would be due in another page of the index: to be read, changed and written again for one entry. So each
stretch of time has a page of its own that is being filled. When its time comes the page is read once, and it is gone
together with its messages.

    a stretch is between 1/64 and 1/32 of how far ahead it is    two hours from now: between 112 and 225 s

1. A page that gets no more numbers is in ``closed`` until the owner takes that list; the others are in ``open``, and
   must stay in memory.
2. Numbers of one stretch ascend as they are given. Those of different stretches do not: messages with equal times come
   out in the order in which they were held, except around the moments when a stretch becomes a shorter one.
3. A number is not given twice, and after a restart not from a page that was begun before.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

# Time is cut into stretches from here on up to here: ten years and some days.
NEAR_MS: Final = 1 << 16
FAR_MS: Final = 1 << 39
SHIFT_MIN: Final = 11
SLOTS: Final = (34 - SHIFT_MIN) * 64


class DuePages:
    """Gives numbers. `page_entries`: the size of a page."""

    def __init__(self, page_entries: i64) -> None:
        self.next_number: i64 = 0  # after the last page that was begun
        self.open: set[int] = set()
        self.closed: list[int] = []
        self._page_entries: i64 = page_entries
        self._near: i64 = 0  # the next one for unsorted messages; at the beginning of a page: take a new page
        # The stretch of each slot, and the next number in its page. Two stretches of a slot are never ahead at a time.
        self._keys = vec[i64]()
        self._numbers = vec[i64]()

    def take(self, until_ms: i64, now_ms: i64, first_page: i64, sorts: bool) -> i64:
        """Return the number of a message that is held until `until_ms`. Before `first_page` all pages are gone."""
        ahead_ms: i64 = until_ms - now_ms
        if not sorts or ahead_ms < NEAR_MS or ahead_ms >= FAR_MS:
            self._near = self._next(self._near, first_page) + 1
            return self._near - 1
        if len(self._keys) == 0:
            while len(self._keys) < SLOTS:
                self._keys = append(self._keys, -1)
                self._numbers = append(self._numbers, 0)
        shift: i64 = SHIFT_MIN
        while ahead_ms >> shift > 63:
            shift += 1
        key: i64 = until_ms >> shift
        slot: i64 = (shift - SHIFT_MIN) * 64 + (key & 63)
        number: i64 = self._numbers[slot]
        if self._keys[slot] != key:
            self._keys[slot] = key
            self._leave(number)
            number = 0
        number = self._next(number, first_page)
        self._numbers[slot] = number + 1
        return number

    def _next(self, number: i64, first_page: i64) -> i64:
        """Return the number to give: this one, or the first of a new page."""
        size: i64 = self._page_entries
        if number % size == 0 or number // size < first_page:
            self._leave(number)
            number = self.next_number
            self.next_number = number + size
            self.open.add(int(number // size))
        if (number + 1) % size == 0:
            self._close(number // size)
        return number

    def _leave(self, number: i64) -> None:
        """Close the page of `number`, if it is open: it gets no more entries."""
        if number % self._page_entries != 0:
            self._close(number // self._page_entries)

    def _close(self, page_number: i64) -> None:
        self.open.discard(int(page_number))
        self.closed.append(int(page_number))
