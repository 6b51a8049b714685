"""A node's counts of the elections that it takes part in, for its metrics: since its process began.

    takeovers      how often a leader was recorded that differs from the previous one
    leaderless_s   how long it has not known a leader: neither itself, nor one that it is connected to

No I/O and no clock.
"""

from __future__ import annotations


class ElectionCounts:
    """Counts. `now_s`: when the process began."""

    def __init__(self, now_s: float) -> None:
        self.takeovers = 0
        self.leaderless_s = 0.0
        self._at_s = now_s
        self._was_led = False
        self._epoch: int | None = None

    def look(self, now_s: float, epoch: int | None, *, is_led: bool) -> None:
        """Note the current state: the recorded epoch, None when unknown, and whether a leader is known."""
        if not self._was_led:
            self.leaderless_s += now_s - self._at_s
        self._at_s, self._was_led = now_s, is_led
        if epoch is not None:
            if self._epoch is not None and epoch > self._epoch:
                self.takeovers += 1
            self._epoch = epoch
