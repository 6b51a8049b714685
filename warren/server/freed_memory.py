"""Return freed memory that the C library keeps to the system.

Freed memory stays resident as long as one small block lies after it on the heap: 600 MB of unfinished messages that
were freed stayed for ever. The broker does not ask how much is free, since the C library counts it block by block.

1. It is returned when the process has used little of the processor for `QUIET_LOOKS` looks and takes `KEPT_BYTES` more
   than its minimum. Under load most of it will be used again.
2. Not all of it is used again, however. Among blocks of every size some small ones stay for long, and large ones do not
   fit between them. So the heap keeps growing although its used part does not. Therefore memory is also returned under
   load: when the process takes `GROWN_BYTES` more than at the previous return, once in `BUSY_EVERY_S`, and not above
   `BUSY_MOST_BYTES` (4).
3. While memory is short it is returned whenever queues have released `PIECE_BYTES`, otherwise once in `SHORT_EVERY_S`.
4. A thread does that. Meanwhile the C library is locked, and every thread that needs a block of more than 512 bytes
   waits: 30 ms for 500 MiB, 0.3 s if those are in half a million pieces. Hence at most a thousandth of the time, a
   tenth while memory is short, and only a limited amount at a time.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Final

import trio

from warren.server.beats import next_beat
from warren.server.process_memory import resident_bytes
from warren.server.threads import MEMORY, in_thread

LOOK_EVERY_S: Final = 2.0
QUIET_LOOKS: Final = 5
QUIET_SHARE: Final = 0.2
KEPT_BYTES: Final = 64 << 20
GROWN_BYTES: Final = 32 << 20
BUSY_EVERY_S: Final = 60.0
BUSY_MOST_BYTES: Final = 256 << 20
PAUSE_PER_S: Final = 1000.0
SHORT_LOOK_EVERY_S: Final = 0.02
SHORT_EVERY_S: Final = 1.0
SHORT_PAUSE_PER_S: Final = 10.0
PIECE_BYTES: Final = 32 << 20

Trim = Callable[[int], int]


def maybe_trim() -> Trim | None:
    """Return the function that returns free memory to the system, None if the C library does not have one."""
    found: Trim | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found


class FreedMemory:
    """Decides when to return memory."""

    def __init__(self, resident: int, processor_s: float, now_s: float) -> None:
        self._least_bytes = resident
        self._left_bytes = resident  # when memory was last returned, or less since
        self._processor_s = processor_s
        self._looked_s = now_s
        self._quiet_looks = 0
        self._not_before_s = now_s
        self._short_not_before_s = now_s
        self._given_back_s = now_s
        self._most_bytes = 0  # of messages since memory was last returned, while it is short

    def look(self, resident: int, processor_s: float, now_s: float) -> bool:
        """Note the memory of the process, and its use of the processor; tell whether to return memory."""
        quiet = processor_s - self._processor_s <= QUIET_SHARE * (now_s - self._looked_s)
        self._processor_s = processor_s
        self._looked_s = now_s
        self._quiet_looks = self._quiet_looks + 1 if quiet else 0
        self._least_bytes = min(self._least_bytes, resident)
        self._left_bytes = min(self._left_bytes, resident)
        if now_s < self._not_before_s:
            return False
        if self._quiet_looks >= QUIET_LOOKS:
            return resident > self._least_bytes + KEPT_BYTES
        has_grown = self._left_bytes + GROWN_BYTES < resident <= BUSY_MOST_BYTES
        return has_grown and now_s >= self._given_back_s + BUSY_EVERY_S

    def look_while_short(self, message_bytes: int, now_s: float) -> bool:
        """Note the memory of the messages in queues; tell whether to return memory."""
        self._most_bytes = max(self._most_bytes, message_bytes)
        is_much = self._most_bytes - message_bytes >= PIECE_BYTES or now_s - self._given_back_s >= SHORT_EVERY_S
        return is_much and now_s >= self._short_not_before_s

    def given_back(self, took_s: float, resident: int, now_s: float) -> None:
        """Note that memory was returned, and how much the process has now."""
        self._given_back_s = now_s
        self._left_bytes = resident
        self._not_before_s = now_s + PAUSE_PER_S * took_s
        self._short_not_before_s = now_s + SHORT_PAUSE_PER_S * took_s
        self._most_bytes = 0


async def return_freed_memory(is_short: Callable[[], bool], message_bytes: Callable[[], int]) -> None:
    """Return free memory, for ever. `is_short`: whether memory is short; `message_bytes`: what queues have of it."""
    trim = maybe_trim()
    if trim is None:
        await trio.sleep_forever()
        return
    freed = FreedMemory(resident_bytes(), time.process_time(), time.monotonic())
    looked_s = time.monotonic()
    while True:
        short = is_short()
        await (trio.sleep(SHORT_LOOK_EVERY_S) if short else next_beat())
        began_s = time.monotonic()
        if short:
            due = freed.look_while_short(message_bytes(), began_s)
        elif began_s - looked_s >= LOOK_EVERY_S:
            looked_s = began_s
            due = freed.look(resident_bytes(), time.process_time(), began_s)
        else:
            continue
        if due:
            await in_thread(MEMORY, trim, 0)
            freed.given_back(time.monotonic() - began_s, resident_bytes(), time.monotonic())
