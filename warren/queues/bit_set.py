"""A set of small integers: the next one from a number on is found by words, not one by one.

    words   a bit for each number, 32 in a word
    tops    a bit for each word that is not 0

For numbers up to 10,000 at most ten tops are looked at.
"""

from __future__ import annotations

from librt.vecs import append, vec
from mypy_extensions import i64


class BitSet:
    """Integers from 0 on."""

    def __init__(self) -> None:
        self._words = vec[i64]()
        self._tops = vec[i64]()

    def clear(self) -> None:
        """Remove all numbers."""
        self._words = vec[i64]()
        self._tops = vec[i64]()

    def add(self, number: i64) -> None:
        """Add `number` to the set."""
        at: i64 = number >> 5
        while at >= len(self._words):
            self._words = append(self._words, 0)
        while at >> 5 >= len(self._tops):
            self._tops = append(self._tops, 0)
        self._words[at] |= 1 << (number & 31)
        self._tops[at >> 5] |= 1 << (at & 31)

    def discard(self, number: i64) -> None:
        """Remove `number` from the set."""
        at: i64 = number >> 5
        if at >= len(self._words):
            return
        word: i64 = self._words[at] & ~(1 << (number & 31))
        self._words[at] = word
        if word == 0:
            self._tops[at >> 5] &= ~(1 << (at & 31))

    def next_from(self, number: i64) -> i64:
        """Return the smallest number of the set from `number` on; -1 when there is no such number."""
        words = self._words
        at: i64 = number >> 5
        if at >= len(words):
            return -1
        word: i64 = words[at] >> (number & 31)
        if word != 0:
            return number + _lowest(word)
        at += 1
        tops = self._tops
        top: i64 = at >> 5
        if top >= len(tops):
            return -1
        bits: i64 = tops[top] >> (at & 31)
        if bits != 0:
            at += _lowest(bits)
        else:
            top += 1
            while top < len(tops) and tops[top] == 0:
                top += 1
            if top == len(tops):
                return -1
            at = (top << 5) + _lowest(tops[top])
        return (at << 5) + _lowest(words[at])


def _lowest(word: i64) -> i64:
    """Return the place of the lowest bit in a word of 32 bits that is not 0."""
    at: i64 = 0
    if word & 0xFFFF == 0:
        word >>= 16
        at = 16
    if word & 0xFF == 0:
        word >>= 8
        at += 8
    if word & 0xF == 0:
        word >>= 4
        at += 4
    if word & 3 == 0:
        word >>= 2
        at += 2
    return at if word & 1 else at + 1
