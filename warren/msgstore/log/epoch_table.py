"""The epochs of a log, and where each begins: with them, two copies find out up to where they are the same.

    epoch         3                  5                  6
    life id       91c0…              (not known)        3e77…
    first LSN     64                 4194368            8388672
                  |----- ends where the next begins ----|------------ ends where the log ends

1. An epoch is the life of one process that writes the log. It begins a segment. One in which no frame was written is
   not in the table. Epochs and LSNs ascend. The processes that write one directory never have the same epoch; a copy of
   the directory that is started elsewhere may. Each life has a random id as well, and no other life has that.
2. Two copies that both have an epoch, from the same LSN on, have the same bytes in it as far as it goes in both: one
   process has written them, in one order. So they are the same up to the end of the largest epoch that both have, in
   the copy where that is earlier. The rest of a copy was never committed, and is cut off before the copy follows the
   other one.
3. Useless epochs are forgotten: those that ended before the oldest segment begins, since the log can no longer be
   followed from there; and all but the last `EPOCHS_MAX`. An older copy is replaced as a whole. The last epoch stays.
4. The id of a life is not known when an earlier version of Warren has written it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

EPOCHS_MAX: Final = 1000
NO_LIFE: Final = bytes(16)  # the id is not known


class EpochTable:
    """Epochs with the LSN of their first frame, ascending, and the ids of their lives."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []  # epoch, first LSN
        self._life_ids: dict[int, bytes] = {}  # those that are known, of epochs in the table

    def begin(self, epoch: int, first_lsn: int) -> None:
        """Enter an epoch whose first frame is at `first_lsn`."""
        entries = self.entries
        if entries:
            last_epoch, last_lsn = entries[-1]
            assert last_epoch < epoch and last_lsn < first_lsn, "an epoch that is not the latest begins"
        entries.append((epoch, first_lsn))
        if len(entries) > EPOCHS_MAX:
            self._forget_first(len(entries) - EPOCHS_MAX)

    def name(self, epoch: int, life_id: bytes) -> None:
        """Note the id of the life that an epoch is, 16 bytes; of one that is not in the table nothing is noted."""
        at = bisect_left(self.entries, (epoch, 0))
        if life_id != NO_LIFE and at < len(self.entries) and self.entries[at][0] == epoch:
            self._life_ids[epoch] = life_id

    def life_id(self, epoch: int) -> bytes:
        """Return the id of the life that an epoch is, `NO_LIFE` when it is not known."""
        return self._life_ids.get(epoch, NO_LIFE)

    def life_at(self, lsn: int) -> bytes:
        """Return the id of the life that has written the last byte below `lsn`; `NO_LIFE` when it is not known."""
        at = bisect_left(self.entries, lsn, key=_first_lsn)
        return self.life_id(self.entries[at - 1][0]) if at else NO_LIFE

    def last(self) -> int:
        """Return the last epoch; 0 for an empty table."""
        return self.entries[-1][0] if self.entries else 0

    def forget_before(self, lsn: int) -> None:
        """Forget the epochs that have ended before `lsn`, but never the last. One that ends there stays."""
        entries = self.entries
        ended = 0
        while ended + 1 < len(entries) and entries[ended + 1][1] < lsn:
            ended += 1
        self._forget_first(ended)

    def _forget_first(self, count: int) -> None:
        for epoch, _ in self.entries[:count]:
            self._life_ids.pop(epoch, None)
        del self.entries[:count]

    def cut(self, lsn: int) -> None:
        """Remove the epochs that begin at `lsn` or later: the log is cut there."""
        while self.entries and self.entries[-1][1] >= lsn:
            epoch, _ = self.entries.pop()
            self._life_ids.pop(epoch, None)


def _first_lsn(entry: tuple[int, int]) -> int:
    return entry[1]
