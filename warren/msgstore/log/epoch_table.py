"""The epochs of a log, and where each begins: what two copies of it need to find out up to where they are the same.

    epoch         3                  5                  6
    first LSN     64                 4194368            8388672
                  |----- ends where the next begins ----|------------ ends where the log ends

1. An epoch is the life of one process that writes the log, and no two processes ever have the same. It begins a
   segment. One in which no frame was written is not in the table. Epochs and LSNs ascend.
2. Two copies that both have an epoch, from the same LSN on, have the same bytes in it as far as it goes in both: one
   process has written them, in one order. So they are the same up to the end of the largest epoch that both have, in
   the copy where that is earlier (`common_end`). What a copy has behind it was never committed, and goes before it
   follows the other one.
3. Forgotten is what is of no use for that: an epoch that has ended before the oldest segment begins, for then the log
   cannot be followed from there; and all but the last `EPOCHS_MAX`. A copy that is older is made anew as a whole. The
   last epoch stays.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

EPOCHS_MAX: Final = 1000


class EpochTable:
    """Epochs with the LSN of their first frame, ascending."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []  # epoch, first LSN

    def begin(self, epoch: int, first_lsn: int) -> None:
        """Enter an epoch whose first frame is at `first_lsn`."""
        entries = self.entries
        if entries:
            last_epoch, last_lsn = entries[-1]
            assert last_epoch < epoch and last_lsn < first_lsn, "an epoch that is not the latest begins"
        entries.append((epoch, first_lsn))
        if len(entries) > EPOCHS_MAX:
            del entries[: len(entries) - EPOCHS_MAX]

    def last(self) -> int:
        """Return the last epoch, 0 when there is none."""
        return self.entries[-1][0] if self.entries else 0

    def end(self, epoch: int, log_end: int) -> int:
        """Return where an epoch of the table ends, in a log that ends at `log_end`."""
        at = bisect_left(self.entries, (epoch, 0))
        assert at < len(self.entries) and self.entries[at][0] == epoch, "an epoch that is not in the table"
        return self.entries[at + 1][1] if at + 1 < len(self.entries) else log_end

    def common_end(self, log_end: int, other: EpochTable, other_end: int) -> int:
        """Return the LSN up to which this log and another one of the same store are the same, by (2).

        -1: they have no epoch in common, so nobody can tell. Each log ends where its last whole frame does.
        """
        theirs = set(other.entries)
        for entry in reversed(self.entries):
            if entry in theirs:
                return min(self.end(entry[0], log_end), other.end(entry[0], other_end))
        return -1

    def forget_before(self, lsn: int) -> None:
        """Forget the epochs that have ended before `lsn`, but never the last. One that ends there stays."""
        entries = self.entries
        ended = 0
        while ended + 1 < len(entries) and entries[ended + 1][1] < lsn:
            ended += 1
        del entries[:ended]

    def cut(self, lsn: int) -> None:
        """Take out the epochs that begin at `lsn` or behind it: the log is cut there."""
        while self.entries and self.entries[-1][1] >= lsn:
            self.entries.pop()
