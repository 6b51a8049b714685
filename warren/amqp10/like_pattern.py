"""The pattern of a LIKE: split once at each ``%``, and compared with texts.

1. The parts between ``%`` are searched one after the other, each at its earliest place, without backtracking: the
   earliest place leaves most room for the following parts. So a text is read once.
2. The search for a part with ``_`` keeps one bit for each of its characters in a machine word. So such a part is short.
3. `Pattern.steps` gives the maximum cost of a text in advance.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.amqp10.error_conditions import INVALID_FIELD, LinkError

# Maximum length of a part with _ between two %: a word has a bit for each of its characters.
PART_MAX: Final = 60
# `str.find` may compare a part of up to FIND_MAX characters again at each place; FIND_STEP of them cost one step.
FIND_MAX: Final = 128
FIND_STEP: Final = 64


def invalid_condition(why: str) -> LinkError:
    """Return the error for an invalid condition."""
    return LinkError(INVALID_FIELD, f"the SQL filter is invalid: {why}")


class Part:
    """The part of a pattern between two ``%``: `text`, with a 1 in `free` where any character matches."""

    def __init__(self, text: str, free: str) -> None:
        self.size: i64 = len(text)
        self.has_any: bool = "1" in free
        self._text = text
        self._free = free if self.has_any else ""

    def is_at(self, text: str, at: int) -> bool:
        """Tell whether it is at a place of `text` that has room for it."""
        if not self.has_any:
            return text.startswith(self._text, at)
        for place, character in enumerate(self._text):
            if self._free[place] == "0" and text[at + place] != character:
                return False
        return True

    def find(self, text: str, start: int, end: int) -> int:
        """Return the first place of the part between `start` and `end`, -1: not found."""
        if end - start < self.size:
            return -1
        if not self.has_any:
            return text.find(self._text, start, end)
        # A bit for each character of the part: for those that match any character, and for those that match one.
        free = int(self._free[::-1], 2)
        good: dict[str, int] = {}
        for place, character in enumerate(self._text):
            good[character] = good.get(character, free) | 1 << place
        # The bits of the characters of the part at which the text that was read so far may end.
        places: i64 = 0
        last: i64 = i64(1) << (self.size - 1)
        for at in range(start, end):
            here: i64 = good.get(text[at], free)
            places = (places << 1 | 1) & here
            if places & last:
                return at - int(self.size) + 1
        return -1


class Pattern:
    """A pattern of LIKE, taken apart at each ``%``."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts
        self.size: i64 = len(parts)
        self._own: i64 = 1
        self._weight: i64 = 0
        longest: i64 = 0
        for at, part in enumerate(parts):
            if part.has_any:
                self._own += part.size
            if 0 < at < len(parts) - 1:
                longest = max(longest, part.size)
                self._weight = 1 + min(longest, FIND_MAX) // FIND_STEP

    def steps(self, size: i64) -> i64:
        """Return the maximum cost of a text of `size` characters.

        Parts are searched one after the other: each character of the text is looked at for one of them.
        """
        return self._own + size * self._weight

    def matches(self, text: str) -> bool:
        """Tell whether `text` is like it."""
        parts = self._parts
        size = len(text)
        first = parts[0]
        if len(parts) == 1:
            return size == first.size and first.is_at(text, 0)
        last = parts[-1]
        begin = int(first.size)
        end = size - int(last.size)
        if begin > end or not first.is_at(text, 0) or not last.is_at(text, end):
            return False
        # The earliest place for each part leaves most room for the following parts: nothing has to be tried again.
        for part in parts[1:-1]:
            at = part.find(text, begin, end)
            if at < 0:
                return False
            begin = at + int(part.size)
        return True


def pattern_of(text: str, escape: str) -> Pattern:
    """Return a pattern. The character `escape` makes the next character an ordinary one; empty: not used.

    Raises:
        LinkError: the pattern ends with an escape, or a part of it is too long.
    """
    made: list[Part] = []
    part: list[str] = []
    free: list[str] = []
    is_escaped = False
    for character in text:
        if character == "%" and not is_escaped:
            if part or not made:
                made.append(Part("".join(part), "".join(free)))
                part = []
                free = []
            continue
        if character == escape and not is_escaped:
            is_escaped = True
            continue
        part.append(character)
        free.append("1" if character == "_" and not is_escaped else "0")
        is_escaped = False
    if is_escaped:
        raise invalid_condition("a pattern ends with the escape character")
    made.append(Part("".join(part), "".join(free)))
    if any(each.has_any and each.size > PART_MAX for each in made[1:-1]):
        raise invalid_condition(f"a pattern with _ has more than {PART_MAX} characters between two %")
    return Pattern(made)
