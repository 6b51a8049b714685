"""The incomplete messages of all links: bounded in bytes and in time.

1. If a message does not grow for `STALL_S`, its connection ends. A message that others wait for (2) has to grow by
   `PROGRESS_BYTES` in that time.
2. While all links together hold more than `HELD_MAX_BYTES`, only some connections are read: those with less than an
   equal share of it, and one of the others, the one that holds most. That one completes its message, or (1) ends it. So
   one large message after the other gets its turn. All links together hold at most twice `HELD_MAX_BYTES`, one message,
   and one read of each connection.
"""

from __future__ import annotations

from typing import Final, Protocol

import trio

HELD_MAX_BYTES: Final = 128 << 20
STALL_S: Final = 30.0
PROGRESS_BYTES: Final = 4 << 20


class Holder(Protocol):
    """A connection. ``partial_bytes``: the bytes of its incomplete messages."""

    partial_bytes: int


class Inbound:
    """The connections with incomplete messages."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._holders: dict[Holder, None] = {}
        self._first: Holder | None = None  # the one large holder that is read while too much is held
        self._less = trio.Event()

    def progress_bytes(self, holder: Holder) -> int:
        """Return how many bytes the message of `holder` has to grow by within `STALL_S`."""
        return PROGRESS_BYTES if self.held_bytes > HELD_MAX_BYTES and holder is self._first else 1

    def grown(self, holder: Holder, count: int) -> None:
        """Count `count` more bytes for `holder`."""
        holder.partial_bytes += count
        self.held_bytes += count
        self._holders[holder] = None

    def completed(self, holder: Holder, count: int) -> None:
        """Release `count` bytes: the message is complete, or dropped."""
        holder.partial_bytes -= count
        self.held_bytes -= count
        if not holder.partial_bytes:
            self._holders.pop(holder, None)
            if self._first is holder:
                self._first = None
        self._less.set()
        self._less = trio.Event()

    async def turn(self, holder: Holder) -> bool:
        """Wait until `holder` may read; return whether it had to wait."""
        waited = False
        while self.held_bytes > HELD_MAX_BYTES and self._is_large(holder) and self._next() is not holder:
            waited = True
            await self._less.wait()
        return waited

    def _is_large(self, holder: Holder) -> bool:
        return holder.partial_bytes * len(self._holders) >= HELD_MAX_BYTES

    def _next(self) -> Holder | None:
        if self._first is None and self._holders:
            self._first = max(self._holders, key=_partial_bytes)
        return self._first


def _partial_bytes(holder: Holder) -> int:
    return holder.partial_bytes
