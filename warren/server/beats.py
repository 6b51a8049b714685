"""Do the repeated work of an idle broker together, in beats.

Waking up takes an idle process longer than most of the work that follows. Tasks that each sleep for their own time wake
it one by one; tasks that sleep until a beat wake it once.
"""

from __future__ import annotations

from typing import Final

import trio

BEAT_S: Final = 0.5


def beat_after(period_s: float = BEAT_S) -> float:
    """Return when trio's clock reaches the next multiple of `period_s`, which is `BEAT_S` times a power of two."""
    return (trio.current_time() // period_s + 1) * period_s


async def next_beat(period_s: float = BEAT_S) -> None:
    """Sleep until the next beat."""
    await trio.sleep_until(beat_after(period_s))
