"""How much may be put into one batch, so that who waits for its commit does not wait long: measured, not configured.

Who waits for a confirm waits at worst for the commit that is under way, for the next one, because the batch was full,
and for the one that holds what is confirmed.

1. A batch may take `TARGET_S`, or `SYNCS` times what an almost empty one takes: where a sync is slow by itself, small
   batches would make the disk do little else.
2. It may have `BATCH_BYTES_MIN` however slow the disk is, and no more than `BATCH_BYTES_MAX` however fast.
3. Each commit counts as much as all before it: a disk that others use as well is slow at once, and fast again soon.
"""

from __future__ import annotations

from typing import Final

from warren.msgstore.log.message_log import BATCH_BYTES

TARGET_S: Final = 0.010
SYNCS: Final = 4
BATCH_BYTES_MIN: Final = 1 << 20
BATCH_BYTES_MAX: Final = 32 << 20

# A commit of fewer bytes tells how long a sync takes, one of more how long the bytes take; in between neither.
_SMALL_BYTES: Final = 16 << 10
_LARGE_BYTES: Final = 256 << 10
# The shortest of the small ones counts, as others may have had to wait; it is forgotten by and by.
_FORGET: Final = 1.01
_WEIGHT: Final = 0.5


class CommitPace:
    """What commits have taken, and `batch_bytes`, how large the next ones may be."""

    def __init__(self) -> None:
        self.batch_bytes = int(BATCH_BYTES)
        self._sync_s = 0.0
        self._byte_s = 0.0

    def note(self, size: int, seconds: float, *, synced: bool) -> None:
        """A batch of `size` bytes was written in so many seconds, and `synced` in them."""
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
