"""Limit the size of a batch so that no confirm waits long for its commit: measured, not configured.

In the worst case a confirm waits for three commits: the one under way, the next one, because that batch was full, and
the one that holds the confirmed message.

1. A batch may take `TARGET_S`, or `SYNCS` times as long as an almost empty one. On a disk whose syncs are slow, small
   batches would leave the disk little time for anything else.
2. A batch may always have `BATCH_BYTES_MIN`, however slow the disk is, and at most `BATCH_BYTES_MAX`, however fast.
3. Each commit counts as much as all earlier ones together. So the measure soon follows a disk that is shared with other
   programs: it counts as slow at once, and as fast again soon.
"""

from __future__ import annotations

from typing import Final

from warren.msgstore.log.message_log import BATCH_BYTES

TARGET_S: Final = 0.010
SYNCS: Final = 4
BATCH_BYTES_MIN: Final = 1 << 20
BATCH_BYTES_MAX: Final = 32 << 20

# A commit of fewer bytes shows the time of a sync, one of more the time of the bytes; one in between shows neither.
_SMALL_BYTES: Final = 16 << 10
_LARGE_BYTES: Final = 256 << 10
# The shortest of the small ones counts, as others may have had to wait; it is forgotten gradually.
_FORGET: Final = 1.01
_WEIGHT: Final = 0.5


class CommitPace:
    """The durations of commits, and `batch_bytes`, the largest size of the next ones."""

    def __init__(self) -> None:
        self.batch_bytes = int(BATCH_BYTES)
        self._sync_s = 0.0
        self._byte_s = 0.0

    def note(self, size: int, seconds: float, *, synced: bool) -> None:
        """Note that a batch of `size` bytes took `seconds` to write, including the sync if `synced`."""
        if size < _SMALL_BYTES:
            if not synced:
                return
            self._sync_s = min(self._sync_s * _FORGET, seconds) if self._sync_s else seconds
            return
        if size < _LARGE_BYTES:
            return
        byte_s = max(seconds - self._sync_s, seconds / 4) / size
        self._byte_s = byte_s if not self._byte_s else (1 - _WEIGHT) * self._byte_s + _WEIGHT * byte_s
        size_s = max(TARGET_S, SYNCS * self._sync_s)
        self.batch_bytes = int(min(max(size_s / self._byte_s, BATCH_BYTES_MIN), BATCH_BYTES_MAX))
