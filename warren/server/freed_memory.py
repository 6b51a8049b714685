"""Memory that the C library keeps though nobody uses it any more: when it is given back to the system.

What is freed stays resident as long as one small block stands behind it on the heap: 600 MB of unfinished messages that
were freed stayed for ever. How much is free is not asked for, since the C library counts it one by one.

1. It is given back when the process has used little of the processor for `QUIET_LOOKS` looks and takes `KEPT_BYTES`
   more than it did at its least. Under load it will be used again; where memory is short `Application.watch_memory`
   gives it back at once.
2. That is done in a thread. Meanwhile the C library is locked, and whoever wants a block of more than 512 bytes waits:
   30 ms for 500 MiB, 0.3 s when those are in half a million pieces. Hence at most a thousandth of the time.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Final

import trio

from warren.server.process_memory import resident_bytes
from warren.server.threads import MEMORY, in_thread

LOOK_EVERY_S: Final = 2.0
QUIET_LOOKS: Final = 5
QUIET_SHARE: Final = 0.2
KEPT_BYTES: Final = 64 << 20
PAUSE_PER_S: Final = 1000.0

Trim = Callable[[int], int]


def maybe_trim() -> Trim | None:
    """Return what gives free memory back to the system, None where the C library has no such thing."""
    found: Trim | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found


class FreedMemory:
    """Tells when it is time."""

    def __init__(self, resident: int, processor_s: float, now_s: float) -> None:
        self._least_bytes = resident
        self._processor_s = processor_s
        self._looked_s = now_s
        self._quiet_looks = 0
        self._not_before_s = now_s

    def look(self, resident: int, processor_s: float, now_s: float) -> bool:
        """Note what the process takes now, and how much of the processor it has used; tell whether to give back."""
        quiet = processor_s - self._processor_s <= QUIET_SHARE * (now_s - self._looked_s)
        self._processor_s = processor_s
        self._looked_s = now_s
        self._quiet_looks = self._quiet_looks + 1 if quiet else 0
        self._least_bytes = min(self._least_bytes, resident)
        is_much = resident > self._least_bytes + KEPT_BYTES
        return is_much and self._quiet_looks >= QUIET_LOOKS and now_s >= self._not_before_s

    def given_back(self, took_s: float, now_s: float) -> None:
        """Note that it was done."""
        self._not_before_s = now_s + PAUSE_PER_S * took_s


async def return_freed_memory() -> None:
    """Give back what is free, when nobody is disturbed by it. For ever."""
    trim = maybe_trim()
    freed = FreedMemory(resident_bytes(), time.process_time(), time.monotonic())
    while True:
        await trio.sleep(LOOK_EVERY_S)
        began_s = time.monotonic()
        if freed.look(resident_bytes(), time.process_time(), began_s) and trim is not None:
            await in_thread(MEMORY, trim, 0)
            freed.given_back(time.monotonic() - began_s, time.monotonic())
