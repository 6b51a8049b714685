"""Whether a batch that could be closed takes more first: a commit costs much, whatever its size.

While a commit is under way the next batch gathers. Afterwards that batch could be closed at once. Under load this makes
many small commits. Each takes some 100 µs of the processor, and writes messages that consumers acknowledge a moment
later. So a batch stays open for further turns:

1. Only if something waits for it, and it has `ROWS_MIN` rows. A message by itself never waits.
2. Only while each turn adds rows. A publisher that waits for its confirms does not wait until a time has passed.
3. For half of the time that the last commit took at most, and for `most_s` at most.
4. Up to `ROWS_MAX` rows or `BYTES_MAX` bytes. A commit costs little for each of so many.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from warren.msgstore.log.batch import Batch

ROWS_MIN: Final = 16
ROWS_MAX: Final = 1024
BYTES_MAX: Final = 1 << 20
# The part of the time of a commit for which the next batch takes more.
SHARE: Final = 0.5


class Gathering:
    """Decides for the open batch of one log, at the end of each turn. `most_s`: set by the shell; 0: never wait."""

    def __init__(self) -> None:
        self.most_s: float = 0.0
        self._closed_s: float = 0.0  # when the last batch was closed
        self._until_s: float = 0.0
        self._rows: i64 = 0  # of the open batch, at the end of the previous turn

    def committed(self, now_s: float) -> None:
        """Note that a commit has ended."""
        took_s: float = now_s - self._closed_s
        self._until_s = now_s + min(SHARE * took_s, self.most_s)
        self._rows = 0

    def takes_more(self, batch: Batch, now_s: float) -> bool:
        """Tell whether `batch` stays open for another turn. No commit is under way."""
        if now_s < self._until_s and batch.waiters:
            rows: i64 = len(batch.messages)
            has_grown: bool = rows > self._rows
            self._rows = rows
            if has_grown and ROWS_MIN <= rows < ROWS_MAX and batch.row_bytes < BYTES_MAX:
                return True
        self._closed_s = now_s
        return False
