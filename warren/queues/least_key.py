"""Finds the least of keys that come and go.

The keys are in order, in blocks of at most `BLOCK_KEYS`. A key that comes or goes moves the later ones of its block, so
each call costs about the same however many keys there are, and whatever happened before. Keys that mostly ascend fill
their blocks. A block with a few keys left stays as it is.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BLOCK_KEYS: Final = 512


class LeastKey:
    """Finds the least key. The caller reports each change with `came` and `went`. An error changes nothing."""

    def __init__(self) -> None:
        self._blocks: list[list[int]] = []  # none of them is empty

    def came(self, key: int) -> None:
        """Add `key`, unless it is here."""
        blocks = self._blocks
        if not blocks or key > blocks[-1][-1]:
            if blocks and len(blocks[-1]) < BLOCK_KEYS:
                blocks[-1].append(key)
            else:
                blocks.append([key])
            return
        at = self._block_of(key)
        block = blocks[at]
        if len(block) == BLOCK_KEYS:
            half = BLOCK_KEYS // 2
            blocks[at : at + 1] = [block[:half], block[half:]]
            at = self._block_of(key)
            block = blocks[at]
        place = bisect_left(block, key)
        if block[place] != key:
            block.insert(place, key)

    def went(self, key: int) -> None:
        """Remove `key`, if it is here."""
        blocks = self._blocks
        if not blocks or key > blocks[-1][-1]:
            return
        at = self._block_of(key)
        block = blocks[at]
        place = bisect_left(block, key)
        if block[place] == key:
            if len(block) == 1:
                del blocks[at]
            else:
                del block[place]

    def get(self) -> int:
        """Return the least key. There must be one."""
        return self._blocks[0][0]

    def in_order(self) -> list[int]:
        """Return all keys."""
        return [key for block in self._blocks for key in block]

    def _block_of(self, key: int) -> int:
        """Return which block has `key`, or is the one for it; it is not beyond the last one."""
        blocks = self._blocks
        return 0 if key <= blocks[0][-1] else bisect_left(blocks, key, key=_last)


def _last(block: list[int]) -> int:
    return block[-1]
