"""Finds the least of keys that come and go.

The keys are in order, in blocks of at most `BLOCK_KEYS`. A key that comes or goes moves the later ones of its block, so
each call costs about the same however many keys there are, and whatever happened before. Keys that mostly ascend fill
their blocks. A block with a few keys left stays as it is.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BLOCK_KEYS: Final = 64


class LeastKey:
    """Finds the least key. The caller reports each change with `came` and `went`. An error changes nothing."""

    def __init__(self) -> None:
        self._blocks: list[list[int]] = []  # none of them is empty
        self._ends: list[int] = []  # a key for each block: not below its last one, and below the first of the next

    def came(self, key: int) -> None:
        """Add `key`, unless it is here."""
        blocks = self._blocks
        if not blocks or key > self._ends[-1]:
            if blocks and len(blocks[-1]) < BLOCK_KEYS:
                blocks[-1].append(key)
                self._ends[-1] = key
            else:
                self._ends.append(key)
                try:
                    blocks.append([key])
                except BaseException:
                    self._ends.pop()
                    raise
            return
        at = bisect_left(self._ends, key)
        block = blocks[at]
        if len(block) == BLOCK_KEYS:
            at = self._split(at, key)
            block = blocks[at]
        place = bisect_left(block, key)
        if place == len(block) or block[place] != key:
            block.insert(place, key)

    def went(self, key: int) -> None:
        """Remove `key`, if it is here."""
        if not self._blocks or key > self._ends[-1]:
            return
        at = bisect_left(self._ends, key)
        block = self._blocks[at]
        place = bisect_left(block, key)
        if place < len(block) and block[place] == key:
            if len(block) == 1:
                del self._blocks[at], self._ends[at]
            else:
                del block[place]

    def get(self) -> int:
        """Return the least key. There must be one."""
        return self._blocks[0][0]

    def in_order(self) -> list[int]:
        """Return all keys."""
        return [key for block in self._blocks for key in block]

    def _split(self, at: int, key: int) -> int:
        """Divide a full block into two; return which one is for `key`."""
        block = self._blocks[at]
        half = BLOCK_KEYS // 2
        first, second = block[:half], block[half:]
        self._ends.insert(at, first[-1])
        try:
            self._blocks[at : at + 1] = [first, second]
        except BaseException:
            del self._ends[at]
            raise
        return at if key <= first[-1] else at + 1
