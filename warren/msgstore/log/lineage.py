"""The lineage of numbers that ascend: which life has written them, and from which number on.

    life     (not known)     91c0…          3e77…
    first    0               150            230                 end
             |--- a life ends where the next begins; the last one where the numbers end ---|

1. A life is one process that writes the store, by its random id (``epoch_table.py``). It continues a given state and
   writes one number after the other. So two histories are the same below a number that one life has reached in both.
2. A position is a number with the life that has written the last one below it (`life_at`). It is on the path of a
   lineage that has this life, and up to that number at least (`diverged_at`).
3. A lineage leaves out lives that have written nothing. A life is entered before, or with, its first number.
4. Only the last `LIVES_MAX` lives are in it. `NO_LIFE` stands for all before them, and for those of earlier versions.

    as bytes: of each life its id (16) and its first number (8)
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from warren.msgstore.log.epoch_table import NO_LIFE

LIVES_MAX: Final = 64
ON_PATH: Final = -1
NOT_HERE: Final = -2
_ID_BYTES: Final = 16
_ENTRY_BYTES: Final = 24


class Lineage:
    """Lives with their first numbers, ascending. `content`: a return value of `encode`."""

    def __init__(self, content: bytes = b"") -> None:
        self.firsts: list[int] = []
        self.life_ids: list[bytes] = []
        for at in range(0, len(content), _ENTRY_BYTES):
            self.life_ids.append(content[at : at + _ID_BYTES])
            self.firsts.append(int.from_bytes(content[at + _ID_BYTES : at + _ENTRY_BYTES], "big"))

    def begin(self, life_id: bytes, first: int) -> None:
        """Enter a life that writes from `first` on; entries from there on were never written, or are lost."""
        keep = bisect_left(self.firsts, first)
        del self.firsts[keep:], self.life_ids[keep:]
        self.firsts.append(first)
        self.life_ids.append(life_id)
        if len(self.firsts) > LIVES_MAX:
            del self.firsts[:-LIVES_MAX], self.life_ids[:-LIVES_MAX]

    def life_at(self, number: int) -> bytes:
        """Return the life that has written the last number below `number`."""
        at = bisect_left(self.firsts, number)
        return self.life_ids[at - 1] if at else NO_LIFE

    def diverged_at(self, life_id: bytes, number: int, end: int) -> int:
        """Return where this lineage, which ends at `end`, has left the path of a position.

        `ON_PATH`: nowhere, everything below `number` is the same. `NOT_HERE`: before `number`, at an unknown place.
        """
        ends = [*self.firsts, end]
        if life_id == NO_LIFE:
            behind = ends[0]
        elif life_id in self.life_ids:
            behind = ends[self.life_ids.index(life_id) + 1]
        else:
            return NOT_HERE if number > 0 else ON_PATH
        if behind > end:
            behind = end  # a crash has also lost writes of this life, and the next one has not written yet
        return ON_PATH if number <= behind else behind

    def encode(self) -> bytes:
        """Return it as bytes."""
        entries = zip(self.life_ids, self.firsts, strict=True)
        return b"".join(life_id + first.to_bytes(8, "big") for life_id, first in entries)
