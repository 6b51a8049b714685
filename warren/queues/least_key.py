"""Finds the least key of a dictionary whose keys come and go.

1. No call but `get` looks at more than a few keys. `get` also removes the least of the keys that are gone.
2. The heaps have every key of the dictionary, some twice, and others that are gone. When these are the most, the heap
   is swept: the keys that are left go to a new heap, a few with each call.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Final

SWEEP_MIN: Final = 256
SWEPT_AT_ONCE: Final = 4


class LeastKey:
    """Finds the least of `keys`. The caller reports changes with `came` and `went`."""

    def __init__(self, keys: Mapping[int, object]) -> None:
        self._keys = keys
        self._heap: list[int] = []
        self._swept: list[int] = []  # the previous heap
        self._last_swept: int = -1  # the last key that was moved out of it

    def __len__(self) -> int:
        return len(self._heap) + len(self._swept)

    def came(self, key: int) -> None:
        """Note that `key` is in the dictionary."""
        heappush(self._heap, key)
        self.went()

    def went(self) -> None:
        """Remove a few keys that are gone. One that is not reported is removed later."""
        keys = self._keys
        heap = self._heap
        swept = self._swept
        if swept:
            for _ in range(min(SWEPT_AT_ONCE, len(swept))):
                key = swept[0]
                if key in keys and key != self._last_swept:
                    try:
                        heappush(heap, key)
                    except MemoryError:
                        return  # it is still there
                    self._last_swept = key
                heappop(swept)
        elif heap and heap[0] not in keys:
            heappop(heap)
        elif len(heap) > 2 * len(keys) + SWEEP_MIN:
            self._swept = heap
            self._heap = []
            self._last_swept = heap[0] - 1

    def get(self) -> int:
        """Return the least key. There must be one."""
        keys = self._keys
        heap = self._heap
        swept = self._swept
        while swept and swept[0] not in keys:
            heappop(swept)
        while heap and heap[0] not in keys:
            heappop(heap)
        if swept and (not heap or swept[0] < heap[0]):
            return swept[0]
        return heap[0]
