"""Messages that were taken out of a backlog out of turn, and are not settled: the index does not tell.

They are out for acknowledgement, or have died and their dead letters are not placed yet.

Until it is settled, such a message has an entry in the index like a waiting one (``middle.py`` (2)).
"""

from __future__ import annotations

from mypy_extensions import i64


class TakenNumbers:
    """Numbers of messages taken out of turn and not settled, and how many of them a page has."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self._pages: dict[int, int] = {}

    def add(self, number: i64, page_number: i64) -> None:
        """Note a number."""
        self.numbers.add(int(number))
        self._pages[int(page_number)] = self._pages.get(int(page_number), 0) + 1

    def remove(self, number: i64, page_number: i64) -> bool:
        """Forget a number, if it is noted; True when its page has no others now."""
        if int(number) not in self.numbers:
            return False
        self.numbers.remove(int(number))
        left = self._pages[int(page_number)] - 1
        if left:
            self._pages[int(page_number)] = left
            return False
        del self._pages[int(page_number)]
        return True

    def has(self, number: i64) -> bool:
        """Tell whether a number is noted."""
        return int(number) in self.numbers

    def has_page(self, page_number: int) -> bool:
        """Tell whether a number of a page is noted."""
        return page_number in self._pages

    def between(self, first: i64, end: i64) -> list[int]:
        """Return the numbers from `first` up to `end`, ascending."""
        return sorted([number for number in self.numbers if first <= number < end])
