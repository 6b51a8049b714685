"""Destinations in an order, each with a weight. Finds the destination that has the n-th place.

    blocks      [a 1, b 3]  [c 2]  [d 1, e 1]        at most `BLOCK_MAX` destinations each
    places       0  1 2 3    4 5    6    7           a destination has as many places as its weight

1. A destination is in one block, or in none. Blocks are never empty.
2. A change costs a few steps for each destination of its block, and for each block; so does the next look-up after it.
   A look-up without a change before it costs two binary searches.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Final

from warren.queues.destination import Destination

BLOCK_MAX: Final = 96


class _Block:
    def __init__(self) -> None:
        self.destinations: list[Destination] = []
        self.weights: list[int] = []
        self.total: int = 0
        self.ends: list[int] | None = None  # where the places of each destination end; None: not computed


class WeightedPlaces:
    """The places. ``total``: their number."""

    def __init__(self) -> None:
        self.total: int = 0
        self._blocks: list[_Block] = []
        self._totals: list[int] = []  # how many places each block has
        self._ends: list[int] | None = None  # where the places of each block end; None: not computed
        self._block_of: dict[Destination, _Block] = {}

    def __contains__(self, destination: Destination) -> bool:
        return destination in self._block_of

    def weight(self, destination: Destination) -> int:
        """Return the weight of a destination, 0 when it is not here."""
        block = self._block_of.get(destination)
        return 0 if block is None else block.weights[block.destinations.index(destination)]

    def append(self, destination: Destination, weight: int) -> None:
        """Put a new destination after all others."""
        blocks = self._blocks
        if not blocks or len(blocks[-1].destinations) >= BLOCK_MAX:
            self._begin_block()
        self._put(blocks[-1], len(blocks[-1].destinations), destination, weight)

    def insert_sorted(self, destination: Destination, weight: int) -> None:
        """Put a new destination where it belongs by `sort_key`. Use either this or `append`, never both."""
        blocks = self._blocks
        if not blocks:
            self._begin_block()
        key = sort_key(destination)
        low, high = 0, len(blocks) - 1
        while low < high:  # find the first block whose last destination is not before the new one, or the last block
            middle = (low + high) // 2
            if sort_key(blocks[middle].destinations[-1]) < key:
                low = middle + 1
            else:
                high = middle
        block = blocks[low]
        if len(block.destinations) >= BLOCK_MAX:
            self._split(low)
            if sort_key(block.destinations[-1]) < key:
                block = blocks[low + 1]
        self._put(block, bisect_right(block.destinations, key, key=sort_key), destination, weight)

    def set_weight(self, destination: Destination, weight: int) -> None:
        """Give a destination that is here another weight."""
        block = self._block_of[destination]
        at = block.destinations.index(destination)
        self._count(block, weight - block.weights[at])
        block.weights[at] = weight

    def remove(self, destination: Destination) -> None:
        """Take a destination out, if it is here."""
        block = self._block_of.pop(destination, None)
        if block is None:
            return
        at = block.destinations.index(destination)
        self._count(block, -block.weights[at])
        del block.destinations[at]
        del block.weights[at]
        if not block.destinations:
            number = self._blocks.index(block)
            del self._blocks[number]
            del self._totals[number]

    def at(self, place: int) -> Destination:
        """Return the destination that has `place`, from 0 to below ``total``."""
        block_ends = self._ends
        if block_ends is None:
            block_ends = list(accumulate(self._totals))
            self._ends = block_ends
        number = bisect_right(block_ends, place)
        block = self._blocks[number]
        ends = block.ends
        if ends is None:
            ends = list(accumulate(block.weights))
            block.ends = ends
        return block.destinations[bisect_right(ends, place - (block_ends[number] - block.total))]

    def _begin_block(self) -> None:
        self._blocks.append(_Block())
        self._totals.append(0)

    def _put(self, block: _Block, at: int, destination: Destination, weight: int) -> None:
        block.destinations.insert(at, destination)
        block.weights.insert(at, weight)
        self._block_of[destination] = block
        self._count(block, weight)

    def _count(self, block: _Block, change: int) -> None:
        block.total += change
        block.ends = None
        self._totals[self._blocks.index(block)] = block.total
        self.total += change
        self._ends = None

    def _split(self, number: int) -> None:
        block = self._blocks[number]
        half = len(block.destinations) // 2
        other = _Block()
        other.destinations = block.destinations[half:]
        other.weights = block.weights[half:]
        del block.destinations[half:]
        del block.weights[half:]
        other.total = sum(other.weights)
        block.total -= other.total
        block.ends = None
        for destination in other.destinations:
            self._block_of[destination] = other
        self._blocks.insert(number + 1, other)
        self._totals[number : number + 1] = [block.total, other.total]
        self._ends = None


def sort_key(destination: Destination) -> tuple[bool, str]:
    """Return the key by which destinations are sorted: exchanges before queues, then by name."""
    return destination.is_queue, destination.name
